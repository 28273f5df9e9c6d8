"""The posterior of an inducing-point GP with its algebra done, for prediction only.

With κ(Z, Z) = L Lᵀ, C = √s L⁻¹, R = L_Sᵀ C and α = Cᵀ m, a row costs a kernel vector κ = κ(Z, h)
and mean = μ + αᵀ κ,  var = s − ‖C κ‖² + ‖R κ‖². The difference f(h1) − f(h0) takes
δ = κ(Z, h1) − κ(Z, h0) instead: mean αᵀ δ, var 2 s (1 − κ(h1, h0)) − ‖C δ‖² + ‖R δ‖², in which
nothing of the size of s cancels when h1 ≈ h0.
"""

from abc import ABC, abstractmethod
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from due.gp.cholesky import cholesky
from due.gp.inducing import InducingGP, column_squares, outward, times
from due.gp.kernels import squared_distance, squared_distance_of_any
from due.gp.likelihoods import Gaussian, Likelihood, Normal, Softmax, StudentT
from due.gp.panel import Directions, Panel, look
from due.gp.reference import Reference
from due.gp.shapes import Features, PerRow, Values

BLOCK = 1000  # pairs whose covariances are summed at once
PEOPLE = 2048  # encoded at once


class FrozenGP(nn.Module):
    """The posterior of an `InducingGP`, with nothing left to factorise."""

    centre: Tensor
    Z: Tensor
    squares: Tensor
    precision: Tensor
    mu: Tensor
    s: Tensor
    factors: Tensor

    @torch.no_grad()
    def __init__(self, gp: InducingGP) -> None:
        super().__init__()
        self.kernel = deepcopy(gp.kernel).requires_grad_(False)
        Z, s = gp.Z.detach().double(), self.kernel.outputscale
        L = cholesky(self.kernel.correlation(squared_distance(Z, Z)), gp.jitter)
        K, M, T = len(L), len(Z), gp.T
        eye = torch.eye(M, dtype=L.dtype, device=L.device)
        C = torch.linalg.solve_triangular(L, s.sqrt()[:, None, None] * eye, upper=False)
        R = times(gp.L_S.detach().mT, C)  # (T or 1, M, M)
        alpha = times(gp.m.detach().double()[:, None], C)  # (T, 1, M)
        self.rows = [M, len(R) // K * M, T // K]
        self.smallest = 1e-12 * float(s.min())
        self.register_buffer("centre", Z.mean(0))
        self.register_buffer("Z", Z - self.centre)
        self.register_buffer("squares", self.Z.square().sum(1, keepdim=True))
        self.register_buffer("precision", self.kernel.lengthscale.pow(-2)[:, None, None])
        self.register_buffer("mu", gp.mu.detach().double()[:, None].clone())
        self.register_buffer("s", s[:, None].clone())
        factors = [C, R.reshape(K, -1, M), alpha.reshape(K, -1, M)]
        self.register_buffer("factors", torch.cat(factors, 1))  # of κ, so that one product does

    def forward(self, h: Features) -> Normal:
        """Mean and variance of each q(f_t(h_n))."""
        A, B, mean = self._products(self._correlation(h))
        mean = self.mu + mean  # (T, N)
        var = (self.s - column_squares(A)).clamp_min_(self.smallest) + column_squares(B)
        return Normal(mean.mT.to(outward(h)), var.expand_as(mean).mT.to(outward(h)))

    def explained(self, h: Features) -> Values:
        """Share of the prior variance that the data has removed, in [0, 1]."""
        A, B, _ = self._products(self._correlation(h))
        share = (column_squares(A) - column_squares(B)) / self.s
        return share.mT.clamp(0, 1).expand(-1, len(self.mu)).to(outward(h))

    def joint(self, h: Features) -> tuple[Values, Float[Tensor, "T N N"]]:
        """Mean and covariance of each q(f_t(h_1), …, f_t(h_N))."""
        A, B, mean = self._products(self._correlation(h))
        prior = self.s[..., None] * self.kernel.correlation(self._squared_distance(h, h))
        cov = (prior - A.mT @ A + B.mT @ B).expand(len(self.mu), -1, -1)
        return (self.mu + mean).mT.to(outward(h)), cov.to(outward(h))

    def difference(self, h1: Features, h0: Features) -> Normal:
        """Mean and variance of each f_t(h1_n) − f_t(h0_n)."""
        A, B, mean = self._products(self._change(h1, h0))
        prior = 2 * self.s * self.kernel.gap(h1, h0) - column_squares(A)
        var = prior.clamp_min(0) + column_squares(B)
        return Normal(mean.mT.to(outward(h1)), var.mT.to(outward(h1)))

    def joint_difference(self, h1: Features, h0: Features) -> tuple[Values, Float[Tensor, "T N N"]]:
        """Mean and covariance of f_t(h1_1) − f_t(h0_1), …, f_t(h1_N) − f_t(h0_N)."""
        A, B, mean = self._products(self._change(h1, h0))
        cov = self._prior((h1, h0), (h1, h0)) - A.mT @ A + B.mT @ B
        return mean.mT.to(outward(h1)), cov.to(outward(h1))

    def mean_difference(
        self, h1: Features, h0: Features
    ) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]]:
        """Mean and variance of the average of the N differences; memory grows with N only."""
        pairs = list(zip(h1.split(BLOCK), h0.split(BLOCK), strict=True))
        change = torch.cat([self._change(*pair) for pair in pairs], -1).mean(-1, keepdim=True)
        A, B, mean = self._products(change)
        total = sum(self._prior(a, b).sum((-2, -1)) for a in pairs for b in pairs)
        prior = total / len(h1) ** 2 - column_squares(A)[:, 0]
        var = prior.clamp_min(0) + column_squares(B)[:, 0]
        return mean[:, 0].to(outward(h1)), var.to(outward(h1))

    def _products(self, kappa: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """C κ, (K, M, N), R κ, (T, M, N), and αᵀ κ, (T, N)."""
        A, B, mean = torch.bmm(self.factors, kappa).split_with_sizes(self.rows, 1)
        M, N = self.rows[0], kappa.shape[-1]
        return A, B.reshape(-1, M, N), mean.reshape(-1, N)

    def _change(self, h1: Tensor, h0: Tensor) -> Tensor:
        """κ(Z, h1) − κ(Z, h0), (K, M, N)."""
        return self._correlation(h1) - self._correlation(h0)

    def _prior(self, a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Tensor:
        """s (κ(a1, b1) + κ(a0, b0) − κ(a1, b0) − κ(a0, b1)) of two sets of pairs, (K, N, N)."""
        k = [[self.kernel.correlation(self._squared_distance(x, y)) for y in b] for x in a]
        return self.s[..., None] * (k[0][0] + k[1][1] - k[0][1] - k[1][0])

    def _squared_distance(self, a: Tensor, b: Tensor) -> Tensor:
        """‖a_n − b_m‖² of rows that may be anywhere."""
        return squared_distance_of_any(a, b, self.centre, self.squares.max())

    def _correlation(self, h: Tensor) -> Tensor:
        moved = h - self.centre  # float64, as in `squared_distance`, with Z's part done before
        squares = self.squares + torch.linalg.vecdot(moved, moved)
        d2 = torch.addmm(squares, self.Z, moved.mT, alpha=-2).clamp_min_(0)  # (M, N)
        return self.kernel.kappa(d2 * self.precision)  # (K, M, N)


class Frozen(nn.Module, ABC):
    """Abstract: a `DUE` that only predicts, from features h.

    The OOD score is that of the `panel`, or without one the distance to the `reference`.
    `calibration` are the sorted OOD scores of rows that had no part in training.
    """

    calibration: Tensor

    def __init__(
        self,
        f: nn.Module,
        gp: FrozenGP,
        likelihood: Likelihood,
        reference: Reference | None,
        calibration: Float[Tensor, " C"],
        panel: Panel | None = None,
    ) -> None:
        super().__init__()
        self.f, self.gp, self.likelihood, self.reference = f, gp, likelihood, reference
        self.panel = panel
        self.register_buffer("calibration", calibration)

    @abstractmethod
    def energy(self, h: Features) -> PerRow | None:
        """Larger where fewer outputs speak up; None if they cannot tell."""

    def look(self, x: Tensor) -> tuple[Any, ...]:
        """h, and what else `foreign` asks for."""
        return (self.f(x),) if self.panel is None else look(self.f, x)

    def foreign(self, h: Features, stages: Directions | None = None) -> PerRow:
        """Score of the panel; without one the share of the prior variance that rows leave."""
        if self.panel is not None and stages is not None:
            return self.panel(self.panel.views(self.energy(h), stages))
        return self.distance(h)

    def distance(self, h: Features) -> PerRow:
        """Share of the prior variance that training rows leave, in [0, 1]."""
        if self.reference is None:
            raise ValueError("an OOD score needs the features of training rows: call `fit` first")
        return 1 - self.reference(h)

    def pvalue(self, score: PerRow) -> PerRow:
        """(1 + number of calibration scores not below this one) / (1 + C)."""
        C = len(self.calibration)
        below = torch.searchsorted(self.calibration, score.contiguous())
        return (1 + C - below).to(score.dtype) / (1 + C)


class FrozenClasses(Frozen):
    """Of classes."""

    likelihood: Softmax
    by_entropy = True  # what `uncertainty` is

    def probabilities(self, h: Features) -> Values:
        """E[softmax(f)]; the integral of three classes or more is in float32."""
        mean, var = self.gp(h)
        return self.likelihood.predictive(mean, var, single=True).to(outward(h))

    def energy(self, h: Features) -> PerRow:
        """−log Σ_t exp E[f_t]."""
        return -torch.logsumexp(self.gp(h).mean, -1)

    def parts(self, h: Features) -> tuple[Tensor, Tensor]:
        """Expected entropy, and the latent variance averaged over classes."""
        mean, var = self.gp(h)
        return self.likelihood.expected_entropy(mean, var), var.mean(-1)


class FrozenValues(Frozen):
    """Of values, in standard units."""

    likelihood: Gaussian | StudentT

    def energy(self, h: Features) -> PerRow | None:
        """None: a value says nothing of how familiar its row is."""
        return None

    def moments(self, h: Features) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance of the function, and of the noise, each (N, T)."""
        mean, var = self.gp(h)
        return mean, var, self.likelihood.variance(h).expand_as(var)

    def joint(self, h: Features) -> tuple[Tensor, Tensor, Tensor]:
        """Mean (N, T) and covariance (T, N, N) of the function, and the noise, (N, T)."""
        mean, cov = self.gp.joint(h)
        return mean, cov, self.likelihood.variance(h).expand_as(mean)


class FrozenEffects(nn.Module):
    """A `TreatmentDUE` that only predicts, in standard units."""

    def __init__(self, f: nn.Module, gp: FrozenGP, arms: list[Reference]) -> None:
        super().__init__()
        self.f, self.gp, self.arms = f, gp, nn.ModuleList(arms)

    def features(self, x: Float[Tensor, "N D"]) -> tuple[Tensor, Tensor]:
        """h of [x, 1] and of [x, 0], from one pass."""
        t = torch.ones_like(x[:, :1])
        h = self.f(torch.cat([torch.cat([x, t], 1), torch.cat([x, 0 * t], 1)]))
        h1, h0 = h.unflatten(0, (2, -1))  # as `chunk(2)`, but for any N in an export
        return h1, h0

    def outcomes(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N 2"]:
        """E[y | x, t] without and with treatment."""
        h1, h0 = self.features(x)
        return torch.cat([self.gp(h0).mean, self.gp(h1).mean], 1)

    def difference(self, x: Float[Tensor, "N D"]) -> Normal:
        """Mean and variance of f1 − f0, (N, 1) each."""
        return self.gp.difference(*self.features(x))

    def average(self, x: Float[Tensor, "N D"]) -> Normal:
        """Mean and variance of the average difference, (1, 1) each."""
        pairs = [self.features(part) for part in x.split(PEOPLE)]
        h1, h0 = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        mean, var = self.gp.mean_difference(h1, h0)
        return Normal(mean[None], var[None])

    def joint_difference(self, x: Float[Tensor, "N D"]) -> tuple[Tensor, Tensor]:
        """Mean (N, 1) and covariance (1, N, N) of the differences of all people."""
        return self.gp.joint_difference(*self.features(x))

    def overlap(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N 2"]:
        """Per arm, the share of the prior variance that its people remove."""
        h1, h0 = self.features(x)
        return torch.stack([self.arms[0](h0), self.arms[1](h1)], 1)

    def leave_one_out(self, arm: int) -> Float[Tensor, " P"]:
        """That share at each of the arm's people, by the others."""
        return self.arms[arm].leave_one_out()  # type: ignore[operator]
