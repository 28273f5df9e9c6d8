"""Length scale and output scale go to where the rows are most probable, if held-out rows agree."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from torch import nn

from due.estimators import DUERegressor
from due.gp import Gaussian, InducingGP
from due.methods import DUE
from due.methods import kernel as module
from due.methods.kernel import settle_kernel

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(-3, 3, 80))
Y = 3 * np.sin(2 * X) + 0.1 * rng.normal(size=80)


def on_inputs(lengthscale=0.2):
    """A GP on x itself, every row an inducing point, far from its best kernel."""
    gp = InducingGP(torch.tensor(X)[:, None], kernel="matern52", lengthscale=lengthscale)
    return DUE(nn.Identity(), gp, Gaussian(sigma2=0.3), len(X), bound="collapsed")


def data(x, y):
    return [torch.tensor(part)[:, None] for part in (x, y)]


@torch.no_grad()
def numbers(model):
    kernel = model.gp.kernel
    return [float(part[0]) for part in (kernel.lengthscale, kernel.outputscale, model.sigma2)]


def test_it_ends_where_scikit_learn_ends():
    model, held = on_inputs(), rng.uniform(-3, 3, 40)
    settle_kernel(model, data(X, Y), data(held, 3 * np.sin(2 * held)))
    assert model.chosen["kernel"] == {"settled": True}
    kernel = ConstantKernel(5.0) * Matern(1.0, nu=2.5) + WhiteKernel(0.01)
    want = GaussianProcessRegressor(kernel, random_state=0).fit(X[:, None], Y)
    length, output, _ = numbers(model)
    mean = float(model.gp.mu.detach()[0])
    assert mean == 0
    assert_allclose(length, want.kernel_.k1.k2.length_scale, rtol=0.05)  # the ridge is flat
    assert_allclose(output, want.kernel_.k1.k1.constant_value, rtol=0.15)


def test_it_stays_where_held_out_rows_get_less_probable():
    """They wave fast where the others do not."""
    model, held = on_inputs(0.05), rng.uniform(-3, 3, 40)
    before = numbers(model)
    settle_kernel(model, data(X, Y), data(held, 3 * np.sin(40 * held)))
    assert model.chosen["kernel"] == {"settled": False} and numbers(model) == before


def test_it_stays_with_very_many_inducing_points(monkeypatch):
    model, held = on_inputs(), rng.uniform(-3, 3, 40)
    before = numbers(model)
    monkeypatch.setattr(module, "MOST", len(X) - 1)
    settle_kernel(model, data(X, Y), data(held, 3 * np.sin(2 * held)))
    assert "kernel" not in model.chosen and numbers(model) == before


def test_it_stays_where_the_search_fails(monkeypatch):
    def fails(*_):
        raise np.linalg.LinAlgError("not positive definite")

    model, held = on_inputs(), rng.uniform(-3, 3, 40)
    before = numbers(model)
    monkeypatch.setattr(module, "_maximise", fails)
    settle_kernel(model, data(X, Y), data(held, np.sin(held)))
    assert model.chosen["kernel"] == {"settled": False} and numbers(model) == before


@pytest.mark.parametrize("bound", ["collapsed", "exact"])
def test_a_gap_is_as_wide_as_that_of_the_gp_on_inputs(bound):
    """The function is the one of the GP up to a factor: without the end of the ridge, .6 of it."""
    x = np.concatenate([rng.uniform(-5, -2, 100), rng.uniform(2, 5, 100)])[:, None]
    y = 4 * np.sin(x[:, 0]) + 0.1 * rng.normal(size=200)
    model = DUERegressor(
        lambda shape: nn.Linear(shape[0], 4), c=None, bound=bound, random_state=0
    ).fit(x, y)
    assert model.history_["kernel"] == {"settled": True}
    kernel = ConstantKernel(5.0) * Matern(1.0, nu=2.5) + WhiteKernel(0.01)
    want = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(x, y)
    gap = np.linspace(-1, 1, 21)[:, None]
    ours, theirs = np.sqrt(model.uncertainty(gap)), want.predict(gap, return_std=True)[1]
    assert 0.75 < (ours / theirs).mean() < 1.3
