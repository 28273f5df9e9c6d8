"""Tables from files: CSV, plain or compressed, and Parquet; whole or by chunks.

Cells of a CSV stay texts as they are in the file, so that a column means the same in every chunk
and comes out as it went in. Separator, encoding and decimal comma are found from the beginning.
"""

import bz2
import csv
import gzip
import io
import itertools
import lzma
import re
import sys
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pandas as pd

from due.rows.checks import is_number

Frame = Any
ROWS, BYTES = 10_000, 1 << 20  # per chunk, whichever is less
HEAD = 1 << 20  # bytes to look at
SEPARATORS = (",", ";", "\t", "|")
OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
DECIMAL_COMMA = re.compile(r"[+-]?\d+(\.\d{3})*,\d+")


class Form(NamedTuple):
    """How a text file is written."""

    separator: str
    encoding: str
    decimal: str
    names: list[str]


def read(path: str | Path, *, separator: str | None = None, encoding: str | None = None) -> Frame:
    """The whole table; "-" reads a CSV from the standard input."""
    parts = list(chunks(path, separator=separator, encoding=encoding))
    table = parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)
    table.attrs.update(parts[0].attrs)
    return table


def chunks(
    path: str | Path,
    rows: int | None = None,
    *,
    separator: str | None = None,
    encoding: str | None = None,
) -> Iterator[Frame]:
    """The table in pieces of `rows` rows, in their order; at least one, or an error.

    None takes 10,000 rows, or fewer of a text file with long lines.
    """
    name = "the standard input" if str(path) == "-" else str(path)
    with _opened(path) as file:
        head = file.peek(HEAD)[:HEAD]
        if not head:
            raise ValueError(f"{name} is empty")
        if head[:4] == b"PAR1":
            yield from _parquet(path, name, rows or ROWS)
            return
        form = _look(head, name, separator, encoding)
        length = len(head) / max(1, head.count(b"\n"))
        yield from _csv(file, name, form, rows or max(1, min(ROWS, int(BYTES / length))))


def is_parquet(path: str | Path) -> bool:
    """Whether a file of this name is to be Parquet."""
    return Path(path).suffix.lower() in (".parquet", ".pq")


def _csv(file: BinaryIO, name: str, form: Form, rows: int) -> Iterator[Frame]:
    given: Any = {"sep": form.separator, "encoding": form.encoding, "names": form.names}
    as_it_is: Any = {"header": 0, "dtype": str, "na_filter": False, "index_col": False}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            found = pd.read_csv(file, chunksize=rows, **given, **as_it_is)
            some = False
            for frame in found:
                if not len(frame):
                    break
                some = True
                frame.attrs.update(decimal=form.decimal, separator=form.separator)
                yield frame
        if not some:
            raise ValueError(f"{name} has a line of names, but no rows")
    except UnicodeDecodeError as error:
        raise _no_text(name, form.encoding, error) from error
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError) as error:
        if "out of memory" in str(error):
            said = f"{name} needs more memory than there is: give a smaller --chunk"
            raise MemoryError(said) from error
        raise ValueError(
            f"{name} cannot be read as a table of {len(form.names)} columns separated by "
            f"{form.separator!r}: {error}. Correct that line, or give --separator."
        ) from error


def _parquet(path: str | Path, name: str, rows: int) -> Iterator[Frame]:
    from pyarrow import ArrowException, parquet

    if str(path) == "-":
        raise ValueError("a Parquet file cannot come from a pipe; give its name")
    try:
        with parquet.ParquetFile(path) as file:
            if not file.metadata.num_rows:
                raise ValueError(f"{name} has no rows")
            for batch in file.iter_batches(batch_size=rows):
                yield batch.to_pandas()
    except ArrowException as error:
        raise ValueError(f"{name} cannot be read: {error}") from error


def _look(head: bytes, name: str, separator: str | None, encoding: str | None) -> Form:
    """How the text is written, from its beginning."""
    if encoding is None:
        encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    if head[:4] == b"PK\x03\x04":
        raise ValueError(f"{name} is a spreadsheet or an archive: save it as CSV or Parquet")
    try:
        text = io.TextIOWrapper(io.BytesIO(head), encoding, "strict", newline="").read()
    except UnicodeDecodeError as error:
        if len(head) - error.start > 4:  # else a letter is cut at the end of what was read
            raise _no_text(name, encoding, error) from error
        text = head[: error.start].decode(encoding)
    except LookupError as error:
        raise ValueError(f"encoding {encoding!r} is not known; utf-8 and cp1252 are") from error
    if "\0" in text:
        raise ValueError(f"{name} is no text: give a CSV or a Parquet file")
    lines = text.splitlines()
    lines = lines[:50] if len(head) < HEAD else lines[:-1][:50]
    if not any(line.strip() for line in lines):
        raise ValueError(f"{name} is empty")
    separator = separator or max(SEPARATORS, key=lambda sign: _fits(lines, sign))
    cells = list(csv.reader(lines, delimiter=separator))
    names = _names(cells[0], name)
    comma = separator != "," and any(
        DECIMAL_COMMA.fullmatch(cell.strip()) for row in cells[1:] for cell in row
    )
    return Form(separator, encoding, "," if comma else ".", names)


def _fits(lines: list[str], separator: str) -> tuple[bool, int]:
    """Whether all lines have as many cells as the first, and how many these are."""
    lengths = [len(row) for row in csv.reader(lines, delimiter=separator) if row]
    return len(set(lengths)) == 1 and lengths[0] > 1, lengths[0]


def _names(header: list[str], name: str) -> list[str]:
    names = [cell.strip() for cell in header]
    twice = [cell for cell in names if names.count(cell) > 1]
    if twice and twice[0]:
        raise ValueError(f"{name} has two columns named {twice[0]!r}; give each a name of its own")
    if len(names) > 1 and all(is_number(cell) for cell in names):
        raise ValueError(
            f"the first line of {name} holds numbers ({', '.join(names[:3])}, …), not names of "
            "columns; add a line of names"
        )
    places = itertools.count(1)
    return [cell or f"column {next(places)} without a name" for cell in names]


def _no_text(name: str, encoding: str, error: UnicodeDecodeError) -> ValueError:
    said = "utf-8" if encoding == "utf-8-sig" else encoding
    return ValueError(
        f"{name} is not {said}: byte {error.object[error.start]:#04x} at place {error.start:,}. "
        "Give its --encoding; files from Windows are often cp1252."
    )


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    """The bytes of a file, unpacked, with a beginning to peek at."""
    if str(path) == "-":
        raw: Any = sys.stdin.buffer
        yield io.BufferedReader(getattr(raw, "raw", raw), HEAD)
        return
    file = Path(path)
    if not file.exists():
        near = [p.name for p in file.parent.iterdir()] if file.parent.is_dir() else []
        from due.tables.names import nearest

        hint = nearest(file.name, near) if near else ""
        raise FileNotFoundError(f"no file {path}{hint if 'mean' in hint else ''}")
    if file.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give a CSV or a Parquet file")
    try:
        if file.suffix.lower() == ".zip":
            with zipfile.ZipFile(file) as archive, archive.open(_only(archive, file)) as member:
                yield io.BufferedReader(member, HEAD)
            return
        opener = OPENERS.get(file.suffix.lower(), open)
        with opener(file, "rb") as raw:
            yield io.BufferedReader(raw, HEAD)
    except (gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} cannot be unpacked: {error}. Copy it again.") from error


def _only(archive: zipfile.ZipFile, file: Path) -> str:
    members = archive.namelist()
    if len(members) != 1:
        raise ValueError(f"{file} holds {len(members)} files; give an archive of one table")
    return members[0]
