"""The column to predict and that of the treatment: which task it is, and its cells as numbers."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from due.rows.scale import Floats
from due.tables.cells import (
    ENGLISH,
    NumberFormat,
    Series,
    holds_lists,
    number_format,
    numbers,
    texts,
)
from due.tables.columns import NO, YES

CLASSIFICATION, REGRESSION, EFFECT = "classification", "regression", "effect"
TASKS = (CLASSIFICATION, REGRESSION, EFFECT)
FEW = 20  # whole numbers from 0 or 1 on are labels, if there are at most so many
CLASSES = 1000  # at most


@dataclass(frozen=True)
class Target:
    """The column to predict.

    `kind` of labels is "text", "whole" or "truth"; of values it is "number".
    """

    name: str
    task: str
    kind: str
    reason: str  # for this task
    decimal: str = "."
    thousands: str = ","

    def labels(self, cells: Series) -> NDArray[Any]:
        """Labels as the model knows them; where cells are missing, ask `known` first."""
        found = texts(cells).tolist()
        if self.kind == "whole":
            return _array([int(float(text)) if _is_whole(text) else text for text in found])
        if self.kind == "truth":
            known = {"true": True, "false": False}
            return _array([known.get(str(text).lower(), text) for text in found])
        return _array(found)

    def values(self, cells: Series) -> Floats:
        """Numbers, NaN where there is none."""
        return numbers(cells, NumberFormat(self.decimal, self.thousands))

    def read(self, cells: Series) -> NDArray[Any]:
        """Labels or numbers, whichever the task needs."""
        return self.labels(cells) if self.task == CLASSIFICATION else self.values(cells)

    def known(self, cells: Series) -> NDArray[np.bool_]:
        """Which cells can be learned from."""
        if self.task == CLASSIFICATION:
            return texts(cells).notna().to_numpy(bool)
        return np.isfinite(self.values(cells))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Treatment:
    """The column that says who was treated, and the word for each arm."""

    name: str
    untreated: str
    treated: str

    def arms(self, cells: Series) -> Floats:
        """0 for untreated, 1 for treated, NaN for anything else."""
        known = {self.untreated: 0.0, self.treated: 1.0}
        return np.array([known.get(word, np.nan) for word in texts(cells)], np.float64)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)


def look_at_target(name: str, cells: Series, task: str | None, decimal: str = ".") -> Target:
    """The task that the cells suggest, or the one that is asked for."""
    if holds_lists(cells):
        raise ValueError(f"the target {name!r} holds lists; give one number or label per row")
    found = texts(cells).dropna()
    if not len(found):
        raise ValueError(f"the target {name!r} is empty: no row can be learned from")
    distinct = found.nunique()
    if distinct == 1:
        raise ValueError(
            f"the target {name!r} has one value, {found.iloc[0]!r}, in all rows: there is nothing "
            "to learn; choose another column"
        )
    style = number_format(found, NumberFormat(",", ".") if decimal == "," else ENGLISH)
    values = numbers(found, style)
    numeric = np.isfinite(values)
    task = task or _task(values, distinct)
    if task in (REGRESSION, EFFECT):
        if not numeric.all():
            word = found[~numeric].iloc[0]
            raise ValueError(
                f"the target {name!r} holds {word!r}, which is no number; correct "
                f"{(~numeric).sum()} such cells, or use --task classification"
            )
        if np.unique(values).size == 1:
            raise ValueError(f"the target {name!r} has one value, {values[0]:g}, in all rows")
        return Target(name, task, "number", f"{name} holds numbers", *style)
    if distinct > CLASSES or (distinct > 50 and distinct > len(found) / 3):
        raise ValueError(
            f"the target {name!r} has {distinct:,} different labels in {len(found):,} rows; a "
            f"classifier takes up to {CLASSES:,} with several rows each. Use --task regression "
            "if they are numbers, or choose another column."
        )
    return Target(name, task, _label_kind(found, values), _reason(name, values, distinct))


def look_at_treatment(name: str, cells: Series) -> tuple[Treatment, list[str]]:
    """The two arms, and a word on which is which if the cells do not say so."""
    found = texts(cells)
    words = sorted(found.dropna().unique())
    if len(words) != 2:
        shown = ", ".join(map(repr, words[:5])) + (", …" if len(words) > 5 else "")
        raise ValueError(
            f"the treatment {name!r} has {len(words)} values ({shown}); an effect compares two, "
            "such as 0 and 1"
        )
    ones = [word for word in words if word.lower() in (*YES, "treated", "treatment")]
    zeros = [word for word in words if word.lower() in (*NO, "untreated", "control", "placebo")]
    if len(ones) == 1 or len(zeros) == 1:
        treated = ones[0] if ones else next(word for word in words if word not in zeros)
        return Treatment(name, next(w for w in words if w != treated), treated), []
    odd = f"treatment {name!r}: {words[1]!r} is taken as treated, {words[0]!r} as untreated"
    return Treatment(name, *words), [odd]


def _task(values: Floats, distinct: int) -> str:
    if not np.isfinite(values).mean() >= 0.9 or distinct == 2:
        return CLASSIFICATION
    known = np.unique(values[np.isfinite(values)])
    codes = len(known) <= FEW and np.array_equal(known, np.arange(len(known)) + known[0])
    return CLASSIFICATION if codes and known[0] in (0, 1) else REGRESSION


def _label_kind(found: Series, values: Floats) -> str:
    if _lower(found).isin({*YES, *NO} - {"0", "1", "0.0", "1.0", "y", "n", "t", "f"}).all():
        return "truth" if _lower(found).isin({"true", "false"}).all() else "text"
    whole = np.isfinite(values).all() and (values == np.round(values)).all()
    plain = whole and found.map(_is_whole).all()
    return "whole" if plain else "text"


def _array(labels: list[Any]) -> NDArray[Any]:
    """Labels of one type in an array of it; new ones of another leave all as they are."""
    one_type = len(set(map(type, labels))) == 1
    return np.array(labels, dtype=None if one_type else object)


def _lower(found: Series) -> Series:
    return found.map(str.lower)


def _is_whole(text: str | None) -> bool:
    if text is None:
        return False
    try:
        return float(text) == int(float(text)) and abs(float(text)) < 2**53
    except (ValueError, OverflowError):
        return False


def _reason(name: str, values: Floats, distinct: int) -> str:
    kind = "whole numbers from 0 or 1 on" if np.isfinite(values).all() else "labels"
    return f"{name} has {distinct} different {kind}"
