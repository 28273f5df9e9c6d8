"""DKLITE (Zhang et al., 2020): Bayesian linear regression of each arm on an autoencoder's code z.

With Z (n, J) the codes of an arm, λ = 1000 and its outcomes y less their mean ȳ,

    K = ZᵀZ/λ + I = L Lᵀ,   w = K⁻¹ Zᵀ(y − ȳ)/λ,   E[f(x)] = ȳ + zᵀw,   Var[f(x)] = zᵀK⁻¹z/λ.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from sklearn.utils import check_random_state
from torch import Tensor, nn

from due import archive
from due.baselines.effect_network import (
    People,
    as_tensors,
    check_training,
    fit_scales,
    recall_known,
    what_is_known,
)
from due.estimators.checks import check_not_negative
from due.estimators.effects import Posterior, Study, UncertainEffects
from due.estimators.rows import Floats, Scale
from due.estimators.saved import Found, Memory, SavedEstimator, part, prefixed
from due.estimators.training import seeded
from due.train import train

LAMBDA = 1000.0


class Regression(NamedTuple):
    """Posterior of f(x) = ȳ + zᵀw, and ‖L⁻¹Zᵀ(y − ȳ)‖²/J, how much of y it explains."""

    centre: Tensor
    w: Float[Tensor, " J"]
    cov: Float[Tensor, "J J"]
    fit: Tensor

    def mean(self, Z: Float[Tensor, "N J"]) -> Float[Tensor, " N"]:
        """E[f]."""
        return self.centre + Z @ self.w

    def var(self, Z: Float[Tensor, "N J"]) -> Float[Tensor, " N"]:
        """Var[f]."""
        return (Z @ self.cov * Z).sum(-1)


def regress(Z: Float[Tensor, "N J"], y: Float[Tensor, " N"]) -> Regression:
    """The posterior of one arm."""
    centre = y.mean()
    eye = torch.eye(Z.shape[1], dtype=Z.dtype, device=Z.device)
    L = torch.linalg.cholesky(Z.mT @ Z / LAMBDA + eye)
    L_inv = torch.linalg.solve_triangular(L, eye, upper=False)
    white = L_inv @ (Z.mT @ (y - centre))
    return Regression(
        centre, L_inv.mT @ white / LAMBDA, L_inv.mT @ L_inv / LAMBDA, white.square().mean()
    )


class DKLITENetwork(nn.Module):
    """Autoencoder: `model(x, t, y)` is the loss of all people at once."""

    def __init__(self, D: int, J: int, reg_var: float, reg_rec: float) -> None:
        super().__init__()
        self.encoder = nn.Sequential(_layers(D, J, 4), nn.ELU())
        self.decoder = nn.Sequential(_layers(J, J, 3), nn.ELU(), nn.Linear(J, D))
        self.reg_var, self.reg_rec = reg_var, reg_rec

    def forward(
        self, x: Float[Tensor, "N D"], t: Float[Tensor, " N"], y: Float[Tensor, " N"]
    ) -> Float[Tensor, ""]:
        """−Σ_arms ‖L⁻¹Zᵀ(y − ȳ)‖²/J + reg_var · counterfactual variance + reg_rec · ‖x − x̂‖².

        The counterfactual variance is each arm's mean variance over the people of the other one.
        """
        z = self.encoder(x)
        r0, r1 = arms(z, t, y)
        counterfactual = r0.var(z[t == 1]).mean() + r1.var(z[t == 0]).mean()
        reconstruction = (x - self.decoder(z)).square().sum(-1).mean()
        return -r0.fit - r1.fit + self.reg_var * counterfactual + self.reg_rec * reconstruction


def arms(
    z: Float[Tensor, "N J"], t: Float[Tensor, " N"], y: Float[Tensor, " N"]
) -> tuple[Regression, Regression]:
    """The regressions without and with treatment."""
    return regress(z[t == 0], y[t == 0]), regress(z[t == 1], y[t == 1])


class DKLITE(UncertainEffects, SavedEstimator):
    """Deep kernel learning for individualised treatment effects, as its authors' code has it.

    A deterministic autoencoder is trained on all people at once; the two arms are Bayesian linear
    regressions on its code, and independent: Var[f1 − f0] = Var[f1] + Var[f0]. The epoch is the
    one whose regressions, fitted to the training people, predict the held-out outcomes best (the
    authors watch the training loss alone); then they learn from the held-out people as well.

    Parameters
    ----------
    width
        Of the hidden layers and of the code.
    reg_var, reg_rec
        Weights of the counterfactual variance and of the reconstruction in the loss.
    lr
        Of Adam.
    epochs, patience
        The most steps, and steps without improvement on held-out people after which it stops.
    validation_fraction
        Share of the people held out where `fit` is given no others; 0 takes all steps.
    random_state
        Seed of everything random in `fit`; prediction is deterministic.
    device
        Where to train and predict, such as "cpu" or "cuda".
    verbose
        Show a progress bar on a terminal.

    Attributes
    ----------
    history_
        Loss and validation of each step.
    model_, frozen_
        The `DKLITENetwork` as trained, and as it predicts.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, T = rng.normal(size=(200, 2)), rng.integers(2, size=200)
    >>> Y = X[:, 0] + 3 * T + 0.1 * rng.normal(size=200)
    >>> model = DKLITE(epochs=200, random_state=0).fit(Y, T, X)
    >>> bool(abs(model.ate(X) - 3) < 0.5)
    True
    """

    _fitted = "frozen_"
    model_: DKLITENetwork
    frozen_: DKLITENetwork
    arms_: tuple[Regression, Regression]
    scale_: Scale
    y_scale_: Scale
    history_: dict[str, Any]

    def __init__(
        self,
        *,
        width: int = 50,
        reg_var: float = 1.0,
        reg_rec: float = 1.0,
        lr: float = 1e-3,
        epochs: int = 1000,
        patience: int = 100,
        validation_fraction: float = 0.3,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.width = width
        self.reg_var = reg_var
        self.reg_rec = reg_rec
        self.lr = lr
        self.epochs = epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _fit(self, study: Study, validation: Study | None) -> None:
        check_training(self)
        for name in ("reg_var", "reg_rec"):
            check_not_negative(name, getattr(self, name))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        everyone = study.join(validation)
        self.scale_, self.y_scale_ = fit_scales(everyone)
        if validation is None:
            study, validation = study.hold_out(self.validation_fraction, seed)
        known, held_out = self._tensors(study), self._tensors(validation)
        self.model_ = seeded(self._network, seed).to(self.device)
        self.history_ = self._train(known, held_out, seed)
        frozen = self.model_.requires_grad_(False).double().eval()
        x, t, y = (part.double() for part in self._tensors(everyone))
        self.arms_ = arms(frozen.encoder(x), t, y)
        self.frozen_ = frozen

    def _network(self) -> DKLITENetwork:
        return DKLITENetwork(len(self.scale_.mean), self.width, self.reg_var, self.reg_rec)

    def _memory(self) -> Memory:
        regressions = [prefixed(f"arm{t}", arm._asdict()) for t, arm in enumerate(self.arms_)]
        state = prefixed("model", self.model_.state_dict())
        return Memory(what_is_known(self), {}, {**state, **regressions[0], **regressions[1]})

    def _recall(self, found: Found) -> None:
        recall_known(self, found.config["estimator"])
        tensors = {name: tensor.to(self.device) for name, tensor in found.tensors.items()}
        r0, r1 = (Regression(**part(f"arm{t}", tensors)) for t in (0, 1))
        network = seeded(self._network, 0).to(self.device)
        self.model_ = archive.load_state(network, part("model", tensors)).requires_grad_(False)
        self.arms_, self.frozen_ = (r0, r1), self.model_

    def _tensors(self, study: Study) -> People:
        x, t, y = as_tensors(study, self.scale_, self.y_scale_)
        return x.to(self.device), t.to(self.device), y.to(self.device)

    def _train(self, known: People, held_out: People, seed: int) -> dict[str, Any]:
        model, (x, t, y), watch = self.model_, held_out, len(held_out[0]) > 0

        def error() -> float:
            """Mean squared error on held-out people, each in the arm they were in."""
            r0, r1 = arms(model.encoder(known[0]), *known[1:])
            z = model.encoder(x)
            return float((torch.where(t == 1, r1.mean(z), r0.mean(z)) - y).square().mean())

        history = train(
            model,
            known,
            optimizer=torch.optim.Adam(model.parameters(), lr=self.lr, fused=True),
            epochs=self.epochs,
            validation=error if watch else None,
            patience=self.patience if watch else None,
            seed=seed,
            progress=None if self.verbose else False,
        )
        return {"rows": len(known[0]), **history.as_dict()}

    @torch.no_grad()
    def _outcomes(self, X: Floats) -> Floats:
        z = self._code(X)
        means = torch.stack([arm.mean(z) for arm in self.arms_], 1)
        return self.y_scale_.inverse(means.cpu().numpy())

    @torch.no_grad()
    def _posterior(self, X: Floats) -> Posterior:
        z = self._code(X)
        r0, r1 = self.arms_
        return Posterior(
            self._in_units(r1.mean(z) - r0.mean(z)),
            self._in_units(r0.var(z) + r1.var(z), power=2),
        )

    @torch.no_grad()
    def _average(self, X: Floats) -> tuple[float, float]:
        z = self._code(X).mean(0, keepdim=True)  # f is linear in z
        r0, r1 = self.arms_
        mean = self._in_units(r1.mean(z) - r0.mean(z))
        var = self._in_units(r0.var(z) + r1.var(z), power=2)
        return float(mean[0]), float(var[0])

    def _code(self, X: Floats) -> Tensor:
        x = torch.as_tensor(self.scale_(X), dtype=torch.float64, device=self.device)
        return self.frozen_.encoder(x)

    def _in_units(self, values: Tensor, power: int = 1) -> Floats:
        return np.asarray(values.cpu().numpy() * self.y_scale_.std**power)


def _layers(D: int, J: int, depth: int) -> nn.Sequential:
    """`depth` linear layers with ELU between them."""
    layers: list[nn.Module] = [nn.Linear(D, J)]
    for _ in range(depth - 1):
        layers += [nn.ELU(), nn.Linear(J, J)]
    return nn.Sequential(*layers)
