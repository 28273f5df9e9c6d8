"""One contract for every estimator: what a user may rely on, whichever method it is."""

from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_array_equal
from sklearn.base import clone, is_classifier
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from due.baselines import (
    BART,
    CEVAE,
    DKLITE,
    GPDNN,
    ArmGP,
    DDUClassifier,
    DeepEnsemble,
    DUQClassifier,
    ExactGPRegressor,
    MCDropout,
    NetworkRegressor,
    SLearner,
    SNGPClassifier,
    SNGPRegressor,
    SoftmaxClassifier,
    SVDKLClassifier,
    SVDKLRegressor,
    TARNet,
    TLearner,
)
from due.estimators import DUECATE, DUEClassifier, DUERegressor
from due.networks import FCResNet, FeedForward
from due.storage.estimator import SavedEstimator
from due.training.checkpointing import checkpointing
from due.training.loop import Run


def small(shape):
    return FCResNet(shape[0], 8, 1, dropout=0.2)


def plain(shape):
    return FeedForward(shape[0], 8, 1)


BRIEF = {"epochs": 2}
GP = {**BRIEF, "n_inducing": 5}
RANDOM = {**BRIEF, "n_random_features": 16}
GRID = {**BRIEF, "n_grid": 8}
SLIM = {**BRIEF, "width": 8}

CLASSIFIERS = {
    "DUE": DUEClassifier(small, **GP, random_state=0),
    "softmax": SoftmaxClassifier(small, **BRIEF, random_state=0),
    "ensemble": DeepEnsemble(SoftmaxClassifier(small, **BRIEF), 2, random_state=0),
    "MC dropout": MCDropout(SoftmaxClassifier(small, **BRIEF), 3, random_state=0),
    "DUQ": DUQClassifier(small, **BRIEF, random_state=0),
    "SNGP": SNGPClassifier(small, **RANDOM, random_state=0),
    "SNGP per class": SNGPClassifier(
        small, **RANDOM, curvature="per_class", layer_norm=True, random_state=0
    ),
    "SV-DKL": SVDKLClassifier(small, **GRID, random_state=0),
    "SV-DKL free": SVDKLClassifier(small, **GRID, c=None, validation_fraction=0.2, random_state=0),
    "GPDNN": GPDNN(extractor=plain, **GP, random_state=0),
    "DDU": DDUClassifier(small, **BRIEF, random_state=0),
}
REGRESSORS = {
    "DUE": DUERegressor(small, **GP, random_state=0),
    "network": NetworkRegressor(small, **BRIEF, random_state=0),
    "ensemble": DeepEnsemble(NetworkRegressor(small, **BRIEF), 2, random_state=0),
    "MC dropout": MCDropout(NetworkRegressor(small, **BRIEF), 3, random_state=0),
    "SNGP": SNGPRegressor(small, **RANDOM, random_state=0),
    "SNGP of Figure 1": SNGPRegressor(small, **RANDOM, sigma2=1.0, random_state=0),
    "SV-DKL": SVDKLRegressor(small, **GRID, random_state=0),
    "exact GP": ExactGPRegressor(steps=5),
}
EFFECTS = {
    "DUE": DUECATE(**GP, inducing="free", random_state=0),
    "TARNet ensemble": DeepEnsemble(TARNet(**SLIM), 2, random_state=0),
    "BTARNet": MCDropout(TARNet(**SLIM), 3, random_state=0),
    "BCEVAE": MCDropout(CEVAE(**SLIM), 3, random_state=0),
    "DKLITE": DKLITE(**SLIM, random_state=0),
    "BART": BART(n_trees=5, n_burn=2, n_draws=5, random_state=0),
    "GP an arm": ArmGP(steps=3),
    "S-learner": SLearner(RandomForestRegressor(10), random_state=0),
    "T-learner": TLearner(RandomForestRegressor(10), random_state=0),
}
ENGINES = {"SV-DKL": "gpytorch", "SV-DKL free": "gpytorch", "BART": "stochtree"}
COLUMNS = ["a", "b", "c"]


def parameters(estimators):
    return [
        pytest.param(name, model, id=name.replace(" ", "-")) for name, model in estimators.items()
    ]


every_row_estimator = pytest.mark.parametrize(
    ("name", "estimator"),
    parameters({f"{k} classifier": v for k, v in CLASSIFIERS.items()})
    + parameters({f"{k} regressor": v for k, v in REGRESSORS.items()}),
)
every_effect_estimator = pytest.mark.parametrize(("name", "estimator"), parameters(EFFECTS))


def need_engine(name):
    method = name.removesuffix(" classifier").removesuffix(" regressor")
    if method in ENGINES:
        pytest.importorskip(ENGINES[method])


def rows(estimator, n=60):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(n, 3)), columns=COLUMNS)
    signal = X["a"] + X["b"] ** 2
    if is_classifier(estimator):
        return X, np.array(["ham", "spam"])[(signal > 1).to_numpy(int)]
    return X, (10 + 3 * signal).to_numpy()


def people(n=60):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(n, 3)), columns=COLUMNS)
    T = rng.integers(2, size=n)
    return (X["a"] + 2 * T).to_numpy(), T, X


def answers(model, X):
    """All that it says of rows."""
    if is_classifier(model):
        return [model.uncertainty(X), model.predict_proba(X), model.predict(X)]
    return [model.uncertainty(X), *model.predict(X, return_std=True)]


def effects(model, X):
    """All that it says of people."""
    low, high = model.effect_interval(X)
    return [model.uncertainty(X), model.effect(X), model.potential_outcomes(X), low, high]


def assert_same(got, want):
    for one, other in zip(got, want, strict=True):
        assert_array_equal(one, other)


def check_answers(model, X, ask):
    uncertainty, *others = ask(model, X)
    assert uncertainty.shape == (len(X),)
    assert np.isfinite(uncertainty).all()
    for answer in others:
        assert len(answer) == len(X)
        assert answer.dtype.kind == "U" or np.isfinite(answer).all()
    assert list(model.feature_names_in_) == COLUMNS
    assert model.n_features_in_ == 3


def check_saving(model, X, ask, path):
    if not isinstance(model, SavedEstimator):
        assert not hasattr(model, "save")
        return
    model.save(path)
    extractor = getattr(getattr(model, "estimator", model), "extractor", None)
    before = torch.get_rng_state()
    loaded = type(model).load(path, extractor=extractor)
    assert torch.equal(torch.get_rng_state(), before)
    assert_same(ask(loaded, X), ask(model, X))
    assert list(loaded.feature_names_in_) == COLUMNS


def check_checkpoints(fitted, fit, X, ask, path):
    """A fit whose files are there gives the answers of the first, with fewer steps or none."""
    steps = []
    for _ in range(2):
        counted = patch.object(Run, "advance", autospec=True, side_effect=Run.advance)
        with checkpointing(path / "fit"), counted as advance:
            again = fit(clone(fitted), X)
        assert_same(ask(again, X), ask(fitted, X))
        steps.append(advance.call_count)
    assert steps[1] < steps[0] or steps == [0, 0]


def check_refusals(fitted, fit, X, ask):
    """Of NaN, of words, of other columns, and of a question before `fit`."""
    holed = X.copy()
    holed.iloc[3, 1] = np.nan
    narrow = X.to_numpy()[:, :2]
    fresh = clone(fitted)
    words = X.assign(b=["tall", "small"] * (len(X) // 2))
    with pytest.raises(ValueError, match="NaN|missing or infinite"):
        fit(fresh, holed)
    with pytest.raises(ValueError, match="column 'b' of X holds 'tall'; encode it"):
        fit(fresh, words)
    for question in (fitted.uncertainty, lambda rows: ask(fitted, rows)):
        with pytest.raises(ValueError, match="column 'b' of X holds 'tall'; encode it"):
            question(words)
        with pytest.raises(ValueError, match="NaN|missing or infinite"):
            question(holed)
        with pytest.raises(ValueError, match="2 features, but .* is expecting 3"):
            question(narrow)
        with pytest.raises(ValueError, match="feature names"):
            question(X[["b", "a", "c"]])
    with pytest.raises(NotFittedError):
        clone(fitted).uncertainty(X)


def check_clone(model):
    copy = clone(model)
    assert str(copy) == str(model)
    for name, value in model.get_params(deep=False).items():
        assert (
            copy.get_params(deep=False)[name] is value
            or name == "estimator"
            or (copy.get_params(deep=False)[name] == value)
        )


def keep_the_contract(model, fit, X, ask, path):
    check_clone(model)
    first, second = fit(clone(model), X), fit(clone(model), X)
    check_answers(first, X, ask)
    check_checkpoints(first, fit, X, ask, path)
    assert_same(ask(first, X), ask(second, X))  # two fits
    assert_same(ask(first, X), ask(first, X))  # two questions
    check_saving(first, X, ask, path)
    check_refusals(first, fit, X, ask)


@every_row_estimator
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_contract(name, estimator, tmp_path):
    need_engine(name)
    X, y = rows(estimator)
    keep_the_contract(estimator, lambda model, X: model.fit(X, y), X, answers, tmp_path)


@every_effect_estimator
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_contract_of_effects(name, estimator, tmp_path):
    need_engine(name)
    Y, T, X = people()
    keep_the_contract(estimator, lambda model, X: model.fit(Y, T, X), X, effects, tmp_path)


@every_effect_estimator
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_a_fit_that_fails_leaves_the_old_model_or_none(name, estimator):
    need_engine(name)
    Y, T, X = people()
    model = clone(estimator).fit(Y, T, X)
    before = model.effect(X)
    with pytest.raises(ValueError, match="nobody in T is untreated"):
        model.fit(Y, np.ones_like(T), X[["a"]])
    assert_array_equal(model.effect(X), before)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(Y, T, X[["a"]].where(X["a"] > 0, axis=0))
    with pytest.raises(NotFittedError):
        model.effect(X)
    with pytest.raises(ValueError, match="NaN"):
        clone(estimator).fit(Y, T, X.where(X > 0)).effect(X)


class Thin:
    """An extractor whose repr has no address: pytest -n wants the same names in each process."""

    def __call__(self, shape):
        return FCResNet(shape[0], 64, 1, dropout=0.05)

    def __repr__(self):
        return "Thin()"

    def __eq__(self, other):
        return isinstance(other, Thin)

    def __hash__(self):
        return 0


FAST = {"epochs": 12, "lr": 1e-2}


@parametrize_with_checks(
    [
        SNGPClassifier(n_random_features=64, epochs=12, random_state=0),
        SNGPRegressor(n_random_features=64, epochs=12, random_state=0),
        DeepEnsemble(SoftmaxClassifier(Thin(), **FAST), 2, random_state=0),
        DeepEnsemble(NetworkRegressor(Thin(), **FAST), 2, random_state=0),
        MCDropout(SoftmaxClassifier(Thin(), **FAST), 3, random_state=0),
        MCDropout(NetworkRegressor(Thin(), **FAST), 3, random_state=0),
    ]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn(estimator, check):
    check(estimator)
