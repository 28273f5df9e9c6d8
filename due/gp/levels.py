"""How wide intervals must be to cover as often as they say, at each level of the predicted std.

Of a held-out row, z is such that the model puts the mass P(|N(0, 1)| ≤ z) nearer to its mean than y
is. Rows are parted into thirds by their std. In each, an interval that is to cover as much as ± z
of a normal is widened or narrowed to ± z' of it: the smallest z' beyond which lie no more of the
rows than should. Besides the rows of the third count `AS_SAID` made-up rows that are as the model
says, so that few rows change little, and `WIDE` ones of twice that spread, because rows that chose
the epoch and the noise lie nearer to the mean than new ones.
"""

from math import sqrt
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from due.gp.shapes import PerRow, Values

THIRDS = 3
FEWEST = 10  # rows of a third
AS_SAID, WIDE = 30, 2
DISTINCT = 1.01  # ratio of the std of the upper and the lower third, below which they are one
NOMINAL = torch.linspace(0, 6, 121, dtype=torch.float64)
HIGHEST = 16.0  # z'; that of HIGHEST / 2 is larger than any nominal
HALVINGS = 50
SMALLEST = 1e-50  # mass beyond y


class Levels(NamedTuple):
    """z' at each of the `NOMINAL` z, of rows with such a std, per output."""

    std: Float[Tensor, "T 3"]  # median of each third, rising
    z: Float[Tensor, "T 3 G"]


def fit_levels(z: Values, std: Values, weight: PerRow) -> Levels | None:
    """From held-out rows; None if they are too few."""
    if len(z) < THIRDS * FEWEST:
        return None
    outputs = [_of_output(*output, weight) for output in zip(z.mT, std.mT, strict=True)]
    return Levels(*(torch.stack(part) for part in zip(*outputs, strict=True)))


def _of_output(z: Tensor, std: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    thirds = std.argsort(stable=True).tensor_split(THIRDS)
    medians = torch.stack([std[rows].median() for rows in thirds])
    if medians[-1] < DISTINCT * medians[0]:
        return medians, _widths(z, weight).expand(THIRDS, -1)
    return medians, torch.stack([_widths(z[rows], weight[rows]) for rows in thirds])


def _widths(z: Tensor, weight: Tensor) -> Tensor:
    """z' at each nominal z, by bisection."""
    order = z.argsort()
    inside = torch.cat([weight.new_zeros(1), weight[order].cumsum(0)])
    nominal, known = NOMINAL.to(z), z[order].contiguous()
    allowed = (inside[-1] + AS_SAID + WIDE) * outside(nominal)
    low, high = torch.zeros_like(nominal), torch.full_like(nominal, HIGHEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        beyond = inside[-1] - inside[torch.searchsorted(known, middle, right=True)]
        enough = beyond + AS_SAID * outside(middle) + WIDE * outside(middle / 2) <= allowed
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high


def outside(z: Tensor) -> Tensor:
    """P(|N(0, 1)| > z)."""
    return torch.erfc(z / sqrt(2))


def z_beyond(mass: Tensor) -> Tensor:
    """z with P(|N(0, 1)| > z) = mass."""
    return -torch.special.ndtri(mass.clamp_min(SMALLEST) / 2)
