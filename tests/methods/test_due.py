import copy
import warnings
from itertools import product
from math import log, pi

import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from due.gp import Gaussian, InducingGP, Normal, Softmax, collapsed_bound
from due.gp.kernels import KINDS
from due.lipschitz import constrain
from due.lipschitz.constrain import SilentNetworkWarning
from due.methods import DUE, TreatmentDUE
from due.networks import AppendTreatment, FCResNet
from due.predictor import ClassPredictor, ValuePredictor
from due.rows.scale import Scale
from due.rows.source import Table


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def regression(T=2, N=12, f=None, **arguments):
    x, y = normal(N, 4, seed=1), normal(N, T, seed=2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        f = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double() if f is None else f
    gp = InducingGP(normal(5, 3), T)
    gp.set_q(normal(T, 5, seed=3), normal(T, 5, 5, seed=4).tril())
    return DUE(f, gp, Gaussian(sigma2=0.3), n_data=N, **arguments), x, y


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
    assert torch.equal(model.losses(x, y), -log_prob)


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


# The collapsed bound


@pytest.mark.parametrize("weighted", [False, True])
def test_collapsed_loss_is_minus_the_bound_over_n(weighted):
    model, x, y = regression(bound="collapsed")
    w = normal(12, seed=5).exp() if weighted else None
    bound = collapsed_bound(model.gp, model.f(x), y, model.likelihood.sigma2, w)
    assert_allclose(model(x, y, w).item(), -bound.item() / 12, rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_once_settled_the_elbo_is_the_collapsed_bound(weighted):
    model, x, y = regression(bound="collapsed")
    w = normal(12, seed=5).exp() if weighted else None
    model.settle(Table(x, y, w))
    elbo = DUE(model.f, model.gp, model.likelihood, n_data=12, bound="elbo")
    assert_allclose(elbo(x, y, w).item(), model(x, y, w).item(), rtol=1e-9)


def test_settle_leaves_the_elbos_own_q_alone():
    model, x, y = regression(bound="elbo")
    m = model.gp.m.clone()
    model.settle(Table(x, y))
    assert torch.equal(m, model.gp.m)


def test_auto_is_the_collapsed_bound_up_to_5000_rows():
    model, x, y = regression(bound="auto")
    collapsed, _, _ = regression(bound="collapsed")
    assert model(x, y).item() == collapsed(x, y).item()
    model.n_data = collapsed.n_data = 5001
    elbo = DUE(model.f, model.gp, model.likelihood, n_data=5001)
    assert model(x, y).item() == elbo(x, y).item() != collapsed(x, y).item()


def test_collapsed_bound_trains_everything_but_q():
    model, x, y = regression(bound="collapsed")
    model(x, y).backward()
    without = {name for name, p in model.named_parameters() if p.grad is None}
    assert without == {"gp.m", "gp.raw_L_S"}


def test_collapsed_bound_refuses_classes():
    model, x, _ = classification()
    model.bound = "collapsed"
    with pytest.raises(TypeError, match="needs a Gaussian likelihood; use the ELBO"):
        model(x, normal(12, 3))
    with pytest.raises(TypeError, match="needs a Gaussian likelihood"):
        model.settle(Table(x, normal(12, 3)))


# What finish does


def no_training(*args, **recipe):
    raise AssertionError("trained")


@pytest.mark.parametrize("finish", ["q", "noise", "gp"])
def test_finish_lets_q_learn_from_held_out_rows_too(finish):
    model, x, y = regression(bound="collapsed", finish=finish)
    calls = []
    known, held_out = Table(x[:8], y[:8]), Table(x[8:], y[8:])
    model.eval().finish(known, held_out, 0, lambda *args, **recipe: calls.append((args, recipe)))

    m, S = model.gp.m.clone(), model.gp.L_S @ model.gp.L_S.mT
    model.settle(Table(x, y))
    assert_allclose(m.detach(), model.gp.m.detach(), atol=1e-12)
    assert_allclose(S.detach(), (model.gp.L_S @ model.gp.L_S.mT).detach(), atol=1e-12)
    assert len(calls) == (finish == "gp")
    if finish == "gp":  # the head alone, on the features of all rows
        (head, source), recipe = calls[0]
        assert head.gp is model.gp and recipe == {"lr": 2e-2, "epochs": 60}
        assert torch.equal(source.data[0], model.f(x).detach())


def test_finish_nothing_leaves_q_to_the_training_rows():
    model, x, y = regression(bound="collapsed", finish="nothing")
    model.settle(Table(x[:8], y[:8]))
    m = model.gp.m.clone()
    model.finish(Table(x[:8], y[:8]), Table(x[8:], y[8:]), 0, no_training)
    assert torch.equal(m, model.gp.m)


def test_finish_keeps_the_features_of_training_rows():
    model, x, y = regression()
    model.eval().finish(Table(x, y), None, 0, no_training)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    assert_allclose(model.reference, model.f(x[order]).detach())


def test_treatment_finish_keeps_the_features_of_each_arm():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        f = AppendTreatment(nn.Linear(3, 2))
    xt = torch.cat([normal(12, 3), (torch.arange(12.0) % 3 == 0)[:, None]], 1).float()
    y = normal(12, 1, seed=1).float()
    model = TreatmentDUE(f, InducingGP(normal(5, 3)), Gaussian(), bound="collapsed", finish="q")
    model.eval().finish(Table(xt[:9], y[:9]), Table(xt[9:], y[9:]), 0, no_training)
    for arm, H in enumerate((model.arm0, model.arm1)):
        want = f.double()(xt[xt[:, -1] == arm].double()).detach()
        f.float()
        assert H.dtype == torch.float64 and (H[:, -1] == arm).all()
        assert_allclose(H[H[:, 0].argsort()], want[want[:, 0].argsort()], atol=1e-12)


# As it predicts

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
INTEGRALS = ["exact", "monte_carlo", "mean_field"]
LIKELIHOODS = {
    "gaussian": Gaussian(),
    **{f"{method}-{T}": Softmax(T, method) for T in (2, 10) for method in INTEGRALS},
}


class ConvNet(nn.Sequential):
    """x (N, 3, 8, 8) → h (N, 10), with a stride and batch norm."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 10),
        )


def shuffled(gp, seed=0):
    """Every parameter of the GP away from where it starts, each output differently."""
    T, M = gp.m.shape
    with torch.no_grad():
        for i, parameter in enumerate([*gp.kernel.parameters(), gp.mu]):
            parameter += 0.5 * normal(*parameter.shape, seed=seed + i)
    gp.set_q(normal(T, M, seed=seed + 10), 0.5 * normal(T, M, M, seed=seed + 11).tril())
    return gp


def network(kind):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        f: nn.Module
        if kind == "conv":
            f, x = ConvNet(), 3 * normal(16, 3, 8, 8).float()
        else:
            f, x = FCResNet(4, 10, depth=3, activation="elu"), 3 * normal(16, 4).float()
        for parameter in f.parameters():  # so that the bound binds
            parameter.data.mul_(3 if parameter.dim() > 1 else 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SilentNetworkWarning)  # it is not: its weights are large
        constrain(f, 0.9, x)
    f.train()
    for _ in range(3):  # batch-norm statistics, and v a few steps from convergence
        f(x)
    return f.eval(), x


def finished(likelihood, net="fc", kernel="rbf", shared=False, dtype=torch.float32, T=None, M=7):
    """An eval-mode model with nothing at its initial value, and 16 inputs for it."""
    f, x = network(net)
    f, x = f.to(dtype), x.to(dtype)
    T = T or getattr(likelihood, "T", 1)
    h = f(x).detach().double()
    Z = h[:M] + 0.3 * normal(M, 10, seed=5)
    gp = shuffled(InducingGP(Z, T, float(torch.pdist(h).mean()), kernel, shared))
    model = DUE(f, gp, copy.deepcopy(likelihood), n_data=16).eval()
    model.finish(Table(x[:12], torch.zeros(12)), None, 0, no_training)
    return model, x


def assert_close(got, want, tolerance):
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, check_dtype=False)


def frozen_predict(frozen, x):
    """What `DUE.predict` gives, from the frozen model's parts."""
    h = frozen.f(x)
    if hasattr(frozen, "probabilities"):
        return (frozen.probabilities(h),)
    mean, var, noise = frozen.moments(h)
    return mean, var + noise


@torch.no_grad()
def assert_predicts_the_same(model, x):
    frozen, tolerance = model.predictor(), TOLERANCE[x.dtype]
    h = frozen.f(x.double())
    assert h.dtype == torch.float64
    assert_close([h], [model.f(x)], tolerance)
    assert_close(frozen.gp(h), model.latent(x), tolerance)
    assert_close([frozen.gp.explained(h)], [model.gp.explained(model.f(x))], tolerance)
    if isinstance(model.likelihood, Gaussian):
        assert_close(frozen_predict(frozen, x.double()), model.predict(x), tolerance)
        assert_close(frozen.joint(h)[:2], model.gp.joint(model.f(x)), tolerance)
    else:
        integral = max(tolerance, 1e-6)  # float32 inside
        assert_close(frozen_predict(frozen, x.double()), [model.predict(x)], integral)
        mean, var = model.latent(x)
        expected = model.likelihood.expected_entropy(mean, var)
        assert_close(frozen.parts(h), [expected, var.mean(-1)], tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "kernel, T, shared", [c for c in product(KINDS, [1, 3], [False, True]) if c[1:] != (1, True)]
)
def test_regression_predicts_as_trained(kernel, T, shared, dtype):
    model, x = finished(Gaussian(noises=T), "fc", kernel, shared, dtype, T)
    assert_predicts_the_same(model, x)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("T", [2, 5])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("method", INTEGRALS)
def test_classification_predicts_as_trained(method, shared, T, dtype):
    model, x = finished(Softmax(T, method), "fc", "matern32", shared, dtype)
    assert_predicts_the_same(model, x)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("likelihood", [Gaussian(), Softmax(4)], ids=["gaussian", "softmax"])
def test_convolutions_and_batch_norm_predict_as_trained(likelihood, dtype):
    assert_predicts_the_same(*finished(likelihood, "conv", dtype=dtype))


@pytest.mark.parametrize("net", ["fc", "conv"])
def test_the_frozen_network_is_plain_and_takes_no_gradient(net):
    model, x = finished(Gaussian(), net)
    frozen = model.train().predictor()
    assert not any(module.training for module in frozen.modules())
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert not any(name.endswith(".v") for name in frozen.state_dict())
    assert not frozen.moments(frozen.f(x.double()))[0].requires_grad
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())
    assert all(p.dtype == torch.float32 for p in model.f.parameters())


@pytest.mark.parametrize("net", ["fc", "conv"])
@pytest.mark.parametrize("likelihood", [Gaussian(), Softmax(3)], ids=["gaussian", "softmax"])
def test_later_training_does_not_reach_the_frozen_model(likelihood, net):
    model, x = finished(likelihood, net)
    y = torch.arange(16) % 3 if isinstance(likelihood, Softmax) else normal(16, 1).float()
    frozen, before = model.predictor(), model.latent(x).mean
    h = frozen.f(x.double())
    want = [*frozen_predict(frozen, x.double()), *frozen.gp(h), frozen.foreign(h)]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        model(x, y).backward()
        optimizer.step()
    model.eval().finish(Table(x, y), None, 0, no_training)
    h = frozen.f(x.double())
    assert_close([*frozen_predict(frozen, x.double()), *frozen.gp(h), frozen.foreign(h)], want, 0)
    assert (model.latent(x).mean - before).abs().max() > 1e-3


def wrapped(model, x):
    """The predictor of raw rows that are in standard units already."""
    one, frozen = Scale.identity(tuple(x.shape[1:])), model.predictor()
    if isinstance(model.likelihood, Softmax):
        return ClassPredictor(frozen, one)
    return ValuePredictor(frozen, one, Scale.identity((1,)))


def given(answer):
    """What the predictor knows; without rows held out it has no p-value."""
    assert answer.ood_pvalue is None
    return answer[:-1]


@pytest.mark.parametrize("net", ["fc", "conv"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=LIKELIHOODS)
def test_a_row_alone_is_the_row_in_a_batch(likelihood, net):
    model, x = finished(likelihood, net)
    predictor = wrapped(model, x)
    alone = zip(*(given(predictor(row[None])) for row in x), strict=True)
    assert_close([torch.cat(parts) for parts in alone], given(predictor(x)), 1e-6)


@pytest.mark.parametrize("net", ["fc", "conv"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=LIKELIHOODS)
def test_exports_with_any_batch_size(likelihood, net):
    model, x = finished(likelihood, net)
    predictor = wrapped(model, x)
    program = torch.export.export(predictor, (x,), dynamic_shapes=({0: torch.export.Dim("N")},))
    run = program.module()
    for rows in (x[:1], x[:2], x[:7], x, x.repeat(5, *[1] * (x.dim() - 1))):
        assert_close(given(run(rows)), given(predictor(rows)), 1e-6)


def test_an_unfinished_model_has_no_ood_score():
    model, x, _ = regression()
    with pytest.raises(ValueError, match="needs the features of training rows: call `fit` first"):
        model.predictor().foreign(model.f(x))
