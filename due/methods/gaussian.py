"""The plain network for regression: y | x ~ N(μ, σ²), with μ and log σ² linear in f(x)."""

from math import log, pi

import torch
from torch import Tensor, nn

from due.gp import Normal
from due.gp.shapes import Features, Inputs, PerRow, Values
from due.methods.method import MeanLoss, Plain

LOG_VARIANCE = log(1e-6), log(1e6)  # in units of Var[y]: σ² neither closes in on a row nor blows up


class GaussianNetwork(MeanLoss, Plain):
    """Features and a linear output: `model(x, y)` is the loss, `model.predict(x)` is μ and σ²."""

    only_noise = True  # it knows no variance of the function

    def __init__(self, f: nn.Module, J: int, T: int) -> None:
        super().__init__()
        self.f, self.output = f, nn.Linear(J, 2 * T)

    def losses(self, x: Inputs, y: Values) -> PerRow:
        """−log p(y_i | x_i) = ½ Σ_t (log 2π + log σ_t² + (y_t − μ_t)² / σ_t²)."""
        mean, log_var = self._moments(self.f(x))
        return 0.5 * (log(2 * pi) + log_var + (y - mean).square() * (-log_var).exp()).sum(-1)

    def predict(self, x: Inputs) -> Normal:
        """Mean and variance of a new observation."""
        mean, log_var = self._moments(self.f(x))
        return Normal(mean, log_var.exp())

    def moments(self, h: Features) -> tuple[Tensor, Tensor, Tensor]:
        """μ, no variance of its own, and the noise σ²(x)."""
        mean, log_var = self._moments(h)
        return mean, torch.zeros_like(mean), log_var.exp()

    def _moments(self, h: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_var = self.output(h).chunk(2, -1)
        return mean, log_var.clamp(*LOG_VARIANCE)
