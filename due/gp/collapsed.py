"""Titsias's bound (2009): inducing points under Gaussian noise, q(U) optimal in closed form.

With A = √s L⁻¹ κ(Z, h), weights w (1 if absent), noise σ_n² of each row (or one σ²), β = w / σ²,
r = y − μ, B = I + Σ_n β_n a_n a_nᵀ:

bound = Σ_n w_n log N(r_n | 0, σ_n²) + ½ bᵀ B⁻¹ b − ½ log|B| − ½ Σ_n β_n (k_nn − ‖a_n‖²),
b = Σ_n β_n a_n r_n,    q(v) = N(B⁻¹ b, B⁻¹).

For w = 1 and one σ² it is log N(y | μ, Q + σ² I) − tr(K − Q) / 2σ² with Q = AᵀA.
"""

from collections.abc import Callable, Iterable
from functools import reduce
from math import log, pi
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from due.gp.cholesky import cholesky
from due.gp.inducing import Inducing, InducingGP, column_squares, times
from due.gp.shapes import Features, Noises, Scalar, Values, Weights, by_row

Shape: TypeAlias = Callable[[Tensor], Tensor] | None  # noise of rows relative to its level, (N, T)


def collapsed_bound(
    gp: InducingGP,
    h: Features,
    y: Values,
    sigma2: Noises,
    weights: Weights = None,
    Z: Inducing = None,
) -> Scalar:
    """The bound on log p(y), summed over outputs; Z may be features instead of the GP's own."""
    w, r = _weights(y, weights), _residual(gp, y)
    noise = by_row(sigma2)  # (T or 1, N or 1)
    beta = w / noise
    A = _project(gp, h, Z)  # (T or 1, M, N)
    B, b = _precision(A, r, beta)
    L_B = _factor(B)
    fit = torch.linalg.solve_triangular(L_B, b[..., None], upper=False).square().sum((-2, -1))
    log_det_B = 2 * L_B.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # (T or 1,)
    unexplained = gp.kernel.outputscale[:, None] - column_squares(A)  # (T or 1, N)
    misfit = (beta * (r.square() + unexplained)).sum(-1)  # (T,)
    constant = (w * (log(2 * pi) + noise.log())).sum(-1)  # (T or 1,)
    return 0.5 * (fit - log_det_B - misfit - constant).sum()


@torch.no_grad()
def set_optimal_q(
    gp: InducingGP, h: Features, y: Values, sigma2: Noises, weights: Weights = None
) -> None:
    """Set q(V) to the posterior given y = f(h) + N(0, σ²), the maximiser of the ELBO."""
    condition(gp, [(h, y, sigma2, weights)])


@torch.no_grad()
def condition(gp: InducingGP, parts: Iterable[tuple[Features, Values, Noises, Weights]]) -> None:
    """The same given the rows of all parts (h, y, σ², weights), one part at a time."""
    sums = (
        _sums(_project(gp, h), _residual(gp, y), _weights(y, weights) / by_row(sigma2))
        for h, y, sigma2, weights in parts
    )
    AA, b = reduce(lambda total, part: (total[0] + part[0], total[1] + part[1]), sums)
    B = _plus_identity(AA)  # (T or 1, M, M)
    L_S = _factor_of_inverse(B)
    m = times(times(b[:, None], L_S), L_S.mT)[:, 0]  # B⁻¹ b
    if gp.shared_covariance and len(B) > 1:
        L_S = _factor_of_inverse(B.mean(0, keepdim=True))
    gp.set_q(m, L_S)


@torch.no_grad()
def held_out_noise(
    gp: InducingGP,
    h: Features,
    y: Values,
    new_h: Float[Tensor, "P J"],
    new_y: Float[Tensor, "P T"],
    weights: Weights = None,
    new_weights: Float[Tensor, " P"] | None = None,
    *,
    shared: bool = False,
    shape: Shape = None,
) -> Noises:
    """σ² of each output, from `NOISES`, under which the new rows are most probable given (h, y).

    `shared` looks for one σ² of all outputs together. The noise of a row is σ² e, with e = 1 or by
    its `shape`.
    With W = w / e, A W Aᵀ = V Λ Vᵀ, b = Vᵀ A W r and c = Vᵀ a of a new row, q(U) optimal for σ²
    predicts N(μ + Σ_m c_m b_m / (σ² + λ_m),  k − ‖a‖² + σ² (e + Σ_m c_m² / (σ² + λ_m))).
    """
    A, a = _project(gp, h), _project(gp, new_h)
    e, new_e = (y.new_ones(1, 1) if shape is None else shape(x).mT for x in (h, new_h))
    AW = A * (_weights(y, weights) / e)[:, None]
    lam, V = torch.linalg.eigh(AW @ A.mT)  # (T or 1, M), (T or 1, M, M)
    b = times(times(_residual(gp, y)[:, None], AW.mT), V)[:, 0]  # (T, M)
    c = V.mT @ a  # (T or 1, M, P)
    sigma2 = torch.logspace(*NOISES, dtype=b.dtype, device=b.device)[:, None, None]
    shrink = (sigma2 + lam).reciprocal()  # (G, T or 1, M)
    mean = times((shrink * b).transpose(0, 1), c).transpose(0, 1)  # (G, T, P)
    spread = times(shrink.transpose(0, 1), c.square()).transpose(0, 1)  # (G, T or 1, P)
    unexplained = (gp.kernel.outputscale[:, None] - column_squares(a)).clamp_min(0)
    var = unexplained + sigma2 * (new_e + spread)  # (G, T or 1, P)
    misfit = (_residual(gp, new_y) - mean).square() / var + var.log()
    total = (_weights(new_y, new_weights) * misfit).sum(-1)  # (G, T)
    best = (total.sum(1, keepdim=True) if shared else total).argmin(0)  # (T,) or (1,)
    return sigma2[best, 0, 0]


@torch.no_grad()
def leave_one_out(
    gp: InducingGP, h: Features, y: Values, sigma2: Noises, weights: Weights = None
) -> tuple[Values, Values]:
    """Mean and variance of f at each row, given all the others.

    With c = aᵀ B⁻¹ a and m = aᵀ B⁻¹ b, leaving β a aᵀ out of B gives (m − β c r) / (1 − β c) and
    k − ‖a‖² + c / (1 − β c).
    """
    r, beta = _residual(gp, y), _weights(y, weights) / by_row(sigma2)
    A = _project(gp, h)
    B, b = _precision(A, r, beta)
    L_B = _factor(B)
    W = torch.linalg.solve_triangular(L_B, A, upper=False)  # (T or 1, M, N)
    c = column_squares(W)
    white = torch.linalg.solve_triangular(L_B, b[..., None], upper=False)  # (T, M, 1)
    left = (1 - beta * c).clamp_min(1e-10)
    mean = gp.mu + ((times(white.mT, W)[:, 0] - beta * c * r) / left).mT
    unexplained = (gp.kernel.outputscale[:, None] - column_squares(A)).clamp_min(0)
    return mean, (unexplained + c / left).expand_as(r).mT


NOISES = (-5.0, 0.3, 100)  # log₁₀ of the smallest and the largest σ², and how many between


def _project(gp: InducingGP, h: Tensor, Z: Tensor | None = None) -> Tensor:
    return gp.kernel.outputscale.sqrt()[:, None, None] * gp.project(h, Z)


def _weights(y: Tensor, weights: Tensor | None) -> Tensor:
    return y.new_ones(len(y), dtype=torch.float64) if weights is None else weights.double()


def _residual(gp: InducingGP, y: Tensor) -> Tensor:
    return (y.double() - gp.mu.double()).mT  # (T, N)


def _precision(A: Tensor, r: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """B = I + Σ_n β_n a_n a_nᵀ and b = Σ_n β_n a_n r_n."""
    AA, b = _sums(A, r, beta)
    return _plus_identity(AA), b


def _sums(A: Tensor, r: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_n β_n a_n a_nᵀ, (T or 1, M, M), and b, (T, M)."""
    AW = A * beta[:, None]
    return AW @ A.mT, times(r[:, None], AW.mT)[:, 0]


def _plus_identity(AA: Tensor) -> Tensor:
    return torch.eye(AA.shape[-1], dtype=AA.dtype, device=AA.device) + AA


def _factor_of_inverse(B: Tensor) -> Tensor:
    """L_S, lower triangular, with L_S L_Sᵀ = B⁻¹: B = U Uᵀ with U upper triangular, L_S = U⁻ᵀ."""
    U = _factor(B.flip(-2, -1)).flip(-2, -1)
    eye = torch.eye(B.shape[-1], dtype=B.dtype, device=B.device).expand_as(U)
    return torch.linalg.solve_triangular(U.mT, eye, upper=False)


def _factor(B: Tensor) -> Tensor:
    return cholesky(B, jitter=0.0)  # B ≥ I: fails on NaN only
