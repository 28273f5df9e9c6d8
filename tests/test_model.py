import copy
from math import log, pi

import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from due.gp import Gaussian, InducingGP, Normal, Softmax, collapsed_bound
from due.model import DUE, CollapsedBound


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def regression(T=2, N=12, f=None):
    x, y = normal(N, 4, seed=1), normal(N, T, seed=2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        f = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double() if f is None else f
    gp = InducingGP(normal(5, 3), T)
    gp.set_q(normal(T, 5, seed=3), normal(T, 5, 5, seed=4).tril())
    return DUE(f, gp, Gaussian(sigma2=0.3), n_data=N), x, y


def classification(T=3, N=12):
    model, x, _ = regression(T, N)
    return DUE(model.f, model.gp, Softmax(T), n_data=N), x, torch.arange(N) % T


# DUE


def test_loss_is_minus_the_elbo_over_n():
    model, x, y = regression()
    q = model.gp
    mean, var = q(model.f(x))
    sigma2 = model.likelihood.sigma2
    fit = -0.5 * (log(2 * pi) + sigma2.log() + ((y - mean) ** 2 + var) / sigma2).sum()
    S = q.L_S @ q.L_S.mT
    kl = sum(0.5 * (S_t.trace() + m @ m - 5 - S_t.logdet()) for S_t, m in zip(S, q.m, strict=True))
    assert_allclose(model(x, y).item(), ((kl - fit) / 12).item(), rtol=1e-12)


def test_classification_loss_is_minus_the_elbo_over_n():
    model, x, y = classification()
    model.eval()
    log_prob = model.likelihood.expected_log_prob(*model.latent(x), y)
    want = model.gp.kl() / 12 - log_prob.mean()
    assert_allclose(model(x, y).item(), want.item(), rtol=1e-12)
    assert torch.equal(model.expected_log_prob(x, y), log_prob)


@pytest.mark.parametrize("size", [1, 3, 4])
def test_minibatch_losses_average_to_the_full_loss(size):
    model, x, y = regression()
    parts = [model(x[i : i + size], y[i : i + size]).item() for i in range(0, 12, size)]
    assert_allclose(sum(parts) / len(parts), model(x, y).item(), rtol=1e-12)


@pytest.mark.parametrize("make", [regression, classification])
def test_integer_weights_repeat_rows(make):
    model, x, y = make()
    model.eval()
    w = torch.arange(12) % 4
    rows = torch.arange(12).repeat_interleave(w)
    repeated = DUE(model.f, model.gp, model.likelihood, n_data=len(rows)).eval()
    want = len(rows) * repeated(x[rows], y[rows]).item()  # −ELBO of the longer data
    assert_allclose(12 * model(x, y, w.double()).item(), want, rtol=1e-12)


def test_unit_weights_change_nothing():
    model, x, y = regression()
    assert_allclose(model(x, y, torch.ones(12)).item(), model(x, y).item(), rtol=1e-12)


def test_predict_adds_noise_to_latent():
    model, x, _ = regression()
    latent, predicted = model.latent(x), model.predict(x)
    assert isinstance(predicted, Normal)
    assert torch.equal(predicted.mean, latent.mean)
    noise = (predicted.var - latent.var).detach().numpy()
    assert_allclose(noise, model.likelihood.sigma2.item(), rtol=1e-9)


@pytest.mark.parametrize("N", [3, 12])  # also as many rows as classes
def test_predict_gives_class_probabilities(N):
    model, x, _ = classification()
    p = model.predict(x[:N])
    assert_allclose(p.sum(1).detach().numpy(), 1, atol=1e-9)
    assert_allclose(p.detach().numpy(), model.predict(x)[:N].detach().numpy(), atol=1e-9)


@pytest.mark.parametrize("make", [regression, classification])
def test_every_parameter_gets_a_gradient(make):
    model, x, y = make()
    with torch.random.fork_rng():
        model(x, y).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("make", [regression, classification])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_model_in_another_dtype(make, dtype):
    model, x, y = make()
    want = model.eval()(x, y).item()
    model.to(dtype)
    y = y.to(dtype) if y.is_floating_point() else y
    loss = model(x.to(dtype), y)
    assert_allclose(loss.item(), want, rtol=1e-5)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("make", [regression, classification])
def test_bfloat16_features(make):
    model, x, y = make()
    model.eval()
    want = model(x, y).item()
    model.f.to(torch.bfloat16)
    y = y.float() if y.is_floating_point() else y
    loss = model(x.bfloat16(), y)
    assert_allclose(loss.item(), want, rtol=0.02)  # three digits in, two out
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("make", [regression, classification])
def test_survives_deepcopy_and_state_dict(make):
    model, x, y = make()
    want = model.eval()(x, y)
    fresh, _, _ = make()
    for parameter in fresh.parameters():
        parameter.data.zero_()
    fresh.load_state_dict(model.state_dict())
    for twin in (copy.deepcopy(model), fresh.eval()):
        assert torch.equal(twin(x, y), want)


# CollapsedBound


@pytest.mark.parametrize("weighted", [False, True])
def test_collapsed_loss_is_minus_the_bound_over_n(weighted):
    model, x, y = regression()
    w = normal(12, seed=5).exp() if weighted else None
    bound = collapsed_bound(model.gp, model.f(x), y, model.likelihood.sigma2, w)
    assert_allclose(CollapsedBound(model)(x, y, w).item(), -bound.item() / 12, rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_after_set_q_the_loss_of_the_model_is_the_collapsed_loss(weighted):
    model, x, y = regression()
    w = normal(12, seed=5).exp() if weighted else None
    loss = CollapsedBound(model)
    loss.set_q(x, y, w)
    assert_allclose(model(x, y, w).item(), loss(x, y, w).item(), rtol=1e-9)


@pytest.mark.parametrize("training", [True, False])
def test_set_q_uses_eval_features_and_leaves_the_mode_alone(training):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        f = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).double()
    model, x, y = regression(f=f)
    loss = CollapsedBound(model).train(training)
    loss.set_q(x, y)
    assert model.training is training and model.f[1].training is training
    m = model.gp.m.clone()
    model.eval()
    loss.set_q(x, y)
    assert torch.equal(m, model.gp.m)


def test_collapsed_bound_trains_everything_but_q():
    model, x, y = regression()
    CollapsedBound(model)(x, y).backward()
    without = {name for name, p in model.named_parameters() if p.grad is None}
    assert without == {"gp.m", "gp.raw_L_S"}


def test_collapsed_bound_refuses_classes():
    model, x, _ = classification()
    with pytest.raises(TypeError, match="needs a Gaussian likelihood; use DUE"):
        CollapsedBound(model)(x, normal(12, 3))
    with pytest.raises(TypeError, match="needs a Gaussian likelihood"):
        CollapsedBound(model).set_q(x, normal(12, 3))
