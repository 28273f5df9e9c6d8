"""Expectations E[g(f)] for independent f_c ~ N(mean_c, var_c) over T classes, deterministically.

The class probabilities are E[softmax(f)]. Two classes need one dimension only, f_1 − f_0,
integrated by quadrature. More classes use a fixed quasi-random set ε, closed under rotation of
the classes and handed out in the order of (mean, var), so that permuting the classes permutes the
answer and equal classes get equal shares. A row's answer depends on nothing but the row.
"""

from collections.abc import Callable, Iterable
from math import ceil, log2, pi

import torch
from jaxtyping import Float
from torch import Tensor
from torch.quasirandom import SobolEngine

CACHE = 2**17  # logits held at once, so that they stay in cache
NODES = 129  # of the quadrature for two classes, over ±7 standard deviations


def expectation(
    g: Callable[[Tensor], Tensor],
    mean: Float[Tensor, "N T"],
    var: Float[Tensor, "N T"],
    epsilon: Float[Tensor, "B T"],
) -> Float[Tensor, "N T"]:
    """E[g(f)] for a g from logits (T, …) to one value a class; `epsilon` are the `base_points`."""
    if mean.shape[-1] == 2:
        return _quadrature(g, mean, var)
    order = _order(mean, var)
    mean, std = mean.gather(-1, order), var.gather(-1, order).sqrt()
    points = rotations(epsilon.to(mean.dtype))  # (S, T)
    value = _average_ties(_average(g, mean, std, points), mean, std)
    return torch.empty_like(value).scatter(-1, order, value)


def monte_carlo(
    mean: Float[Tensor, "N T"], var: Float[Tensor, "N T"], epsilon: Float[Tensor, "S T"]
) -> Float[Tensor, "N T"]:
    """E[softmax(f)] from plain samples ε, the same for all rows: the paper's way, with S = 32."""
    points = epsilon.to(mean.dtype).unsqueeze(-1)  # (S, T, 1)
    f = torch.addcmul(mean.mT, var.mT.sqrt(), points)  # (S, T, N): the rows vectorise
    return torch.softmax(f, 1).mean(0).mT


def mean_field(mean: Float[Tensor, "N T"], var: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """softmax(mean / √(1 + π var / 8)): closed form, cheap and rough."""
    return torch.softmax(mean / (1 + pi / 8 * var).sqrt(), -1)


def base_points(T: int) -> Float[Tensor, "B T"]:
    """Scrambled Sobol points as standard normals: with their T rotations, 1,024 to 4,096."""
    least = min(max(1024, 32 * T), 2048)
    B = 2 ** max(0, ceil(log2(least / T)))
    u = SobolEngine(T, scramble=True, seed=0).draw(B, dtype=torch.float64)
    return torch.special.ndtri(u.clamp(1e-9, 1 - 1e-9))


def rotations(epsilon: Float[Tensor, "B T"]) -> Float[Tensor, "S T"]:
    """Each point with its coordinates rotated by 0, 1, …, T − 1: no class is favoured."""
    t = torch.arange(epsilon.shape[-1], device=epsilon.device)
    return epsilon[:, (t[:, None] + t) % len(t)].flatten(0, 1)


def _average(g: Callable[[Tensor], Tensor], mean: Tensor, std: Tensor, points: Tensor) -> Tensor:
    """Mean of g over the points: classes first and points last, which vectorises best."""
    S, T = points.shape
    blocks = points.split(max(1, CACHE // T))
    parts = []
    for m, s in _row_blocks(mean, std, max(1, CACHE // (S * T))):
        m, s = m.mT[..., None], s.mT[..., None]  # (T, rows, 1)
        sums = [g(m + s * block.mT[:, None]).sum(-1) for block in blocks]  # each (T, rows)
        parts.append(torch.stack(sums).sum(0).mT)
    return torch.cat(parts) / S


def _row_blocks(mean: Tensor, std: Tensor, rows: int) -> Iterable[tuple[Tensor, Tensor]]:
    if torch.compiler.is_compiling():  # a graph for any number of rows has no loop over them
        return [(mean, std)]
    return zip(mean.split(rows), std.split(rows), strict=True)


def _quadrature(g: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor) -> Tensor:
    z = torch.linspace(-7, 7, NODES, dtype=mean.dtype, device=mean.device)
    weight = torch.softmax(-z.square() / 2, 0)
    half = ((mean[:, 1] - mean[:, 0])[:, None] + var.sum(-1).sqrt()[:, None] * z) / 2  # (N, nodes)
    return (g(torch.stack([-half, half])) * weight).sum(-1).mT


def _order(mean: Tensor, var: Tensor) -> Tensor:
    by_var = var.argsort(dim=-1, stable=True)
    return by_var.gather(-1, mean.gather(-1, by_var).argsort(dim=-1, stable=True))


def _average_ties(value: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Equal (mean, std) get equal values; the arguments are sorted, so equals are neighbours."""
    new = (mean.diff(dim=-1) != 0) | (std.diff(dim=-1) != 0)
    group = torch.nn.functional.pad(new.cumsum(-1), (1, 0))
    total = torch.zeros_like(value).scatter_add(-1, group, value)
    count = torch.zeros_like(value).scatter_add(-1, group, torch.ones_like(value))
    return (total / count.clamp_min(1)).gather(-1, group)
