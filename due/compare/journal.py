"""Finished fits on disk: a killed run goes on where it was."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from due.paper.artefact import versions, write_text
from due.storage import StorageError

Json = dict[str, Any]


class Journal:
    """Finished fits, one JSON object a line; lines of other settings are kept.

    Other versions of the sources or of a package do not make a line another's: it says its own.
    """

    def __init__(self, path: Path, settings: Mapping[str, Json]) -> None:
        self.path, self.settings = path, settings
        self.lines = _read(path)

    def find(self, method: str, seed: int) -> Json | None:
        """The numbers of a fit with the settings of now."""
        line = self._line(method, seed)
        return None if line is None else dict(line["numbers"])

    def versions(self, method: str, seeds: Iterable[int]) -> list[Json]:
        """Those that these fits were made with, each once."""
        lines = [self._line(method, seed) for seed in seeds]
        found = [line["versions"] for line in lines if line is not None]
        return [v for i, v in enumerate(found) if v not in found[:i]]

    def _line(self, method: str, seed: int) -> Json | None:
        for line in self.lines:
            ours = line["method"] == method and line["seed"] == seed
            if ours and line["settings"] == self.settings[method]:
                return line
        return None

    def add(self, method: str, seed: int, numbers: Json) -> None:
        """Write the line, all of it or nothing."""
        line = {"method": method, "seed": seed, "settings": self.settings[method]}
        self.lines.append({**line, "versions": versions(), "numbers": numbers})
        lines = (json.dumps(line, allow_nan=False) + "\n" for line in self.lines)
        write_text(self.path, "".join(lines))


def _read(path: Path) -> list[Json]:
    if not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not all(
            {"method", "seed", "settings", "versions", "numbers"} <= line.keys() for line in lines
        ):
            raise ValueError("not a fit")
    except (ValueError, AttributeError) as error:
        raise StorageError(
            f"{path} is damaged; delete it to compute its fits anew, or give another --out"
        ) from error
    return lines
