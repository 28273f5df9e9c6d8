import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.distance import cdist

from due.baselines import ArmGP, ExactGPRegressor
from due.gp.cholesky import JitterWarning


@pytest.fixture(scope="module")
def model(study):
    return ArmGP().fit(study.y, study.t, study.X)


def oracle(gp, new):
    """Posterior of a GP in five lines of numpy."""
    length, s, sigma2, mu = (
        float(value.detach())
        for value in (gp.kernel.lengthscale, gp.kernel.outputscale, gp.sigma2, gp.mu)
    )

    def k(a, b):
        r = np.sqrt(3) * cdist(a, b) / length
        return s * (1 + r) * np.exp(-r)

    x, y = gp.x.numpy(), gp.y.numpy()[:, 0]
    A = np.linalg.solve(k(x, x) + sigma2 * np.eye(len(x)), k(x, new)).T
    return mu + A @ (y - mu), k(new, new) - A @ k(x, new)


def test_effects_are_the_difference_of_two_numpy_gps(model, fresh):
    X, _ = fresh
    new, std = model.scale_(X), model.y_scale_.std[0]
    (mean0, cov0), (mean1, cov1) = (oracle(gp, new) for gp in model.arms_)
    assert_allclose(model.effect(X), std * (mean1 - mean0), atol=1e-5)
    assert_allclose(model.uncertainty(X), std**2 * np.diag(cov0 + cov1), rtol=1e-4)
    low, high = model.ate_interval(X)
    assert_allclose((high - low) / 2, 1.959964 * std * np.sqrt((cov0 + cov1).mean()), rtol=1e-5)
    assert_allclose((high + low) / 2, model.ate(X), rtol=1e-5)  # two ways to solve


def test_it_learns_the_noise_and_the_effects(model, fresh, rmse):
    X, tau = fresh
    assert rmse(model.effect(X), tau) < 0.3 * tau.std()
    noise = [gp.sigma2.item() ** 0.5 * model.y_scale_.std[0] for gp in model.arms_]
    assert_allclose(noise, 0.1, rtol=0.5)
    inside, outside = model.uncertainty(X).mean(), model.uncertainty(X + 50).mean()
    assert outside > 20 * inside


def test_parameters_are_at_a_maximum_of_the_likelihood(model):
    for gp in model.arms_:
        gp.zero_grad()
        gp().backward()
        gradients = [parameter.grad.abs().max().item() for parameter in gp.parameters()]
        assert max(gradients) < 1e-3
        gp.zero_grad()


def test_outcomes_without_noise_and_repeated_people_are_taken(study):
    X = np.concatenate([study.X[:60]] * 3)
    t, y = np.tile(study.t[:60], 3), X @ np.arange(1.0, 1 + X.shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitterWarning)
        model = ArmGP().fit(y + 2 * t, t, X)
        assert_allclose(model.effect(X), 2.0, atol=0.1)
        regressor = ExactGPRegressor().fit(X, y)
        assert_allclose(regressor.predict(X), y, atol=0.05 * y.std())


def test_people_of_validation_are_learned_from(study):
    half = 150
    first, rest = (slice(0, half), slice(half, None))
    together = ArmGP(steps=20).fit(study.y, study.t, study.X)
    apart = ArmGP(steps=20).fit(
        study.y[first],
        study.t[first],
        study.X[first],
        validation=(study.y[rest], study.t[rest], study.X[rest]),
    )
    assert_allclose(apart.effect(study.X), together.effect(study.X), atol=1e-6)
