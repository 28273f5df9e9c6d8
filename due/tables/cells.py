"""Cells as they come, from a text file or a typed frame, as texts, numbers or dates."""

import re
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from due.rows.scale import Floats

Series = Any  # of pandas, which has no types of its own
NOTHING = ("", "na", "n/a", "#n/a", "nan", "<na>", "nat", "null", "none", "?", "-")  # missing
FORMATS = (  # of dates, tried in turn; the first of those that read most cells is taken
    *("ISO8601", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%m/%d/%Y", "%d/%m/%Y"),
    *("%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S"),
    *("%Y/%m/%d", "%d-%m-%Y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y"),
)
_BLANK = re.compile("[\\s\u00a0\u202f'’%$€£]")  # may stand in a number and says nothing
_DATE_LIKE = re.compile(r".*\d.*[-/. ].*\d.*")


class NumberFormat(NamedTuple):
    """Which sign stands before the decimals, and which between thousands."""

    decimal: str = "."
    thousands: str = ","


ENGLISH, CONTINENTAL = NumberFormat(), NumberFormat(",", ".")


def texts(cells: Series) -> Series:
    """Cells as stripped texts, None where a cell is missing."""
    gone = cells.isna().to_numpy(bool)
    found = [None if no else _text(v) for v, no in zip(cells.tolist(), gone, strict=True)]
    return pd.Series(found, index=cells.index, dtype=object)


def numbers(cells: Series, style: NumberFormat = ENGLISH) -> Floats:
    """Cells as floats; NaN where a cell is missing, infinite or no number in this format."""
    if cells.dtype.kind in "biuf":
        values = cells.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        values = np.full(len(cells), np.nan)
        if style == ENGLISH:  # most cells need nothing else
            plain = pd.to_numeric(cells.astype(object), errors="coerce")
            values = np.array(plain.to_numpy(dtype=np.float64, na_value=np.nan))
        left = np.isnan(values)
        found = [_plain(text, style) for text in texts(cells[left])]
        values[left] = [np.nan if text is None else float(text) for text in found]
    return np.where(np.isfinite(values), values, np.nan)


def number_format(cells: Series, likely: NumberFormat = ENGLISH) -> NumberFormat:
    """The format in which most cells are numbers, `likely` if both do equally well."""
    other = CONTINENTAL if likely == ENGLISH else ENGLISH
    if cells.dtype.kind in "biuf":
        return ENGLISH
    many = [np.isfinite(numbers(cells, style)).sum() for style in (likely, other)]
    return other if many[1] > many[0] else likely


def dates(cells: Series, style: str) -> Series:
    """Cells as times without a zone; NaT where one is missing or not of this format."""
    if cells.dtype.kind == "M":
        zoned = getattr(cells.dtype, "tz", None) is not None
        return cells.dt.tz_convert("UTC").dt.tz_localize(None) if zoned else cells
    found = pd.to_datetime(texts(cells), format=style, errors="coerce", utc=True)
    return found.dt.tz_localize(None)


def date_format(cells: Series) -> str | None:
    """The format that reads most cells, None if they do not look like dates."""
    if cells.dtype.kind == "M":
        return "ISO8601"
    found = texts(cells).dropna()
    sample = found.sample(min(len(found), 500), random_state=0)
    if sample.map(lambda text: _DATE_LIKE.fullmatch(text) is not None).mean() < 0.5:
        return None
    read = {style: dates(sample, style).notna().sum() for style in FORMATS}
    best = max(read, key=lambda style: read[style])
    return best if read[best] > len(sample) / 2 else None


def holds_lists(cells: Series) -> bool:
    """Whether a cell holds several values: a list, an array, a dict, or the text of one."""
    if cells.dtype.kind != "O" and not pd.api.types.is_string_dtype(cells.dtype):
        return False
    first = cells.dropna().head(20)
    return any(
        isinstance(v, list | tuple | dict | set | np.ndarray)
        or (isinstance(v, str) and v[:1] + v[-1:] in ("[]", "{}") and len(v) > 1)
        for v in first
    )


def _text(value: object) -> str | None:
    text = format(value, ".15g") if isinstance(value, float) else str(value).strip()
    return None if text.lower() in NOTHING else text


def _plain(text: str | None, style: NumberFormat) -> str | None:
    """The number as Python writes it, None if it is not one in this format."""
    if text is None:
        return None
    text = _BLANK.sub("", text).replace("\u2212", "-")
    if not _number(style).fullmatch(text):
        return None
    return text.replace(style.thousands, "").replace(style.decimal, ".")


@cache
def _number(style: NumberFormat) -> re.Pattern[str]:
    decimal, thousands = map(re.escape, style)
    whole = rf"(\d+|\d{{1,3}}({thousands}\d{{3}})+)"
    return re.compile(rf"[+-]?({whole}({decimal}\d*)?|{decimal}\d+)([eE][+-]?\d+)?")


def is_missing(cells: Series) -> NDArray[np.bool_]:
    """Which cells say nothing."""
    if cells.dtype.kind in "biufM":
        return cells.isna().to_numpy(dtype=bool)
    return texts(cells).isna().to_numpy(dtype=bool)
