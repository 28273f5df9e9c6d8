"""A figure or table of the paper, and the usual kind: settings × seed → numbers → figure."""

import json
import os
import platform
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from matplotlib.figure import Figure

import due
from due.storage import StorageError, atomic_write

Json = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """What was asked for; None where the artefact is to decide."""

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


class Reproducible(Protocol):
    """What the command `due reproduce` asks of a figure or table."""

    @property
    def title(self) -> str:
        """One line."""

    @property
    def presets(self) -> Mapping[str, Any]:
        """Settings by name."""

    @property
    def takes(self) -> Collection[str]:
        """Names of the options that mean something to it, beyond `out` and `preset`."""

    def reproduce(self, name: str, options: Options) -> Report:
        """Compute what is missing; write everything as `options.out`/name.*."""


class Result(NamedTuple):
    """What one seed gave, as plain JSON: the numbers to report, and arrays only to draw."""

    numbers: Json
    picture: Json


@dataclass(frozen=True)
class Artefact:
    """A mean over seeds. `presets` maps a name to settings, a frozen dataclass.

    `text`, of settings and mean, is printed and written as txt; None prints one number a line.
    """

    title: str
    presets: dict[str, Any]
    run: Callable[[Any, int], Result]
    draw: Callable[[Any, Sequence[Result]], Figure]
    seeds: int = 5  # the preset "smoke" takes one
    text: Callable[[Any, Json], str] | None = None
    takes: Collection[str] = ("seeds", "threads")

    def reproduce(self, name: str, options: Options) -> Report:
        """Run the seeds that are missing, and print the means."""
        torch.set_num_threads(options.threads or 1)
        outcome = reproduce(
            name,
            self,
            options.out,
            preset=options.preset,
            seeds=options.seeds,
            command=options.command,
            say=options.say,
        )
        if self.text is None:
            means = (f"{label:<56} {value:.4g}" for label, value in _leaves(outcome.mean))
            return Report("\n".join(means), (outcome.json, outcome.png))
        text = self.text(self.presets[options.preset], outcome.mean)
        file = options.out / f"{name}.txt"
        write_text(file, text + "\n")
        return Report(text, (outcome.json, outcome.png, file))


@dataclass(frozen=True)
class Outcome:
    """What was written, and the mean over seeds."""

    json: Path
    png: Path
    mean: Json


def reproduce(
    name: str,
    artefact: Artefact,
    out: Path,
    *,
    preset: str = "default",
    seeds: int | None = None,
    command: str = "",
    say: Callable[[str], object] = lambda text: None,
) -> Outcome:
    """Run what is missing, seed by seed, then write `out`/name.json and `out`/name.png.

    A finished seed is a line of `out`/name.jsonl, and is not run again while the settings and the
    versions are those of the line.
    """
    settings = artefact.presets[preset]
    seeds = seeds or (1 if preset == "smoke" else artefact.seeds)
    identity = json.loads(json.dumps({"settings": asdict(settings), "versions": versions()}))
    make_directory(out)
    journal = _Journal(out / f"{name}.jsonl", identity)

    results = []
    for seed in range(seeds):
        result = journal.find(seed)
        if result is None:
            say(f"{name}: seed {seed} ({seed + 1} of {seeds})")
            began = time.monotonic()
            result = artefact.run(settings, seed)
            journal.add(seed, result, time.monotonic() - began)
        else:
            say(f"{name}: seed {seed} ({seed + 1} of {seeds}) was already there")
        results.append(result)

    numbers = [result.numbers for result in results]
    mean = average(numbers)
    report = {
        "artefact": name,
        "title": artefact.title,
        "preset": preset,
        **identity,
        "seeds": list(range(seeds)),
        "threads": torch.get_num_threads(),
        "command": command,
        "mean": mean,
        "each": [{"seed": seed, **value} for seed, value in enumerate(numbers)],
    }
    outcome = Outcome(out / f"{name}.json", out / f"{name}.png", mean)
    figure = artefact.draw(settings, results)
    text = json.dumps(report, indent=2) + "\n"
    write_text(outcome.json, text)
    write_figure(outcome.png, figure)
    return outcome


def versions() -> dict[str, str]:
    """What numbers may depend on."""
    return {
        "due": f"{metadata.version('due')}, sources {sources():08x}",
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def sources() -> int:
    """CRC-32 of the package's own files: other code may give other numbers."""
    crc = 0
    for file in sorted(Path(due.__file__).parent.rglob("*.py")):
        crc = zlib.crc32(file.read_bytes(), crc)
    return crc


def average(values: Sequence[Any]) -> Any:
    """Mean over seeds of nested dicts and lists of numbers; of yes and no, the share of yes.

    >>> average([{"a": 1.0, "b": True}, {"a": 2.0, "b": False}])
    {'a': 1.5, 'b': 0.5}
    """
    first = values[0]
    if isinstance(first, dict):
        return {key: average([value[key] for value in values]) for key in first}
    if isinstance(first, list):
        return [average(list(column)) for column in zip(*values, strict=True)]
    return float(np.mean(values))


def make_directory(out: Path) -> None:
    """Make `out`, or say why that is not possible, before hours of work."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise StorageError(f"--out {out} is a file; give a directory, new or old") from error
    except OSError as error:
        raise StorageError(
            f"--out {out} cannot be made ({error.strerror}); give another directory"
        ) from error
    if not os.access(out, os.W_OK):
        raise StorageError(f"--out {out} is not writable; give another directory")


def write_text(path: Path, text: str) -> None:
    """All of it or nothing."""
    _write(path, lambda file: file.write_text(text, encoding="utf-8"))


def write_figure(path: Path, figure: Figure) -> None:
    """All of it or nothing."""
    _write(path, lambda file: figure.savefig(file, format="png", dpi=160))


class _Journal:
    """Finished seeds, one JSON object a line; lines of other settings are kept."""

    def __init__(self, path: Path, identity: Json) -> None:
        self.path, self.identity = path, identity
        self.lines = _read_lines(path)

    def find(self, seed: int) -> Result | None:
        for line in self.lines:
            if line["seed"] == seed and {key: line[key] for key in self.identity} == self.identity:
                return Result(line["numbers"], line["picture"])
        return None

    def add(self, seed: int, result: Result, seconds: float) -> None:
        line = {**self.identity, "seed": seed, "seconds": round(seconds, 1), **result._asdict()}
        self.lines.append(line)
        text = "".join(json.dumps(line) + "\n" for line in self.lines)
        write_text(self.path, text)


def _leaves(value: Any, label: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in nested dicts, each with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{label}.{key}" if label else key)
    elif isinstance(value, float):
        yield label, value


def _read_lines(path: Path) -> list[Json]:
    if not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [{"settings": {}, "versions": {}, **line} for line in lines if line["seed"] >= 0]
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{path} is damaged; delete it to compute its seeds anew, or give another --out"
        ) from error


def _write(path: Path, write: Callable[[Path], object]) -> None:
    try:
        atomic_write(path, write)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror}); free some space, check the "
            "permissions, or give another --out"
        ) from error
