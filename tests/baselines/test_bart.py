import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import invgamma

from due.baselines import BART
from due.baselines.bart import noise_prior

TINY = {"n_trees": 30, "n_burn": 100, "n_draws": 100}


@pytest.fixture(scope="module")
def model(study):
    pytest.importorskip("stochtree", reason="BART needs stochtree: pip install 'due[rivals]'")
    return BART(**TINY, random_state=0).fit(study.y, study.t, study.X)


def test_it_learns_the_effects(model, fresh, rmse):
    X, tau = fresh
    assert rmse(model.effect(X), tau) < 0.5 * tau.std()


def test_draws_are_differences_of_the_engine_s_posterior(model, fresh):
    X, _ = fresh
    ask = model.sampler_.predict
    treated, untreated = (
        ask(X=np.c_[X, np.full(len(X), t)], type="posterior", terms="y_hat") for t in (1.0, 0.0)
    )
    draws = treated - untreated  # (N, S)
    assert_allclose(model.sample_effect(X), draws)
    assert_allclose(model.effect(X), draws.mean(1))
    assert_allclose(model.uncertainty(X), draws.var(1))
    assert_allclose(model.potential_outcomes(X)[:, 0], untreated.mean(1))


def test_a_seed_fixes_the_chain(model, study):
    again = BART(**TINY, random_state=0).fit(study.y, study.t, study.X)
    assert_array_equal(again.effect(study.X), model.effect(study.X))


def test_noise_lies_below_that_of_least_squares_with_probability_09():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 3)), rng.normal(size=50)
    design = np.c_[np.ones(50), X]
    residual = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    shape, scale = noise_prior(X, y)
    assert shape == 1.5
    assert_allclose(invgamma.cdf(residual @ residual / 46, shape, scale=scale), 0.9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k=0 is not a number above 0"),
        ({"n_trees": 0}, "n_trees=0"),
        ({"n_draws": 0}, "n_draws=0"),
        ({"n_burn": -1}, "n_burn=-1"),
    ],
)
def test_bad_arguments_are_named(change, message, study):
    with pytest.raises(ValueError, match=message):
        BART(**{**TINY, **change}).fit(study.y, study.t, study.X)


def test_outcomes_without_variance_and_too_few_people_are_refused(study):
    pytest.importorskip("stochtree", reason="BART needs stochtree: pip install 'due[rivals]'")
    with pytest.raises(ValueError, match="all outcomes are 1e\\+06: BART has no variance"):
        BART(**TINY).fit(np.full(len(study.y), 1e6 + 0.1), study.t, study.X)
    with pytest.raises(ValueError, match="4 people are too few"):
        BART(**TINY).fit([0.0, 1, 2, 3], [0, 1, 0, 1], study.X[:4])


def test_without_the_engine_the_remedy_is_named(monkeypatch, study):
    monkeypatch.setitem(sys.modules, "stochtree", None)
    with pytest.raises(ImportError, match=r"pip install 'due\[rivals\]'"):
        BART().fit(study.y, study.t, study.X)
