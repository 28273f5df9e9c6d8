"""Noise that depends on x: σ²(h) = σ² exp(g(h)), the mode of a GP of log-noise on features.

Of rows that a function was not fitted to (each left out, or all held out), the residual e_i has
variance v_i + σ² exp(g(h_i)) with v_i that of the function. With g(h) = a(h)ᵀ u,
a = L⁻¹ κ(C, h) and κ(C, C) = L Lᵀ, the mode of u ~ N(0, s I) maximises

Σ_i w_i log N(e_i | 0, v_i + σ² exp(g(h_i))) − ‖u‖² / 2s.

Far from the centres C the noise is σ². Its level comes from other rows than its shape: features
that were trained on the rows that were left out make their residuals too small.
"""

from math import log, pi
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from due.gp.cholesky import cholesky
from due.gp.kernels import squared_distance
from due.gp.minimise import minimise
from due.gp.shapes import Features, PerRow, Values, Weights

CENTRES = 200
STRENGTHS = (0.1, 0.4, 1.6, 6.4)  # s, the prior variance of g
LENGTHS = (0.25, 0.5, 1.0)  # length scales, as shares of the mean distance of two rows
ITERATIONS = 40
SMALLEST = 1e-12  # of a variance
SURE = 1.0  # standard errors by which varying noise must be the better


class NoiseShape(nn.Module):
    """exp(g(h)), g(h) = Σ_p α_p κ(c_p, h): the noise at h relative to its level.

    Parameters
    ----------
    centres
        C, in feature space.
    alpha
        Per output, (T, P).
    lengthscale
        Of κ(c, h) = exp(−‖c − h‖² / 2l²).
    """

    centres: Tensor
    lengthscale: Tensor

    def __init__(
        self,
        centres: Float[Tensor, "P J"],
        alpha: Float[Tensor, "T P"],
        lengthscale: Float[Tensor, ""] | float = 1.0,
    ) -> None:
        super().__init__()
        self.alpha = nn.Parameter(alpha.detach().clone().double())
        self.register_buffer("centres", centres.detach().clone().double())
        scale = torch.as_tensor(lengthscale, dtype=torch.float64, device=centres.device)
        self.register_buffer("lengthscale", scale.reshape(1).clone())

    def forward(self, h: Features) -> Values:
        """exp(g_t(h_n)), (N, T), in float64."""
        return (correlation(h, self.centres, self.lengthscale) @ self.alpha.mT).exp()


class Residuals(NamedTuple):
    """What is left at rows that the function was not fitted to."""

    h: Features
    square: Values  # e²
    var: Values  # v
    weight: PerRow

    def part(self, rows: Tensor) -> "Residuals":
        """Some of the rows."""
        return Residuals(*(part[rows] for part in self))


def residuals(
    h: Features, y: Values, mean: Values, var: Values, weights: Weights = None
) -> Residuals:
    """Of the predictions of f at these rows."""
    w = h.new_ones(len(h), dtype=torch.float64) if weights is None else weights.double()
    return Residuals(h, (y - mean).double().square(), var.double(), w)


class Choice(NamedTuple):
    """Of the noise: what held-out rows said."""

    shape: NoiseShape | None  # None: constant
    gain: float  # nats per held-out row over constant noise, of the best candidate
    error: float  # its standard error
    strength: float
    length: float  # of `LENGTHS`


def correlation(h: Features, C: Float[Tensor, "P J"], lengthscale: Tensor) -> Float[Tensor, "N P"]:
    """κ(h_n, c_p)."""
    return torch.exp(-0.5 * squared_distance(h, C) / lengthscale.square())


def choose_shape(known: Residuals, new: Residuals, *, needed: bool = False) -> Choice:
    """The shape, fitted to known rows, that makes new ones most probable.

    None if no shape is better than constant noise by a standard error, unless one is `needed`.
    """
    constant = log_densities(new, torch.zeros_like(new.square))
    best: Choice | None = None
    for length in LENGTHS:
        basis = Basis(known.h, length)
        at_known, at_new = basis(known.h), basis(new.h)
        for strength in STRENGTHS:
            u = mode(at_known, known, strength)
            mean, error = mean_and_error(log_densities(new, at_new @ u) - constant, new.weight)
            if best is None or mean > best.gain:
                best = Choice(basis.shape(u), mean, error, strength, length)
    assert best is not None
    return best if needed or best.gain > SURE * best.error else best._replace(shape=None)


def mean_and_error(values: PerRow, weight: PerRow) -> tuple[float, float]:
    """The weighted mean over rows, and its standard error."""
    share = weight / weight.sum()
    mean = (share * values).sum()
    return float(mean), float((share.square() * (values - mean).square()).sum().sqrt())


def fit_shape(rows: Residuals, strength: float, length: float) -> NoiseShape:
    """The shape of that strength and length scale."""
    basis = Basis(rows.h, length)
    return basis.shape(mode(basis(rows.h), rows, strength))


class Basis:
    """a(h) = L⁻¹ κ(C, h) at centres among the rows."""

    def __init__(self, h: Features, length: float) -> None:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randperm(len(h), generator=generator)[:CENTRES].to(h.device)
        self.C = h[rows].detach().double()
        d2 = squared_distance(self.C, self.C)
        mean = d2.sqrt().sum() / max(1, len(rows) * (len(rows) - 1))
        self.l = length * mean.clamp_min(1e-6)
        self.L = cholesky(torch.exp(-0.5 * d2 / self.l.square())[None], 1e-6)[0]

    def __call__(self, h: Features) -> Float[Tensor, "N P"]:
        """a(h_n)."""
        K = correlation(h, self.C, self.l)
        return torch.linalg.solve_triangular(self.L, K.mT, upper=False).mT

    def shape(self, u: Float[Tensor, "P T"]) -> NoiseShape:
        """g = aᵀ u as a sum over centres, α = L⁻ᵀ u."""
        alpha = torch.linalg.solve_triangular(self.L.mT, u, upper=True).mT
        return NoiseShape(self.C, alpha, self.l).requires_grad_(False)


@torch.enable_grad()
def mode(A: Float[Tensor, "N P"], rows: Residuals, s: float) -> Float[Tensor, "P T"]:
    """u, from a(h) and residuals; the level beside it is free."""
    u = A.new_zeros(A.shape[1], rows.square.shape[1], requires_grad=True)
    level = _first_level(rows).detach().requires_grad_(True)  # log σ², (T,)

    def loss() -> Tensor:
        fit = (rows.weight[:, None] * _log_density(rows, level + A @ u)).sum()
        return u.square().sum() / (2 * s) - fit

    minimise([u, level], loss, ITERATIONS)
    return u.detach()


def log_densities(rows: Residuals, g: Values) -> PerRow:
    """log N(e_i | 0, v_i + σ² exp(g_i)) per row, at the level σ² that makes their sum largest."""
    return _log_density(rows, best_level(rows, g).log() + g).sum(-1)


def best_level(rows: Residuals, g: Values) -> Float[Tensor, " T"]:
    """σ² of each output under which the rows are most probable, to 5 %."""
    grid = torch.linspace(-6, 6, 241, dtype=g.dtype, device=g.device)[:, None]
    near = _first_level(rows) - (rows.weight[:, None] * g).sum(0) / rows.weight.sum()
    levels = near + grid  # (G, T)
    totals = [(rows.weight[:, None] * _log_density(rows, level + g)).sum(0) for level in levels]
    return levels.gather(0, torch.stack(totals).argmax(0)[None])[0].exp()


def _first_level(rows: Residuals) -> Float[Tensor, " T"]:
    """log of the mean of e² − v, or of a tenth of e² where v explains all of it."""
    share = rows.weight[:, None] / rows.weight.sum()
    square = (share * rows.square).sum(0)
    left = square - (share * rows.var).sum(0)
    return torch.maximum(left, 0.1 * square).clamp_min(SMALLEST).log()


def _log_density(rows: Residuals, log_noise: Values) -> Values:
    var = (rows.var + log_noise.exp()).clamp_min(SMALLEST)
    return -0.5 * (log(2 * pi) + var.log() + rows.square / var)
