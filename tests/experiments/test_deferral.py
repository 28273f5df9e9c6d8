import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from due.experiments.deferral import (
    ONE_IN,
    PERCENT,
    at_random,
    certain_first,
    covered,
    curve,
    keep,
    oracle,
    rmse,
)


@pytest.fixture
def people():
    rng = np.random.default_rng(3)
    tau = rng.normal(size=75)
    var = rng.exponential(size=75)
    return tau + rng.normal(size=75) * np.sqrt(var), var, tau


@pytest.mark.parametrize(("data", "kept"), [("ihdp", 68), ("ihdp-cov", 38)])
def test_as_many_are_kept_as_the_protocol_says(data, kept):
    assert len(keep(np.arange(75), ONE_IN[data])) == kept


def test_uncertainty_keeps_the_smallest_variances(people):
    tau_hat, var, tau = people
    rows = sorted(range(75), key=lambda i: var[i])[:68]
    want = (sum((tau_hat[i] - tau[i]) ** 2 for i in rows) / 68) ** 0.5
    kept = keep(certain_first(var), 10)
    assert_allclose(rmse(tau_hat[kept], tau[kept]), want)


def test_equal_variances_stay_in_their_order():
    assert_array_equal(certain_first(np.array([1.0, 0.0, 1.0, 0.0])), [1, 3, 0, 2])


def test_random_order_is_a_permutation_of_the_seed_alone():
    orders = [at_random(75, seed) for seed in range(20)]
    for seed, order in enumerate(orders):
        assert_array_equal(np.sort(order), np.arange(75))
        assert_array_equal(order, at_random(75, seed))
    assert len({tuple(order) for order in orders}) == 20
    first = np.concatenate([at_random(75, seed)[:10] for seed in range(2000)])
    assert_allclose(np.bincount(first, minlength=75), 2000 * 10 / 75, rtol=0.35)


def test_curve_is_the_rmse_of_those_kept(people):
    tau_hat, var, tau = people
    order = certain_first(var)
    got = curve(tau_hat, tau, order)
    for p, value in zip(PERCENT, got, strict=True):
        kept = order[: 75 - int(75 * p / 100)]
        assert_allclose(value, rmse(tau_hat[kept], tau[kept]))
    assert PERCENT[0] == 0 and PERCENT[-1] == 95
    assert_allclose(got[0], rmse(tau_hat, tau))


def test_curve_passes_through_the_table(people):
    tau_hat, var, tau = people
    for one_in in ONE_IN.values():
        kept = keep(certain_first(var), one_in)
        point = PERCENT.index(100 // one_in)
        assert_allclose(
            curve(tau_hat, tau, certain_first(var))[point], rmse(tau_hat[kept], tau[kept])
        )


def test_no_order_is_below_the_oracle(people):
    tau_hat, var, tau = people
    best = curve(tau_hat, tau, oracle(tau_hat, tau))
    for order in (certain_first(var), at_random(75, 0), at_random(75, 1)):
        assert np.all(best <= curve(tau_hat, tau, order) + 1e-12)


def test_covered_counts_intervals_that_hold_the_truth():
    tau_hat, var, tau = np.array([0.0, 0.0, 5.0]), np.array([1.0, 1.0, 0.0]), np.array([1.9, 2, 5])
    assert_array_equal(covered(tau_hat, var, tau), [True, False, True])
