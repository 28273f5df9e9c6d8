"""A trained DUE made ready for prediction only: spectral norms folded, the GP's algebra done.

With κ(Z, Z) = L Lᵀ, α = √s L⁻ᵀ m and R = L_Sᵀ L⁻¹, a row costs a kernel vector κ = κ(Z, h) and
mean = μ + αᵀ κ,  var = s (1 − ‖L⁻¹ κ‖² + ‖R κ‖²).
"""

from copy import deepcopy

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from due.gp import InducingGP, Likelihood, Normal
from due.gp.cholesky import cholesky
from due.gp.inducing import column_squares, times
from due.gp.kernels import squared_distance
from due.lipschitz import fold
from due.model import DUE


class FrozenGP(nn.Module):
    """The posterior of an `InducingGP`, with nothing left to factorise."""

    centre: Tensor
    Z: Tensor
    squares: Tensor
    precision: Tensor
    mu: Tensor
    s: Tensor
    L_inv: Tensor
    R_alpha: Tensor

    def __init__(self, gp: InducingGP) -> None:
        super().__init__()
        self.kernel = deepcopy(gp.kernel).requires_grad_(False)
        Z, s = gp.Z.detach().double(), self.kernel.outputscale
        L = cholesky(self.kernel.correlation(squared_distance(Z, Z)), gp.jitter)
        eye = torch.eye(len(Z), dtype=L.dtype, device=L.device).expand_as(L)
        L_inv = torch.linalg.solve_triangular(L, eye, upper=False)  # (K, M, M)
        alpha = s.sqrt()[:, None, None] * times(gp.m.detach().double()[:, None], L_inv)
        R = times(gp.L_S.detach().mT, L_inv)  # (T, M, M)
        self.register_buffer("centre", Z.mean(0))
        self.register_buffer("Z", Z - self.centre)
        self.register_buffer("squares", self.Z.square().sum(1))
        self.register_buffer("precision", self.kernel.lengthscale.pow(-2)[:, None, None])
        self.register_buffer("mu", gp.mu.detach().double()[:, None].clone())
        self.register_buffer("s", s[:, None].clone())
        self.register_buffer("L_inv", L_inv)
        self.register_buffer("R_alpha", torch.cat([R, alpha], 1))  # (T, M + 1, M): one product

    def forward(self, h: Float[Tensor, "N J"]) -> Normal:
        """Mean and variance of each q(f_t(h_n))."""
        kappa = self._correlation(h)
        product = times(self.R_alpha, kappa)  # (T, M + 1, N)
        prior = (1 - column_squares(self.L_inv @ kappa)).clamp_min(1e-12)
        var = self.s * (prior + column_squares(product[:, :-1]))  # (T, N)
        mean = self.mu + product[:, -1]
        return Normal(mean.mT.to(_outward(h)), var.mT.to(_outward(h)))

    def explained(self, h: Float[Tensor, "N J"]) -> Float[Tensor, "N T"]:
        """Share of the prior variance that the data has removed, in [0, 1]."""
        kappa = self._correlation(h)
        left = column_squares(times(self.R_alpha, kappa)[:, :-1])
        removed = column_squares(self.L_inv @ kappa) - left
        return removed.mT.clamp(0, 1).to(_outward(h))

    def _correlation(self, h: Tensor) -> Tensor:
        moved = h.double() - self.centre  # as in `squared_distance`, with Z's part done before
        squares = torch.linalg.vecdot(moved, moved)[:, None] + self.squares
        d2 = torch.addmm(squares, moved, self.Z.mT, alpha=-2).clamp_min_(0)  # (N, M)
        return self.kernel.kappa(d2 * self.precision).mT  # (K, M, N)


class FrozenDUE(nn.Module):
    """A `DUE` that only predicts. `forward` is `predict`, so that `torch.export` takes it."""

    def __init__(self, f: nn.Module, gp: FrozenGP, likelihood: Likelihood) -> None:
        super().__init__()
        self.f, self.gp, self.likelihood = f, gp, likelihood

    def forward(self, x: Shaped[Tensor, "N ..."]) -> Normal | Tensor:
        """The same as `predict`."""
        return self.predict(x)

    def latent(self, x: Shaped[Tensor, "N ..."]) -> Normal:
        """q(f(x)), row by row, without noise."""
        return self.gp(self.f(x))

    def predict(self, x: Shaped[Tensor, "N ..."]) -> Normal | Tensor:
        """Normal of a new observation (noise included), or class probabilities."""
        return self.likelihood.predictive(*self.latent(x))


@torch.no_grad()
def freeze(model: DUE) -> FrozenDUE:
    """The model as it predicts in eval mode; later training of `model` does not reach it."""
    frozen = FrozenDUE(fold(model.f), FrozenGP(model.gp), deepcopy(model.likelihood))
    return frozen.requires_grad_(False).eval()


def _outward(h: Tensor) -> torch.dtype:
    return torch.promote_types(h.dtype, torch.float32)  # bfloat16 features, float32 answers
