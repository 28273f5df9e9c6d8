"""What each column of a table is: its kind and what was learned of it, or why it is left out."""

import re
from dataclasses import dataclass

import numpy as np

from due.tables.cells import (
    ENGLISH,
    NumberFormat,
    Series,
    date_format,
    dates,
    holds_lists,
    is_missing,
    number_format,
    numbers,
    texts,
)
from due.tables.columns import NO, YES, Boolean, Category, Column, Date, Numeric, days_of

MOST = 0.9  # of the cells are of a kind, then the column is
REMEMBERED = 10_000  # categories of a column; rarer ones are unknown
SOME_ROWS = 20  # below which a column of different words is no identifier
IDENTIFYING = "it looks like an identifier or free text: (nearly) every row has its own value"
IDENTIFIER = re.compile(r"(^|[\W_])(id|ids|uuid|guid|key|index|rowid|nr|no)$", re.IGNORECASE)


@dataclass(frozen=True)
class LeftOut:
    """A column that the model does not see."""

    name: str
    reason: str


@dataclass
class Finding:
    """What a column is, and what looked odd in it."""

    column: Column | LeftOut
    odd: list[str]


def look_at(
    name: str, cells: Series, own: int, likely: NumberFormat = ENGLISH, keep: bool = False
) -> Finding:
    """The kind of a column from its cells; up to `own` categories get a feature each.

    `keep` takes it even if it looks like an identifier.
    """
    if holds_lists(cells):
        reason = "its cells hold lists; give one column per number, or a column per entry"
        return Finding(LeftOut(name, reason), [])
    missing = is_missing(cells)
    there = cells[~missing]
    if not len(there):
        return Finding(LeftOut(name, "it is empty"), [])
    if there.astype(str).nunique() == 1:
        if missing.any():  # whether it is there may say something
            return Finding(Category(name, True, {str(texts(there).iloc[0]): len(there)}, 1), [])
        return Finding(LeftOut(name, f"it is constant: {_short(there.iloc[0])}"), [])
    if cells.dtype.kind == "M":
        return _date(name, cells, bool(missing.any()))
    if _are_truths(there):
        return Finding(Boolean(name, bool(missing.any())), [])
    style = number_format(there, likely)
    values = numbers(there, style)
    if np.isfinite(values).mean() >= MOST:
        if not keep and _is_identifier(name, values, len(cells)):
            return Finding(LeftOut(name, f"{IDENTIFYING}; --keep takes it"), [])
        return _numeric(name, cells, values, there, style)
    if (style_of_date := date_format(there)) is not None:
        read = dates(there, style_of_date).notna().mean()
        if read >= MOST:
            return _date(name, cells, bool(missing.any()), style_of_date)
    if not keep and len(there) >= SOME_ROWS and texts(there).nunique() > 0.95 * len(there):
        return Finding(LeftOut(name, f"{IDENTIFYING}; --keep takes it"), [])
    return _category(name, there, bool(missing.any()), own, share=float(np.isfinite(values).mean()))


def _numeric(
    name: str, cells: Series, values: np.ndarray, there: Series, style: NumberFormat
) -> Finding:
    known, odd = values[np.isfinite(values)], []
    if len(known) < len(values):
        words = there[~np.isfinite(values)]
        odd.append(
            f"column {name!r} is numeric; {len(words)} other cells, such as "
            f"{_short(words.iloc[0])}, are read as missing"
        )
    if np.unique(known).size == 1:
        return Finding(LeftOut(name, f"it is constant: {known[0]:g}"), odd)
    if there.dtype.kind not in "biuf":
        odd += _separators(name, there, style)
    gone = len(known) < len(cells)
    low, high, median = float(known.min()), float(known.max()), float(np.median(known))
    return Finding(Numeric(name, gone, median, low, high, *style), odd)


def _separators(name: str, there: Series, style: NumberFormat) -> list[str]:
    """Say how numbers were read where another reading is possible."""
    found = texts(there)
    marked = found[found.map(lambda text: "," in text)]
    if not len(marked):
        return []
    example = marked.iloc[0]
    value = numbers(marked.iloc[:1], style)[0]
    return [f"column {name!r}: {_short(example)} is read as {value:g}"]


def _date(name: str, cells: Series, missing: bool, style: str = "ISO8601") -> Finding:
    days, odd = days_of(cells, style), []
    known = days[np.isfinite(days)]
    unread = int(np.isnan(days).sum() - is_missing(cells).sum())
    if unread:
        odd.append(
            f"column {name!r} holds dates; {unread} other cells, such as "
            f"{_short(cells[np.isnan(days) & ~is_missing(cells)].iloc[0])}, are read as missing"
        )
    if style in ("%m/%d/%Y", "%d/%m/%Y"):
        order = "month/day/year" if style == "%m/%d/%Y" else "day/month/year"
        odd.append(f"column {name!r}: dates are read as {order}")
    hours = bool(np.unique(np.mod(known, 1)).size > 1)
    gone = missing or unread > 0
    return Finding(Date(name, gone, float(np.median(known)), style, hours), odd)


def _category(name: str, there: Series, missing: bool, own: int, share: float) -> Finding:
    found = texts(there)
    counts = found.value_counts()
    odd = []
    if share > 0.1:
        odd.append(
            f"column {name!r} mixes numbers and words ({share:.0%} numbers); "
            "it is read as categories"
        )
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    if len(order) > REMEMBERED:
        odd.append(
            f"column {name!r} has {len(order):,} categories; the {REMEMBERED:,} most frequent are "
            "told apart"
        )
    kept = {str(word): int(count) for word, count in order[:REMEMBERED]}
    return Finding(Category(name, missing, kept, min(own, len(kept))), odd)


def _are_truths(there: Series) -> bool:
    if there.dtype.kind == "b":
        return True
    if there.dtype.kind in "iuf":
        return False
    words = set(map(str.lower, texts(there).unique()))
    return words <= {*YES, *NO} and not words <= {"0", "1", "0.0", "1.0"}


def _is_identifier(name: str, known: np.ndarray, n: int) -> bool:
    """Whole numbers, none twice, and either close to one another or with the name of one."""
    if n < SOME_ROWS or len(known) < n or (known != np.round(known)).any():
        return False
    if len(np.unique(known)) < n:
        return False
    return bool(np.ptp(known) < 2 * n) or IDENTIFIER.search(name) is not None


def _short(value: object) -> str:
    text = repr(str(value))
    return text if len(text) <= 40 else f"{text[:37]}…'"
