"""A trained DUE made ready for prediction only: spectral norms folded, the GP's algebra done.

With κ(Z, Z) = L Lᵀ, C = √s L⁻¹, R = L_Sᵀ C and α = Cᵀ m, a row costs a kernel vector κ = κ(Z, h)
and mean = μ + αᵀ κ,  var = s − ‖C κ‖² + ‖R κ‖².
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
    factors: Tensor

    def __init__(self, gp: InducingGP) -> None:
        super().__init__()
        self.kernel = deepcopy(gp.kernel).requires_grad_(False)
        Z, s = gp.Z.detach().double(), self.kernel.outputscale
        L = cholesky(self.kernel.correlation(squared_distance(Z, Z)), gp.jitter)
        K, M, T = len(L), len(Z), gp.T
        eye = torch.eye(M, dtype=L.dtype, device=L.device)
        C = torch.linalg.solve_triangular(L, s.sqrt()[:, None, None] * eye, upper=False)
        R = times(gp.L_S.detach().mT, C)  # (T, M, M)
        alpha = times(gp.m.detach().double()[:, None], C)  # (T, 1, M)
        self.rows = [M, T // K * M, T // K]
        self.smallest = 1e-12 * float(s.min())
        self.register_buffer("centre", Z.mean(0))
        self.register_buffer("Z", Z - self.centre)
        self.register_buffer("squares", self.Z.square().sum(1, keepdim=True))
        self.register_buffer("precision", self.kernel.lengthscale.pow(-2)[:, None, None])
        self.register_buffer("mu", gp.mu.detach().double()[:, None].clone())
        self.register_buffer("s", s[:, None].clone())
        factors = [C, R.reshape(K, -1, M), alpha.reshape(K, -1, M)]
        self.register_buffer("factors", torch.cat(factors, 1))  # of κ, so that one product does

    def forward(self, h: Float[Tensor, "N J"]) -> Normal:
        """Mean and variance of each q(f_t(h_n))."""
        explained, left, mean = self._products(h)
        var = (self.s - explained).clamp_min_(self.smallest) + left  # (T, N)
        dtype = _outward(h)
        return Normal((self.mu + mean).mT.to(dtype), var.mT.to(dtype))

    def explained(self, h: Float[Tensor, "N J"]) -> Float[Tensor, "N T"]:
        """Share of the prior variance that the data has removed, in [0, 1]."""
        explained, left, _ = self._products(h)
        return ((explained - left) / self.s).mT.clamp(0, 1).to(_outward(h))

    def _products(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """‖C κ‖², (K, N), and ‖R κ‖² and αᵀ κ, (T, N)."""
        product = torch.bmm(self.factors, self._correlation(h))
        A, B, mean = product.split_with_sizes(self.rows, 1)
        M, N = self.rows[0], h.shape[0]
        left = column_squares(B.reshape(-1, M, N))
        return column_squares(A), left, mean.reshape(-1, N)

    def _correlation(self, h: Tensor) -> Tensor:
        moved = h - self.centre  # float64, as in `squared_distance`, with Z's part done before
        squares = self.squares + torch.linalg.vecdot(moved, moved)
        d2 = torch.addmm(squares, self.Z, moved.mT, alpha=-2).clamp_min_(0)  # (M, N)
        return self.kernel.kappa(d2 * self.precision)  # (K, M, N)


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
