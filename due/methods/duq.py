"""DUQ (van Amersfoort et al., 2020): K_c(x) = exp(−d_c), d_c = mean_e((W_c f(x) − e_c)²) / 2σ².

A class is near (K_c = 1) or not (K_c = 0), and far from the data all of them are not. Centroids
e_c = m_c / N_c are moving averages over the rows of each class, not learned by gradient.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import one_hot

from due.gp.shapes import Features, Inputs, Labels, PerRow, Scalar, Values, Weights
from due.lipschitz import gradient_penalty
from due.methods.method import Plain, weighted_mean

INITIAL_COUNT = 13.0  # rows of a class in a batch of 128 with ten of them, as the authors start
SMALLEST_DISTANCE = 1e-6  # log(1 − K) is −∞ at 0


class DUQ(Plain):
    """T kernels around moving centroids: `model(x, y)` is the loss, `model.predict(x)` is K.

    Uncertainty is 1 − max_c K_c(x), or min_c d_c(x), which ranks rows alike and does not underflow.

    Parameters
    ----------
    f
        Feature extractor, x → (N, J). The gradient penalty wants each row's features to depend on
        that row only: no batch norm in training mode.
    J, T
        Features and classes.
    E
        Length of the centroids; None makes it J.
    sigma
        Length scale σ.
    gamma
        Share of the old averages that each training step keeps.
    penalty
        Weight λ of the two-sided gradient penalty; 0 leaves it out.
    """

    by_entropy = False
    N: Tensor
    m: Tensor

    def __init__(
        self,
        f: nn.Module,
        J: int,
        T: int,
        E: int | None = None,
        sigma: float = 0.1,
        gamma: float = 0.999,
        penalty: float = 0.5,
    ) -> None:
        super().__init__()
        E = J if E is None else E
        self.n_classes = T
        self.f, self.sigma, self.gamma, self.penalty = f, sigma, gamma, penalty
        self.W = nn.Parameter(torch.randn(T, E, J) * (2 / J) ** 0.5)
        self.register_buffer("N", torch.full((T,), INITIAL_COUNT))
        self.register_buffer("m", 0.05 * INITIAL_COUNT * torch.randn(T, E))

    def forward(self, x: Inputs, y: Labels, weights: Weights = None) -> Scalar:
        """mean_i w_i mean_c BCE(K_c(x_i), [y_i = c]) + λ mean_i (‖∂ Σ_c K_c / ∂ x_i‖ − 1)².

        BCE is −log K_c = d_c for the row's class and −log(1 − K_c) for the others, taken from d_c,
        so that far rows keep their gradient. In eval mode there is no penalty. A training pass
        then moves the centroids, by these embeddings; weights count in them, not in the penalty.
        """
        penalise = self.training and self.penalty > 0
        if penalise:
            x = x.detach().requires_grad_()
        z = self.embed(self.f(x))
        d = self._distance(z)
        target = one_hot(y, len(self.N)).to(d.dtype)
        loss = weighted_mean(_cross_entropy(d, target), weights)
        if penalise:
            loss = loss + self.penalty * gradient_penalty(torch.exp(-d), x)
        if self.training:
            self._move(z, target if weights is None else weights[:, None] * target)
        return loss

    def losses(self, x: Inputs, y: Labels) -> PerRow:
        """mean_c BCE(K_c(x_i), [y_i = c]) of each row."""
        d = self.distance(x)
        return _cross_entropy(d, one_hot(y, len(self.N)).to(d.dtype))

    def probabilities(self, h: Features) -> Values:
        """K / Σ K, also where all K are 0."""
        return torch.softmax(-self._distance(self.embed(h)), -1)

    def foreign(self, h: Features) -> PerRow:
        """1 − max_c K_c."""
        return -torch.expm1(-self.nearest(h))

    def nearest(self, h: Features) -> PerRow:
        """min_c d_c = −log max_c K_c."""
        return self._distance(self.embed(h)).amin(-1)

    def embed(self, h: Features) -> Float[Tensor, "N T E"]:
        """W_c h."""
        return torch.einsum("tej,nj->nte", self.W, h)

    def distance(self, x: Inputs) -> Values:
        """d_c = mean_e((W_c f(x) − e_c)²) / 2σ² = −log K_c."""
        return self._distance(self.embed(self.f(x)))

    def predict(self, x: Inputs) -> Values:
        """K_c = exp(−d_c), each in [0, 1]; they do not sum to 1."""
        return torch.exp(-self.distance(x))

    @property
    def centroids(self) -> Float[Tensor, "T E"]:
        """e_c = m_c / N_c."""
        return self.m / self.N[:, None]

    def _distance(self, z: Tensor) -> Tensor:
        return (z - self.centroids).square().mean(-1) / (2 * self.sigma**2)

    @torch.no_grad()
    def _move(self, z: Tensor, target: Tensor) -> None:
        """N_c ← γ N_c + (1 − γ) Σ_i y_ic,  m_c ← γ m_c + (1 − γ) Σ_i y_ic W_c z_i."""
        # new tensors, not in place: the graph of the loss still holds the old ones
        self.N = self.gamma * self.N + (1 - self.gamma) * target.sum(0)
        sums = torch.einsum("nte,nt->te", z, target)
        self.m = self.gamma * self.m + (1 - self.gamma) * sums


def _cross_entropy(d: Tensor, target: Tensor) -> Tensor:
    away = d.clamp_min(SMALLEST_DISTANCE).neg().expm1().neg().log()  # log(1 − K)
    return (target * d - (1 - target) * away).mean(-1)
