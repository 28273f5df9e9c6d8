import copy
from itertools import product

import pytest
import torch
from torch import nn

from due.frozen import FrozenGP, freeze
from due.gp import Gaussian, InducingGP, Normal, Softmax
from due.gp.kernels import KINDS
from due.lipschitz import constrain
from due.model import DUE
from due.networks import FCResNet

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
METHODS = ["quasi", "monte_carlo", "mean_field"]
LIKELIHOODS = {
    "gaussian": Gaussian(),
    **{f"{method}-{T}": Softmax(T, method) for T in (2, 10) for method in METHODS},
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


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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
        if kind == "conv":
            f, x = ConvNet(), 3 * normal(16, 3, 8, 8).float()
        else:
            f, x = FCResNet(4, 10, depth=3, activation="elu"), 3 * normal(16, 4).float()
        for parameter in f.parameters():  # so that the bound binds
            parameter.data.mul_(3 if parameter.dim() > 1 else 1)
    constrain(f, 0.9, x)
    f.train()
    for _ in range(3):  # batch-norm statistics, and v a few steps from convergence
        f(x)
    return f.eval(), x


def due(likelihood, net="fc", kernel="rbf", shared=False, dtype=torch.float32, T=None, M=7):
    """An eval-mode model with nothing at its initial value, and 16 inputs for it."""
    f, x = network(net)
    f, x = f.to(dtype), x.to(dtype)
    T = T or getattr(likelihood, "T", 1)
    h = f(x).detach().double()
    Z = h[:M] + 0.3 * normal(M, 10, seed=5)
    gp = shuffled(InducingGP(Z, T, float(torch.pdist(h).mean()), kernel, shared))
    return DUE(f, gp, likelihood, n_data=16).eval(), x


def assert_same(got, want, tolerance):
    if isinstance(want, tuple):
        assert isinstance(got, Normal)
        for a, b in zip(got, want, strict=True):
            assert_same(a, b, tolerance)
        return
    assert got.dtype == want.dtype and got.shape == want.shape
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@torch.no_grad()
def assert_predicts_the_same(model, x):
    frozen, tolerance = freeze(model), TOLERANCE[x.dtype]
    assert_same(frozen.latent(x), model.latent(x), tolerance)
    assert_same(frozen.predict(x), model.predict(x), tolerance)
    assert_same(frozen(x), model.predict(x), tolerance)
    h = model.f(x)
    assert_same(frozen.gp.explained(h), model.gp.explained(h), tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "kernel, T, shared", [c for c in product(KINDS, [1, 3], [False, True]) if c[1:] != (1, True)]
)
def test_regression_predicts_as_unfrozen(kernel, T, shared, dtype):
    model, x = due(Gaussian(noises=T), "fc", kernel, shared, dtype, T)
    assert_predicts_the_same(model, x)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("T", [2, 5])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_classification_predicts_as_unfrozen(method, shared, T, dtype):
    model, x = due(Softmax(T, method), "fc", "matern32", shared, dtype)
    assert_predicts_the_same(model, x)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("likelihood", [Gaussian(), Softmax(4)], ids=["gaussian", "softmax"])
def test_convolutions_and_batch_norm_predict_as_unfrozen(likelihood, dtype):
    assert_predicts_the_same(*due(likelihood, "conv", dtype=dtype))


@pytest.mark.parametrize("net", ["fc", "conv"])
def test_the_frozen_network_is_plain_and_takes_no_gradient(net):
    model, x = due(Gaussian(), net)
    frozen = freeze(model.train())
    assert not any(module.training for module in frozen.modules())
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert not any(name.endswith(".v") for name in frozen.state_dict())
    assert not frozen.predict(x).mean.requires_grad
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("net", ["fc", "conv"])
@pytest.mark.parametrize("likelihood", [Gaussian(), Softmax(3)], ids=["gaussian", "softmax"])
def test_later_training_does_not_reach_the_frozen_model(likelihood, net):
    model, x = due(copy.deepcopy(likelihood), net)
    y = torch.arange(16) % 3 if isinstance(likelihood, Softmax) else normal(16, 1).float()
    frozen = freeze(model)
    want = frozen.predict(x), frozen.latent(x), model.latent(x)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        model(x, y).backward()
        optimizer.step()
    model.eval()
    assert_same(frozen.predict(x), want[0], 0)
    assert_same(frozen.latent(x), want[1], 0)
    assert (model.latent(x).mean - want[2].mean).abs().max() > 1e-3


@pytest.mark.parametrize("net", ["fc", "conv"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=LIKELIHOODS)
def test_a_row_alone_is_the_row_in_a_batch(likelihood, net):
    model, x = due(likelihood, net)
    frozen = freeze(model)
    alone = [frozen.predict(row[None]) for row in x]
    if isinstance(likelihood, Gaussian):
        alone = Normal(*(torch.cat(parts) for parts in zip(*alone, strict=True)))
        assert_same(alone, frozen.predict(x), 1e-6)
    else:
        assert_same(torch.cat(alone), frozen.predict(x), 1e-6)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kernel", KINDS)
def test_almost_coinciding_inducing_points_lose_nothing(kernel, shared):
    """κ(Z, Z) is singular up to its jitter, and 1 − ‖A‖² cancels to about that jitter."""
    Z = normal(6, 3)
    gp = InducingGP(torch.cat([Z, Z + 1e-6 * normal(6, 3, seed=1)]), 2, 1.5, kernel, shared)
    gp = shuffled(gp)
    near = torch.cat([Z + 1e-5 * normal(6, 3, seed=2), Z, Z + 0.1, Z + 100])
    with torch.no_grad():
        got, want = FrozenGP(gp)(near), gp(near)
    torch.testing.assert_close(got.mean, want[0], rtol=1e-9, atol=1e-8)
    torch.testing.assert_close(got.var, want[1], rtol=1e-7, atol=1e-9)
    assert (got.var > 0).all()


def test_far_rows_get_the_prior():
    gp = shuffled(InducingGP(normal(6, 3), 2))
    mean, var = FrozenGP(gp)(1e4 * torch.ones(1, 3, dtype=torch.float64))
    torch.testing.assert_close(mean[0], gp.mu.detach())
    torch.testing.assert_close(var[0], gp.kernel.outputscale.detach())


def test_bfloat16_features_give_float32_answers():
    gp = shuffled(InducingGP(normal(6, 3), 2))
    h = normal(5, 3).bfloat16()
    with torch.no_grad():
        assert_same(FrozenGP(gp)(h), Normal(*gp(h)), 1e-5)
        assert_same(FrozenGP(gp).explained(h), gp.explained(h), 1e-5)


@pytest.mark.parametrize("net", ["fc", "conv"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=LIKELIHOODS)
def test_exports_with_any_batch_size(likelihood, net):
    model, x = due(likelihood, net)
    frozen = freeze(model)
    program = torch.export.export(frozen, (x,), dynamic_shapes=({0: torch.export.Dim("N")},))
    run = program.module()
    for rows in (x[:1], x[:2], x[:7], x, x.repeat(5, *[1] * (x.dim() - 1))):
        assert_same(run(rows), frozen(rows), 1e-6)
