"""L-BFGS against the solution of linear equations, and from where it may not step."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.linalg import LinAlgError
from numpy.testing import assert_allclose

from due.baselines import ExactGPRegressor
from due.gp.minimise import SHORTER, TRIES, minimise


@given(seed=st.integers(0, 99), n=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_finds_the_minimum_of_a_quadratic(seed, n):
    rng = np.random.default_rng(seed)
    root, b = rng.normal(size=(n, n)), rng.normal(size=n)
    A = root @ root.T + np.eye(n)
    x = torch.zeros(n, dtype=torch.float64, requires_grad=True)
    minimise([x], lambda: x @ torch.as_tensor(A) @ x / 2 - torch.as_tensor(b) @ x, 100)
    assert_allclose(x.detach(), np.linalg.solve(A, b), atol=1e-4)
    assert x.grad is None or not x.grad.any()


def test_goes_on_from_the_best_point_where_a_step_leads_out():
    x = torch.tensor([3.0], dtype=torch.float64, requires_grad=True)
    refused = []

    def loss():  # its minimum is at 1; Newton's step from 3 leads far below 0
        if x.item() <= 0:
            refused.append(x.item())
            raise LinAlgError("not here")
        return (x - x.log()).sum() + 50 * (x < 1e-3).sum()

    minimise([x], loss, 50)
    assert refused
    assert_allclose(x.detach(), 1, atol=1e-3)


def test_an_error_is_raised_where_nothing_better_than_the_start_is_found():
    x = torch.tensor([1.0], requires_grad=True)

    def never():
        raise LinAlgError("nowhere")

    with pytest.raises(LinAlgError, match="nowhere"):
        minimise([x], never, 5)

    calls = []

    def once_each_time():
        calls.append(x.item())
        if x.item() != 1:
            raise LinAlgError("only at the start")
        return x.square().sum()

    with pytest.raises(LinAlgError, match="only at the start"):
        minimise([x], once_each_time, 5)
    assert x.item() == 1 and len(calls) == 2 * TRIES
    steps = np.abs(np.subtract(calls[1::2], 1))
    assert_allclose(steps[1:] / steps[:-1], SHORTER, rtol=1e-3)


@pytest.mark.parametrize("refuse", [True, False])
def test_shorter_steps_where_the_first_one_leads_out(refuse):
    x = torch.tensor([3.0], dtype=torch.float64, requires_grad=True)

    def loss():  # without an error it is NaN
        if x.item() <= 2 and refuse:
            raise LinAlgError("not here")
        return ((x - 2.1).square() + 0 * (x - 2).log()).sum()

    minimise([x], loss, 50)
    assert_allclose(x.detach(), 2.1, atol=1e-3)


def test_an_exact_gp_survives_a_step_to_a_length_scale_of_zero():
    rng = np.random.default_rng(14)  # a step function, on which one such step is taken
    X = rng.uniform(-1, 1, size=(100, 2))
    f = np.floor(2 * X[:, 0] + 0.3) + 2 * (X[:, 1] > 0.2) * (X[:, 0] < 0.4)
    y = f + 0.1 * rng.normal(size=100)
    model = ExactGPRegressor(kernel="rbf").fit(X, y)
    assert 0.1 < float(model.gp_.kernel.lengthscale.detach()) < 1
    assert np.mean((model.predict(X) - y) ** 2) < 0.2 * y.var()
