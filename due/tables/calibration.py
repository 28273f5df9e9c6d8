"""What rows that training did not see say about the model: p-values, and widths of intervals.

Both are conformal: for a new row like those of calibration, a p-value is at most α in at most a
share α of cases, and an interval contains the value in at least 1 − α of them. This holds on
average over rows, and only while new rows come from where these came from.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from due.estimators.effects import quantile
from due.rows.scale import Floats

KEPT = 2000  # scores, evenly spaced by rank


@dataclass(frozen=True)
class Calibration:
    """Scores of calibration rows in rising order: OOD scores, and |y − mean| / std."""

    n: int
    ood: list[float]
    residuals: list[float]

    def pvalues(self, scores: Floats) -> Floats:
        """(1 + rows of calibration with such a score or a higher one) / (1 + rows)."""
        known = np.array(self.ood)
        if not len(known):
            return np.full(len(scores), np.nan)
        above = len(known) - np.searchsorted(known, scores, side="left")
        return np.asarray((1 + above) / (1 + len(known)))

    def width(self, alpha: float) -> float:
        """Half the width of a 1 − alpha interval in standard deviations.

        The normal quantile, if the rows are too few for one that holds without it.
        """
        rank = math.ceil((1 - alpha) * (1 + len(self.residuals)))
        normal = quantile(alpha)
        return self.residuals[rank - 1] if 0 < rank <= len(self.residuals) else normal

    def holds(self, alpha: float) -> bool:
        """Whether the rows are enough for intervals of this level."""
        return math.ceil((1 - alpha) * (1 + len(self.residuals))) <= len(self.residuals)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)


def calibrate(ood: Floats, residuals: Floats | None = None) -> Calibration:
    """From scores in any order."""
    return Calibration(len(ood), _kept(ood), [] if residuals is None else _kept(residuals))


def _kept(scores: Floats) -> list[float]:
    """All of them, or of very many the ranks r (1 + n) / (1 + KEPT), rounded up."""
    ordered = np.sort(scores)
    n = len(ordered)
    if n <= KEPT:
        return [float(value) for value in ordered]
    ranks = np.ceil(np.arange(1, KEPT + 1) * (1 + n) / (1 + KEPT)).astype(int)
    return [float(value) for value in ordered[ranks - 1]]
