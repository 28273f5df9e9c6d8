"""Likelihoods p(y | f): what a latent N(mean, var) says about y, and how well it explains it."""

from abc import abstractmethod
from math import log, pi
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import softplus

from due.gp import softmax
from due.gp.kernels import inverse_softplus
from due.gp.levels import Levels
from due.gp.noise import NoiseShape
from due.gp.shapes import Features, Noises

Latent: TypeAlias = Float[Tensor, "N T"]
HERMITE = np.polynomial.hermite.hermgauss(20)


class Normal(NamedTuple):
    """Mean and variance of independent normals."""

    mean: Float[Tensor, "N T"]
    var: Float[Tensor, "N T"]


class Mixture(NamedTuple):
    """Normals of one mean: shares, and variances relative to σ²."""

    share: Float[Tensor, " K"]
    ratio: Float[Tensor, " K"]


class Additive(nn.Module):
    """Abstract: y = f + √σ² ε; one learned σ² for all outputs, or one for each, or σ² e(h) per row.

    Parameters
    ----------
    noises
        1, or the number of outputs.
    sigma2
        Initial value of σ².
    shape
        σ² of a row relative to its level, from its features; None has the same everywhere.
    """

    def __init__(
        self, noises: int = 1, sigma2: float = 0.6931, shape: NoiseShape | None = None
    ) -> None:
        super().__init__()
        self.noises, self.shape = noises, shape
        self.raw_sigma2 = nn.Parameter(inverse_softplus(sigma2, noises))

    @property
    def sigma2(self) -> Float[Tensor, " noises"]:
        """Level of σ²."""
        return SMALLEST_NOISE + softplus(self.raw_sigma2.double())

    def noise(self, h: Features) -> Noises:
        """σ² at features h, (N, noises), or (noises,) where it is the same for all."""
        return self.sigma2 if self.shape is None else self.sigma2 * self.shape(h)

    @abstractmethod
    def variance(self, h: Features) -> Noises:
        """Variance of the noise at features h."""

    @torch.no_grad()
    def set_sigma2(self, sigma2: Float[Tensor, " noises"]) -> None:
        """Set the level of σ²."""
        level = (sigma2 - SMALLEST_NOISE).clamp_min(SMALLEST_NOISE)
        self.raw_sigma2.copy_(inverse_softplus(level, self.noises))


class Gaussian(Additive):
    """y = f + N(0, σ²); arguments as in `Additive`."""

    def expected_log_prob(
        self, mean: Latent, var: Latent, y: Latent, sigma2: Noises | None = None
    ) -> Float[Tensor, " N"]:
        """E[log N(y | f, σ²)] = −½ (log 2πσ² + ((y − mean)² + var) / σ²), summed over outputs."""
        sigma2 = (self.sigma2 if sigma2 is None else sigma2).to(mean.dtype)
        misfit = ((y - mean).square() + var) / sigma2
        return -0.5 * (log(2 * pi) + sigma2.log() + misfit).sum(-1)

    def predictive(self, mean: Latent, var: Latent, sigma2: Noises | None = None) -> Normal:
        """N(mean, var + σ²): a new observation, noise included."""
        return Normal(mean, var + (self.sigma2 if sigma2 is None else sigma2).to(var.dtype))

    def variance(self, h: Features) -> Noises:
        """Variance of the noise at features h."""
        return self.noise(h)

    def with_tails(self, nu: float, sigma2: Float[Tensor, " noises"]) -> "StudentT":
        """A Student-t of that level in its place, of the same shape."""
        student = StudentT(self.noises, shape=self.shape, nu=nu).to(self.raw_sigma2.device)
        student.raw_sigma2 = self.raw_sigma2
        student.set_sigma2(sigma2)
        return student

    def mixture(self) -> Mixture:
        """The noise as normals of variance `ratio` σ²: one."""
        one = torch.ones(1, dtype=torch.float64, device=self.raw_sigma2.device)
        return Mixture(one, one)


class StudentT(Additive):
    """y = f + √σ² t_ν, whose tails are heavy; arguments as in `Additive`.

    t_ν is a mixture of N(0, 1/ω) with ω ~ Gamma(ν/2, ν/2). Given y and q(f), ω of a row is about
    (ν + 1) / (ν + E(y − f)² / σ²): far from f a row has more noise, σ²/ω, and so less weight.
    Held-out rows may have said how wide intervals are to be, `levels`.
    """

    nu: Tensor
    level_nominal: Tensor
    level_std: Tensor
    level_z: Tensor
    level_latent: Tensor

    def __init__(
        self,
        noises: int = 1,
        sigma2: float = 0.6931,
        shape: NoiseShape | None = None,
        nu: float = 4.0,
    ) -> None:
        super().__init__(noises, sigma2, shape)
        self.register_buffer("nu", torch.tensor([nu], dtype=torch.float64))
        for name in Levels._fields:
            self.register_buffer(f"level_{name}", torch.empty(0, dtype=torch.float64))

    @property
    def levels(self) -> Levels:
        """Of intervals; empty, if they were not learned."""
        return Levels(*(getattr(self, f"level_{name}") for name in Levels._fields))

    @levels.setter
    def levels(self, found: Levels) -> None:
        for name, part in zip(Levels._fields, found, strict=True):
            setattr(self, f"level_{name}", part)

    def without_tails(self) -> Gaussian:
        """Normal noise of the same variance in its place, of the same shape."""
        gaussian = Gaussian(self.noises, shape=self.shape).to(self.raw_sigma2.device)
        level = (self.sigma2 * self.nu / (self.nu - 2)).detach()
        gaussian.raw_sigma2 = self.raw_sigma2
        gaussian.set_sigma2(level)
        return gaussian

    def precisions(self, mean: Latent, var: Latent, y: Latent, sigma2: Noises) -> Latent:
        """E[ω] of each row and output, given y."""
        return (self.nu + 1) / (self.nu + ((y - mean).square() + var) / sigma2)

    def expected_log_prob(
        self, mean: Latent, var: Latent, y: Latent, sigma2: Noises | None = None
    ) -> Float[Tensor, " N"]:
        """E[log t_ν((y − f) / σ) − log σ] by Gauss-Hermite quadrature, summed over outputs."""
        sigma2 = self.sigma2 if sigma2 is None else sigma2
        points, weights = (torch.from_numpy(part).to(mean) for part in HERMITE)
        f = mean[..., None] + (2 * var)[..., None].sqrt() * points
        square = (y[..., None] - f).square() / sigma2.to(mean.dtype)[..., None]
        half = 0.5 * self.nu
        constant = torch.lgamma(half + 0.5) - torch.lgamma(half) - 0.5 * (pi * self.nu).log()
        log_t = constant - (half + 0.5) * torch.log1p(square / self.nu)
        log_prob = (log_t * weights).sum(-1) / pi**0.5 - 0.5 * sigma2.log()
        return log_prob.sum(-1).to(mean.dtype)

    def predictive(self, mean: Latent, var: Latent, sigma2: Noises | None = None) -> Normal:
        """Mean and variance of a new observation, var + σ² ν / (ν − 2)."""
        sigma2 = self.sigma2 if sigma2 is None else sigma2
        return Normal(mean, var + (sigma2 * self.nu / (self.nu - 2)).to(var.dtype))

    def variance(self, h: Features) -> Noises:
        """Variance of the noise at features h, σ² ν / (ν − 2)."""
        return self.noise(h) * self.nu / (self.nu - 2)

    def mixture(self) -> Mixture:
        """The noise as normals of variance `ratio` σ², by the trapezoidal rule over log ω."""
        return student_mixture(float(self.nu), self.nu.device)


def student_mixture(nu: float, device: torch.device | None = None) -> Mixture:
    """t_ν as a mixture of normals."""
    log_omega = torch.linspace(-12, 4, 81, dtype=torch.float64, device=device)
    share = torch.softmax(0.5 * nu * (log_omega - log_omega.exp()), 0)
    kept = share > SMALLEST_SHARE
    return Mixture(share[kept], torch.exp(-log_omega[kept]))


class Softmax(nn.Module):
    """p(y = c | f) = softmax(f)_c over T classes.

    Parameters
    ----------
    T
        Number of classes.
    method
        How the probabilities E[softmax(f)] are computed: "exact" (an integral over one dimension),
        "monte_carlo" (the paper's 32 samples) or "mean_field" (closed form, rough).
    samples
        Random samples of the training loss, 10 in the paper; None integrates it exactly.
    """

    epsilon: Tensor

    def __init__(self, T: int, method: str = "exact", samples: int | None = None) -> None:
        super().__init__()
        if method not in METHODS:
            raise ValueError(f"method={method!r} is not one of {', '.join(METHODS)}")
        if T < 2:
            raise ValueError(f"a softmax needs at least two classes, not {T}")
        self.T, self.method, self.samples = T, method, samples
        generator = torch.Generator().manual_seed(0)
        epsilon = torch.randn(PLAIN, T, generator=generator, dtype=torch.float64)
        self.register_buffer("epsilon", epsilon, persistent=False)

    def expected_log_prob(
        self, mean: Float[Tensor, "N T"], var: Float[Tensor, "N T"], y: Int[Tensor, " N"]
    ) -> Float[Tensor, " N"]:
        """E[log softmax(f)_y]: exactly, or in training by random samples if so asked."""
        if not self.training or self.samples is None:
            return softmax.expected_log_prob(mean, var, y)
        epsilon = torch.randn(self.samples, *mean.shape, dtype=mean.dtype, device=mean.device)
        log_prob = torch.log_softmax(mean + var.sqrt() * epsilon, -1).mean(0)
        return log_prob.gather(-1, y[:, None])[:, 0]

    def predictive(
        self, mean: Float[Tensor, "N T"], var: Float[Tensor, "N T"], single: bool = False
    ) -> Float[Tensor, "N T"]:
        """Class probabilities E[softmax(f)]; `single` integrates in float32."""
        if self.method == "mean_field":
            return softmax.mean_field(mean, var)
        if self.method == "monte_carlo":
            return softmax.monte_carlo(mean, var, self.epsilon)
        return softmax.probabilities(mean, var, single)

    def expected_entropy(
        self, mean: Float[Tensor, "N T"], var: Float[Tensor, "N T"]
    ) -> Float[Tensor, " N"]:
        """E[−Σ_c p_c log p_c] for p = softmax(f): the uncertainty that no data would remove."""
        return softmax.expected_entropy(mean, var)


METHODS = ("exact", "monte_carlo", "mean_field")
PLAIN = 32  # samples of "monte_carlo"
SMALLEST_NOISE = 1e-6
SMALLEST_SHARE = 1e-300  # of a normal in a mixture: below, logarithms overflow
Likelihood = Gaussian | StudentT | Softmax
