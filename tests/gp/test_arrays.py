"""Each operation of numpy against that of torch, and both against something obvious."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp as oracle

from due.gp.arrays import FEW, NUMPY, TORCH, logsumexp, softplus

few_values = arrays(
    np.float32, st.tuples(st.integers(1, 9), st.integers(1, 4)), elements=st.integers(-2, 2)
)


@settings(max_examples=50, deadline=None)
@given(few_values, st.integers(0, 99), st.sampled_from([0, FEW]))
def test_the_last_key_orders_and_earlier_ones_break_ties(key, seed, few):
    others = np.random.default_rng(seed).integers(0, 3, (2, *key.shape)).astype(np.float32)
    keys = [*others, key]
    want = np.lexsort(keys, 0)
    with patch("due.gp.arrays.FEW", few):  # of many numbers only what is tied is sorted again
        assert_array_equal(NUMPY.order(*keys), want)
    tensors = [torch.from_numpy(part) for part in keys]
    assert_array_equal(TORCH.order(*tensors).numpy(), want)


@given(st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_what_is_put_back_was_taken(seed):
    x = np.random.default_rng(seed).normal(size=(7, 3))
    order = x.argsort(0)
    assert_array_equal(NUMPY.take(x, order), np.sort(x, 0))
    assert_array_equal(NUMPY.put(NUMPY.take(x, order), order), x)
    ours, which = torch.from_numpy(x), torch.from_numpy(order)
    assert_array_equal(TORCH.put(TORCH.take(ours, which), which).numpy(), x)


@pytest.mark.parametrize("shape", [(3, 1), (10, 5), (24, 1), (1000, 2), (6, 24, 3), (6, 24, 1)])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_column_is_added_up_in_order_whatever_is_beside_it(shape, axis):
    if axis == len(shape) - 1:
        axis = 0
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    want = np.zeros_like(x.take(0, axis))
    for i in range(shape[axis]):
        want = want + x.take(i, axis)
    assert_array_equal(NUMPY.total(x, axis), want)
    assert_array_equal(NUMPY.total(np.repeat(x, 50, -1), axis)[..., ::50], want)


def test_sums_of_exponentials():
    x = np.random.default_rng(0).normal(0, 100, size=(8, 5))
    for lib, convert in ((NUMPY, np.asarray), (TORCH, torch.from_numpy)):
        assert_allclose(np.asarray(logsumexp(lib, convert(x))), oracle(x, 0), rtol=1e-12)
        assert_allclose(np.asarray(softplus(lib, convert(x))), np.logaddexp(0, x), rtol=1e-12)
