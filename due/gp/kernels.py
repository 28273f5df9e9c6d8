"""Stationary kernels k_t(h, z) = s_t κ(r²), r = ‖h − z‖ / l_t, for T outputs side by side."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from due.gp.shapes import Features


class Kernel(nn.Module):
    """T kernels of one kind, each with its own length scale l and output scale s.

    Parameters
    ----------
    kind
        "rbf", "matern12", "matern32", "matern52" or "rq" (rational quadratic).
    T
        Number of kernels; 1 if all outputs share one.
    lengthscale, outputscale
        Initial values; both are learned through a softplus.
    """

    def __init__(
        self, kind: str = "rbf", T: int = 1, lengthscale: float = 1.0, outputscale: float = 0.6931
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"kernel={kind!r} is not one of {', '.join(KINDS)}")
        self.kind, self.T = kind, T
        self.raw_lengthscale = nn.Parameter(inverse_softplus(lengthscale, T))
        self.raw_outputscale = nn.Parameter(inverse_softplus(outputscale, T))
        self.raw_alpha = nn.Parameter(inverse_softplus(1.0, T)) if kind == "rq" else None

    @property
    def lengthscale(self) -> Float[Tensor, " T"]:
        """l_t."""
        return softplus(self.raw_lengthscale.double())

    @property
    def outputscale(self) -> Float[Tensor, " T"]:
        """s_t, the prior variance."""
        return softplus(self.raw_outputscale.double())

    def forward(self, h: Features, z: Float[Tensor, "M J"]) -> Float[Tensor, "T N M"]:
        """k_t(h_n, z_m) in float64."""
        return self.outputscale[:, None, None] * self.correlation(squared_distance(h, z))

    def correlation(self, d2: Float[Tensor, "N M"]) -> Float[Tensor, "T N M"]:
        """κ_t from ‖h_n − z_m‖²."""
        return self.kappa(d2 * self.lengthscale.pow(-2)[:, None, None])

    def kappa(self, r2: Float[Tensor, "T N M"]) -> Float[Tensor, "T N M"]:
        """κ_t(r²), r in units of the length scale."""
        if self.raw_alpha is not None:
            alpha = softplus(self.raw_alpha.double())[:, None, None]
            return torch.exp(-alpha * torch.log1p(r2 / (2 * alpha)))
        if not r2.requires_grad:
            return CORRELATIONS[self.kind].value(r2)
        return _Correlation.apply(r2, self.kind)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def average(self, sharpness: float = 1.0) -> "Kernel":
        """One kernel with the mean of the length scales, divided, and of the output scales."""
        lengthscale = float(self.lengthscale.mean()) / sharpness
        mean = Kernel(self.kind, 1, lengthscale, float(self.outputscale.mean()))
        if mean.raw_alpha is not None and self.raw_alpha is not None:
            mean.raw_alpha.copy_(self.raw_alpha.mean())
        return mean.to(self.raw_lengthscale.device)

    def gap(self, h: Features, z: Features) -> Float[Tensor, "T N"]:
        """1 − κ_t(h_n, z_n), row by row; exactly 0 where h_n = z_n."""
        d2 = (h.double() - z.double()).square().sum(-1)
        # −expm1(log κ): 1 − κ itself has no digit left below ‖h − z‖ = 1e-8 l
        return -self._log_correlation(d2 / self.lengthscale.square()[:, None]).expm1()

    def _log_correlation(self, r2: Float[Tensor, "T N"]) -> Float[Tensor, "T N"]:
        if self.raw_alpha is None:
            return CORRELATIONS[self.kind].log(r2)
        alpha = softplus(self.raw_alpha.double())[:, None]
        return -alpha * torch.log1p(r2 / (2 * alpha))


def squared_distance(
    a: Features, b: Float[Tensor, "M J"], centre: Float[Tensor, " J"] | None = None
) -> Float[Tensor, "N M"]:
    """‖a_n − b_m‖² in float64; both are moved to the centre first, where less cancels.

    None takes the mean of b, which must not hold rows of unknown size: one far row would round
    the distances between all others. Rounding leaves 1e-16 ‖b‖² where rows coincide, a distance of
    1e-8 ‖b‖ that the Matérn-½ kernel would show; the diagonal is exactly 0 if b is a itself.
    """
    centre = b.detach().double().mean(0) if centre is None else centre
    moved = a.double() - centre, b.double() - centre
    d2: Tensor = _SquaredDistance.apply(*moved)  # type: ignore[no-untyped-call]
    return d2.fill_diagonal_(0) if a is b else d2


def squared_distance_of_any(
    a: Features,
    b: Float[Tensor, "M J"],
    centre: Float[Tensor, " J"],
    reach: Float[Tensor, ""],
) -> Float[Tensor, "N M"]:
    """‖a_n − b_m‖² of rows that may be far from the data, which lie within √reach of the centre.

    The squares of a far row would round the distance to its neighbour to nothing: of such rows it
    is taken by differences, which takes longer.
    """
    d2 = squared_distance(a, b, centre)
    far_a, far_b = ((part - centre).square().sum(1) > BEYOND * reach for part in (a, b))
    if far_a.any():
        d2[far_a] = _by_differences(a[far_a], b)
    if far_b.any():
        d2[:, far_b] = _by_differences(a, b[far_b])
    return d2


def _by_differences(a: Tensor, b: Tensor) -> Tensor:
    a, b = a.double(), b.double()
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()


def squared_distance_to_first(x: Float[Tensor, "P J"], M: int) -> Float[Tensor, "P M"]:
    """‖x_p − x_m‖² in float64 of all rows to the first M, as `squared_distance` takes it."""
    moved = x.double() - x.detach()[:M].double().mean(0)
    return _DistanceToFirst.apply(moved, M)  # type: ignore[no-untyped-call]


def inverse_softplus(value: float | Tensor, T: int) -> Float[Tensor, " T"]:
    """x with log(1 + eˣ) = value, T times."""
    y = torch.as_tensor(value, dtype=torch.float64).expand(T)
    return y + torch.log(-torch.expm1(-y))


class _SquaredDistance(torch.autograd.Function):
    """d² = ‖a‖² + ‖b‖² − 2 a bᵀ, with a lean backward: ∂a = 2 (a Σ_m G − G b)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        squares = (a * a).sum(1)[:, None] + (b * b).sum(1)
        return torch.addmm(squares, a, b.mT, alpha=-2).clamp_min_(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (a, b), (G,) = ctx.saved_tensors, grads
        grad_a = torch.addmm(G.sum(1)[:, None] * a, G, b, alpha=-2, beta=2)
        grad_b = torch.addmm(G.sum(0)[:, None] * b, G.mT, a, alpha=-2, beta=2)
        return grad_a, grad_b


class _DistanceToFirst(torch.autograd.Function):
    """d² of x = [Z; h] to Z, with a lean backward.

    For G = [G_Z; G_h] and Q = [G_Z + G_Zᵀ; G_h]: ∂x = 2 (w x − Q Z), less 2 G_hᵀ h for Z, where w
    are the sums of the rows of Q, and for Z of those of G_hᵀ too.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, M: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.M = M
        squares = torch.linalg.vecdot(x, x)
        d2 = (squares[:, None] + squares[:M]).addmm_(x, x[:M].mT, alpha=-2)
        return d2.clamp_min_(0).fill_diagonal_(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,), (G,), M = ctx.saved_tensors, grads, ctx.M
        Q = torch.cat([G[:M] + G[:M].mT, G[M:]])
        w = Q.sum(1)
        w[:M] += G[M:].sum(0)
        grad = (w[:, None] * x).addmm_(Q, x[:M], alpha=-2, beta=2)
        grad[:M].addmm_(G[M:].mT, x[M:], alpha=-2)
        return grad, None


class _Correlation(torch.autograd.Function):
    """κ(r²) with its derivative in closed form, finite where points coincide."""

    @staticmethod
    def forward(ctx: Any, r2: Tensor, kind: str) -> Tensor:
        kappa = CORRELATIONS[kind].value(r2)
        ctx.save_for_backward(r2, kappa)
        ctx.kind = kind
        return kappa

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * CORRELATIONS[ctx.kind].slope(*ctx.saved_tensors), None


class Correlation(NamedTuple):
    """κ and log κ as functions of r², and dκ/dr² as one of r² and κ."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]
    log: Callable[[Tensor], Tensor]


def _matern12_slope(r2: Tensor, kappa: Tensor) -> Tensor:
    r = r2.clamp_min(1e-30).sqrt()
    return torch.where(r2 > 0, kappa / (-2 * r), 0.0)  # no direction where points coincide


def _matern32(r2: Tensor) -> Tensor:
    r = (3 * r2).sqrt_().clamp_max_(FAR)
    return r.neg().exp_().mul_(r.add_(1))  # (1 + r) e⁻ʳ


def _matern32_slope(r2: Tensor, kappa: Tensor) -> Tensor:
    r = (3 * r2).clamp_min_(1e-30).sqrt_()
    return (kappa / (1 + r)).mul_(-1.5)


def _matern52(r2: Tensor) -> Tensor:
    r = (5 * r2).sqrt_().clamp_max_(FAR)
    return r.neg().exp_().mul_(torch.addcmul(r + 1, r, r, value=1 / 3))  # (1 + r + r²/3) e⁻ʳ


def _matern52_slope(r2: Tensor, kappa: Tensor) -> Tensor:
    r = (5 * r2).clamp_min(1e-30).sqrt().clamp_max(FAR)
    return -5 / 6 * (1 + r) * kappa / (1 + r + r.square() / 3)


def _log_matern32(r2: Tensor) -> Tensor:
    r = _distance(3 * r2)
    return torch.log1p(r) - r


def _log_matern52(r2: Tensor) -> Tensor:
    r = _distance(5 * r2)
    return torch.log1p(r + r.square() / 3) - r


def _distance(r2: Tensor) -> Tensor:
    return torch.where(r2 > 0, r2.clamp_min(1e-30).sqrt(), 0.0)  # a finite gradient at 0


BEYOND = 1e4  # times the largest square of the data: 4 of 16 digits are lost there
FAR = 1e15  # e⁻ʳ is 0 there, and ∞ · 0 is not
CORRELATIONS = {
    "rbf": Correlation(
        lambda r2: (-0.5 * r2).exp_(), lambda r2, kappa: -0.5 * kappa, lambda r2: -0.5 * r2
    ),
    "matern12": Correlation(
        lambda r2: r2.sqrt().neg_().exp_(), _matern12_slope, lambda r2: -_distance(r2)
    ),
    "matern32": Correlation(_matern32, _matern32_slope, _log_matern32),
    "matern52": Correlation(_matern52, _matern52_slope, _log_matern52),
}
KINDS = (*CORRELATIONS, "rq")  # (1 + r² / 2α)^−α has a parameter of its own
