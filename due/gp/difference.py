"""Differences f(h1) − f(h0) of many pairs at once, under q(f) of an inducing-point GP.

With D = L⁻¹ (κ(Z, h1) − κ(Z, h0)) and P_ij = κ(h1_i, h1_j) + κ(h0_i, h0_j) − κ(h1_i, h0_j)
− κ(h0_i, h1_j), their covariance is s (P − DᵀD + Dᵀ S D). `InducingGP.difference` is its diagonal.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from due.gp.inducing import InducingGP, column_squares, times
from due.gp.kernels import Kernel, squared_distance

BLOCK = 1000


def joint_difference(
    gp: InducingGP, h1: Float[Tensor, "N J"], h0: Float[Tensor, "N J"]
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "T N N"]]:
    """Mean and covariance of f_t(h1_1) − f_t(h0_1), …, f_t(h1_N) − f_t(h0_N), in float64."""
    D = _project(gp, h1, h0)
    B = times(gp.L_S.mT, D)
    prior = _prior(gp.kernel, (h1, h0), (h1, h0)) - D.mT @ D
    return _mean(gp, D), gp.kernel.outputscale[:, None, None] * (prior + B.mT @ B)


def mean_difference(
    gp: InducingGP, h1: Float[Tensor, "N J"], h0: Float[Tensor, "N J"]
) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]]:
    """Mean and variance of the average of the N differences; memory grows with N only."""
    D = torch.cat([_project(gp, *pair) for pair in _blocks(h1, h0)], -1).mean(-1, keepdim=True)
    total = sum(
        _prior(gp.kernel, rows, columns).sum((-2, -1))
        for rows in _blocks(h1, h0)
        for columns in _blocks(h1, h0)
    )
    prior = total / len(h1) ** 2 - column_squares(D)[:, 0]
    spread = column_squares(times(gp.L_S.mT, D))[:, 0]
    return _mean(gp, D)[0], gp.kernel.outputscale * (prior.clamp_min(0) + spread)


Pair = tuple[Tensor, Tensor]


def _project(gp: InducingGP, h1: Tensor, h0: Tensor) -> Tensor:
    A = gp.project(torch.cat([h1, h0]))
    return A[..., : len(h1)] - A[..., len(h1) :]  # (K, M, N)


def _mean(gp: InducingGP, D: Tensor) -> Tensor:
    return (gp.kernel.outputscale.sqrt()[:, None] * times(gp.m[:, None].double(), D)[:, 0]).mT


def _prior(kernel: Kernel, a: Pair, b: Pair) -> Tensor:
    """P between two sets of pairs, (K, N, N)."""
    between = [[kernel.correlation(squared_distance(x, y)) for y in b] for x in a]
    return between[0][0] + between[1][1] - between[0][1] - between[1][0]


def _blocks(h1: Tensor, h0: Tensor) -> list[Pair]:
    return list(zip(h1.split(BLOCK), h0.split(BLOCK), strict=True))
