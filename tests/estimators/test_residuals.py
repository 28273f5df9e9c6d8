"""An effect that was missed shows in the residuals of held-out people; chance and tails do not."""

import warnings

import numpy as np
import pytest
from scipy.stats import kruskal

from due.estimators import DUECATE
from due.estimators.residuals import Missed, missed_effect, warn_of

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_draws_in_any_order():
    global rng
    rng = np.random.default_rng(0)


def people(n=90, D=5):
    return rng.normal(size=(n, D)), rng.integers(2, size=n)


def test_a_missed_effect_is_found_along_its_column():
    X, t = people()
    residual = (t - 0.5) * np.sin(2 * X[:, 3]) + 0.25 * rng.normal(size=90)
    column, p = missed_effect(X, t, residual)
    assert column == 3 and p < 1e-3


def test_a_missed_effect_of_one_group_is_found_along_its_binary_column():
    X, t = people()
    X[:, 1] = rng.integers(2, size=90)
    residual = (t - 0.5) * (X[:, 1] - 0.5) + 0.3 * rng.normal(size=90)
    column, p = missed_effect(X, t, residual)
    signed = np.where(t == 1, residual, -residual)
    want = kruskal(signed[X[:, 1] == 0], signed[X[:, 1] == 1]).pvalue
    assert column == 1 and np.isclose(p, 5 * want)


@pytest.mark.parametrize("kind", ["normal", "cauchy", "uneven", "shifted"])
def test_noise_of_any_shape_alarms_as_rarely_as_it_says(kind):
    alarms = 0
    for _ in range(150):
        X, t = people()
        noise = rng.standard_cauchy(90) if kind == "cauchy" else rng.normal(size=90)
        noise = noise * np.exp(X[:, 0]) if kind == "uneven" else noise + (kind == "shifted")
        alarms += missed_effect(X, t, noise).p < 0.05
    assert alarms <= 18  # 7.5 expected, standard deviation 2.7; unequal spreads cost a little


def test_columns_that_say_nothing_say_nothing():
    X, t = np.zeros((90, 2)), np.ones(90)
    assert missed_effect(X, t, np.arange(90.0)).p == 1
    assert missed_effect(people()[0], t, np.zeros(90)).p == 1


def test_the_warning_names_the_column():
    with pytest.warns(UserWarning, match="varies with column 'age'"):
        warn_of(Missed(1, 1e-5), np.array(["weight", "age"]))
    with pytest.warns(UserWarning, match="varies with column 1 "):
        warn_of(Missed(1, 1e-5), None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of(Missed(1, 0.01), None)


def test_a_fit_that_misses_the_effect_says_so():
    X, t = people(240, 2)
    y = t * np.where(X[:, 1] > 0, 2.0, -2.0) + 0.1 * rng.normal(size=240)
    blind = DUECATE(epochs=1, n_inducing=1, inducing="free", random_state=0)
    with pytest.warns(UserWarning, match="varies with column 1 in a way"):
        blind.fit(y, t, X)
    assert blind.history_["missed_effect"]["p"] < 1e-3
