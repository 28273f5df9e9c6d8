"""Length scale and output scale go to where the rows are most probable, if held-out rows agree."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from torch import nn

from due.estimators import DUERegressor
from due.gp import Gaussian, InducingGP
from due.methods import DUE
from due.methods import kernel as module
from due.methods.kernel import settle_kernel

first = np.random.default_rng(0)
X = np.sort(first.uniform(-3, 3, 80))
Y = 3 * np.sin(2 * X) + 0.1 * first.normal(size=80)
AS_TRAINED = {"kind": "matern52", "settled": False}
SETTLED = {"kind": "matern52", "settled": True}


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def on_inputs(lengthscale=0.2, **how):
    """A GP on x itself, every row an inducing point, far from its best kernel."""
    gp = InducingGP(torch.tensor(X)[:, None], kernel="matern52", lengthscale=lengthscale)
    return DUE(nn.Identity(), gp, Gaussian(sigma2=0.3), len(X), bound="collapsed", **how)


def data(x, y):
    return [torch.tensor(part)[:, None] for part in (x, y)]


@torch.no_grad()
def numbers(model):
    kernel = model.gp.kernel
    return [float(part[0]) for part in (kernel.lengthscale, kernel.outputscale, model.sigma2)]


def test_it_ends_where_scikit_learn_ends(rng):
    model, held = on_inputs(), rng.uniform(-3, 3, 40)
    settle_kernel(model, data(X, Y), data(held, 3 * np.sin(2 * held)))
    assert model.chosen["kernel"] == SETTLED
    kernel = ConstantKernel(5.0) * Matern(1.0, nu=2.5) + WhiteKernel(0.01)
    want = GaussianProcessRegressor(kernel, random_state=0).fit(X[:, None], Y)
    length, output, _ = numbers(model)
    mean = float(model.gp.mu.detach()[0])
    assert mean == 0
    assert_allclose(length, want.kernel_.k1.k2.length_scale, rtol=0.05)  # the ridge is flat
    assert_allclose(output, want.kernel_.k1.k1.constant_value, rtol=0.15)


def test_held_out_rows_alone_may_have_weights(rng):
    held = rng.uniform(-3, 3, 40)
    new, found = data(held, 3 * np.sin(2 * held)), []
    for weights in ([], [torch.ones(40, dtype=torch.float64)]):
        model = on_inputs()
        settle_kernel(model, data(X, Y), [*new, *weights])
        assert model.chosen["kernel"] == SETTLED
        found.append(numbers(model))
    assert_allclose(found[1], found[0], rtol=1e-9)


def test_it_stays_where_held_out_rows_get_less_probable(rng):
    """They wave fast where the others do not."""
    model, held = on_inputs(0.05), rng.uniform(-3, 3, 40)
    before = numbers(model)
    settle_kernel(model, data(X, Y), data(held, 3 * np.sin(40 * held)))
    assert model.chosen["kernel"] == AS_TRAINED and numbers(model) == before


def test_it_stays_with_very_many_inducing_points(monkeypatch, rng):
    model, held = on_inputs(), rng.uniform(-3, 3, 40)
    before = numbers(model)
    monkeypatch.setattr(module, "MOST", len(X) - 1)
    settle_kernel(model, data(X, Y), data(held, 3 * np.sin(2 * held)))
    assert "kernel" not in model.chosen and numbers(model) == before


def test_it_stays_where_the_search_fails(monkeypatch, rng):
    def fails(*_):
        raise np.linalg.LinAlgError("not positive definite")

    model, held = on_inputs(), rng.uniform(-3, 3, 40)
    before = numbers(model)
    monkeypatch.setattr(module, "_maximise", fails)
    settle_kernel(model, data(X, Y), data(held, np.sin(held)))
    assert model.chosen["kernel"] == AS_TRAINED and numbers(model) == before


def evidence(kernel, y):
    """log p(y) of scikit-learn's GP at its best."""
    whole = ConstantKernel(5.0) * kernel + WhiteKernel(0.01)
    gp = GaussianProcessRegressor(whole, n_restarts_optimizer=2, random_state=0)
    return gp.fit(X[:, None], y).log_marginal_likelihood_value_


def judged(losses, monkeypatch):
    """New rows lose so much of their log density under a kernel, with a standard error of .1."""
    judge = module._judge
    spread = torch.randn(100, generator=torch.Generator().manual_seed(0)).double()
    spread = (spread - spread.mean()) / spread.std(correction=0)

    def judges(model, known, new):
        weights, kind = judge(model, known, new)[1], model.gp.kernel.kind
        return -(losses[kind] + spread) if kind in losses else 0 * spread, weights

    monkeypatch.setattr(module, "_judge", judges)


def settled(y, kernels=("matern52", "rbf")):
    """On known rows y(X); of new ones `judged` tells."""
    model, held = on_inputs(kernels=kernels), np.linspace(-3, 3, 100)
    settle_kernel(model, data(X, y), data(held, held))
    assert model.chosen["kernel"]["kind"] == model.gp.kernel.kind
    return model.chosen["kernel"]


SMOOTH, STEP = (3 * np.sin(2 * X), 2 * np.sign(X + 0.1))


@pytest.mark.parametrize("function", [SMOOTH, STEP])
def test_of_two_kernels_it_takes_the_one_that_scikit_learn_would(function, rng, monkeypatch):
    y = function + 0.1 * rng.normal(size=80)
    matern, rbf = evidence(Matern(1.0, nu=2.5), y), evidence(RBF(1.0), y)
    assert abs(matern - rbf) > 2
    judged({}, monkeypatch)
    best = "rbf" if rbf > matern else "matern52"
    assert settled(y) == {"kind": best, "settled": True}


@pytest.mark.parametrize(("loss", "best"), [(0.08, "rbf"), (0.12, "matern52")])
def test_held_out_rows_may_object_by_a_standard_error(monkeypatch, loss, best):
    judged({"rbf": loss}, monkeypatch)
    assert settled(Y)["kind"] == best


def test_a_kernel_that_known_rows_like_less_is_not_taken_where_the_other_is_refused(
    monkeypatch, rng
):
    judge, kinds = module._judge, []

    def refuses_the_first_once_settled(model, known, new):
        kinds.append(model.gp.kernel.kind)
        density, weights = judge(model, known, new)
        return 0 * density - float(len(kinds) == 2), weights

    monkeypatch.setattr(module, "_judge", refuses_the_first_once_settled)
    assert settled(STEP + 0.1 * rng.normal(size=80)) == AS_TRAINED
    assert kinds == ["matern52", "matern52", "rbf"]


def test_a_changed_kernel_is_saved(tmp_path, rng):
    x = np.linspace(-3, 3, 120)[:, None]
    y = 3 * np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=120)
    model = DUERegressor(epochs=60, n_inducing=30, random_state=0).fit(x, y)
    assert model.history_["kernel"] == {"kind": "rbf", "settled": True}
    model.save(tmp_path / "model")
    again = DUERegressor.load(tmp_path / "model")
    assert again.model_.gp.kernel.kind == "rbf"
    assert again.model_.kernels == ("matern52", "rbf")
    for mine, theirs in zip(model.moments(x), again.moments(x), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_training_goes_on_with_the_kernel_that_trains():
    x = np.linspace(-3, 3, 120)[:, None]
    model = DUERegressor(epochs=40, n_inducing=30, warm_start=True, random_state=0)
    model.fit(x, np.sin(2 * x[:, 0]))
    assert model.model_.gp.kernel.kind == "rbf"
    model.model_.go_on()
    assert model.model_.gp.kernel.kind == "matern52"


def test_a_given_kernel_stays():
    x = np.linspace(-3, 3, 60)[:, None]
    model = DUERegressor(kernel="matern32", epochs=20, n_inducing=20, random_state=0)
    assert model.fit(x, np.sin(x[:, 0])).model_.gp.kernel.kind == "matern32"


@pytest.mark.parametrize("kernels", [("rbf",), ("matern52", "rq"), ("matern52", "linear")])
def test_kernels_to_choose_from_are_checked(kernels):
    with pytest.raises(ValueError, match="kernels="):
        on_inputs(kernels=kernels)


@pytest.mark.parametrize("bound", ["collapsed", "exact", "elbo"])
def test_a_gap_is_as_wide_as_that_of_the_gp_on_inputs(bound, rng):
    """The function is the one of the GP up to a factor: without the end of the ridge, .6 or 2."""
    x = np.concatenate([rng.uniform(-5, -2, 100), rng.uniform(2, 5, 100)])[:, None]
    y = 4 * np.sin(x[:, 0]) + 0.1 * rng.normal(size=200)
    model = DUERegressor(
        lambda shape: nn.Linear(shape[0], 4),
        c=None,
        bound=bound,
        kernel="matern52",
        random_state=0,
    ).fit(x, y)
    assert model.history_["kernel"] == SETTLED
    kernel = ConstantKernel(5.0) * Matern(1.0, nu=2.5) + WhiteKernel(0.01)
    want = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(x, y)
    gap = np.linspace(-1, 1, 21)[:, None]
    ours, theirs = np.sqrt(model.uncertainty(gap)), want.predict(gap, return_std=True)[1]
    assert 0.75 < (ours / theirs).mean() < 1.3
