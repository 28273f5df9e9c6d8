"""The plain network for regression, alone and in an ensemble."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm
from sklearn.utils.estimator_checks import parametrize_with_checks

from due.baselines import DeepEnsemble, MCDropout, NetworkRegressor
from due.methods.gaussian import GaussianNetwork
from due.networks import FCResNet


def small(shape):
    return FCResNet(shape[0], 32, 2, dropout=0.1)


@pytest.fixture(scope="module")
def funnel():
    """y = sin 2x + ε with noise of 0.05 on the left and 0.5 on the right."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, 2000)
    return x[:, None], np.sin(2 * x) + np.where(x < 0, 0.05, 0.5) * rng.normal(size=2000)


@pytest.fixture(scope="module")
def model(funnel):
    return NetworkRegressor(small, epochs=40, random_state=0).fit(*funnel)


@parametrize_with_checks([NetworkRegressor(epochs=15, random_state=0)])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


@pytest.mark.parametrize("T", [1, 3])
def test_the_loss_is_the_weighted_gaussian_likelihood(T):
    torch.manual_seed(0)
    network = GaussianNetwork(torch.nn.Identity(), 4, T)
    x, y, weights = torch.randn(5, 4), torch.randn(5, T), torch.rand(5)
    output = network.output(x).detach().numpy()
    log_p = norm.logpdf(y, output[:, :T], np.exp(output[:, T:] / 2)).sum(1)
    assert_allclose(network(x, y).item(), -log_p.mean(), rtol=1e-5)
    assert_allclose(network(x, y, weights).item(), -(weights.numpy() * log_p).mean(), rtol=1e-5)
    mean, var = network.predict(x)
    assert_allclose(mean.detach(), output[:, :T])
    assert_allclose(var.detach(), np.exp(output[:, T:]), rtol=1e-5)


def test_it_learns_the_function_and_its_noise(model):
    mean, std = model.predict([[-1.0], [1.0]], return_std=True)
    assert_allclose(mean, np.sin([-2, 2]), atol=0.2)
    assert_allclose(std, [0.05, 0.5], rtol=0.4)
    low, high = model.predict_interval([[1.0]], alpha=0.1)
    assert_allclose((high - low) / 2, 1.644854 * std[1:], rtol=1e-5)
    assert_allclose(model.uncertainty([[-1.0], [1.0]]), std**2)


def test_units_of_y_do_not_matter(funnel):
    X, y = funnel[0][:200], funnel[1][:200]
    a = NetworkRegressor(small, epochs=3, random_state=0).fit(X, y)
    b = NetworkRegressor(small, epochs=3, random_state=0).fit(X, 100 + 1000 * y)
    (mean, std), (moved, wider) = (model.predict(X, return_std=True) for model in (a, b))
    assert_allclose(moved, 100 + 1000 * mean, atol=1)
    assert_allclose(wider, 1000 * std, rtol=1e-3)


def test_a_constant_target_and_a_row_far_away_stay_finite():
    X = np.arange(40.0)[:, None]
    with pytest.warns(UserWarning, match="y is 1.0 in all rows"):
        model = NetworkRegressor(small, epochs=60, random_state=0).fit(X, np.ones(40))
    mean, std = model.predict([[3.0], [1e12]], return_std=True)
    assert_allclose(mean[0], 1, atol=0.2)
    assert np.isfinite(std).all() and (std > 0).all()


def test_several_outputs_and_given_validation_rows(funnel):
    X, y = funnel[0][:200], funnel[1][:200]
    Y = np.column_stack([y, -y])
    model = NetworkRegressor(small, epochs=3, random_state=0)
    model.fit(X, Y, validation=(X[:50], Y[:50]))
    assert model.predict(X).shape == model.uncertainty(X).shape == (200, 2)
    assert model.history_["rows"] == 200
    assert len(model.history_["validation"]) == 3


def test_an_ensemble_is_the_mixture_and_its_doubt_is_that_between_members(funnel):
    X, y = funnel[0][:300], funnel[1][:300]
    model: Any = DeepEnsemble(NetworkRegressor(small, epochs=5), 4, random_state=0).fit(X, y)
    means, stds = zip(*(m.predict(X, return_std=True) for m in model.estimators_), strict=True)
    mean, std = model.predict(X, return_std=True)
    assert_allclose(mean, np.mean(means, axis=0))
    second = np.mean(np.square(stds) + np.square(means), axis=0)  # E[y²] of the mixture
    assert_allclose(std**2, second - np.square(mean), rtol=1e-6)
    assert_allclose(model.uncertainty(X), np.var(means, axis=0))
    nested = DeepEnsemble(MCDropout(NetworkRegressor(small, epochs=2), 3), 2, random_state=0)
    each = nested.fit(X, y).estimators_
    own = np.mean([m.uncertainty(X) for m in each], axis=0)
    between = np.var([m.predict(X) for m in each], axis=0)
    assert_allclose(nested.uncertainty(X), own + between)


def test_members_part_where_there_are_no_data(funnel):
    base = NetworkRegressor(small, epochs=20)
    model = DeepEnsemble(base, 3, random_state=0).fit(*funnel)
    near, far = model.uncertainty([[0.5], [8.0]])
    assert far > 10 * near


def test_training_goes_on_where_it_was(funnel):
    X, y = funnel[0][:200], funnel[1][:200]
    model = NetworkRegressor(small, epochs=5, warm_start=True, random_state=0).fit(X, y)
    first = model.history_["loss"]
    scale = model.y_scale_
    model.fit(X, y)
    assert model.history_["loss"][0] < first[0]
    assert_array_equal(model.y_scale_.std, scale.std)
