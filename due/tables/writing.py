"""Predictions to a file or the standard output, chunk by chunk, all of them or none.

A text that a spreadsheet would run as a formula gets an apostrophe in front, if it is ours: the
names and texts of new columns. Cells of the input are written as they came, unless `escape`.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from due.rows.checks import is_number
from due.storage import atomic_write
from due.tables.reading import OPENERS, is_parquet

Frame = Any
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def harmless(text: object) -> object:
    """A text that no spreadsheet runs; anything but a text stays as it is.

    >>> harmless("=1+1"), harmless("-5"), harmless("a = b")
    ("'=1+1", '-5', 'a = b')
    """
    risky = isinstance(text, str) and text.startswith(FORMULA) and not is_number(text)
    return f"'{text}" if risky else text


def escaped(frame: Frame) -> Frame:
    """A frame whose names and texts no spreadsheet runs."""
    safe = frame.rename(columns=harmless)
    for name in safe.columns:
        if safe[name].dtype.kind not in "biufM":
            safe[name] = safe[name].map(harmless)
    return safe


def write(path: str | Path, frames: Iterable[Frame], separator: str = ",") -> int:
    """Write the frames one below the other; "-" is the standard output. How many rows there were.

    A file is put in its place once it is whole.
    """
    if str(path) == "-":
        return _csv(sys.stdout, frames, separator)
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    count = 0

    def fill(copy: Path) -> None:
        nonlocal count
        if is_parquet(file):
            count = _parquet(copy, frames)
            return
        opener = OPENERS.get(file.suffix.lower(), open)
        with opener(copy, "wt", encoding="utf-8", newline="") as text:
            count = _csv(text, frames, separator)

    atomic_write(file, fill)
    return count


def _csv(text: Any, frames: Iterable[Frame], separator: str) -> int:
    count = 0
    for frame in frames:
        frame.to_csv(text, sep=separator, index=False, header=not count, lineterminator="\n")
        count += len(frame)
    return count


def _parquet(file: Path, frames: Iterable[Frame]) -> int:
    import pyarrow
    from pyarrow import parquet

    count, writer = 0, None
    for frame in frames:
        table = pyarrow.Table.from_pandas(
            frame, schema=None if writer is None else writer.schema, preserve_index=False
        )
        writer = writer or parquet.ParquetWriter(file, table.schema)
        writer.write_table(table)
        count += len(frame)
    if writer is not None:
        writer.close()
    return count
