"""How wide intervals must be to cover as often as they say, at each level of the predicted std.

Of a held-out row, z is such that the model puts the mass P(|N(0, 1)| ≤ z) nearer to its mean than y
is. Rows are parted into thirds by their std. In each, an interval that is to cover as much as ± z
of a normal is widened or narrowed to ± z' of it: the smallest z' beyond which lie no more of the
rows than should. It is that of the inner four fifths of the third, and from there changes evenly
to that of the next. Few rows tell a scale better than how many lie far out, so besides those of the
third count made-up rows of their scale a, z = a |N(0, 1)|: `USUAL` of them, and `WIDE` of twice it,
because rows that chose the epoch and the noise lie nearer to the mean than new ones. Fewer than
`PARTED` rows are one part. They lie nearer still, so `WIDER` such rows count instead of `WIDE`. All
this is up to the z beyond which not one of all these rows should lie: farther out they cannot tell.
"""

from math import sqrt
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from due.gp.shapes import PerRow, Values

THIRDS = 3
FEWEST, PARTED = 5, 30  # rows
USUAL, WIDE, WIDER = 10, 3, 5
FAR = 3.0  # z of rows that tell no scale: they count as if they were there
ENDS = 0.1, 0.9  # shares of a third between which z' is the same
DISTINCT = 1.01  # ratio of the std of the upper and the lower third, below which they are one
KNOTS = 101
HIGHEST = 16.0  # z' that is searched for
HALVINGS = 50
SMALLEST = 1e-50  # mass beyond y


class Levels(NamedTuple):
    """z' at each nominal z, of rows with such a std, per output."""

    nominal: Float[Tensor, " G"]  # rising from 0
    std: Float[Tensor, "T K"]  # where it is known, and between them it changes evenly
    z: Float[Tensor, "T K G"]
    latent: Float[Tensor, " T"]  # the largest std of the function among the rows


def fit_levels(z: Values, std: Values, latent: Values, weight: PerRow) -> Levels | None:
    """From held-out rows; None if they are too few. A weight counts as repetitions."""
    n = float(weight.sum())
    if n < FEWEST:
        return None
    parted = n >= PARTED
    wide = WIDE if parted else WIDER
    rows = (n / THIRDS if parted else n) + USUAL + wide
    reach = z_beyond(z.new_tensor(1 / rows, dtype=torch.float64))
    nominal = torch.linspace(0, float(reach), KNOTS, dtype=torch.float64, device=z.device)
    outputs = []
    for of_z, of_std in zip(z.mT, std.mT, strict=True):
        parts = _parts(of_std, weight) if parted else _undivided(of_std)
        outputs.append(_of_output(nominal, of_z, of_std, weight, parts, wide))
    of_std, widths = (torch.stack(part) for part in zip(*outputs, strict=True))
    return Levels(nominal, of_std, widths, latent.amax(0))


def _of_output(
    nominal: Tensor, z: Tensor, std: Tensor, weight: Tensor, parts: list[Tensor], wide: int
) -> tuple[Tensor, Tensor]:
    widths = torch.stack([_widths(nominal, z[part], weight[part], wide) for part in parts])
    ends = [_quantile(std[part], weight[part], share) for part in parts for share in ENDS]
    return torch.stack(ends).cummax(0).values, widths.repeat_interleave(len(ENDS), 0)


def _parts(std: Tensor, weight: Tensor) -> list[Tensor]:
    """Thirds of the rows by std; three times all of them where these are hardly different."""
    third = _thirds(std, weight)
    parts = [third == i for i in range(THIRDS)]
    if not all(part.any() for part in parts):
        return _undivided(std)
    quiet, *_, loud = (_quantile(std[part], weight[part], 0.5) for part in parts)
    return parts if loud >= DISTINCT * quiet else _undivided(std)


def _undivided(std: Tensor) -> list[Tensor]:
    return [torch.ones_like(std, dtype=torch.bool)] * THIRDS


def _thirds(std: Tensor, weight: Tensor) -> Tensor:
    """0, 1 or 2 for each row; equal rows are in the same."""
    values, number = std.unique(return_inverse=True)
    share = torch.zeros_like(values, dtype=weight.dtype).index_add(0, number, weight)
    middle = (share.cumsum(0) - share / 2) / share.sum()
    return (THIRDS * middle).long()[number]


def _quantile(std: Tensor, weight: Tensor, share: float) -> Tensor:
    ordered, order = std.sort()
    total = weight[order].cumsum(0)
    return ordered[torch.searchsorted(total, share * total[-1:])[0]]


def _widths(nominal: Tensor, z: Tensor, weight: Tensor, wide: int) -> Tensor:
    """z' at each nominal z, by bisection."""
    ordered, order = z.sort()
    inside = torch.cat([weight.new_zeros(1), weight[order].cumsum(0)])
    allowed, a = (inside[-1] + USUAL + wide) * outside(nominal), _scale(z, weight)
    low, high = torch.zeros_like(nominal), torch.full_like(nominal, HIGHEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        beyond = inside[-1] - inside[torch.searchsorted(ordered, middle, right=True)]
        made_up = USUAL * outside(middle / a) + wide * outside(middle / (2 * a))
        enough = beyond + made_up <= allowed
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high


def _scale(z: Tensor, weight: Tensor) -> Tensor:
    """√ of the mean square, with one row that is as the model says."""
    total: Tensor = (weight * z.clamp_max(FAR).square()).sum()
    return ((1 + total) / (1 + weight.sum())).sqrt()


def outside(z: Tensor) -> Tensor:
    """P(|N(0, 1)| > z)."""
    return torch.erfc(z / sqrt(2))


def z_beyond(mass: Tensor) -> Tensor:
    """z with P(|N(0, 1)| > z) = mass."""
    return -torch.special.ndtri(mass.clamp_min(SMALLEST) / 2)


def check_levels(levels: Levels, T: int) -> None:
    """Raise `ValueError` if these cannot be levels of T outputs; empty ones can."""
    nominal, std, z, latent = levels
    if not any(part.numel() for part in levels):
        return
    K = max(1, std.shape[-1])
    wanted = (len(nominal),), (T, K), (T, K, len(nominal)), (T,)
    if any(part.shape != shape for part, shape in zip(levels, wanted, strict=True)):
        shapes = [tuple(part.shape) for part in levels]
        raise ValueError(f"levels of {T} outputs do not have shapes {shapes}")
    rising = (nominal.diff() > 0).all() and (std.diff() >= 0).all() and (z.diff() >= 0).all()
    positive = std.min() > 0 and latent.min() > 0 and z.min() >= 0
    if not rising or not positive or nominal[0] != 0 or z.max() > HIGHEST:
        raise ValueError("levels are not rising and positive")
