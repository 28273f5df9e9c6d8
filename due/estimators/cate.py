"""DUE for treatment effects: f on [x, t], and τ(x) = f([x, 1]) − f([x, 0]) in closed form."""

import warnings
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from torch import Tensor, nn

from due.estimators.checks import check_fraction
from due.estimators.effects import Posterior, Study, UncertainEffects
from due.estimators.regressor import DUERegressor
from due.estimators.rows import Floats, Scale, fit_covariate_scale
from due.estimators.saved import Found, Memory, SavedEstimator, column_names, recall_columns
from due.estimators.torch_estimator import Extractor
from due.estimators.training import PREDICT_ROWS
from due.gp import Reference, joint_difference, mean_difference
from due.networks import AppendTreatment, PreactivationResNet

PLACES = ("features", "input")
DECAY = 0.45  # ½ (1 − dropout of 0.1)
FEW = 5  # people of an arm


class DUECATE(UncertainEffects, SavedEstimator):
    """Effects of a treatment with their doubt, from one forward pass of a deep network.

    A `DUERegressor` of the outcome on [x, t]. The effect f([x, 1]) − f([x, 0]) of a person is then
    normal, and its mean and variance are closed forms. Nothing here is calibrated on true effects,
    which nobody observes; intervals are credible intervals of the model.

    Parameters
    ----------
    extractor
        Function from the shape of a row to an `nn.Module` that gives one feature vector a row.
        None builds the paper's encoder: 3 layers of 200, ELU, dropout 0.1.
    c
        Bound on the Lipschitz constant of each layer; None leaves the network free.
    n_inducing
        Number of inducing points (at most the number of distinct rows).
    kernel
        "rbf", "matern12", "matern32", "matern52" or "rq".
    treatment
        Where t enters: appended to the "features" or to the "input" of the network.
    own_scale
        Learn a length scale for t apart from that of the features.
    bound
        "collapsed", "elbo" or "auto", as in `DUERegressor`.
    epochs, batch_size, lr, gp_lr
        As in `DUERegressor`; None takes its choice.
    weight_decay
        L2 penalty of Adam; None is 0.45 / N.
    validation_fraction
        Share of the people held out to choose the best epoch, unless `fit` is given others.
    patience
        Epochs without improvement after which training stops; an epoch of the collapsed bound is
        one step.
    finish
        As in `DUERegressor`. "gp" has the smaller error of the effect on IHDP, "noise" the wider
        intervals.
    random_state
        Seed of everything random in `fit`; prediction is deterministic.
    device
        Where to train and predict, such as "cpu" or "cuda".
    verbose
        Show a progress bar on a terminal.

    Attributes
    ----------
    history_
        Loss and validation of each epoch.
    regressor_
        The `DUERegressor` of the outcome.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> T = rng.integers(2, size=300)
    >>> Y = X[:, 0] + T * (1 + X[:, 1]) + 0.1 * rng.normal(size=300)
    >>> model = DUECATE(random_state=0).fit(Y, T, X=X)
    >>> low, high = model.effect_interval([[0.0, 0.5], [0.0, 9.0]])
    >>> bool(low[0] < 1.5 < high[0]), bool(high[1] - low[1] > 3 * (high[0] - low[0]))
    (True, True)
    """

    _fitted = "regressor_"
    regressor_: DUERegressor
    scale_: Scale
    arms_: tuple[Reference, Reference]
    history_: dict[str, Any]

    def __init__(
        self,
        extractor: Extractor | None = None,
        *,
        c: float | None = 0.95,
        n_inducing: int = 100,
        kernel: str = "matern32",
        treatment: str = "features",
        own_scale: bool = True,
        bound: str = "auto",
        epochs: int | None = 1000,
        batch_size: int | None = None,
        lr: float | None = 4e-3,
        gp_lr: float | None = 1.6e-2,
        weight_decay: float | None = None,
        validation_fraction: float = 0.3,
        patience: int = 60,
        finish: str = "gp",
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.extractor = extractor
        self.c = c
        self.n_inducing = n_inducing
        self.kernel = kernel
        self.treatment = treatment
        self.own_scale = own_scale
        self.bound = bound
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.gp_lr = gp_lr
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.finish = finish
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    @classmethod
    def paper(cls, random_state: Any = None, **changes: Any) -> "DUECATE":
        """The recipe behind the paper's Table 3: stochastic ELBO on batches of 100.

        Its text has one learning rate of 1e-3 and at most 750 epochs; its code has these.
        """
        recipe = {
            "own_scale": False,
            "bound": "elbo",
            "batch_size": 100,
            "lr": 1e-3,
            "gp_lr": 4e-3,
            "patience": 20,
        }
        return cls(**{**recipe, "random_state": random_state, **changes})

    def overlap(self, X: ArrayLike) -> Floats:
        """How much people of each arm say about each person, shape (N, 2), untreated first.

        The share of the prior variance of f([x, t]) that the outcomes of (up to 1,000 of) the
        people of arm t have removed: near 1 among them, 0 far from all of them. Warns of those
        for whom it is lower than for 99 % of these people, were their own outcome unknown: there
        one side of the comparison has no data. Warns of an arm of fewer than 5 people.
        """
        rows = self._people(X)
        overlap = np.concatenate([self._explained(part) for part in _parts(rows)])
        for arm, word in enumerate(("untreated", "treated")):
            others = self.arms_[arm].leave_one_out()
            if len(others) < FEW:
                warnings.warn(
                    f"only {len(others)} of the people learned from are {word}: every effect "
                    "rests on them",
                    stacklevel=2,
                )
            lowest = float(others.quantile(0.01, interpolation="higher"))  # not one person alone
            alone = int((overlap[:, arm] < lowest).sum())
            if alone:
                warnings.warn(
                    f"{alone} of {len(rows)} people are farther from everyone {word} than those "
                    "are from one another: their effect rests on the prior, refer them to an "
                    "expert",
                    stacklevel=2,
                )
        return overlap

    @torch.no_grad()
    def sample_effect(self, X: ArrayLike, n_samples: int = 100, random_state: Any = 0) -> Floats:
        """Joint draws of the effects of the people, shape (N, n_samples)."""
        mean, cov = joint_difference(self.regressor_.model_.gp, *self._pair(self._people(X)))
        values, vectors = np.linalg.eigh(cov[0].numpy(force=True))  # singular where people repeat
        noise = check_random_state(random_state).standard_normal((len(values), n_samples))
        draws = vectors @ (np.sqrt(values.clip(0))[:, None] * noise)
        return np.asarray((mean.numpy(force=True) + draws) * self._unit)

    # training

    def _fit(self, study: Study, validation: Study | None) -> None:
        if self.treatment not in PLACES:
            raise ValueError(f"treatment={self.treatment!r} is not one of {', '.join(PLACES)}")
        if self.own_scale and self.treatment == "input":
            raise ValueError(
                "own_scale=True needs treatment='features': inside the network t has no length "
                "scale"
            )
        self.scale_ = fit_covariate_scale(study.join(validation).X)
        check_fraction("validation_fraction", self.validation_fraction)
        if validation is None and self.validation_fraction:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            study, validation = study.hold_out(self.validation_fraction, seed)
        others = None
        if validation is not None and len(validation.y):
            others = self._with(*validation[:2]), validation.y
        rows = self._with(study.X, study.t)
        regressor = self._regressor(len(rows)).fit(rows, study.y, validation=others)
        taught = study.join(validation) if regressor._learns_from_all else study
        self._settle(regressor, self._arms(regressor, taught))

    def _regressor(self, n: int) -> DUERegressor:
        decay = DECAY / n if self.weight_decay is None else self.weight_decay
        shared = {
            name: value
            for name, value in self.get_params(deep=False).items()
            if name not in ("extractor", "treatment", "own_scale", "weight_decay")
        }
        network = partial(treated_network, self.extractor, self.treatment, self.own_scale)
        return DUERegressor(network, **shared, weight_decay=decay, scale_inputs=False)

    def _settle(self, regressor: DUERegressor, arms: tuple[Reference, Reference]) -> None:
        self.arms_, self.history_, self.regressor_ = arms, regressor.history_, regressor

    def _with(self, X: Floats, t: Floats | int) -> Floats:
        """[x, t], scaled."""
        return np.column_stack([self.scale_(X), np.broadcast_to(t, len(X))])

    @torch.no_grad()
    def _arms(self, regressor: DUERegressor, study: Study) -> tuple[Reference, Reference]:
        """What people of each arm, whose outcomes the GP has seen, teach about that arm."""
        generator = np.random.default_rng(0)
        features = []
        for arm in (0, 1):
            people = np.flatnonzero(study.t == arm)
            some = generator.permutation(people)[:1000]
            rows = self._with(study.X[some], arm)
            features.append(regressor.frozen_.f(torch.as_tensor(rows, device=self.device)))
        return self._references(regressor, *features)

    @torch.no_grad()
    def _references(
        self, regressor: DUERegressor, h0: Tensor, h1: Tensor
    ) -> tuple[Reference, Reference]:
        kernel = regressor.model_.gp.kernel
        noise = float(regressor._sigma2[0] / kernel.outputscale[0])
        return Reference(h0, kernel, noise), Reference(h1, kernel, noise)

    # prediction

    @property
    def _unit(self) -> float:
        return float(self.regressor_.y_scale_.std[0])

    def _outcomes(self, X: Floats) -> Floats:
        rows = np.concatenate([self._with(X, 0), self._with(X, 1)])
        outcomes: Floats = self.regressor_.predict(rows).reshape(2, -1).T
        return outcomes

    @torch.no_grad()
    def _posterior(self, X: Floats) -> Posterior:
        gp = self.regressor_.model_.gp
        moments = [torch.stack(gp.difference(*self._pair(part)))[..., 0] for part in _parts(X)]
        mean, var = torch.cat(moments, 1).numpy(force=True)
        return Posterior(mean * self._unit, var * self._unit**2)

    @torch.no_grad()
    def _average(self, X: Floats) -> tuple[float, float]:
        gp = self.regressor_.model_.gp
        features = [self._pair(part) for part in _parts(X)]
        h1, h0 = (torch.cat(parts) for parts in zip(*features, strict=True))
        mean, var = mean_difference(gp, h1, h0)
        return float(mean[0]) * self._unit, float(var[0]) * self._unit**2

    def _pair(self, X: Floats) -> tuple[Tensor, Tensor]:
        """Features of [x, 1] and [x, 0], from one pass."""
        rows = np.concatenate([self._with(X, 1), self._with(X, 0)])
        h = self.regressor_.frozen_.f(torch.as_tensor(rows, device=self.device))
        return h[: len(X)], h[len(X) :]

    @torch.no_grad()
    def _explained(self, X: Floats) -> Floats:
        h1, h0 = self._pair(X)
        shares = [reference(h) for reference, h in zip(self.arms_, (h0, h1), strict=True)]
        return torch.stack(shares, 1).numpy(force=True)

    # storage

    def _memory(self) -> Memory:
        regressor, tensors = self.regressor_._state()
        arms = {f"arm{t}": arm.H for t, arm in enumerate(self.arms_)}
        learned = {"feature_names": column_names(self), "scale": self.scale_.as_lists()}
        return Memory(learned, {"regressor": regressor}, {**tensors, **arms})

    def _recall(self, found: Found) -> None:
        saved, tensors = found.config["estimator"], dict(found.tensors)
        self.scale_ = Scale.from_lists(saved["scale"])
        recall_columns(self, saved["feature_names"], len(self.scale_.mean))
        h0, h1 = (tensors.pop(f"arm{t}").to(self.device) for t in (0, 1))
        network = partial(treated_network, self.extractor, self.treatment, self.own_scale)
        inner = Found(found.path, found.config["regressor"], tensors, network, found.device)
        regressor = DUERegressor._restore(inner)
        self._settle(regressor, self._references(regressor, h0, h1))


def treated_network(
    extractor: Extractor | None, treatment: str, own_scale: bool, shape: torch.Size
) -> nn.Module:
    """The network on rows [x, t] of the given shape."""
    build = extractor or default_encoder
    if treatment == "input":
        return build(shape)
    return AppendTreatment(build(torch.Size([shape[0] - 1])), own_scale)


def default_encoder(shape: torch.Size) -> PreactivationResNet:
    """The encoder of the paper's treatment-effect experiments."""
    return PreactivationResNet(shape[0])


def _parts(X: Floats) -> list[Floats]:
    return np.array_split(X, range(PREDICT_ROWS, len(X), PREDICT_ROWS))
