"""A figure or table of the paper, and the usual kind: settings × seed → numbers → figure."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure

from due.experiments.files import make_directory, write_files
from due.experiments.journal import Journal, Json, versions, versions_of


@dataclass(frozen=True)
class Options:
    """What the user asked for; None leaves the choice to the artefact."""

    out: Path
    preset: str = "default"
    seeds: int | None = None
    threads: int | None = None
    trials: int | None = None
    methods: str | None = None
    data: str | None = None
    jobs: int | None = None
    command: str = ""
    say: Callable[[str], object] = lambda text: None


class Report(NamedTuple):
    """What to print, and the files that were written."""

    text: str
    files: Sequence[Path]


class Result(NamedTuple):
    """What one seed gave, as plain JSON: the numbers to report, and arrays only to draw."""

    numbers: Json
    picture: Json


@dataclass(frozen=True)
class Artefact:
    """A mean over seeds. `presets` maps a name to settings, a frozen dataclass.

    Raise `version` where a change of the code changes the numbers: a finished seed is a line of
    name.jsonl, and is not run again while settings and version are those of the line. `text`, of
    settings and mean, is printed and written as txt; None prints one number per line.
    """

    title: str
    presets: Mapping[str, Any]
    run: Callable[[Any, int], Result]
    draw: Callable[[Any, Sequence[Result]], Figure]
    seeds: int = 5  # the preset "smoke" takes one
    text: Callable[[Any, Json], str] | None = None
    version: int = 1

    def reproduce(self, name: str, options: Options) -> Report:
        """Run the seeds that are missing; write and print the means."""
        torch.set_num_threads(options.threads or 1)
        settings = self.presets[options.preset]
        seeds = range(options.seeds or (1 if options.preset == "smoke" else self.seeds))
        make_directory(options.out)
        lines = self._lines(name, options, settings, seeds)
        results = [Result(line["numbers"], line["picture"]) for line in lines]
        mean = average([result.numbers for result in results])
        report = {
            **heading(name, self.title, options),
            "computed_with": versions_of(lines),
            "settings": asdict(settings),
            "seeds": list(seeds),
            "threads": torch.get_num_threads(),
            "mean": mean,
            "each": [{"seed": line["seed"], **line["numbers"]} for line in lines],
        }
        parts: dict[str, Any] = {"json": report, "png": self.draw(settings, results)}
        if self.text is None:
            text = "\n".join(f"{label:<56} {value:.4g}" for label, value in leaves(mean))
        else:
            text = parts["txt"] = self.text(settings, mean)
        return Report(text, write_files(options.out, name, **parts))

    def _lines(self, name: str, options: Options, settings: Any, seeds: range) -> list[Json]:
        """The journal's line of each seed, computed if it is missing."""
        journal = Journal(options.out / f"{name}.jsonl", ("seed",), Result._fields)
        identity = json.loads(json.dumps({"version": self.version, **asdict(settings)}))
        lines = []
        for seed in seeds:
            line = journal.find(identity, seed=seed)
            there = "" if line is None else " was already there"
            options.say(f"{name}: seed {seed} ({seed + 1} of {len(seeds)}){there}")
            if line is None:
                began = time.monotonic()
                found = self.run(settings, seed)._asdict()
                seconds = round(time.monotonic() - began, 1)
                line = journal.add(identity, {"seconds": seconds, **found}, seed=seed)
            lines.append(line)
        return lines


def heading(name: str, title: str, options: Options) -> Json:
    """How the JSON file of a report begins."""
    return {
        "artefact": name,
        "title": title,
        "preset": options.preset,
        "command": options.command,
        "versions": versions(),
    }


def average(values: Sequence[Any]) -> Any:
    """Mean over seeds of nested dicts and lists of numbers; of booleans, the share that is true.

    >>> average([{"a": 1.0, "b": True}, {"a": 2.0, "b": False}])
    {'a': 1.5, 'b': 0.5}
    """
    first = values[0]
    if isinstance(first, dict):
        return {key: average([value[key] for value in values]) for key in first}
    if isinstance(first, list):
        return [average(list(column)) for column in zip(*values, strict=True)]
    return float(np.mean(values))


def leaves(value: Any, label: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in nested dicts, each with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{label}.{key}" if label else key)
    elif isinstance(value, float):
        yield label, value
