"""Write the files of a report, each completely or not at all."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from due.storage import StorageError, atomic_write

Part = dict[str, Any] | str | Figure


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


def write_files(out: Path, name: str, **parts: Part) -> list[Path]:
    """Write each part to `out`/`name`.ending: numbers as JSON, text as it is, figures as PNG."""
    files = []
    for ending, part in parts.items():
        file = out / f"{name}.{ending}"
        try:
            atomic_write(file, partial(_write, part))
        except OSError as error:
            raise StorageError(
                f"{file} cannot be written ({error.strerror}); free some space, check the "
                "permissions, or give another --out"
            ) from error
        files.append(file)
    return files


def _write(part: Part, file: Path) -> None:
    if isinstance(part, Figure):
        part.savefig(file, format="png", dpi=160)
        return
    text = part if isinstance(part, str) else json.dumps(part, indent=2, allow_nan=False)
    file.write_text(text + "\n", encoding="utf-8")
