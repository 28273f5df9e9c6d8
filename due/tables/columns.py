"""Kinds of columns: what was learned of one, as JSON, and its cells as numbers.

A column of features is added where cells were missing in training, and one for categories that
were rare or absent there, so that both are signals of their own.
"""

import zlib
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from due.rows.scale import Floats
from due.tables.cells import NumberFormat, Series, dates, is_missing, numbers, texts

Flags = NDArray[np.bool_]
YES, NO = ("true", "yes", "y", "t", "1", "1.0"), ("false", "no", "n", "f", "0", "0.0")
BUCKETS = 8  # that share the categories without a column of their own
YEAR = 365.2425  # days
EPOCH = np.datetime64("2000-01-01", "s")


@dataclass(frozen=True)
class Column(ABC):
    """Abstract: a column of a table as features of a model."""

    name: str
    missing: bool  # whether cells were missing in training
    kind: ClassVar[str]

    @property
    @abstractmethod
    def features(self) -> list[str]:
        """Names of its features."""

    @property
    @abstractmethod
    def typical(self) -> Floats:
        """Features of an ordinary cell."""

    @abstractmethod
    def encode(self, cells: Series) -> Floats:
        """Features of cells, (N, number of features)."""

    @abstractmethod
    def strange(self, cells: Series) -> Flags:
        """Which cells are there, but have no meaning that training knew."""

    @property
    @abstractmethod
    def strangeness(self) -> str:
        """What such cells are."""

    def absent(self, cells: Series) -> Flags:
        """Which cells are missing, though none was in training."""
        return np.zeros(len(cells), bool) if self.missing else is_missing(cells)

    def to_json(self) -> dict[str, Any]:
        """What was learned."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class Numeric(Column):
    """Numbers; missing ones become the median."""

    median: float
    low: float
    high: float
    decimal: str = "."
    thousands: str = ","
    kind = "numeric"
    strangeness = "no number"

    @property
    def features(self) -> list[str]:
        """The number, and whether it is missing."""
        return [self.name, f"{self.name} is missing"][: 1 + self.missing]

    @property
    def typical(self) -> Floats:
        """The median."""
        return np.array([self.median, 0.0][: 1 + self.missing])

    def encode(self, cells: Series) -> Floats:
        """The number, the median where there is none, and whether it is missing."""
        values = self._numbers(cells)
        return _filled(values[:, None], np.array([self.median]), self.missing)

    def strange(self, cells: Series) -> Flags:
        """Cells that hold no number."""
        return np.isnan(self._numbers(cells)) & ~is_missing(cells)

    def _numbers(self, cells: Series) -> Floats:
        return numbers(cells, NumberFormat(self.decimal, self.thousands))


@dataclass(frozen=True)
class Boolean(Column):
    """Yes or no in one of the usual spellings; missing is between the two."""

    kind = "boolean"
    strangeness = "neither yes nor no"

    @property
    def features(self) -> list[str]:
        """0 or 1, and whether it is missing."""
        return [self.name, f"{self.name} is missing"][: 1 + self.missing]

    @property
    def typical(self) -> Floats:
        """Between the two."""
        return np.array([0.5, 0.0][: 1 + self.missing])

    def encode(self, cells: Series) -> Floats:
        """0 or 1, 0.5 where there is neither, and whether it is missing."""
        return _filled(truths(cells)[:, None], np.array([0.5]), self.missing)

    def strange(self, cells: Series) -> Flags:
        """Cells that hold another word."""
        return np.isnan(truths(cells)) & ~is_missing(cells)


@dataclass(frozen=True)
class Category(Column):
    """Words: one feature each for the most frequent, what the others share, and rarity.

    `counts` are the rows of training per category, the most frequent first, of which the first
    `own` have a feature. With more categories than that, the others share `BUCKETS` features by a
    checksum, and all have the logarithm of their count.
    """

    counts: dict[str, int]
    own: int
    kind = "category"
    strangeness = "a category that training did not have"

    @property
    def features(self) -> list[str]:
        """One per frequent category, one for unknown ones, and what many categories share."""
        frequent = [f"{self.name} = {word}" for word in list(self.counts)[: self.own]]
        rest = [f"{self.name} is unknown"]
        if self.many:
            rest += [f"{self.name} is of group {i}" for i in range(BUCKETS)]
            rest += [f"log count of {self.name}"]
        return frequent + rest + [f"{self.name} is missing"] * self.missing

    @property
    def typical(self) -> Floats:
        """The most frequent category."""
        import pandas as pd

        return self.encode(pd.Series([next(iter(self.counts))], dtype=object))[0]

    @property
    def many(self) -> bool:
        """Whether some categories have no feature of their own."""
        return len(self.counts) > self.own

    def encode(self, cells: Series) -> Floats:
        """1 in the feature of the category; several for a rare one."""
        found = texts(cells)
        places = {word: i for i, word in enumerate(self.counts)}
        codes = np.array([places.get(word, np.nan) for word in found], np.float64)
        known, missing = ~np.isnan(codes), found.isna().to_numpy(bool)
        encoded = np.zeros((len(cells), len(self.features)))
        frequent = np.flatnonzero(known & (codes < self.own))
        encoded[frequent, codes[frequent].astype(int)] = 1.0
        encoded[:, self.own] = ~known & ~missing
        if self.many:
            others = np.flatnonzero(known & (codes >= self.own))
            words = list(self.counts)
            groups = [zlib.crc32(words[int(codes[i])].encode()) % BUCKETS for i in others]
            encoded[others, self.own + 1 + np.array(groups, int)] = 1.0
            logs = np.log1p(np.fromiter(self.counts.values(), float))
            encoded[known, self.own + 1 + BUCKETS] = logs[codes[known].astype(int)]
        if self.missing:
            encoded[:, -1] = missing
        return encoded

    def strange(self, cells: Series) -> Flags:
        """Categories that training did not have."""
        found = texts(cells)
        return (found.notna() & ~found.isin(self.counts)).to_numpy(bool)


@dataclass(frozen=True)
class Date(Column):
    """Times as days since 2000 and as angles of the year, the week and the day.

    `style` is the format that reads them; `hours` says whether times of day differ.
    """

    median: float
    style: str
    hours: bool
    kind = "date"
    strangeness = "no date"

    @property
    def features(self) -> list[str]:
        """Days, sine and cosine of each circle, and whether it is missing."""
        circles = ["year", "week", "day"][: 2 + self.hours]
        angles = [f"{wave} of the {c} of {self.name}" for c in circles for wave in ("sin", "cos")]
        return [f"days of {self.name}", *angles] + [f"{self.name} is missing"] * self.missing

    @property
    def typical(self) -> Floats:
        """The median day."""
        return np.append(self._parts(np.array([self.median])), [0.0] * self.missing)

    def encode(self, cells: Series) -> Floats:
        """The parts of the time, those of the median where there is none."""
        days = days_of(cells, self.style)
        fill = self._parts(np.array([self.median]))[0]
        return _filled(self._parts(days), fill, self.missing)

    def strange(self, cells: Series) -> Flags:
        """Cells that hold no date of the format of training."""
        return np.isnan(days_of(cells, self.style)) & ~is_missing(cells)

    def _parts(self, days: Floats) -> Floats:
        circles = [days / YEAR, days / 7, days][: 2 + self.hours]
        waves = [wave(2 * np.pi * turn) for turn in circles for wave in (np.sin, np.cos)]
        return np.column_stack([days, *waves])


KINDS: dict[str, type[Column]] = {kind.kind: kind for kind in (Numeric, Boolean, Category, Date)}


def column_from_json(learned: dict[str, Any]) -> Column:
    """The column of `to_json`."""
    rest = {name: value for name, value in learned.items() if name != "kind"}
    return KINDS[learned["kind"]](**rest)


def truths(cells: Series) -> Floats:
    """1 for yes, 0 for no, NaN for anything else."""
    known = dict.fromkeys(YES, 1.0) | dict.fromkeys(NO, 0.0)
    return np.array([known.get((text or "").lower(), np.nan) for text in texts(cells)])


def days_of(cells: Series, style: str) -> Floats:
    """Days since 2000-01-01, NaN where a cell is no date."""
    seconds = dates(cells, style).to_numpy("datetime64[s]") - EPOCH
    days: Floats = seconds.astype(np.float64) / 86_400
    return np.where(np.isnat(seconds), np.nan, days)


def _filled(values: Floats, fill: Floats, flagged: bool) -> Floats:
    """Values with `fill` in rows of NaN, and whether it was one if `flagged`."""
    gone: Flags = np.asarray(np.isnan(values).any(axis=1))
    whole = np.where(gone[:, None], fill, values)
    return np.column_stack([whole, gone]) if flagged else whole
