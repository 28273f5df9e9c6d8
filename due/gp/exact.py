"""Exact GP under Gaussian noise: y ~ N(μ, K + σ² I), for N up to a few thousand."""

from math import log, pi
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from due.gp.cholesky import cholesky
from due.gp.kernels import Kernel
from due.gp.shapes import Features, Noises, Values

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
    L = factor(kernel, h, sigma2)
    white = torch.linalg.solve_triangular(L, (y.double() - mu).mT[..., None], upper=False)[..., 0]
    data_fit = -0.5 * white.square().sum(-1)
    complexity = L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return MarginalLikelihood(
        data_fit, complexity, data_fit - complexity - 0.5 * len(y) * log(2 * pi)
    )


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
    A = torch.linalg.solve_triangular(L, kernel(h, h_new), upper=False)  # (T, N, P)
    white = torch.linalg.solve_triangular(L, (y.double() - mu).mT[..., None], upper=False)
    mean = mu + (A.mT @ white)[..., 0].mT
    return mean, kernel(h_new, h_new) - A.mT @ A


def factor(kernel: Kernel, h: Features, sigma2: Noises) -> Float[Tensor, "T N N"]:
    """L of K + σ² I = L Lᵀ, with as much more noise as it needs where σ² is next to nothing."""
    eye = torch.eye(len(h), dtype=torch.float64, device=h.device)
    K = kernel(h, h) + sigma2.double()[:, None, None] * eye
    L, info = torch.linalg.cholesky_ex(K)
    if not info.any():
        return L
    s = kernel.outputscale.double()[:, None, None]
    return s.sqrt() * cholesky(K / s, SMALLEST_JITTER)
