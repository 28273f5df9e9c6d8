"""DUE for treatment effects: f on [x, t], and τ(x) = f([x, 1]) − f([x, 0]) in closed form."""

import warnings
from collections.abc import Mapping
from copy import copy
from dataclasses import field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from torch import nn

from due.estimators.choice import Choosing
from due.estimators.effect_network import UncertainEffectNetwork
from due.estimators.network import Extractor, build_network, estimator, make_ready
from due.estimators.regressor import gp_recipe
from due.gp import Gaussian, InducingGP
from due.gp.initialise import inducing
from due.gp.kernels import KINDS
from due.lipschitz import constrain
from due.methods.due import BOUNDS, COLLAPSED_ROWS, FINISHES, INDUCING, PLACEMENTS
from due.methods.method import Method
from due.methods.treatment_due import AveragedTreatmentDUE, TreatmentDUE
from due.networks import (
    AppendTreatment,
    ArmColumns,
    PreactivationResNet,
    ScaledInputs,
    n_features,
)
from due.rows.checks import (
    argument,
    at_least,
    check_flag,
    check_fraction,
    check_positive,
    check_whole,
    one_of,
    or_none,
)
from due.rows.randomness import joint_draws
from due.rows.scale import Floats, fit_covariate_scale, fit_scale
from due.rows.source import Table, canonical
from due.rows.study import Study
from due.storage.estimator import Tensors
from due.storage.model import rebuild, rebuild_members
from due.training import Recipe

PLACES = ("features", "input")
DECAY = 0.45  # ½ (1 − dropout of 0.1)
INDUCING_POINTS = {"free": 100, "tied": 300, "refreshed": 300}
OPEN = ("inducing", "layers", "dropout", "column_scales")  # left to candidates if all are None
SET = (*OPEN, "bound")  # by candidates
Arguments = dict[str, Any]
BEFORE: Arguments = {"inducing": "free", "layers": 3, "dropout": 0.1, "column_scales": False}
FREE: Arguments = {**BEFORE, "column_scales": True}
EXACT: Arguments = {**FREE, "bound": "exact", "dropout": 0.0}
UNSCALED: Arguments = {**EXACT, "column_scales": False}
INPUTS: Arguments = {**EXACT, "layers": 0}
ON_DATA: Arguments = {"bound": "auto", "inducing": "tied"}  # in place of exact inference
MOST_EXACT = 1000  # rows of the candidates with exact inference
FEW = 5  # people of an arm
PAPER = Recipe(batch_size=100, lr=1e-3, head_lr=4e-3, patience=20)


@estimator
class DUECATE(Choosing, UncertainEffectNetwork):
    """Effects of a treatment with their uncertainty, from one pass of a deep network or of a few.

    A GP of the outcome on the features of [x, t]. The effect f([x, 1]) − f([x, 0]) of a person is
    then normal, and its mean and variance are closed forms. Nothing here is calibrated on true
    effects, which nobody observes; intervals are credible intervals of the model.

    By default the collapsed bound trains on all people at once for at most 1,000 epochs of one
    step, with Adam at rates of 4e-3 for the network and 1.6e-2 for the GP, an L2 penalty of
    0.45 / N and a patience of 60, or of 250 without a network.

    Parameters
    ----------
    extractor
        Function from the shape of a row to an `nn.Module` that gives one feature vector per row.
        None builds the paper's encoder: 3 layers of 200, ELU, dropout 0.1.
    c
        Bound on the Lipschitz constant of each layer; None leaves the network free.
    n_inducing
        Number of inducing points (at most the number of distinct rows); None takes 100, or 300 if
        they are tied to the data.
    kernel
        "rbf", "matern12", "matern32", "matern52" or "rq".
    treatment
        Where t enters: appended to the "features" or to the "input" of the network.
    own_scale
        Learn a length scale for t apart from that of the features.
    inducing, layers, dropout, column_scales
        Left to candidates if all are None and the bound is "auto". Four are trained, and answer
        together, each with a weight by how probable held-out people are under it: "free" has free
        inducing points and dropout; "exact" has exact inference and no dropout; both learn a scale
        per column of X; "unscaled" is "exact" without one. "inputs" has exact inference and no
        network: it is a GP with length scales per column and per arm. It counts twice, because the
        three networks are alike, and too sure where an arm has no similar people.
        From 1,001 people to learn from on, inducing points on the data take the place of exact
        inference; beyond 5,000 nothing is chosen. If one of the four is given, they mean: where
        inducing points are, as in `DUERegressor` ("free"); layers of the default encoder (3; 0 is
        no network: `treatment` and the next two then say nothing); its dropout (0.1); whether
        columns have learned scales (False).
    average
        Let the candidates answer together: a prediction is then up to four small networks, one
        pass each, and intervals are wider where they disagree. False keeps the best one alone.
    placement, bound
        As in `DUERegressor`. A bound other than "auto" leaves nothing to choose either.
    finish
        As in `DUERegressor`. "gp" has the smaller error of the effect on IHDP, "noise" the wider
        intervals.
    epochs, batch_size, lr, recipe, validation_fraction, random_state, device, verbose
        As in `Trained`, on which it is built. `fit` may be given other people to validate on.

    Attributes
    ----------
    history_
        Loss and validation of each epoch of the best candidate, which is `chosen`; the mean
        −log p(y) of held-out people under each of the `candidates`; the `members` that answer, with
        their weights; the `missed_effect` of which it warns.
    model_, predictor_
        The `TreatmentDUE` behind it or several of them, and what predicts from covariates.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(120, 2))
    >>> T = rng.integers(2, size=120)
    >>> Y = X[:, 0] + T * (1 + X[:, 1]) + 0.1 * rng.normal(size=120)
    >>> model = DUECATE(random_state=0).fit(Y, T, X=X)
    >>> low, high = model.effect_interval([[0.0, 0.5], [0.0, 9.0]])
    >>> bool(low[0] < 1.5 < high[0]), bool(high[1] - low[1] > 3 * (high[0] - low[0]))
    (True, True)
    """

    _multiplicity: ClassVar[Mapping[str, float]] = {"inputs": 2.0}
    extractor: Extractor | None = field(default=None, kw_only=False)
    c: float | None = argument(0.95, or_none(check_positive))
    n_inducing: int | None = argument(None, or_none(check_whole))
    kernel: str = argument("matern32", one_of(KINDS))
    treatment: str = argument("features", one_of(PLACES))
    own_scale: bool = argument(True, check_flag)
    inducing: str | None = argument(None, or_none(one_of(INDUCING)))
    layers: int | None = argument(None, or_none(at_least(0)))
    dropout: float | None = argument(None, or_none(check_fraction))
    column_scales: bool | None = argument(None, or_none(check_flag))
    average: bool = argument(True, check_flag)
    placement: str = argument("kmeans", one_of(PLACEMENTS))
    bound: str = argument("auto", one_of(BOUNDS))
    finish: str = argument("gp", one_of(FINISHES))

    @classmethod
    def paper(cls, random_state: Any = None, **changes: Any) -> "DUECATE":
        """The recipe behind the paper's Table 3: stochastic ELBO on batches of 100.

        Its text has one learning rate of 1e-3 and at most 750 epochs; its code has these.
        """
        recipe = {"own_scale": False, "bound": "elbo", "recipe": PAPER}
        return cls(**{**recipe, "random_state": random_state, **changes})

    def overlap(self, X: ArrayLike) -> Floats:
        """Per arm, how much its training data informs each person, (N, 2), untreated first.

        The share of the prior variance of f([x, t]) that the outcomes of (up to 1,000 of) the
        people of arm t have removed: near 1 among them, 0 far from all of them. Warns of people
        for whom it is lower than for 99 % of those, were their own outcome unknown: there one side
        of the comparison has no data. Warns of an arm of fewer than 5 people.
        """
        rows = self._people(X)
        overlap: Floats = self._ask(self.predictor_.overlap, rows)
        for arm, word in enumerate(("untreated", "treated")):
            others = self.predictor_.model.leave_one_out(arm)
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

    def sample_effect(self, X: ArrayLike, n_samples: int = 100, random_state: Any = 0) -> Floats:
        """Joint draws of the effects of the people, shape (N, n_samples)."""
        rows = self._people(X)
        mean, cov = self._ask_jointly(self.predictor_.joint, rows)
        return joint_draws(mean, cov, n_samples, check_random_state(random_state))

    def _tables(
        self, study: Study, validation: Study | None, seed: int
    ) -> tuple[Table, Table | None]:
        if self.own_scale and self.treatment == "input":
            raise ValueError(
                "own_scale=True needs treatment='features': inside the network t has no length "
                "scale"
            )
        study = study.in_order()
        self.scale_ = fit_covariate_scale(study.join(validation).X)
        if validation is None and self.validation_fraction:
            study, validation = study.hold_out(self.validation_fraction, seed)
        parts = [study] if validation is None or not len(validation.y) else [study, validation]
        rows = [
            canonical(np.column_stack([self.scale_(part.X), part.t]), part.y[:, None], None)
            for part in parts
        ]
        y, weight = (np.concatenate([part[i] for part in rows]) for i in (1, 2))
        self.y_scale_ = fit_scale(y, weight)
        repeated = bool((weight != 1).any())
        tables = [
            Table(
                torch.as_tensor(part.X).float(),
                torch.as_tensor(self.y_scale_(part.y)).float(),
                torch.as_tensor(part.weight).float() if repeated else None,
            )
            for part in rows
        ]
        return tables[0], tables[1] if len(tables) > 1 else None

    def _build(self, shape: torch.Size, T: int, n: int) -> Method:
        f, example = self._network(shape).eval(), torch.zeros(2, *shape)
        J = n_features(f, example)
        if self.c is not None and (self.layers or self.extractor):
            constrain(f, self.c, example)
        M = inducing(self.n_inducing or INDUCING_POINTS[self.inducing or "free"], n)
        gp = InducingGP(torch.zeros(M, J), T, kernel=self.kernel)
        where: dict[str, Any] = {"inducing": self.inducing, "placement": self.placement}
        how: dict[str, Any] = {"bound": self.bound, "finish": self.finish, **where}
        return TreatmentDUE(f, gp, Gaussian(T), n, **how)

    def _rebuild(self, config: dict[str, Any], tensors: Tensors) -> nn.Module:
        if "members" in config:
            networks = [self._network_of(one["arguments"]) for one in self.history_["members"]]
            return rebuild_members(config, tensors, networks)
        return rebuild(config, tensors, self._network_of(self.history_.get("arguments", {})))

    def _network_of(self, candidate: Arguments) -> nn.Module:
        return copy(self).set_params(**candidate)._network(torch.Size(self.row_shape_))

    def _candidates(self, n: int) -> dict[str, Arguments]:
        given = {name: getattr(self, name) for name in OPEN if getattr(self, name) is not None}
        if given or self.bound != "auto":
            return {"given": {**BEFORE, **given}}
        if n > COLLAPSED_ROWS:
            return {"free": BEFORE}
        candidates = {"free": FREE, "exact": EXACT, "unscaled": UNSCALED}
        if self.extractor is None:
            candidates["inputs"] = INPUTS
        if n > MOST_EXACT:
            candidates = {name: {**each, **ON_DATA} for name, each in candidates.items()}
        return {**candidates, "free": FREE}

    def _combine(self, trials: Mapping[str, Any], weights: Mapping[str, float]) -> None:
        if not self.average or len(weights) < 2:
            return
        shares = torch.tensor(list(weights.values()), dtype=torch.float64)
        members = [trials[name].model_ for name in weights]
        self.model_ = AveragedTreatmentDUE(members, shares).to(self.device)
        self.history_["members"] = [
            {"name": name, "weight": share, "arguments": {k: getattr(trials[name], k) for k in SET}}
            for name, share in weights.items()
        ]
        make_ready(self)

    def _network(self, shape: torch.Size) -> nn.Module:
        """The network on rows [x, t] of the given shape."""
        if self.layers == 0 and self.extractor is None:
            return ArmColumns(shape[0] - 1, self.own_scale)
        build = self._encoder if self.extractor is None else self.extractor
        inside = self.treatment == "input"
        D = shape[0] if inside else shape[0] - 1
        f = build_network(build, torch.Size([D]))
        return f if inside else AppendTreatment(f, self.own_scale)

    def _encoder(self, shape: torch.Size) -> nn.Module:
        """The encoder of the paper's treatment-effect experiments."""
        D, layers = shape[0], 3 if self.layers is None else self.layers
        f = PreactivationResNet(D, depth=layers - 1, dropout=self.dropout or 0.0)
        return ScaledInputs(f, D) if self.column_scales else f

    def _default_recipe(self, n: int) -> Recipe:
        network = self.layers != 0 or self.extractor is not None
        patience = 60 if network else 250  # without one nothing overfits so soon
        own = Recipe(
            epochs=1000, lr=4e-3, head_lr=1.6e-2, weight_decay=DECAY / n, patience=patience
        )
        return own.over(gp_recipe(self.bound, n))
