"""Widths of intervals by held-out rows, against plain counting."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.stats import norm

from due.gp.levels import AS_SAID, WIDE, fit_levels, outside, z_beyond
from due.gp.levels import NOMINAL as KNOTS

NOMINAL = KNOTS.numpy()


def widths_of(z, std, weight=None):
    column = [torch.as_tensor(part).double()[:, None] for part in (z, std)]
    weight = torch.ones(len(z)) if weight is None else torch.as_tensor(weight)
    found = fit_levels(*column, weight.double())
    return None if found is None else (found.std[0].numpy(), found.z[0].numpy())


def share(z, v):
    """Of the rows of a third that lie beyond v, made-up ones included."""
    more = AS_SAID * 2 * norm.sf(v) + WIDE * 2 * norm.sf(v / 2)
    return ((z > v).sum() + more) / (len(z) + AS_SAID + WIDE)


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    return np.abs(rng.normal(size=n)), np.exp(rng.normal(size=n))


@given(n=st.integers(30, 200), seed=st.integers(0, 99), at=st.integers(1, 120))
@settings(max_examples=50, deadline=None)
def test_each_width_is_the_smallest_that_leaves_no_more_than_it_should(n, seed, at):
    z, std = rows(n, seed)
    medians, widths = widths_of(2 * z, std)
    thirds = np.array_split(np.argsort(std, kind="stable"), 3)
    allowed = 2 * norm.sf(NOMINAL[at])
    for third, median, width in zip(thirds, medians, widths[:, at], strict=True):
        assert np.sort(std[third])[(len(third) - 1) // 2] == median
        assert share(2 * z[third], width + 1e-9) <= allowed * (1 + 1e-6)
        assert share(2 * z[third], width - 1e-6) > allowed
    assert (np.diff(widths, axis=1) >= 0).all()


def test_many_rows_decide_and_few_change_little():
    at = int(np.searchsorted(NOMINAL, 1.649))
    found = []
    for n in (30, 300, 30_000):
        z, std = rows(n)
        quiet = std < np.quantile(std, 1 / 3)
        _, widths = widths_of(np.where(quiet, z / 2, 3 * z), std)  # too wide there, too narrow here
        found.append(widths[:, at] / 1.65)
    assert_allclose(found[-1], [0.5, 3, 3], rtol=0.05)
    for few, many in pairwise(np.abs(np.log(found))):
        assert (few < many).all()


def test_a_weight_counts_as_repetitions():
    z, std = rows(90)
    thirds = np.argsort(std, kind="stable").reshape(3, 30)
    weight = np.ones(90)
    weight[thirds[:, ::2]] = 2  # in each third the same number
    again = np.repeat(np.arange(90), weight.astype(int))
    assert_allclose(widths_of(z, std, weight)[1], widths_of(z[again], std[again])[1], atol=1e-9)


def test_where_the_std_hardly_differs_thirds_are_one():
    z, std = rows(90)
    _, widths = widths_of(z, 1 + 1e-3 * std / std.max())
    assert (widths == widths[0]).all()


def test_too_few_rows_say_nothing():
    assert widths_of(*rows(29)) is None and widths_of(*rows(30)) is not None


def test_outputs_have_levels_of_their_own():
    z, std = rows(60)
    both = fit_levels(
        torch.tensor(np.stack([z, 2 * z], 1)),
        torch.tensor(np.stack([std, 1 / std], 1)),
        torch.ones(60),
    )
    for i, (a, s) in enumerate(((z, std), (2 * z, 1 / std))):
        assert_allclose(both.z[i], widths_of(a, s)[1])


@pytest.mark.parametrize("z", [0.0, 1e-9, 1.0, 6.0, 14.0])
def test_masses_and_back(z):
    mass = outside(torch.tensor(z, dtype=torch.float64))
    assert_allclose(mass, 2 * norm.sf(z), rtol=1e-10)
    assert_allclose(z_beyond(mass), z, atol=1e-7)
    assert float(z_beyond(torch.zeros(1, dtype=torch.float64))) < 16
