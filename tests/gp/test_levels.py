"""Widths of intervals by held-out rows, against plain counting."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.stats import norm

from due.gp.levels import (
    ENDS,
    FAR,
    FEWEST,
    PARTED,
    USUAL,
    WIDE,
    WIDER,
    Levels,
    check_levels,
    fit_levels,
    outside,
    z_beyond,
)


def levels_of(z, std, weight=None):
    z, std = (torch.as_tensor(part).double()[:, None] for part in (z, std))
    weight = torch.ones(len(z)) if weight is None else torch.as_tensor(weight)
    found = fit_levels(z, std, std / 2, weight.double())
    if found is None:
        return None
    assert found.latent == std.max() / 2
    return [part.numpy() for part in (found.nominal, found.std[0], found.z[0])]


def share(z, v, wide=WIDE):
    """Of the rows of a third that lie beyond v, made-up ones included."""
    a = np.sqrt((1 + (np.minimum(z, FAR) ** 2).sum()) / (1 + len(z)))
    more = USUAL * 2 * norm.sf(v / a) + wide * 2 * norm.sf(v / 2 / a)
    return ((z > v).sum() + more) / (len(z) + USUAL + wide)


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    return np.abs(rng.normal(size=n)), np.exp(rng.normal(size=n))


@given(n=st.integers(10, 70), seed=st.integers(0, 99), at=st.integers(1, 100))
@settings(max_examples=50, deadline=None)
def test_each_width_is_the_smallest_that_leaves_no_more_than_it_should(n, seed, at):
    z, std = rows(3 * n, seed)
    nominal, known, widths = levels_of(2 * z, std)
    allowed = 2 * norm.sf(nominal[at])
    thirds = np.argsort(std).reshape(3, n)
    for third, ends, (width, last) in zip(
        thirds, known.reshape(3, 2), widths[:, at].reshape(3, 2), strict=True
    ):
        assert_allclose(ends, np.quantile(std[third], ENDS, method="inverted_cdf"))
        assert width == last
        assert share(2 * z[third], width + 1e-9) <= allowed * (1 + 1e-6)
        assert share(2 * z[third], width - 1e-6) > allowed
    assert (np.diff(widths, axis=1) >= 0).all()
    assert_allclose((n + USUAL + WIDE) * 2 * norm.sf(nominal[-1]), 1)  # what rows can tell of


def test_many_rows_decide_and_few_nearly_so():
    found = []
    for n in (30, 300, 30_000):
        at_90 = []
        for seed in range(20 if n < 1000 else 1):
            z, std = rows(n, seed)
            quiet = std < np.quantile(std, 1 / 3)
            errors = np.where(quiet, z / 2, 3 * z)  # too wide there, too narrow here
            nominal, _, widths = levels_of(errors, std)
            at_90.append([np.interp(1.645, nominal, width) / 1.645 for width in widths[::2]])
        found.append(np.median(at_90, 0))
    assert_allclose(found[-1], [0.5, 3, 3], rtol=0.05)
    assert_allclose(found[0], [0.5, 3, 3], rtol=0.35)
    for few, many in pairwise(np.abs(np.log(np.divide(found, [0.5, 3, 3])))):
        assert (few >= many).all()


def test_one_far_row_does_not_tell_the_scale():
    z, std = rows(60)
    quiet = std < np.quantile(std, 1 / 3)
    far = np.where(np.arange(60) == np.flatnonzero(quiet)[0], 14.0, z)
    nominal, _, with_it = levels_of(far, std)
    _, _, without = levels_of(z, std)
    half = np.searchsorted(nominal, 0.674)
    assert 1 < with_it[0, half] / without[0, half] < 1.3


@given(seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_a_weight_counts_as_repetitions(seed):
    z, std = rows(40, seed)
    weight = np.random.default_rng(seed).integers(1, 5, size=40)
    again = np.repeat(np.arange(40), weight)
    for got, want in zip(levels_of(z, std, weight), levels_of(z[again], std[again]), strict=True):
        assert_allclose(got, want, atol=1e-9)


def test_where_the_std_hardly_differs_thirds_are_one():
    z, std = rows(90)
    for near in (1 + 1e-3 * std / std.max(), np.ones(90)):
        _, _, widths = levels_of(z, near)
        assert (widths == widths[0]).all()


def test_too_few_rows_say_nothing():
    assert levels_of(*rows(FEWEST - 1)) is None and levels_of(*rows(FEWEST)) is not None
    z, std = rows(300)
    assert levels_of(z, std, np.full(300, 0.9 * FEWEST / 300)) is None


@given(n=st.integers(FEWEST, PARTED - 1), seed=st.integers(0, 99), at=st.integers(1, 100))
@settings(max_examples=50, deadline=None)
def test_few_rows_are_not_parted_and_count_as_nearer(n, seed, at):
    z, std = rows(n, seed)
    nominal, _, widths = levels_of(z, std)
    allowed, width = 2 * norm.sf(nominal[at]), widths[0, at]
    assert (widths == widths[0]).all()
    assert share(z, width + 1e-9, WIDER) <= allowed * (1 + 1e-6)
    assert share(z, width - 1e-6, WIDER) > allowed
    assert_allclose((n + USUAL + WIDER) * 2 * norm.sf(nominal[-1]), 1)


def test_thirds_begin_where_rows_are_enough_for_them():
    z, std = rows(PARTED)
    errors = np.where(std < np.median(std), z / 3, 3 * z)
    assert np.ptp(levels_of(errors, std)[2][:, 50]) > 0
    assert np.ptp(levels_of(errors[1:], std[1:])[2][:, 50]) == 0


def test_outputs_have_levels_of_their_own():
    z, std = rows(60)
    both: Any = fit_levels(
        torch.tensor(np.stack([z, 2 * z], 1)),
        torch.tensor(np.stack([std, 1 / std], 1)),
        torch.ones(60, 2),
        torch.ones(60, dtype=torch.float64),
    )
    for i, (a, s) in enumerate(((z, std), (2 * z, 1 / std))):
        assert_allclose(both.z[i], levels_of(a, s)[2])
        assert_allclose(both.std[i], levels_of(a, s)[1])


@pytest.mark.parametrize("change", ["nominal", "std", "z", "negative", "high", "shape", "outputs"])
def test_what_cannot_be_levels_is_refused(change):
    z, std = (torch.as_tensor(part)[:, None] for part in rows(60))
    good: Any = fit_levels(z, std, std, torch.ones(60, dtype=torch.float64))
    check_levels(good, 1)
    check_levels(Levels(*[torch.empty(0)] * 4), 1)
    bad = {
        "nominal": good._replace(nominal=good.nominal.flip(0)),
        "std": good._replace(std=good.std.flip(1)),
        "z": good._replace(z=good.z.flip(2)),
        "negative": good._replace(std=-good.std.flip(1)),
        "high": good._replace(z=1e6 * good.z),
        "shape": good._replace(z=good.z[:, :2]),
        "outputs": good,
    }
    with pytest.raises(ValueError, match="levels"):
        check_levels(bad[change], 2 if change == "outputs" else 1)


@pytest.mark.parametrize("z", [0.0, 1e-9, 1.0, 6.0, 14.0])
def test_masses_and_back(z):
    mass = outside(torch.tensor(z, dtype=torch.float64))
    assert_allclose(mass, 2 * norm.sf(z), rtol=1e-10)
    assert_allclose(z_beyond(mass), z, atol=1e-7)
    assert float(z_beyond(torch.zeros(1, dtype=torch.float64))) < 16
