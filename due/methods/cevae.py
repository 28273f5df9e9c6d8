"""CEVAE (Louizos et al., 2017): a latent z behind covariates, treatment and outcome.

Model      p(z) = N(0, I),  p(x | z),  p(t | z),  p(y | t, z)
Inference  q(z | x, t, y) = N(m, diag v²), with the helpers q(t | x) and q(y | x, t).
"""

from math import log, pi
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus
from torch.nn.modules.dropout import _DropoutNd

from due.gp.shapes import Features, Inputs, PerRow, Scalar, Values, Weights
from due.methods.method import Folded, Train, weighted_mean
from due.networks.append_treatment import both_arms
from due.rows.source import Source

SMALLEST_SIGMA = 1e-2  # in standard deviations: no density may grow without bound
HEAD_DROPOUT = 0.5
DEPTH = 3  # hidden layers of the outcomes' networks


class Gauss(NamedTuple):
    """Mean and standard deviation, of one shape."""

    mean: Tensor
    sigma: Tensor

    def log_prob(self, value: Tensor) -> Tensor:
        """log N(value | mean, σ²)."""
        z = (value - self.mean) / self.sigma
        return -0.5 * z.square() - self.sigma.log() - 0.5 * log(2 * pi)


class GaussOutput(nn.Module):
    """h ↦ mean and standard deviation of K independent normal distributions."""

    def __init__(self, J: int, K: int, dropout: float) -> None:
        super().__init__()
        self.dropout, self.linear = nn.Dropout(dropout), nn.Linear(J, 2 * K)

    def forward(self, h: Features) -> Gauss:
        """Mean and σ, (N, K)."""
        mean, raw = self.linear(self.dropout(h)).chunk(2, -1)
        return Gauss(mean, softplus(raw) + SMALLEST_SIGMA)


class ArmOutput(nn.Module):
    """h ↦ hidden layers and a `GaussOutput` for each arm, of which t takes one."""

    def __init__(
        self, J_in: int, J: int, K: int, dropout: float, head_dropout: float, depth: int = 1
    ) -> None:
        super().__init__()
        self.arms = nn.ModuleList(
            nn.Sequential(_layers(J_in, J, depth, dropout), GaussOutput(J, K, head_dropout))
            for _ in range(2)
        )

    def forward(self, h: Float[Tensor, "N J_in"], t: PerRow) -> Gauss:
        """Mean and σ in the arm of each row, (N, K)."""
        untreated, treated = (arm(h) for arm in self.arms)
        chosen = t[:, None] == 1
        return Gauss(*(torch.where(chosen, b, a) for a, b in zip(untreated, treated, strict=True)))


class Latent(_DropoutNd):
    """Σ_s p_s E[z | s]; where dropout is on, a draw of the mixture Σ_s p_s q(z | s) instead."""

    def forward(self, p: Float[Tensor, "N 1"], q0: Gauss, q1: Gauss) -> Float[Tensor, "N L"]:
        """z, where p is the probability of s = 1."""
        if not self.training:
            return (1 - p) * q0.mean + p * q1.mean
        treated = torch.rand_like(p) < p
        mean, sigma = (torch.where(treated, b, a) for a, b in zip(q0, q1, strict=True))
        return mean + sigma * torch.randn_like(sigma)


class CEVAENetwork(Folded):
    """The model, its inference network and the helpers, on rows [x, t].

    `start` finds the columns of two values, which are Bernoulli. The epoch is chosen by the squared
    error of held-out outcomes.
    """

    two_valued: Tensor
    low: Tensor
    span: Tensor

    def __init__(self, D: int, J: int, latent: int, dropout: float, beta: float) -> None:
        super().__init__()
        self.beta = beta
        head = max(HEAD_DROPOUT, dropout) if dropout else 0.0
        self.register_buffer("two_valued", torch.zeros(D, dtype=torch.bool))
        self.register_buffer("low", torch.zeros(D))
        self.register_buffer("span", torch.ones(D))
        # p(x | z), p(t | z), p(y | t, z)
        self.decoder = _layers(latent, J, 2, dropout)
        self.x_normal = GaussOutput(J, D, dropout)  # one of the two is read for each column
        self.x_logit = nn.Linear(J, D)
        self.t_logit = nn.Sequential(_layers(latent, J, 1, dropout), nn.Linear(J, 1))
        self.outcome = ArmOutput(latent, J, 1, dropout, head, DEPTH)
        # q(t | x), q(y | x, t), q(z | x, t, y)
        self.q_t_logit = nn.Sequential(_layers(D, J, 1, dropout), nn.Linear(J, 1))
        self.q_y_shared = _layers(D, J, 2, dropout)
        self.q_y = ArmOutput(J, J, 1, dropout, head)
        self.q_z_shared = _layers(D + 1, J, 2, dropout)
        self.q_z = ArmOutput(J, J, latent, dropout, dropout)
        self.latent = Latent()

    def start(self, source: Source, seed: int) -> None:
        """Note which columns have two values, and their range."""
        X = source.whole()[0][:, :-1].to(self.low.device)
        low, high = X.amin(0), X.amax(0)
        self.two_valued = ((low == X) | (high == X)).all(0) & (high > low)
        self.low, self.span = low, torch.where(high > low, high - low, 1.0)

    def forward(self, xt: Inputs, y: Values, weights: Weights = None) -> Scalar:
        """−mean_n (bound + helpers), which share no weight.

        bound = E_q[log p(x | z) + log p(t | z) + log p(y | t, z)] − β KL(q(z | x, t, y) ‖ N(0, I)),
        the expectation by one draw of z; helpers = log q(t | x) + log q(y | x, t).
        """
        x, t = xt[:, :-1], xt[:, -1]
        q = self.encode(x, t, y[:, 0])
        z = q.mean + q.sigma * torch.randn_like(q.mean)
        q_y = self.q_y(self.q_y_shared(x), t)
        helpers = _log_t(self.q_t_logit(x), t) + q_y.log_prob(y)
        log_joint = weighted_mean(self.log_joint(x, t, y[:, 0], z)[:, 0], weights)
        bound = log_joint - self.beta * weighted_mean(divergence(q), weights)
        return -bound - weighted_mean(helpers[:, 0], weights)

    def losses(self, xt: Inputs, y: Values) -> PerRow:
        """Squared errors: the bound is mostly about covariates, which are not what is wanted."""
        return (self.predict(xt) - y[:, 0]).square()

    def settle(self, source: Source) -> None:
        """Nothing follows from the weights in closed form."""

    def finish(self, source: Source, held_out: Source | None, seed: int, train: Train) -> None:
        """Nothing follows training."""

    def predict(self, xt: Inputs) -> PerRow:
        """Mean of p(y | t, z̄), where z̄ = Σ_s q(s | x) E_q[z | x, s, ȳ_s], ȳ_s = E_q[y | x, s].

        Where dropout is on, z is drawn from Σ_s q(s | x) q(z | x, s, ȳ_s) instead.
        """
        x, t = xt[:, :-1], xt[:, -1]
        p, h = torch.sigmoid(self.q_t_logit(x)), self.q_y_shared(x)
        arms = [torch.full_like(t, arm) for arm in (0, 1)]
        q0, q1 = (self.encode(x, arm, self.q_y(h, arm).mean[:, 0]) for arm in arms)
        return self.outcome(self.latent(p, q0, q1), t).mean[:, 0]

    def outcomes(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N 2"]:
        """E[y | x, t] without and with treatment."""
        return both_arms(self.predict, x)

    def encode(self, x: Float[Tensor, "N D"], t: PerRow, y: PerRow) -> Gauss:
        """q(z | x, t, y)."""
        return self.q_z(self.q_z_shared(torch.cat([x, y[:, None]], -1)), t)

    def log_joint(
        self, x: Float[Tensor, "N D"], t: PerRow, y: PerRow, z: Float[Tensor, "N L"]
    ) -> Float[Tensor, "N 1"]:
        """log p(x, t, y | z): Bernoulli for columns of two values and t, normal for the others."""
        h = self.decoder(z)
        yes = ((x - self.low) / self.span).clamp(0, 1)
        binary = -binary_cross_entropy_with_logits(self.x_logit(h), yes, reduction="none")
        log_x = torch.where(self.two_valued, binary, self.x_normal(h).log_prob(x))
        log_y = self.outcome(z, t).log_prob(y[:, None])
        return log_x.sum(-1, keepdim=True) + _log_t(self.t_logit(z), t) + log_y


def divergence(q: Gauss) -> Tensor:
    """KL(N(m, diag v²) ‖ N(0, I)) = ½ Σ (m² + v² − 1) − Σ log v, row by row."""
    return 0.5 * (q.mean.square() + q.sigma.square() - 1).sum(-1) - q.sigma.log().sum(-1)


def _log_t(logit: Tensor, t: Tensor) -> Tensor:
    return -binary_cross_entropy_with_logits(logit, t[:, None], reduction="none")


def _layers(J_in: int, J: int, depth: int, dropout: float) -> nn.Sequential:
    widths = [J_in] + [J] * depth
    layers = (
        nn.Sequential(nn.Linear(a, b), nn.ELU(), nn.Dropout(dropout))
        for a, b in zip(widths, widths[1:], strict=False)
    )
    return nn.Sequential(*layers)
