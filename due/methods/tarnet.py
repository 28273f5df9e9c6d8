"""TARNet (Shalit et al., 2017): p(y | x, t) = Σ_k π_k N(y | μ_k, σ_k²), all three from g_t(f(x)).

All people share the encoder f; each arm t has a head g_t and a density of its own.
"""

from math import log, pi

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from due.gp.shapes import Features, Inputs, PerRow, Values
from due.lipschitz import constrain
from due.methods.method import MeanLoss, Plain
from due.networks.append_treatment import both_arms

SMALLEST_SIGMA = 1e-3  # in standard deviations of y: a component must not close in on one person


class Residual(nn.Module):
    """h ↦ S h + W dropout(elu(h)) + b, where S is the identity or, if widths differ, linear."""

    def __init__(self, J_in: int, J_out: int, dropout: float) -> None:
        super().__init__()
        same = J_in == J_out
        self.branch = nn.Sequential(nn.ELU(), nn.Dropout(dropout), nn.Linear(J_in, J_out))
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(nn.Dropout(dropout), nn.Linear(J_in, J_out))
        )

    def forward(self, h: Float[Tensor, "N J_in"]) -> Float[Tensor, "N J_out"]:
        """The block's output."""
        return self.shortcut(h) + self.branch(h)


class MixtureOutput(nn.Module):
    """h ↦ log π, μ and σ of K normal distributions, each (N, K)."""

    def __init__(self, J: int, K: int) -> None:
        super().__init__()
        self.linear = nn.Linear(J, 3 * K)

    def forward(
        self, h: Features
    ) -> tuple[Float[Tensor, "N K"], Float[Tensor, "N K"], Float[Tensor, "N K"]]:
        """log π, μ, σ."""
        logits, mu, raw = self.linear(h).chunk(3, -1)
        return logits.log_softmax(-1), mu, softplus(raw) + SMALLEST_SIGMA


class TARNetwork(MeanLoss, Plain):
    """Encoder, two heads and two densities, on rows [x, t]: `model(xt, y)` is the loss."""

    def __init__(self, D: int, J: int, K: int, dropout: float, c: float | None):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(D, J), Residual(J, J, dropout), Residual(J, J, dropout))
        self.heads = nn.ModuleList(_head(J, dropout) for _ in range(2))
        self.outputs = nn.ModuleList(MixtureOutput(J // 2, K) for _ in range(2))
        if c is not None:
            constrain(self.f, c, torch.zeros(2, D))
            for head in self.heads:
                constrain(head, c, torch.zeros(2, J))

    def losses(self, xt: Inputs, y: Values) -> PerRow:
        """−log p(y_i | x_i, t_i)."""
        log_pi, mu, sigma = self._density(xt)
        z = (y - mu) / sigma
        log_normal = -0.5 * z.square() - sigma.log() - 0.5 * log(2 * pi)
        return -torch.logsumexp(log_pi + log_normal, -1)

    def predict(self, xt: Inputs) -> PerRow:
        """Σ_k π_k μ_k."""
        log_pi, mu, _ = self._density(xt)
        return (log_pi.exp() * mu).sum(-1)

    def outcomes(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N 2"]:
        """E[y | x, t] without and with treatment."""
        return both_arms(self.predict, x)

    def _density(self, xt: Tensor) -> list[Tensor]:
        h, treated = self.f(xt[:, :-1]), xt[:, -1:] == 1
        arms = zip(self.heads, self.outputs, strict=True)
        density0, density1 = (output(head(h)) for head, output in arms)
        return [torch.where(treated, b, a) for a, b in zip(density0, density1, strict=True)]


def _head(J: int, dropout: float) -> nn.Module:
    half = J // 2
    blocks = Residual(J, half, dropout), Residual(half, half, dropout)
    return nn.Sequential(*blocks, nn.ELU(), nn.Dropout(dropout))
