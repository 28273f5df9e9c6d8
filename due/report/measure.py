"""From answers to what is plotted: calibration, risk against coverage, histograms. Arrays only."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import binom, norm

from due import metrics
from due.report.answers import ClassRows, EffectRows, Floats, Rows, ValueRows

LEVELS = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99])
DEFERRED = (0.1, 0.2, 0.5)  # shares of the rows
POINTS = 60  # of a curve, at most
NEAR = 0.01  # confidences that are drawn as one


class Bin(NamedTuple):
    """Rows whose confidence lies in one interval: how often they are right, with a 95 % range."""

    confidence: float
    accuracy: float
    low: float
    high: float
    rows: int


def reliability(rows: ClassRows, bins: int = 10) -> list[Bin]:
    """Accuracy against confidence, in `bins` groups of about as many rows each.

    Groups whose mean confidences hardly differ become one. The range is Wilson's: where the
    accuracy of so many rows would lie by chance.
    """
    confidence, right = rows.confidence, correct(rows)
    groups = np.array_split(np.argsort(confidence, kind="stable"), min(bins, len(rows)))
    found: list[Bin] = []
    for group in _joined(groups, confidence):
        accuracy, n = float(right[group].mean()), len(group)
        low, high = wilson(accuracy, n)
        found.append(Bin(float(confidence[group].mean()), accuracy, low, high, n))
    return found


def _joined(groups: list[NDArray[Any]], confidence: Floats) -> list[NDArray[Any]]:
    """Neighbours within `NEAR` of one another, together."""
    found = groups[:1]
    for group in groups[1:]:
        if confidence[group].mean() - confidence[found[-1]].mean() < NEAR:
            found[-1] = np.concatenate([found[-1], group])
        else:
            found.append(group)
    return found


def wilson(share: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Score interval of a share that was seen in n rows.

    >>> [round(end, 3) for end in wilson(0.5, 100)]
    [0.404, 0.596]
    """
    z = float(norm.ppf((1 + level) / 2))
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (share * (1 - share) / n + z**2 / (4 * n**2)) ** 0.5
    return max(0.0, centre - half), min(1.0, centre + half)


class Level(NamedTuple):
    """Central intervals of one nominal level: the share of rows inside, and its range by chance."""

    nominal: float
    observed: float
    low: float
    high: float


def coverage(rows: ValueRows, widths: Sequence[float] = ()) -> list[Level]:
    """How many rows lie in the interval mean ± z std of each of the `LEVELS`.

    `widths` are the z of a model that calibrates its intervals; else they are those of a normal.
    """
    assert rows.truth is not None
    distance = np.abs(rows.truth - rows.mean) / rows.std
    n, found = len(rows), []
    for level, z in zip(LEVELS, widths or ndtri((1 + LEVELS) / 2), strict=True):
        inside = float(np.mean(distance <= z))
        low, high = binom.ppf([0.025, 0.975], n, level) / n
        found.append(Level(float(level), inside, float(low), float(high)))
    return found


def at_90(levels: Sequence[Level]) -> Level:
    """The level that the page speaks of."""
    return next(level for level in levels if level.nominal == 0.9)


def pit(rows: ValueRows) -> Floats:
    """Probability integral transform Φ((y − mean) / std): uniform if the model is calibrated."""
    assert rows.truth is not None
    return np.asarray(ndtr((rows.truth - rows.mean) / rows.std))


class Curve(NamedTuple):
    """Risk of the rows kept against the share of rows kept, the most certain first."""

    kept: Floats
    risk: Floats


def risk_curve(loss: ArrayLike, uncertainty: ArrayLike, root: bool = False) -> Curve:
    """At most `POINTS` points of the risk-coverage curve; `root` makes an RMSE of squared errors.

    It begins at a twentieth of the rows: a mean of fewer says little.
    """
    kept, risk = metrics.risk_coverage(loss, uncertainty)
    n = len(kept)
    first = min(n, max(20, n // 20))
    at = np.unique(np.linspace(first - 1, n - 1, min(POINTS, n - first + 1)).round().astype(int))
    return Curve(kept[at], np.sqrt(risk[at]) if root else risk[at])


def losses(rows: Rows) -> Floats | None:
    """1 where the class is wrong, or the squared error; None where no truth is known."""
    if isinstance(rows, ClassRows):
        return None if rows.truth is None else 1.0 - correct(rows)
    if isinstance(rows, ValueRows):
        return None if rows.truth is None else (rows.truth - rows.mean) ** 2
    return None  # nobody observes the effect on one person


def correct(rows: ClassRows) -> Floats:
    """1 where the predicted class is the true one; a class never seen is always missed."""
    assert rows.truth is not None
    return (rows.predicted == rows.truth).astype(np.float64)


def deferred(loss: ArrayLike, uncertainty: ArrayLike, share: float) -> float:
    """Mean loss of what is kept once the `share` of highest uncertainty is left out.

    >>> deferred([0.0, 1.0], [0.1, 0.9], 0.5)
    0.0
    """
    risk = metrics.risk_coverage(loss, uncertainty).risk
    return float(risk[max(1, round(len(risk) * (1 - share))) - 1])


class Histogram(NamedTuple):
    """Share of each group's rows per bin; all groups have the same edges."""

    edges: Floats
    shares: dict[str, Floats]


def histogram(
    groups: dict[str, Floats], bins: int = 24, limits: tuple[float, float] | None = None
) -> Histogram:
    """Over `limits`, or 99 % of all values; what lies beyond is in the outermost bins."""
    values = np.concatenate(list(groups.values()))
    low, high = limits or np.quantile(values, [0.005, 0.995]).tolist()
    if not high > low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, bins + 1)
    counts = {k: np.histogram(v.clip(low, high), edges)[0] / len(v) for k, v in groups.items()}
    return Histogram(edges, counts)


def scores(rows: Rows, widths: Sequence[float] = ()) -> dict[str, float]:
    """The metrics of the rows whose truth is known, by name; `widths` as in `coverage`."""
    if isinstance(rows, ClassRows) and rows.truth is not None:
        return _class_scores(rows)
    if isinstance(rows, ValueRows) and rows.truth is not None:
        return _value_scores(rows, widths)
    if isinstance(rows, EffectRows) and rows.truth is not None and rows.treatment is not None:
        return _outcome_scores(rows)
    return {}


def _class_scores(rows: ClassRows) -> dict[str, float]:
    assert rows.truth is not None
    loss, known = 1.0 - correct(rows), rows.truth >= 0
    found = {"accuracy": 1 - float(loss.mean())}
    if known.any():
        p, y = rows.probabilities[known], rows.truth[known]
        found |= {"nll": metrics.nll(p, y), "brier": metrics.brier(p, y), "ece": metrics.ece(p, y)}
    return {**found, **_risks(loss, rows.uncertainty)}


def _value_scores(rows: ValueRows, widths: Sequence[float]) -> dict[str, float]:
    assert rows.truth is not None
    z = widths[int(np.flatnonzero(LEVELS == 0.9)[0])] if widths else norm.ppf(0.95)
    variance, half = rows.std**2, z * rows.std
    lower, upper = rows.mean - half, rows.mean + half
    total = float(np.mean((rows.truth - rows.truth.mean()) ** 2))
    rmse = metrics.rmse(rows.truth, rows.mean)
    found = {
        "rmse": rmse,
        "r2": 1 - rmse**2 / total if total > 0 else float("nan"),
        "nll": metrics.gaussian_nll(rows.truth, rows.mean, variance)
        if rows.log_density is None
        else -float(rows.log_density.mean()),
        "crps": metrics.crps_gaussian(rows.truth, rows.mean, variance),
        "coverage_90": metrics.coverage(rows.truth, lower, upper),
        "interval_score_90": metrics.interval_score(rows.truth, lower, upper, alpha=0.1),
    }
    risks = _risks((rows.truth - rows.mean) ** 2, rows.uncertainty)
    return found | {name: value**0.5 if "risk" in name else value for name, value in risks.items()}


def _outcome_scores(rows: EffectRows) -> dict[str, float]:
    if rows.outcomes is None:
        return {}
    assert rows.truth is not None and rows.treatment is not None
    expected = rows.outcomes[np.arange(len(rows)), rows.treatment]
    return {"outcome_rmse": metrics.rmse(rows.truth, expected)}


def _risks(loss: Floats, uncertainty: Floats) -> dict[str, float]:
    risks = {f"risk_{share:.0%}": deferred(loss, uncertainty, share) for share in DEFERRED}
    return {**risks, "aurc": metrics.aurc(loss, uncertainty)}


def miscalibration(rows: ClassRows) -> tuple[float, float]:
    """Mean confidence − accuracy, and the standard error it has were every probability right."""
    confidence = rows.confidence
    gap = float(confidence.mean() - correct(rows).mean())
    return gap, float(np.sqrt((confidence * (1 - confidence)).sum()) / len(rows))


def order(values: NDArray[Any], n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the n smallest, rising, and of the n largest, falling; they never overlap."""
    ranks = np.argsort(values, kind="stable")
    n = min(n, len(ranks) // 2 or 1)
    return ranks[:n], ranks[::-1][:n]
