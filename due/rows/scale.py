"""Columns on a common scale, x ↦ (x − mean) / std, computed in float64."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
CHUNK = 8192  # rows turned into float64 at once


class Scale(NamedTuple):
    """x ↦ (x − mean) / std."""

    mean: Floats
    std: Floats

    def __call__(self, x: NDArray[Any]) -> Floats:
        """x ↦ (x − mean) / std."""
        return (x - self.mean) / self.std

    def tensor(self, x: NDArray[Any]) -> Tensor:
        """The scaled rows in float32; float64 copies are made chunk by chunk."""
        scaled = np.empty(x.shape, dtype=np.float32)
        for part in _chunks(len(x)):
            scaled[part] = self(x[part])
        return torch.from_numpy(scaled)

    def inverse(self, z: Floats) -> Floats:
        """(x − mean) / std ↦ x."""
        return z * self.std + self.mean

    def as_lists(self) -> dict[str, Any]:
        """For JSON, which keeps every bit of a float."""
        return {"mean": self.mean.tolist(), "std": self.std.tolist()}

    @classmethod
    def from_lists(cls, lists: dict[str, Any]) -> "Scale":
        """The inverse of `as_lists`."""
        return cls(np.asarray(lists["mean"]), np.asarray(lists["std"]))

    @classmethod
    def identity(cls, shape: tuple[int, ...]) -> "Scale":
        """x ↦ x, for rows of this shape."""
        return cls(np.zeros(shape), np.ones(shape))


def fit_input_scale(x: NDArray[Any], weight: Floats) -> Scale:
    """Each column by its own standard deviation, or all by a common one if they share a unit.

    Pixels share one: 16 columns or more with the same minimum, a quarter of which reach the same
    maximum. A pixel that hardly ever changes then stays small instead of being blown up.
    """
    mean, std, span = _moments(x, weight)
    if not share_a_unit(x) or not span.any():
        return Scale(mean, np.where(span > 0, std, 1.0))
    common = std.max() * np.sqrt(np.mean((std / std.max()) ** 2))
    return Scale(mean, np.full_like(std, common))


def fit_covariate_scale(x: Floats) -> Scale:
    """Columns standardised, except those of two values, which become 0 and 1.

    A column of two values that are small already (0/1, −1/1, 1/2) is left as it is.
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
    """Weighted mean and deviation per column, or per channel of images; 1 for a constant one."""
    mean, std, span = _moments(x, weight)
    return Scale(mean, np.where(span > 0, std, 1.0))


def share_a_unit(x: NDArray[Any]) -> bool:
    """Whether columns look like pixels."""
    low, high = (edge(x.reshape(len(x), -1), axis=0) for edge in (np.min, np.max))
    alike = bool((low == low[0]).all()) and np.mean(high == high.max()) >= 0.25
    return x.ndim == 2 and x.shape[1] >= 16 and alike


def _moments(x: NDArray[Any], weight: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean, deviation and range per column; both are 0 where only rounding moves it."""
    axes = (0, *range(2, x.ndim))
    low, high = (edge(x, axis=axes, keepdims=True).astype(float) for edge in (np.min, np.max))
    share = weight.reshape(-1, *[1] * (x.ndim - 1)) / (weight.sum() * np.prod(x.shape[2:]))
    with np.errstate(over="ignore"):
        wide = ~np.isfinite(high - low).reshape(-1)
    if wide.any():
        column = int(wide.argmax())
        raise ValueError(
            f"column {column} of X reaches from {low.flat[column]:g} to {high.flat[column]:g}, "
            "farther than a number can: give it in another unit, or its logarithm"
        )
    moves = high - low > 10 * np.finfo(np.float64).eps * np.maximum(np.abs(low), np.abs(high))

    def total(of: Any) -> Floats:
        parts = ((of(x[rows]) * share[rows]).sum(axes, keepdims=True) for rows in _chunks(len(x)))
        return np.sum(list(parts), axis=0)

    mean = np.where(moves, low + total(lambda rows: rows - low), low)
    span = np.where(moves, high - low, 0.0)
    unit = np.where(moves, span, 1.0)  # the square of 1e200 or of 1e-200 overflows
    variance = total(lambda rows: ((rows - mean) / unit) ** 2)
    return mean[0], np.where(moves, unit * np.sqrt(variance), 0.0)[0], span[0]


def _chunks(n: int) -> Iterator[slice]:
    return (slice(start, start + CHUNK) for start in range(0, n, CHUNK))
