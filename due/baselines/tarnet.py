"""TARNet (Shalit et al., 2017): p(y | x, t) = Σ_k π_k N(y | μ_k, σ_k²), all three from g_t(f(x)).

All people share the encoder f; each arm t has a head g_t and a density of its own.
"""

from math import log, pi
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from due.baselines.effect_network import EffectNetwork
from due.lipschitz import constrain

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
        self, h: Float[Tensor, "N J"]
    ) -> tuple[Float[Tensor, "N K"], Float[Tensor, "N K"], Float[Tensor, "N K"]]:
        """log π, μ, σ."""
        logits, mu, raw = self.linear(h).chunk(3, -1)
        return logits.log_softmax(-1), mu, softplus(raw) + SMALLEST_SIGMA


class TARNetwork(nn.Module):
    """Encoder, two heads and two densities: `model(x, t, y)` is the loss."""

    def __init__(self, X: Float[Tensor, "N D"], J: int, K: int, dropout: float, c: float | None):
        super().__init__()
        self.f = nn.Sequential(
            nn.Linear(X.shape[1], J), Residual(J, J, dropout), Residual(J, J, dropout)
        )
        self.heads = nn.ModuleList(_head(J, dropout) for _ in range(2))
        self.outputs = nn.ModuleList(MixtureOutput(J // 2, K) for _ in range(2))
        if c is not None:
            constrain(self.f, c, X[:2])
            for head in self.heads:
                constrain(head, c, X.new_zeros(2, J))

    def forward(
        self, x: Float[Tensor, "N D"], t: Float[Tensor, " N"], y: Float[Tensor, " N"]
    ) -> Float[Tensor, ""]:
        """−mean_n log p(y_n | x_n, t_n)."""
        log_pi, mu, sigma = self._density(x, t)
        z = (y[:, None] - mu) / sigma
        log_normal = -0.5 * z.square() - sigma.log() - 0.5 * log(2 * pi)
        return -torch.logsumexp(log_pi + log_normal, -1).mean()

    def predict(self, x: Float[Tensor, "N D"], t: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Σ_k π_k μ_k."""
        log_pi, mu, _ = self._density(x, t)
        return (log_pi.exp() * mu).sum(-1)

    def _density(self, x: Tensor, t: Tensor) -> list[Tensor]:
        h, treated = self.f(x), t[:, None] == 1
        arms = zip(self.heads, self.outputs, strict=True)
        density0, density1 = (output(head(h)) for head, output in arms)
        return [torch.where(treated, b, a) for a, b in zip(density0, density1, strict=True)]


class TARNet(EffectNetwork):
    """Treatment-agnostic representation network, with the encoder of DUE's experiment.

    The encoder is a linear layer and two residual ones of `width`; each arm goes on with two
    residual layers of half that width and the parameters of a mixture of normal distributions.
    `DeepEnsemble(TARNet(), 5)` is the rival of the paper's Table 3, and
    `MCDropout(TARNet(components=1, dropout=0.5, epochs=2000, patience=50), 100)` is BTARNet.

    Parameters
    ----------
    components
        Number of normal distributions in the density of each arm; 1 is a plain normal.
    width
        Of the encoder.
    dropout
        Share of the units dropped before each layer but the first.
    c
        Bound on the Lipschitz constant of each layer but the densities; None leaves them free.
    lr, weight_decay
        Of Adam; weight_decay None is ½ (1 − dropout) / N.
    batch_size, epochs
        People a step, and the most times all of them are seen.
    patience
        Epochs without improvement of the validation loss after which training stops.
    validation_fraction
        Share of the people held out for that where `fit` is given no others; 0 trains on all of
        them, for all epochs.
    random_state
        Seed of everything random in `fit`; prediction is deterministic.
    device
        Where to train and predict, such as "cpu" or "cuda".
    verbose
        Show a progress bar on a terminal.

    Attributes
    ----------
    history_
        Loss and validation of each epoch.
    model_, frozen_
        The `TARNetwork` as trained, and as it predicts.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, T = rng.normal(size=(200, 2)), rng.integers(2, size=200)
    >>> Y = X[:, 0] + 3 * T + 0.1 * rng.normal(size=200)
    >>> model = TARNet(width=50, epochs=40, lr=5e-3, random_state=0).fit(Y, T, X)
    >>> bool(abs(model.ate(X) - 3) < 0.5)
    True
    """

    def __init__(
        self,
        *,
        components: int = 2,
        width: int = 200,
        dropout: float = 0.2,
        c: float | None = 0.95,
        lr: float = 1e-3,
        weight_decay: float | None = None,
        batch_size: int = 100,
        epochs: int = 500,
        patience: int = 20,
        validation_fraction: float = 0.3,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.components = components
        self.width = width
        self.dropout = dropout
        self.c = c
        self.lr = lr
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.epochs = epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _network(self, X: Tensor) -> TARNetwork:
        if self.width < 2:
            raise ValueError(f"width={self.width!r} is not at least 2; each arm has half of it")
        return TARNetwork(X, self.width, self.components, self.dropout, self.c)


def _head(J: int, dropout: float) -> nn.Module:
    half = J // 2
    blocks = Residual(J, half, dropout), Residual(half, half, dropout)
    return nn.Sequential(*blocks, nn.ELU(), nn.Dropout(dropout))
