"""Exact GP under Gaussian noise: y ~ N(μ, K + σ² I), for N up to a few thousand."""

from math import log, pi
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from due.gp.cholesky import cholesky
from due.gp.inducing import InducingGP, column_squares, outward
from due.gp.kernels import Kernel, squared_distance_of_any
from due.gp.shapes import Features, Noises, Scalar, Values, Weights, by_row

SMALLEST_JITTER = 1e-12  # of the prior variance, where σ² is too small to help


class MarginalLikelihood(NamedTuple):
    """log p(y) = data_fit − complexity − N/2 log 2π, for each output."""

    data_fit: Float[Tensor, " T"]  # −½ (y − μ)ᵀ (K + σ² I)⁻¹ (y − μ)
    complexity: Float[Tensor, " T"]  # ½ log|K + σ² I|
    total: Float[Tensor, " T"]


def log_marginal_likelihood(
    kernel: Kernel, h: Features, y: Values, sigma2: Noises, mu: Float[Tensor, " T"] | float = 0.0
) -> MarginalLikelihood:
    """log N(y_t | μ_t, K_t + σ² I) with its two terms apart."""
    K = with_noise(kernel(h, h), sigma2)
    L = factor_of(K.detach(), kernel)
    r = (y.double() - mu).mT
    K, L = (matrix.expand(len(r), -1, -1) for matrix in (K, L))  # outputs may share a kernel
    data_fit, complexity = _LogNormal.apply(K, r, L)  # type: ignore[no-untyped-call]
    return MarginalLikelihood(
        data_fit, complexity, data_fit - complexity - 0.5 * len(y) * log(2 * pi)
    )


class _LogNormal(torch.autograd.Function):
    """−½ rᵀ K⁻¹ r and ½ log|K| from K = L Lᵀ: ∂K is ½ α αᵀ and ½ K⁻¹, α = K⁻¹ r.

    Half the time of going back through the factorisation.
    """

    @staticmethod
    def forward(ctx: Any, K: Tensor, r: Tensor, L: Tensor) -> tuple[Tensor, Tensor]:
        alpha = torch.cholesky_solve(r[..., None], L)[..., 0]  # (T, N)
        ctx.save_for_backward(alpha, L)
        return -0.5 * (r * alpha).sum(-1), L.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (alpha, L), (of_fit, of_size) = ctx.saved_tensors, grads
        inverse = torch.cholesky_inverse(L).mul_(0.5 * of_size[:, None, None])
        scaled = 0.5 * of_fit[:, None] * alpha
        grad_K = inverse.baddbmm_(scaled[..., None], alpha[..., None, :])
        return grad_K, -of_fit[:, None] * alpha, None


def weighted_likelihood(
    gp: InducingGP, h: Features, y: Values, sigma2: Noises, weights: Weights = None
) -> Scalar:
    """log p(y) under the GP's kernel and mean, its inducing points aside, summed over outputs.

    A weight w counts a row w times: w observations y of variance σ² are one of σ² / w, and a
    factor (2πσ²)^{(1 − w) / 2} w^{−½}.
    """
    if weights is None:
        return log_marginal_likelihood(gp.kernel, h, y, sigma2, gp.mu).total.sum()
    w, noise = weights.double(), by_row(sigma2).expand(gp.T, len(y))  # (T, N)
    total = log_marginal_likelihood(gp.kernel, h, y, (noise / w).mT, gp.mu).total.sum()
    return total - 0.5 * ((w - 1) * (log(2 * pi) + noise.log()) + w.log()).sum()


class Posterior:
    """f given y at the features h: one factor for all questions, marginal variances only."""

    def __init__(
        self, gp: InducingGP, h: Features, y: Values, sigma2: Noises, weights: Weights = None
    ) -> None:
        w = h.new_ones(len(h), dtype=torch.float64) if weights is None else weights.double()
        self.gp, self.h = gp, h
        self.L = factor(gp.kernel, h, (by_row(sigma2).expand(gp.T, len(h)) / w).mT)
        residual = (y.double() - gp.mu).mT[..., None]
        self.white = torch.linalg.solve_triangular(self.L, residual, upper=False)  # (T, N, 1)

    def __call__(self, h: Float[Tensor, "P J"]) -> tuple[Float[Tensor, "P T"], ...]:
        """Mean and variance at new features."""
        A = torch.linalg.solve_triangular(self.L, self.gp.kernel(h, self.h).mT, upper=False)
        mean = self.gp.mu + (A.mT @ self.white)[..., 0].mT
        var = self.gp.kernel.outputscale[:, None] - column_squares(A)
        return mean.to(outward(h)), var.mT.clamp_min(1e-12).to(outward(h))


def posterior(
    kernel: Kernel,
    h: Features,
    y: Values,
    sigma2: Noises,
    h_new: Float[Tensor, "P J"],
    mu: Float[Tensor, " T"] | float = 0.0,
) -> tuple[Float[Tensor, "P T"], Float[Tensor, "T P P"]]:
    """Mean and covariance of f(h_new) given y, without noise."""
    L = factor(kernel, h, sigma2)
    A = torch.linalg.solve_triangular(L, kernel(h_new, h).mT, upper=False)  # (T, N, P)
    white = torch.linalg.solve_triangular(L, (y.double() - mu).mT[..., None], upper=False)
    mean = mu + (A.mT @ white)[..., 0].mT
    centre = h.double().mean(0)
    reach = (h.double() - centre).square().sum(1).max()
    prior = kernel.correlation(squared_distance_of_any(h_new, h_new, centre, reach))
    return mean, kernel.outputscale[:, None, None] * prior - A.mT @ A


def factor(kernel: Kernel, h: Features, sigma2: Noises) -> Float[Tensor, "T N N"]:
    """L of K + σ² I = L Lᵀ, with as much more noise as it needs where σ² is next to nothing."""
    return factor_of(with_noise(kernel(h, h), sigma2), kernel)


def with_noise(K: Float[Tensor, "K N N"], sigma2: Noises) -> Float[Tensor, "T N N"]:
    """K + σ² I; K may be shared by all outputs."""
    noise = by_row(sigma2)
    return K + torch.diag_embed(noise.expand(len(noise), K.shape[-1]))


def factor_of(K: Float[Tensor, "T N N"], kernel: Kernel) -> Float[Tensor, "T N N"]:
    """L of K = L Lᵀ, a covariance under this kernel."""
    L, info = torch.linalg.cholesky_ex(K)
    if not info.any():
        return L
    s = kernel.outputscale.double()[:, None, None]
    return s.sqrt() * cholesky(K / s, SMALLEST_JITTER)
