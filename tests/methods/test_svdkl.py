import copy
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.datasets import make_moons
from torch import nn

from due.methods.svdkl import GridGP, SVDKLGaussian, SVDKLSoftmax
from due.networks import FCResNet
from due.rows.source import Table
from due.training import Recipe, fit

pytestmark = pytest.mark.skipif(find_spec("gpytorch") is None, reason="SV-DKL needs gpytorch")


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def grid_gp(J=3, M=20, seed=0):
    """A GP in eval mode in which every parameter has a value of its own."""
    torch.manual_seed(seed)
    gp = GridGP(J, M)
    with torch.no_grad():
        for i, parameter in enumerate(gp.parameters()):
            parameter.add_(0.3 * normal(*parameter.shape, seed=seed + i))
    gp.set_range(torch.tensor(-2.0), torch.tensor(3.0))
    return gp.eval()


def cubic(s):
    """Keys's (1981) convolution kernel."""
    s = abs(s)
    if s <= 1:
        return 1.5 * s**3 - 2.5 * s**2 + 1
    return -0.5 * s**3 + 2.5 * s**2 - 4 * s + 2 if s < 2 else 0.0


def dense(gp, h, bound=10.0):
    """q(g_j(h_n)) by a dense matrix of interpolation, and Σ KL, in numpy."""
    edge = bound + 2 * bound / (gp.M - 2)
    grid = np.linspace(-edge, edge, gp.M)
    low, high = -2.0, 3.0
    t = (h.numpy().clip(low, high) - low) / (high - low)
    x = 0.95 * bound * (2 * t) - 0.95 * bound
    q = gp.strategy._variational_distribution
    m = q.variational_mean.detach().numpy()
    L = np.tril(q.chol_variational_covar.detach().numpy())
    step = grid[1] - grid[0]
    mean, var = np.empty(h.shape), np.empty(h.shape)
    for j in range(gp.J):
        W = np.array([[cubic((x_n - u) / step) for u in grid] for x_n in x[:, j]])  # (N, M)
        assert_allclose(W.sum(1), 1)
        mean[:, j], var[:, j] = W @ m[j], np.diag(W @ L[j] @ L[j].T @ W.T)
    s, ell = gp.prior.kernel.outputscale.item(), gp.prior.kernel.base_kernel.lengthscale.item()
    K = s * np.exp(-((grid[:, None] - grid) ** 2) / (2 * ell**2)) + 1e-3 * np.eye(len(grid))
    kl = 0.0
    for j in range(gp.J):
        gap = m[j] - gp.prior.mean.constant.item()
        S = L[j] @ L[j].T
        logs = np.linalg.slogdet(K)[1] - np.linalg.slogdet(S)[1]
        kl += (np.trace(np.linalg.solve(K, S)) + gap @ np.linalg.solve(K, gap)) / 2
        kl += (logs - len(grid)) / 2
    return mean, var, kl


@pytest.mark.parametrize("J", [1, 3])
def test_posterior_is_the_dense_interpolation(J):
    gp, h = grid_gp(J), 2 * normal(30, J, seed=9)
    assert (h < -2).any() and (h > 3).any()  # clipped
    mean, var = gp(h)
    want_mean, want_var, want_kl = dense(gp, h)
    assert_allclose(mean.detach(), want_mean, atol=1e-7)
    assert_allclose(var.detach(), want_var, rtol=1e-6)
    assert_allclose(gp.kl().item(), want_kl, rtol=1e-6)


def test_posterior_is_gpytorchs():
    gp, h = grid_gp(), 2 * normal(10, 3, seed=9)
    mean, var = gp(h)
    q = gp.strategy(gp.scale(h).mT[..., None])
    assert_allclose(mean.detach(), q.mean.mT.detach())
    assert_allclose(var.detach(), q.variance.mT.detach())
    assert_allclose(gp.kl().item(), gp.strategy.kl_divergence().sum().item())


def test_freezing_changes_nothing():
    gp, h = grid_gp(), 2 * normal(10, 3, seed=9)
    mean, var = gp(h)
    gp.freeze()
    for got, want in zip(gp(h), (mean, var), strict=True):
        assert_allclose(got.detach(), want.detach(), rtol=1e-12)


def test_rows_in_parts_are_as_in_one(monkeypatch):
    gp, h = grid_gp(), 2 * normal(10, 3, seed=9)
    whole = gp(h)
    monkeypatch.setattr("due.methods.svdkl.LARGEST", 1)
    for got, want in zip(gp(h), whole, strict=True):
        assert_allclose(got.detach(), want.detach(), rtol=1e-12)


def test_starts_at_the_prior():
    gp = GridGP(2).eval()
    gp.set_range(torch.tensor(-3.0), torch.tensor(3.0))
    mean, var = gp(normal(10, 2))
    assert mean.abs().max() < 0.01 and gp.kl().item() < 0.1
    assert_allclose(var.detach(), np.full((10, 2), np.log(2)), rtol=0.2)  # softplus(0)


def test_gradients_reach_features_and_gp():
    gp, h = grid_gp().train(), normal(10, 3, seed=9).requires_grad_()
    mean, var = gp(h)
    (mean.sum() + var.sum() + gp.kl()).backward()
    for tensor in (h, *gp.parameters()):
        assert torch.isfinite(tensor.grad).all() and tensor.grad.abs().max() > 0


def test_training_scales_by_the_batch_and_eval_by_the_last_one():
    gp, h = grid_gp().train(), normal(10, 3, seed=9)
    trained = gp(h)[0]
    assert_allclose([gp.scale.min_val, gp.scale.max_val], [h.min(), h.max()])
    assert_allclose(gp.eval()(h[:4])[0].detach(), trained[:4].detach())


def classifier(T=3, J=4):
    torch.manual_seed(0)
    model = SVDKLSoftmax(nn.Linear(2, J).double(), grid_gp(J), T, n_data=50).eval()
    with torch.no_grad():
        model.mixing.copy_(normal(T, J, seed=3))
    return model


@pytest.mark.parametrize(("T", "J"), [(2, 4), (3, 4), (5, 4), (2, 128), (10, 128)])
def test_probabilities_are_the_expectation_of_the_softmax(T, J):
    """With five classes of four functions the logits have a singular covariance."""
    model, x = classifier(T, J), normal(6, 2)
    model.mixing.data.mul_((4 / J) ** 0.5)
    with torch.no_grad():
        mean, var = model.gp(model.f(x))
        A, std = model.mixing.double(), var.sqrt()
        draws = (mean + std * normal(1000, 6, J, seed=seed) for seed in range(60))
        want = sum(torch.softmax(g @ A.mT, -1).mean(0) for g in draws) / 60
        got = model.predict(x)
    assert_allclose(got, want, atol=0.004)  # 60,000 draws: 2e-3
    assert_allclose(got.sum(1), np.ones(6), rtol=1e-6)


def test_prediction_is_the_same_each_time_and_for_each_row_alone():
    model, x = classifier(), normal(6, 2)
    with torch.no_grad():
        together = model.predict(x)
        torch.manual_seed(5)
        assert torch.equal(model.predict(x), together)
        assert_allclose(torch.cat([model.predict(row[None]) for row in x]), together, rtol=1e-12)
        assert model(x, torch.arange(6) % 3) == model(x, torch.arange(6) % 3)
        order = [2, 0, 1]
        model.mixing.copy_(model.mixing[order])
        assert_allclose(model.predict(x), together[:, order], atol=3e-3)  # of the integral


def test_many_rows_are_integrated_in_blocks(monkeypatch):
    model, x = classifier(), normal(6, 2)
    whole = model.predict(x).detach()
    monkeypatch.setattr("due.methods.svdkl.LARGEST", 2000)
    assert_allclose(model.predict(x).detach(), whole, rtol=1e-12)


def test_loss_of_a_classifier_is_the_elbo():
    model, x, y = classifier(), normal(6, 2), torch.arange(6) % 3
    w = normal(6, seed=4).abs()
    with torch.no_grad():
        mean, var = model.gp(model.f(x))
        A = model.mixing.double()
        L = torch.linalg.cholesky((A * var[:, None]) @ A.mT)  # (6, T, T)
        logits = (mean @ A.mT)[..., None] + L @ model.epsilon.mT  # (6, T, S)
        log_p = torch.log_softmax(logits, 1).mean(-1)[range(6), y]
        kl = model.gp.kl() / 50
        assert_allclose(model(x, y), kl - log_p.mean())
        assert_allclose(model(x, y, w), kl - (w * log_p).mean())
        model.samples = 20_000
        model.gp.set_range(*model.f(x).aminmax())
        still = model(x, y)
        assert_allclose(model.train()(x, y), still, rtol=0.01)


def test_as_many_rows_as_features_are_not_transposed():
    """GPyTorch's own SoftmaxLikelihood takes such a batch for a transposed one."""
    model, x = classifier(J=4), normal(5, 2)
    with torch.no_grad():
        assert_allclose(model.predict(x[:4]), model.predict(x)[:4], rtol=1e-12)


def test_regression_is_a_linear_map_of_the_gps():
    torch.manual_seed(0)
    model = SVDKLGaussian(nn.Linear(2, 4).double(), grid_gp(4), 2, n_data=50).eval()
    x, y = normal(6, 2), normal(6, 2, seed=1)
    with torch.no_grad():
        model.b.copy_(normal(2, seed=2))
        mean, var = dense(model.gp, model.f(x))[:2]
        A, b = model.mixing.numpy().astype(float), model.b.numpy()
        want_mean = mean @ A.T + b
        want_var = np.stack([np.diag(A @ np.diag(v) @ A.T) for v in var])
        assert_allclose(model.latent(x).mean, want_mean, atol=1e-6)
        assert_allclose(model.latent(x).var, want_var, rtol=1e-5)
        sigma2 = model.likelihood.sigma2.item()
        assert_allclose(model.predict(x).var, want_var + sigma2, rtol=1e-5)
        misfit = ((y.numpy() - want_mean) ** 2 + want_var) / sigma2
        fit = -0.5 * (np.log(2 * np.pi * sigma2) + misfit).sum(1).mean()
        assert_allclose(model(x, y), model.gp.kl().item() / 50 - fit, rtol=1e-5)


def test_settle_takes_the_range_of_all_rows():
    model, x = classifier().train(), normal(3000, 2)
    model.settle(Table(x, torch.zeros(3000)))
    h = model.f(x)
    assert_allclose(
        [model.gp.scale.min_val, model.gp.scale.max_val], [h.min().item(), h.max().item()]
    )
    assert model.training


def test_learns_two_moons():
    X, y = make_moons(200, noise=0.1, random_state=0)
    x, y = torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(y)
    torch.manual_seed(0)
    model = SVDKLSoftmax(FCResNet(2, 8, 2), GridGP(8, 32), 2, n_data=200)
    before = model.eval()(x, y).item()
    recipe = Recipe(lr=1e-2, epochs=20, batch_size=50)
    history = fit(model, Table(x, y), recipe, progress=False)
    with torch.no_grad():
        assert history.loss[-1] < history.loss[0]
        assert model(x, y) < before
        assert (model.predict(x).argmax(-1) == y).float().mean() > 0.9
    twin = copy.deepcopy(model)  # no graph is left in it
    other = SVDKLSoftmax(FCResNet(2, 8, 2), GridGP(8, 32), 2, n_data=200).eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(twin.predict(x), model.predict(x))
        assert_allclose(other.predict(x), model.predict(x), atol=1e-6)


def test_learns_a_curve():
    x = torch.linspace(-2, 2, 200)[:, None]
    y = torch.sin(3 * x)
    torch.manual_seed(0)
    model = SVDKLGaussian(FCResNet(1, 8, 2), GridGP(8, 32), 1)
    recipe = Recipe(lr=1e-2, epochs=20, batch_size=50)
    history = fit(model, Table(x, y), recipe, progress=False)
    assert model.n_data == 200
    with torch.no_grad():
        assert history.loss[-1] < history.loss[0] - 0.5
        assert (model.predict(x).mean - y).square().mean() < 0.5 * y.var()


def test_missing_gpytorch_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    with pytest.raises(ImportError, match=r"due\[rivals\]"):
        GridGP(3)
