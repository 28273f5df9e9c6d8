"""DDU (Mukhoti et al., 2023): log p(z) = log Σ_c π_c N(z; μ_c, Σ_c) on features of a softmax net.

The softmax's entropy tells of classes that overlap, the density of rows that are far from all.
"""

from math import log, pi

import torch
from torch import Tensor, nn

from due.gp.shapes import Features, Inputs, Labels, PerRow, Weights
from due.methods.method import Train, device_of
from due.methods.softmax import SoftmaxOutput
from due.rows.source import Source

SMALLEST_PIVOT = 1e-11  # of the mean variance: below it a Cholesky factor has no digits left


class DDU(SoftmaxOutput):
    """A softmax network, and the density of its features, which `finish` fits.

    `model(x, y)` is the softmax's loss, `model.predict(x)` its probabilities; uncertainty is
    −`log_density(x)`.

    Parameters
    ----------
    f
        Feature extractor, x → (N, J); bounded beforehand by `due.lipschitz.constrain`.
    J, T
        Features and classes.
    """

    by_entropy = False

    def __init__(self, f: nn.Module, J: int, T: int) -> None:
        super().__init__(f, J, T)
        self.density = ClassGaussians(J, T)

    def start(self, source: Source, seed: int) -> None:
        """Weights start at random, whatever the rows."""

    def settle(self, source: Source) -> None:
        """Nothing follows from the weights in closed form."""

    @torch.no_grad()
    def finish(self, source: Source, held_out: Source | None, seed: int, train: Train) -> None:
        """One clean pass over the training rows, in eval mode, for π, μ and Σ."""
        self.eval()
        chunks = ([part.to(device_of(self)) for part in chunk] for chunk in source.chunks())
        parts = [(self.f(x), *rest) for x, *rest in chunks]
        self.density.fit(*map(torch.cat, zip(*parts, strict=True)))

    def log_density(self, x: Inputs) -> PerRow:
        """log Σ_c π_c N(f(x); μ_c, Σ_c), in float64."""
        return self.density(self.f(x))

    def foreign(self, h: Features) -> PerRow:
        """−log Σ_c π_c N(h; μ_c, Σ_c)."""
        return -self.density(h)


class ClassGaussians(nn.Module):
    """One Gaussian a class with full covariance, by maximum likelihood, in float64.

    `jitter[c]` was added to the diagonal of Σ_c: 0 where its Cholesky factor exists, else the
    first of 1e-8, 1e-7, … times the mean variance of the features within classes that does.
    """

    log_pi: Tensor
    mu: Tensor
    L: Tensor
    jitter: Tensor

    def __init__(self, J: int, T: int) -> None:
        super().__init__()
        double = torch.float64
        self.register_buffer("log_pi", torch.full((T,), -log(T), dtype=double))
        self.register_buffer("mu", torch.zeros(T, J, dtype=double))
        self.register_buffer("L", torch.eye(J, dtype=double).repeat(T, 1, 1))  # Σ = L Lᵀ
        self.register_buffer("jitter", torch.zeros(T, dtype=double))

    @torch.no_grad()
    def fit(self, z: Features, y: Labels, weights: Weights = None) -> None:
        """π_c = Σ w / N, μ_c = mean of z, Σ_c = mean of (z − μ_c)(z − μ_c)ᵀ over rows of class c.

        A class without rows gets π_c = 0.
        """
        z = z.double()
        w = torch.ones_like(z[:, 0]) if weights is None else weights.double()
        T, J = self.mu.shape
        share, mu, cov = z.new_zeros(T), z.new_zeros(T, J), z.new_zeros(T, J, J)
        for c in range(T):
            z_c, w_c = z[y == c], w[y == c]
            share[c] = w_c.sum()
            mean = w_c / share[c].clamp_min(1e-300)
            mu[c] = mean @ z_c
            gap = z_c - mu[c]
            cov[c] = (mean[:, None] * gap).mT @ gap
        share = share / share.sum()
        within = float(share @ cov.diagonal(dim1=1, dim2=2).mean(-1))
        self.log_pi, self.mu = share.log(), mu
        factors = [_factorise(cov_c, within if within > 0 else 1.0) for cov_c in cov]
        self.L = torch.stack([L for L, _ in factors])
        self.jitter = z.new_tensor([jitter for _, jitter in factors])

    def forward(self, z: Features) -> PerRow:
        """log Σ_c π_c N(z; μ_c, Σ_c)."""
        # log N(z; μ_c, Σ_c) = −½ ‖L⁻¹(z − μ_c)‖² − log|L| − J/2 · log 2π
        gap = z.to(self.L.dtype) - self.mu[:, None]  # (T, N, J)
        white = torch.linalg.solve_triangular(self.L, gap.mT, upper=False)  # (T, J, N)
        log_det = self.L.diagonal(dim1=1, dim2=2).log().sum(-1)
        constant = log_det + self.mu.shape[1] / 2 * log(2 * pi)
        log_density = -0.5 * white.square().sum(1).mT - constant  # (N, T)
        return torch.logsumexp(self.log_pi + log_density, -1)


def _factorise(cov: Tensor, scale: float) -> tuple[Tensor, float]:
    """L of Σ + jitter · I, and the smallest jitter with which it exists."""
    if not torch.isfinite(cov).all():
        raise ValueError("features hold NaN or infinite values; check the inputs and the network")
    eye, jitter = torch.eye(len(cov), dtype=cov.dtype, device=cov.device), 0.0
    while True:
        L, info = torch.linalg.cholesky_ex(cov + jitter * eye)
        if not info and L.diagonal().min().square() > SMALLEST_PIVOT * scale:
            return L, jitter
        jitter = max(10 * jitter, 1e-8 * scale)
