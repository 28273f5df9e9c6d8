"""An artefact that prints its means as tables, instead of one number a line."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from due.paper.artefact import Artefact, Json, Options, Report, reproduce, write_text


@dataclass(frozen=True)
class Tabled:
    """`artefact` with `text`, a function of the settings and the mean over seeds."""

    artefact: Artefact
    text: Callable[[Any, Json], str]

    @property
    def title(self) -> str:
        """One line."""
        return self.artefact.title

    @property
    def presets(self) -> Mapping[str, Any]:
        """Settings by name."""
        return self.artefact.presets

    @property
    def takes(self) -> Collection[str]:
        """Options that mean something to it."""
        return self.artefact.takes

    def reproduce(self, name: str, options: Options) -> Report:
        """Run the seeds that are missing; write json, png and the tables as txt."""
        torch.set_num_threads(options.threads or 1)
        outcome = reproduce(
            name,
            self.artefact,
            options.out,
            preset=options.preset,
            seeds=options.seeds,
            command=options.command,
            say=options.say,
        )
        text = self.text(self.presets[options.preset], outcome.mean)
        file = options.out / f"{name}.txt"
        write_text(file, text + "\n")
        return Report(text, (outcome.json, outcome.png, file))
