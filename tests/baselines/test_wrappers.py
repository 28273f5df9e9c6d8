import warnings
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPRegressor
from torch import nn

from due.baselines import ArmGP, DeepEnsemble, MCDropout, SoftmaxClassifier, TARNet, TLearner
from due.baselines.mc_dropout import dropping, thinning
from due.data.toy import two_moons
from due.estimators import DUECATE, DUERegressor
from due.metrics import entropy
from due.networks import FCResNet

TINY = {"epochs": 3, "width": 16}


def droppy(shape):
    return FCResNet(shape[0], 16, 2, dropout=0.3)


def dry(shape):
    return FCResNet(shape[0], 16, 2, dropout=0.0)


@pytest.fixture(scope="module")
def moons():
    return two_moons(100)


@pytest.fixture(scope="module")
def wave():
    x = np.linspace(-3, 3, 60)[:, None]
    return x, np.sin(x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=60)


# ensembles


def test_ensemble_of_classifiers_is_the_mean_of_its_members(moons):
    X, y = moons
    names = np.array(["a", "b"])[y]
    model = DeepEnsemble(SoftmaxClassifier(droppy, epochs=3), 3, random_state=0).fit(X, names)
    probs = np.mean([member.predict_proba(X) for member in model.estimators_], axis=0)
    assert_allclose(model.predict_proba(X), probs)
    assert_allclose(model.uncertainty(X), entropy(probs))
    assert_array_equal(model.predict(X), model.classes_[probs.argmax(1)])
    assert (model.n_features_in_, list(model.classes_)) == (2, ["a", "b"])
    assert len({member.random_state for member in model.estimators_}) == 3


def test_ensemble_of_regressors_is_the_mixture(wave):
    X, y = wave
    base = DUERegressor(droppy, epochs=5, n_inducing=10)
    model: Any = DeepEnsemble(base, 3, random_state=0).fit(X, y)
    means, stds = zip(*(m.predict(X, return_std=True) for m in model.estimators_), strict=True)
    mean, std = model.predict(X, return_std=True)
    draws = np.random.default_rng(0).normal(size=(3, 20000, 60))
    draws = (np.array(means)[:, None] + np.array(stds)[:, None] * draws).reshape(-1, 60)
    assert_allclose(mean, draws.mean(0), atol=0.05)
    assert_allclose(std, draws.std(0), rtol=0.02)
    assert_allclose(model.predict(X), mean)
    latent = np.var(means, 0) + np.mean([m.uncertainty(X) for m in model.estimators_], 0)
    assert_allclose(model.uncertainty(X), latent)
    assert (model.uncertainty(X) < std**2).all()


def test_regressors_without_a_deviation_leave_that_between_members(wave):
    X, y = wave
    model: Any = DeepEnsemble(LinearRegression(), 2).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert_allclose(mean, LinearRegression().fit(X, y).predict(X))
    assert_allclose(std, 0, atol=1e-12)
    assert_allclose(model.uncertainty(X), 0, atol=1e-12)


def test_ensemble_of_effects_has_one_draw_a_member(study, fresh):
    X, _ = fresh
    model = DeepEnsemble(TARNet(**TINY), 3, random_state=0).fit(study.y, study.t, study.X)
    effects = np.array([member.effect(X) for member in model.estimators_])
    assert_allclose(model.sample_effect(X), effects.T)
    assert_allclose(model.effect(X), effects.mean(0))
    assert_allclose(model.uncertainty(X), effects.var(0))
    low, high = model.ate_interval(X)
    assert_allclose((high - low) / 2, 1.959964 * effects.mean(1).std(), rtol=1e-5)


def test_what_members_doubt_themselves_is_in_the_variance_of_their_ensemble(study, fresh):
    X, _ = fresh
    base = DUECATE(epochs=5, n_inducing=10, inducing="free")
    model = DeepEnsemble(base, 3, random_state=0).fit(study.y, study.t, study.X)
    members = model.estimators_
    between = np.var([member.effect(X) for member in members], axis=0)
    own = np.mean([member.uncertainty(X) for member in members], axis=0)
    assert_allclose(model.uncertainty(X), between + own)
    assert (own > 0.1 * between).all()
    alone = ArmGP(steps=5).fit(study.y, study.t, study.X)  # nothing in it is random
    twins = DeepEnsemble(ArmGP(steps=5), 2).fit(study.y, study.t, study.X)
    assert_allclose(twins.uncertainty(X), alone.uncertainty(X))
    assert_allclose(twins.ate_interval(X), alone.ate_interval(X))


def test_members_without_a_variance_leave_that_between_them(study):
    learner = TLearner(MLPRegressor(hidden_layer_sizes=(5,), max_iter=20))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = DeepEnsemble(learner, 3, random_state=0).fit(study.y, study.t, study.X)
    effects = np.array([member.effect(study.X) for member in model.estimators_])
    assert_allclose(model.uncertainty(study.X), effects.var(0))
    assert (effects.var(0) > 0).all()
    with pytest.raises(TypeError, match="MLPRegressor is no forest"):
        model.estimators_[0].uncertainty(study.X)


def test_ensemble_does_not_depend_on_the_number_of_jobs(study):
    a, b = (
        DeepEnsemble(TARNet(**TINY), 2, n_jobs=jobs, random_state=0).fit(*study[::-1])
        for jobs in (1, 2)
    )
    assert_array_equal(a.effect(study.X), b.effect(study.X))


def test_validation_reaches_the_members(study):
    held_out = study.y[150:], study.t[150:], study.X[150:]
    model: Any = DeepEnsemble(TARNet(**TINY), 2, random_state=0)
    model.fit(study.y[:150], study.t[:150], study.X[:150], validation=held_out)
    assert [member.history_["rows"] for member in model.estimators_] == [150, 150]


def test_nested_seeds_differ_between_members(study):
    base = MCDropout(TARNet(**TINY), 3)
    model = DeepEnsemble(base, 2, random_state=0).fit(study.y, study.t, study.X)
    inner = [member.estimator_.random_state for member in model.estimators_]
    assert inner[0] != inner[1]


# MC dropout


def test_dropout_is_deterministic_and_leaves_no_trace(study, fresh):
    X, _ = fresh
    model = MCDropout(TARNet(**TINY), 5, random_state=0).fit(study.y, study.t, study.X)
    network = model.estimator_.predictor_
    plain = model.estimator_.effect(X)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, second = model.sample_effect(X), model.sample_effect(X)
    assert_array_equal(first, second)
    assert_array_equal(torch.get_rng_state(), before)
    assert not any(module.training for module in network.modules())
    assert_array_equal(model.estimator_.effect(X), plain)
    assert (first.std(1) > 0).all()
    assert_allclose(model.effect(X), first.mean(1))
    assert_allclose(model.uncertainty(X), first.var(1))


def test_dropping_touches_dropout_alone_and_restores_it_after_an_error():
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5)).eval()
    with pytest.raises(RuntimeError, match="stop"), dropping(network, 0):
        assert [module.training for module in network] == [False, False, True]
        raise RuntimeError("stop")
    assert not any(module.training for module in network.modules())


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Dropout(0.5), (9,)), (nn.Dropout2d(0.5), (9, 2, 2)), (nn.AlphaDropout(0.5), (9,))],
)
def test_thinning_does_to_each_row_what_the_layer_does_to_one(layer, shape):
    x = torch.randn(300, *shape)
    with thinning(layer.eval(), 0) as masks:
        outputs = layer(x)
        assert torch.equal(layer(x[3:5]), outputs[3:5])
        slope, shift = masks[layer]
        masks.clear()
        assert not torch.equal(layer(x), outputs)
    assert_allclose(outputs, slope * x + shift)
    layer.train()
    alone = torch.cat([layer(torch.ones(1, *shape)) for _ in range(300)])
    values = set(np.unique(alone.round(decimals=4)))  # kept or dropped
    assert set(np.unique((slope + shift).round(decimals=4))) <= values and len(values) == 2
    layer.eval()
    assert torch.equal(layer(x), x)


def test_thinning_leaves_the_mean_as_it_is():
    layer, x = nn.Dropout(0.25).eval(), torch.randn(2, 5)
    with thinning(layer, 0) as masks:
        total = torch.zeros_like(x)
        for _ in range(4000):
            masks.clear()
            total += layer(x)
    assert_allclose(total / 4000, x, atol=5 * float(x.abs().max()) * (1 / 3 / 4000) ** 0.5)


def test_an_answer_does_not_depend_on_the_rows_beside_it(moons, monkeypatch):
    X, y = moons
    model = MCDropout(SoftmaxClassifier(droppy, epochs=3), 4, random_state=0).fit(X, y)
    probs = model.predict_proba(X)
    monkeypatch.setattr("due.rows.checks.ROWS", 7)
    assert_allclose(model.predict_proba(X[::-1])[::-1], probs, rtol=1e-12)


def test_arms_have_masks_of_their_own(study):
    """Were the masks shared, an arm that learned nothing of its own would differ by a constant."""
    model = TARNet(dropout=0.5, **TINY, random_state=0).fit(study.y, study.t, study.X)
    network = model.predictor_.model
    network.heads[1].load_state_dict(network.heads[0].state_dict())
    network.outputs[1].load_state_dict(network.outputs[0].state_dict())
    for part in (network.heads, network.outputs):  # whose layers are the arms' own anyway
        for layer in part.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
    assert_allclose(model.effect(study.X), 0, atol=1e-12)
    with dropping(network, 0):
        assert np.abs(model.effect(study.X)).min() > 0


def passes(model, ask):
    answers = []
    with thinning(model.estimator_.predictor_, model.seed_) as masks:
        for _ in range(model.n):
            answers.append(ask(model.estimator_))
            masks.clear()
    return answers


def test_dropout_of_a_classifier_is_the_mean_over_passes(moons):
    X, y = moons
    model = MCDropout(SoftmaxClassifier(droppy, epochs=3), 4, random_state=0).fit(X, y)
    probs = np.mean(passes(model, lambda one: one.predict_proba(X)), axis=0)
    assert_allclose(model.predict_proba(X), probs)
    assert_allclose(model.uncertainty(X), entropy(probs))
    assert np.abs(probs - model.estimator_.predict_proba(X)).max() > 1e-3


def test_dropout_of_a_regressor_adds_the_variance_over_passes(wave):
    X, y = wave
    base = DUERegressor(droppy, epochs=5, n_inducing=10)
    model: Any = MCDropout(base, 6, random_state=0).fit(X, y)
    means = passes(model, lambda one: one.predict(X))
    assert_allclose(model.predict(X), np.mean(means, axis=0))
    latent = np.mean(passes(model, lambda one: one.uncertainty(X)), axis=0)
    assert_allclose(model.uncertainty(X), np.var(means, axis=0) + latent)
    mean, std = model.predict(X, return_std=True)
    noisy = np.mean(passes(model, lambda one: one.predict(X, return_std=True)[1] ** 2), axis=0)
    assert_allclose(mean, model.predict(X), rtol=1e-6)
    assert_allclose(std**2, np.var(means, axis=0) + noisy)
    assert np.var(means, axis=0).max() > 1e-3 * latent.max()  # not lost in what is added


def test_no_dropout_is_refused_with_a_remedy(moons, study):
    X, y = moons
    with pytest.raises(ValueError, match="no dropout layer with p > 0"):
        MCDropout(SoftmaxClassifier(dry, epochs=1)).fit(X, y)
    with pytest.raises(ValueError, match="no dropout layer with p > 0"):
        MCDropout(TARNet(dropout=0.0, **TINY)).fit(study.y, study.t, study.X)
    for estimator in (ArmGP(),):
        name = type(estimator).__name__
        with pytest.raises(TypeError, match=f"{name} has no passes with dropout"):
            MCDropout(estimator).fit(study.y, study.t, study.X)
    for n in (0, 2.5, "many"):
        with pytest.raises(ValueError, match=f"n={n!r} is not a whole number"):
            MCDropout(TARNet(**TINY), n).fit(study.y, study.t, study.X)  # type: ignore[arg-type]


# both


@pytest.mark.parametrize("wrap", [DeepEnsemble, MCDropout])
def test_the_wrapper_is_of_the_kind_of_what_it_wraps(wrap):
    assert is_classifier(wrap(SoftmaxClassifier()))
    assert is_regressor(wrap(DUERegressor()))
    effects = wrap(TLearner(), 7)
    assert not is_classifier(effects) and not is_regressor(effects)
    assert clone(effects).set_params(estimator__random_state=3).estimator.random_state == 3
    with pytest.raises(TypeError, match="is no classifier"):
        wrap(KMeans())
    with pytest.raises(ValueError, match="n=0"):
        wrap(SoftmaxClassifier(droppy, epochs=1), 0).fit([[0.0], [1.0]], [0, 1])
