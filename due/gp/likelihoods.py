"""Likelihoods p(y | f): what a latent N(mean, var) says about y, and how well it explains it."""

from math import log, pi
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import softplus

from due.gp import softmax
from due.gp.kernels import inverse_softplus


class Normal(NamedTuple):
    """Mean and variance of independent normals."""

    mean: Float[Tensor, "N T"]
    var: Float[Tensor, "N T"]


class Gaussian(nn.Module):
    """y = f + N(0, σ²); one learned σ² for all outputs, or one for each.

    Parameters
    ----------
    noises
        1, or the number of outputs.
    sigma2
        Initial noise variance.
    """

    def __init__(self, noises: int = 1, sigma2: float = 0.6931) -> None:
        super().__init__()
        self.noises = noises
        self.raw_sigma2 = nn.Parameter(inverse_softplus(sigma2, noises))

    @property
    def sigma2(self) -> Float[Tensor, " noises"]:
        """Noise variance σ²."""
        return SMALLEST_NOISE + softplus(self.raw_sigma2.double())

    @torch.no_grad()
    def set_sigma2(self, sigma2: Float[Tensor, " noises"]) -> None:
        """Set the noise variance."""
        self.raw_sigma2.copy_(inverse_softplus(sigma2 - SMALLEST_NOISE, self.noises))

    def expected_log_prob(
        self, mean: Float[Tensor, "N T"], var: Float[Tensor, "N T"], y: Float[Tensor, "N T"]
    ) -> Float[Tensor, " N"]:
        """E[log N(y | f, σ²)] = −½ (log 2πσ² + ((y − mean)² + var) / σ²), summed over outputs."""
        sigma2 = self.sigma2.to(mean.dtype)
        misfit = ((y - mean).square() + var) / sigma2
        return -0.5 * (log(2 * pi) + sigma2.log() + misfit).sum(-1)

    def predictive(self, mean: Float[Tensor, "N T"], var: Float[Tensor, "N T"]) -> Normal:
        """N(mean, var + σ²): a new observation, noise included."""
        return Normal(mean, var + self.sigma2.to(var.dtype))


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
        self, mean: Float[Tensor, "N T"], var: Float[Tensor, "N T"]
    ) -> Float[Tensor, "N T"]:
        """Class probabilities E[softmax(f)]."""
        if self.method == "mean_field":
            return softmax.mean_field(mean, var)
        if self.method == "monte_carlo":
            return softmax.monte_carlo(mean, var, self.epsilon)
        return softmax.probabilities(mean, var)

    def expected_entropy(
        self, mean: Float[Tensor, "N T"], var: Float[Tensor, "N T"]
    ) -> Float[Tensor, " N"]:
        """E[−Σ_c p_c log p_c] for p = softmax(f): the uncertainty that no data would remove."""
        return softmax.expected_entropy(mean, var)


METHODS = ("exact", "monte_carlo", "mean_field")
PLAIN = 32  # samples of "monte_carlo"
SMALLEST_NOISE = 1e-6
Likelihood = Gaussian | Softmax
