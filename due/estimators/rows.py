"""Rows as an estimator sees them: in one order, without repetitions, on a common scale."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CANONICAL_ROWS = 10_000


class Rows(NamedTuple):
    """Training rows, each with its weight."""

    X: Floats
    y: NDArray[Any]
    weight: Floats


def canonical(X: Floats, y: NDArray[Any], weight: Floats | None) -> Rows:
    """Sorted rows in which equal (x, y) are one row with the sum of their weights.

    A fit then depends neither on the order of the rows nor on whether a repetition is written
    out or given as a weight. Sorting costs more than it gives beyond 10,000 rows, which are
    taken as they come. Rows of weight 0 are dropped.
    """
    weight = np.ones(len(X)) if weight is None else weight
    keep = weight > 0
    if not keep.all():
        X, y, weight = X[keep], y[keep], weight[keep]
    if len(X) > CANONICAL_ROWS:
        return Rows(X, y, weight)
    keys = np.column_stack([X.reshape(len(X), -1), y.reshape(len(y), -1)])
    order = np.lexsort(keys.T[::-1])
    sorted_keys = keys[order]
    first = np.ones(len(keys), dtype=bool)
    first[1:] = (sorted_keys[1:] != sorted_keys[:-1]).any(1)
    starts = np.flatnonzero(first)
    rows = order[starts]
    return Rows(X[rows], y[rows], np.add.reduceat(weight[order], starts))


class Scale(NamedTuple):
    """x ↦ (x − mean) / std, in float64."""

    mean: Floats
    std: Floats

    def __call__(self, x: Floats) -> Floats:
        """x ↦ (x − mean) / std."""
        return (x - self.mean) / self.std

    def as_lists(self) -> dict[str, Any]:
        """For JSON, which keeps every bit of a float."""
        return {"mean": self.mean.tolist(), "std": self.std.tolist()}

    @classmethod
    def from_lists(cls, lists: dict[str, Any]) -> "Scale":
        """The inverse of `as_lists`."""
        return cls(np.asarray(lists["mean"]), np.asarray(lists["std"]))

    def inverse(self, z: Floats) -> Floats:
        """(x − mean) / std ↦ x."""
        return z * self.std + self.mean


def fit_input_scale(x: Floats, weight: Floats) -> Scale:
    """Each column by its own standard deviation, or all by a common one if they share a unit.

    Pixels share one: 16 columns or more with the same minimum, a quarter of which reach the same
    maximum. A pixel that hardly ever changes then stays small instead of being blown up.
    """
    mean, std, span = _moments(x, weight)
    if not _share_a_unit(x) or not span.any():
        return Scale(mean, np.where(span > 0, std, 1.0))
    common = std.max() * np.sqrt(np.mean((std / std.max()) ** 2))
    return Scale(mean, np.full_like(std, common))


def fit_covariate_scale(x: Floats) -> Scale:
    """Columns standardised, but those of two values 0 and 1: a rare yes stays small.

    A yes that is already written in small numbers (0/1, −1/1, 1/2) is left as it is.
    """
    mean, std, span = _moments(x, np.ones(len(x)))
    low, high = x.min(0), x.max(0)
    binary = ((x == low) | (x == high)).all(0)
    small = (np.maximum(np.abs(low), np.abs(high)) <= 2) & ((span == 0) | (span >= 1))
    as_it_is = binary & small
    centre = np.where(binary, low, mean)
    unit = np.where(span > 0, np.where(binary, span, std), 1.0)
    return Scale(np.where(as_it_is, 0.0, centre), np.where(as_it_is, 1.0, unit))


def fit_scale(x: Floats, weight: Floats) -> Scale:
    """Weighted mean and deviation of each column, or channel of images; 1 for a constant one."""
    mean, std, span = _moments(x, weight)
    return Scale(mean, np.where(span > 0, std, 1.0))


def _share_a_unit(x: Floats) -> bool:
    low, high = (edge(x.reshape(len(x), -1), axis=0) for edge in (np.min, np.max))
    alike = bool((low == low[0]).all()) and np.mean(high == high.max()) >= 0.25
    return x.ndim == 2 and x.shape[1] >= 16 and alike


def _moments(x: Floats, weight: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean, deviation and range of each column; both are 0 where only rounding moves it."""
    axes = (0, *range(2, x.ndim))
    low, high = x.min(axes, keepdims=True), x.max(axes, keepdims=True)
    share = weight.reshape(-1, *[1] * (x.ndim - 1)) / (weight.sum() * np.prod(x.shape[2:]))
    moves = high - low > 10 * np.finfo(np.float64).eps * np.maximum(np.abs(low), np.abs(high))
    mean = np.where(moves, low + ((x - low) * share).sum(axes, keepdims=True), low)
    span = np.where(moves, high - low, 0.0)
    unit = np.where(moves, span, 1.0)  # a square of 1e200 or of 1e-200 is no number
    variance = (((x - mean) / unit) ** 2 * share).sum(axes, keepdims=True)
    return mean[0], np.where(moves, unit * np.sqrt(variance), 0.0)[0], span[0]
