"""Rows to train on, to choose the epoch by, to calibrate on and to test on.

A row's part follows from a checksum of its cells, so that equal rows are in the same part, and the
same row is in the same part whatever file it comes in. Rows that belong together (`group`) share
theirs; rows that follow one another (`time`) are cut at moments, the latest to test on.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from due.rows.scale import Floats
from due.tables.cells import date_format, numbers, texts
from due.tables.columns import days_of

Frame = Any
TRAIN, VALIDATION, CALIBRATION, TEST = PARTS = ("train", "validation", "calibration", "test")
LEAST = 20  # rows to calibrate on


@dataclass(frozen=True)
class Split:
    """How rows are divided.

    `columns` make the checksum; `cuts` are three numbers in [0, 1], or three moments, that part
    training from validation, that from calibration, and that from testing; by class, if `by` names
    a column with labels.
    """

    columns: list[str]
    seed: int
    cuts: dict[str, list[float]]
    counts: dict[str, int]
    by: str | None = None
    group: str | None = None
    time: str | None = None
    style: str | None = None  # of the dates in `time`

    def parts(self, frame: Frame) -> NDArray[Any]:
        """Which of "train", "validation", "calibration" or "test" each row is in."""
        place = self._places(frame)
        labels = _strata(frame, self.by)
        cuts = np.array([self.cuts.get(label, self.cuts["*"]) for label in labels])
        if not len(place):
            return np.array([], dtype=object)
        return np.array(PARTS, dtype=object)[(place[:, None] >= cuts).sum(1)]

    def rows(self, frame: Frame, part: str) -> NDArray[np.intp]:
        """Numbers of the rows of one part."""
        return np.flatnonzero(self.parts(frame) == part)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    def _places(self, frame: Frame) -> Floats:
        if self.time is not None:
            return moments(frame[self.time], self.style)
        if self.group is not None:
            return checksums(frame[[self.group]], self.seed)
        return checksums(frame[self.columns], self.seed)


def divide(
    frame: Frame,
    shares: dict[str, float],
    *,
    seed: int = 0,
    by: str | None = None,
    group: str | None = None,
    time: str | None = None,
) -> Split:
    """The split of a frame into these shares of validation, calibration and test rows."""
    columns = list(map(str, frame.columns))
    style = None if time is None else _style(frame[time])
    whole = Split(columns, seed, {"*": [2.0, 2.0, 2.0]}, {}, None, group, time, style)
    place = whole._places(frame)
    if np.isnan(place).any():
        raise ValueError(
            f"column {time!r} has {np.isnan(place).sum()} cells that are no time; --time needs "
            "a date or a number in each row"
        )
    by = by if group is None and time is None else None
    labels = _strata(frame, by)
    cuts = {"*": _cuts(np.unique(place) if group else np.sort(place), shares)}
    for label in np.unique(labels) if by is not None else []:
        cuts[label] = _cuts(np.sort(place[labels == label]), shares)
    split = Split(columns, seed, cuts, {}, by, group, time, style)
    found = split.parts(frame)
    counts = {part: int((found == part).sum()) for part in PARTS}
    if not counts[TRAIN]:
        raise ValueError(
            f"no rows are left to train on: {counts}. Give more rows"
            + (f", or a --group with more values than {len(np.unique(place))}" if group else "")
        )
    return Split(columns, seed, cuts, counts, by, group, time, style)


def checksums(frame: Frame, seed: int) -> Floats:
    """A number in [0, 1) per row, the same for equal rows."""
    plain = pd.DataFrame(
        {
            name: cells.to_numpy(np.float64, na_value=np.nan)
            if cells.dtype.kind in "biuf"
            else texts(cells).fillna("").to_numpy(object)
            for name, cells in frame.items()
        }
    )
    hashed = pd.util.hash_pandas_object(plain, index=False, hash_key=f"due{seed:013d}"[:16])
    return (hashed.to_numpy(np.uint64) >> np.uint64(11)).astype(np.float64) / 2**53


def moments(cells: Any, style: str | None) -> Floats:
    """Times as numbers."""
    return numbers(cells) if style is None else days_of(cells, style)


def _style(cells: Any) -> str | None:
    return None if np.isfinite(numbers(cells)).all() else (date_format(cells) or "ISO8601")


def _strata(frame: Frame, by: str | None) -> NDArray[Any]:
    if by is None or by not in frame.columns:
        return np.full(len(frame), "*", dtype=object)
    return texts(frame[by]).fillna("*").to_numpy(object)


def _cuts(places: Floats, shares: dict[str, float]) -> list[float]:
    """The places from which on rows are of validation, calibration and test, in this order."""
    n = len(places)
    wanted = [shares.get(part, 0.0) for part in (VALIDATION, CALIBRATION, TEST)]
    sizes = [int(share * n + 0.5) for share in wanted]
    starts = n - np.cumsum(sizes[::-1])[::-1]  # of each of the three
    above = float(places[-1]) + 1.0
    return [float(places[start]) if start < n else above for start in starts.tolist()]
