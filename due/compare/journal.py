"""Finished fits on disk: a killed run goes on where it was."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from due.paper.artefact import write_text
from due.storage import StorageError

Json = dict[str, Any]


class Journal:
    """Finished fits, one JSON object a line; lines of other settings are kept."""

    def __init__(self, path: Path, settings: Mapping[str, Json]) -> None:
        self.path, self.settings = path, settings
        self.lines = _read(path)

    def find(self, method: str, seed: int) -> Json | None:
        """The numbers of a fit with the settings of now."""
        for line in self.lines:
            ours = line["method"] == method and line["seed"] == seed
            if ours and line["settings"] == self.settings[method]:
                return dict(line["numbers"])
        return None

    def add(self, method: str, seed: int, numbers: Json) -> None:
        """Write the line, all of it or nothing."""
        line = {"method": method, "seed": seed, "settings": self.settings[method]}
        self.lines.append({**line, "numbers": numbers})
        lines = (json.dumps(line, allow_nan=False) + "\n" for line in self.lines)
        write_text(self.path, "".join(lines))


def _read(path: Path) -> list[Json]:
    if not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not all({"method", "seed", "settings", "numbers"} <= line.keys() for line in lines):
            raise ValueError("not a fit")
    except (ValueError, AttributeError) as error:
        raise StorageError(
            f"{path} is damaged; delete it to compute its fits anew, or give another --out"
        ) from error
    return lines
