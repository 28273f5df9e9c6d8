"""DKLITE (Zhang et al., 2020): Bayesian linear regression of each arm on an autoencoder's code z.

With Z (n, J) the codes of an arm, λ = 1000 and its outcomes y less their mean ȳ,

    K = ZᵀZ/λ + I = L Lᵀ,   w = K⁻¹ Zᵀ(y − ȳ)/λ,   E[f(x)] = ȳ + zᵀw,   Var[f(x)] = zᵀK⁻¹z/λ.
"""

from copy import deepcopy
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from due.gp import Normal
from due.gp.shapes import Features, Inputs, PerRow, Scalar, Values, Weights
from due.methods.method import Folded, Train, device_of
from due.rows.source import Source, Table

LAMBDA = 1000.0


class Regression(NamedTuple):
    """Posterior of f(x) = ȳ + zᵀw, and ‖L⁻¹Zᵀ(y − ȳ)‖²/J, how much of y it explains."""

    centre: Tensor
    w: Float[Tensor, " J"]
    cov: Float[Tensor, "J J"]
    fit: Tensor

    def mean(self, Z: Features) -> PerRow:
        """E[f]."""
        return self.centre + Z.to(self.w) @ self.w  # which `finish` leaves in float64

    def var(self, Z: Features) -> PerRow:
        """Var[f]."""
        Z = Z.to(self.cov)
        return (Z @ self.cov * Z).sum(-1)


def regress(Z: Features, y: PerRow) -> Regression:
    """The posterior of one arm."""
    centre = y.mean()
    eye = torch.eye(Z.shape[1], dtype=Z.dtype, device=Z.device)
    L = torch.linalg.cholesky(Z.mT @ Z / LAMBDA + eye)
    L_inv = torch.linalg.solve_triangular(L, eye, upper=False)
    white = L_inv @ (Z.mT @ (y - centre))
    return Regression(
        centre, L_inv.mT @ white / LAMBDA, L_inv.mT @ L_inv / LAMBDA, white.square().mean()
    )


class Arm(nn.Module):
    """A `Regression` as buffers, so that it is saved."""

    centre: Tensor
    w: Tensor
    cov: Tensor
    fit: Tensor

    def __init__(self, J: int) -> None:
        super().__init__()
        blank = Regression(torch.zeros(()), torch.zeros(J), torch.zeros(J, J), torch.zeros(()))
        for name, tensor in blank._asdict().items():
            self.register_buffer(name, tensor)

    def hold(self, found: Regression) -> None:
        """Keep this regression."""
        for name, tensor in found._asdict().items():
            setattr(self, name, tensor.detach())

    @property
    def regression(self) -> Regression:
        """What is held."""
        return Regression(self.centre, self.w, self.cov, self.fit)


class DKLITENetwork(Folded):
    """Autoencoder of rows [x, t]: `model(xt, y)` is the loss of all people at once."""

    needs_all_rows = True

    def __init__(self, D: int, J: int, reg_var: float, reg_rec: float) -> None:
        super().__init__()
        self.encoder = nn.Sequential(_layers(D, J, 4), nn.ELU())
        self.decoder = nn.Sequential(_layers(J, J, 3), nn.ELU(), nn.Linear(J, D))
        self.arm0, self.arm1 = Arm(J), Arm(J)
        self.reg_var, self.reg_rec = reg_var, reg_rec

    def start(self, source: Source, seed: int) -> None:
        """Weights start at random, whatever the rows."""

    def forward(self, xt: Inputs, y: Values, weights: Weights = None) -> Scalar:
        """−Σ_t fit_t + reg_var · counterfactual variance + reg_rec · reconstruction error.

        The counterfactual variance of an arm is its mean variance over the people of the other one.
        """
        if weights is not None:
            raise ValueError("DKLITE takes no weights")
        x, t = xt[:, :-1], xt[:, -1]
        z = self.encoder(x)
        r0, r1 = arms(z, t, y[:, 0])
        counterfactual = r0.var(z[t == 1]).mean() + r1.var(z[t == 0]).mean()
        reconstruction = (x - self.decoder(z)).square().sum(-1).mean()
        return -r0.fit - r1.fit + self.reg_var * counterfactual + self.reg_rec * reconstruction

    def losses(self, xt: Inputs, y: Values) -> PerRow:
        """Squared error of each person, in the arm they were in."""
        untreated, treated = self.outcomes(xt[:, :-1]).unbind(1)
        return (torch.where(xt[:, -1] == 1, treated, untreated) - y[:, 0]).square()

    @torch.no_grad()
    def settle(self, source: Source) -> None:
        """The regressions of both arms on the codes of these people."""
        self._regress(self.encoder, source)

    @torch.no_grad()
    def finish(self, source: Source, held_out: Source | None, seed: int, train: Train) -> None:
        """The regressions learn from everybody, in float64."""
        everyone = Table(*source.whole())
        if held_out is not None:
            everyone = everyone.join(Table(*held_out.whole()))
        xt, y = everyone.data
        self._regress(deepcopy(self.encoder).double(), Table(xt.double(), y.double()))

    def outcomes(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N 2"]:
        """E[y | x, t] without and with treatment."""
        z = self.encoder(x)
        return torch.stack([self.arm0.regression.mean(z), self.arm1.regression.mean(z)], 1)

    def difference(self, x: Float[Tensor, "N D"]) -> Normal:
        """Mean and variance of f1 − f0, (N, 1) each."""
        return self._difference(self.encoder(x))

    def average(self, x: Float[Tensor, "N D"]) -> Normal:
        """Mean and variance of the average of f1 − f0, (1, 1) each: f is linear in the code."""
        return self._difference(self.encoder(x).mean(0, keepdim=True))

    def _difference(self, z: Tensor) -> Normal:
        r0, r1 = self.arm0.regression, self.arm1.regression
        return Normal((r1.mean(z) - r0.mean(z))[:, None], (r0.var(z) + r1.var(z))[:, None])

    def _regress(self, encoder: nn.Module, source: Source) -> None:
        xt, y = (part.to(device_of(self)) for part in source.whole())
        r0, r1 = arms(encoder(xt[:, :-1]), xt[:, -1], y[:, 0])
        self.arm0.hold(r0)
        self.arm1.hold(r1)


def arms(z: Features, t: PerRow, y: PerRow) -> tuple[Regression, Regression]:
    """The regressions without and with treatment."""
    return regress(z[t == 0], y[t == 0]), regress(z[t == 1], y[t == 1])


def _layers(D: int, J: int, depth: int) -> nn.Sequential:
    """`depth` linear layers with ELU between them."""
    layers: list[nn.Module] = [nn.Linear(D, J)]
    for _ in range(depth - 1):
        layers += [nn.ELU(), nn.Linear(J, J)]
    return nn.Sequential(*layers)
