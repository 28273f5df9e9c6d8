"""Finished work on disk, one JSON object per line: a killed run continues where it stopped.

A line has a key (such as method and seed), the settings that its numbers were computed with, the
versions of the packages, and either what was found or the error. Key and settings find a line;
versions do not. New lines go to NAME.jsonl; NAME.jsonl.xz beside it holds earlier ones:

    python -m due.experiments.journal pack results/NAME.jsonl
"""

import argparse
import json
import lzma
import os
import platform
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import due
from due.storage import StorageError, atomic_write

if sys.platform != "win32":
    import fcntl

Json = dict[str, Any]


class Journal:
    """Lines with the fields `key` and "settings", and either all of `holds` or "error"."""

    def __init__(self, path: Path, key: Sequence[str], holds: Sequence[str]) -> None:
        self.path = path
        self.lines = read_lines(path, (*key, "settings"), holds)

    def find(self, settings: Json, **key: Any) -> Json | None:
        """The latest finished line with this key and these settings."""
        wanted = {**key, "settings": settings}
        finished = (line for line in reversed(self.lines) if "error" not in line)
        fits = (line for line in finished if all(line[name] == wanted[name] for name in wanted))
        return next(fits, None)

    def add(self, settings: Json, found: Json, **key: Any) -> Json:
        """Append a line so that it survives a crash of this process, and return it."""
        line = {**key, "settings": settings, "versions": versions(), **found}
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        try:
            with self.path.open("ab+") as file, _locked(file):
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)  # a killed run may leave half a line
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be written ({error.strerror}); free some space, check the "
                "permissions, or give another --out; all finished work is saved"
            ) from error
        self.lines.append(line)
        return line


def read_lines(path: Path, fields: Collection[str] = (), holds: Collection[str] = ()) -> list[Json]:
    """All lines, packed ones first; each must have `fields`, and either `holds` or an error."""
    plain = _whole_lines(path)  # before the packed ones: `pack` may run meanwhile
    lines = []
    for file, part in ((packed(path), _packed_lines(path)), (path, plain)):
        for number, data in enumerate(part, start=1):
            try:
                line = json.loads(data)
                if not line.keys() >= set(fields if "error" in line else (*fields, *holds)):
                    raise ValueError("fields are missing")
            except (ValueError, AttributeError) as error:
                raise StorageError(
                    f"{file} is damaged: line {number} is not a result; delete that line to "
                    "compute it again, or give another --out"
                ) from error
            lines.append(line)
    return lines


def pack(path: Path) -> int:
    """Move the lines of `path` into the packed file beside it; how many that has afterwards."""
    read_lines(path)  # refuses damaged lines
    try:
        with path.open("rb+") as file, _locked(file):
            lines = list(dict.fromkeys([*_packed_lines(path), *_whole_lines(path)]))
            data = lzma.compress(b"".join(line + b"\n" for line in lines), preset=9)
            atomic_write(packed(path), lambda copy: copy.write_bytes(data))
            file.truncate(0)
    except OSError as error:
        raise StorageError(f"{path} cannot be packed ({error.strerror})") from error
    return len(lines)


def packed(path: Path) -> Path:
    """Where the packed lines of a journal are."""
    return path.with_name(f"{path.name}.xz")


def versions_of(lines: Iterable[Json]) -> list[Json]:
    """The versions that lines were computed with, each once."""
    found = [line["versions"] for line in lines]
    return [v for i, v in enumerate(found) if v not in found[:i]]


@cache
def versions() -> dict[str, str]:
    """What numbers may depend on; the CRC-32 is of the files of this package."""
    crc = 0
    for file in sorted(Path(due.__file__).parent.rglob("*.py")):
        crc = zlib.crc32(file.read_bytes(), crc)
    return {
        "due": f"{due.__version__}, sources {crc:08x}",
        "torch": metadata.version("torch"),
        "numpy": metadata.version("numpy"),
        "python": platform.python_version(),
    }


def _whole_lines(path: Path) -> list[bytes]:
    data = path.read_bytes() if path.exists() else b""
    return data[: data.rfind(b"\n") + 1].splitlines()


def _packed_lines(path: Path) -> list[bytes]:
    file = packed(path)
    try:
        return lzma.decompress(file.read_bytes()).splitlines() if file.exists() else []
    except lzma.LZMAError as error:
        raise StorageError(
            f"{file} is damaged ({error}); restore it, for example by git"
        ) from error


@contextmanager
def _locked(file: BinaryIO) -> Iterator[None]:
    """Keep other processes from writing to the file; the lock ends with this process."""
    if sys.platform != "win32":
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
    yield


def main() -> None:
    """Read the command line and pack."""
    parser = argparse.ArgumentParser(prog="python -m due.experiments.journal")
    parser.add_argument("command", choices=["pack"])
    parser.add_argument("journals", nargs="+", type=Path, metavar="NAME.jsonl")
    for path in parser.parse_args().journals:
        print(f"{packed(path)}: {pack(path)} lines")


if __name__ == "__main__":
    main()
