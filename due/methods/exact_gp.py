"""Exact Gaussian process: y ~ N(μ, k(x, x') + σ² I), its scales by the marginal likelihood."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from due.gp.exact import factor, log_marginal_likelihood, posterior
from due.gp.kernels import Kernel, inverse_softplus
from due.gp.minimise import minimise
from due.gp.shapes import PerRow, Scalar

SMALLEST_SIGMA2 = 1e-6  # in units of Var[y]
ROWS = 1000  # predicted at once
HISTORY = 100  # of L-BFGS


class ExactGP(nn.Module):
    """A GP with its data."""

    def __init__(self, x: Float[Tensor, "N D"], y: PerRow, kind: str) -> None:
        super().__init__()
        self.x, self.y = x, y[:, None]
        self.kernel = Kernel(kind, 1, float(x.shape[1]) ** 0.5, 1.0)
        self.raw_sigma2 = nn.Parameter(inverse_softplus(0.1, 1))
        self.mu = nn.Parameter(y.mean()[None].clone())

    @property
    def sigma2(self) -> Float[Tensor, " 1"]:
        """σ², at least 1e-6."""
        return softplus(self.raw_sigma2) + SMALLEST_SIGMA2

    def forward(self) -> Scalar:
        """−log p(y) / N."""
        total = log_marginal_likelihood(self.kernel, self.x, self.y, self.sigma2, self.mu).total
        return -total[0] / len(self.x)

    def learn(self, steps: int) -> None:
        """Maximise the marginal likelihood by L-BFGS."""
        minimise(self.parameters(), self, steps, HISTORY)
        self.condition()

    @torch.no_grad()
    def condition(self) -> None:
        """L of K + σ² I = L Lᵀ and α = (K + σ² I)⁻¹ (y − μ), once for all predictions."""
        self.L = factor(self.kernel, self.x, self.sigma2)[0]
        self.alpha = torch.cholesky_solve(self.y - self.mu, self.L)  # (N, 1)

    @torch.no_grad()
    def marginal(self, x: Float[Tensor, "P D"]) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
        """Mean and variance of each f(x_p), without noise."""
        parts = []
        for k in (self.kernel(part, self.x)[0].mT for part in x.split(ROWS)):  # (N, rows)
            A = torch.linalg.solve_triangular(self.L, k, upper=False)
            var = self.kernel.outputscale - A.square().sum(0)
            parts.append((self.mu + (k.mT @ self.alpha)[:, 0], var.clamp_min(0)))
        mean, var = map(torch.cat, zip(*parts, strict=True))
        return mean, var

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "P D"]) -> tuple[Float[Tensor, " P"], Float[Tensor, "P P"]]:
        """Mean and covariance of f(x), without noise."""
        mean, cov = posterior(self.kernel, self.x, self.y, self.sigma2, x, self.mu)
        return mean[:, 0], cov[0]
