"""The posterior made ready: against the GP it was made from, and against numpy."""

from itertools import product

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from due.gp import FrozenGP, InducingGP, Kernel, set_optimal_q
from due.gp import frozen as module

from . import oracles
from .oracles import KINDS, normal, random_gp, unshared

every_kernel = pytest.mark.parametrize("kind", KINDS)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}


def numpy(tensor):
    return tensor.detach().numpy()


def pair(n=6):
    return normal(n, 3, seed=1), normal(n, 3, seed=2)


def contrast(n):
    """C with f(h1) − f(h0) = C [f(h1), f(h0)]."""
    return np.hstack([np.eye(n), -np.eye(n)])


def dense_difference(gp, h1, h0, t):
    """Mean and covariance of f_t(h1) − f_t(h0) from the unwhitened GP in numpy."""
    mean, cov = oracles.unwhitened(gp, torch.cat([h1, h0]), t)
    C = contrast(len(h1))
    return C @ mean, C @ cov @ C.T


def assert_same(got, want, tolerance):
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# The same as unfrozen


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "kind, T, shared", [c for c in product(KINDS, [1, 3], [False, True]) if c[1:] != (1, True)]
)
@torch.no_grad()
def test_it_answers_as_the_gp_it_was_made_from(kind, T, shared, dtype):
    gp = random_gp(kind, T, shared_kernel=shared)
    frozen, h = FrozenGP(gp), normal(8, 3, seed=1).to(dtype)
    assert_same(frozen(h), gp(h), TOLERANCE[dtype])
    assert_same(frozen.joint(h), gp.joint(h), TOLERANCE[dtype])
    assert_same([frozen.explained(h)], [gp.explained(h)], TOLERANCE[dtype])


@every_kernel
@pytest.mark.parametrize("shared", [False, True])
def test_it_is_the_unwhitened_formula(kind, shared):
    gp, h = random_gp(kind, T=2, shared_kernel=shared), normal(5, 3, seed=1)
    frozen = FrozenGP(gp)
    (mean, var), (joint_mean, cov) = frozen(h), frozen.joint(h)
    twin = unshared(gp) if shared else gp
    for t in range(2):
        want_mean, want_cov = oracles.unwhitened(twin, h, t)
        assert_allclose(mean[:, t], want_mean, atol=1e-9, rtol=0)
        assert_allclose(joint_mean[:, t], want_mean, atol=1e-9, rtol=0)
        assert_allclose(var[:, t], want_cov.diagonal(), atol=1e-9, rtol=0)
        assert_allclose(cov[t], want_cov, atol=1e-9, rtol=0)


@pytest.mark.parametrize("shared", [False, True])
@every_kernel
@torch.no_grad()
def test_almost_coinciding_inducing_points_lose_nothing(kind, shared):
    """κ(Z, Z) is singular up to its jitter, and 1 − ‖A‖² cancels to about that jitter."""
    gp, Z = random_gp(kind, T=2, M=12, shared_kernel=shared), normal(6, 3)
    gp.Z.copy_(torch.cat([Z, Z + 1e-6 * normal(6, 3, seed=1)]))
    near = torch.cat([Z + 1e-5 * normal(6, 3, seed=2), Z, Z + 0.1, Z + 100])
    got, want = FrozenGP(gp)(near), gp(near)
    torch.testing.assert_close(got.mean, want[0], rtol=1e-9, atol=1e-8)
    torch.testing.assert_close(got.var, want[1], rtol=1e-7, atol=1e-9)
    assert (got.var > 0).all()


def test_far_rows_get_the_prior():
    gp = random_gp(T=2)
    mean, var = FrozenGP(gp)(1e4 * torch.ones(1, 3, dtype=torch.float64))
    torch.testing.assert_close(mean[0], gp.mu.detach())
    torch.testing.assert_close(var[0], gp.kernel.outputscale.detach())


@every_kernel
def test_bfloat16_features_get_float32_answers(kind):
    gp = random_gp(kind)
    frozen, h, h0 = FrozenGP(gp), normal(4, 3, seed=1).bfloat16(), normal(4, 3, seed=2).bfloat16()
    with torch.no_grad():
        assert_same(frozen(h), gp(h), 1e-5)
        assert_same(frozen.joint(h), gp.joint(h), 1e-5)
        assert_same([frozen.explained(h)], [gp.explained(h)], 1e-5)
    for ask in (frozen.difference, frozen.joint_difference, frozen.mean_difference):
        for a, b in zip(ask(h, h0), ask(h.float(), h0.float()), strict=True):
            assert a.dtype == torch.float32 and torch.equal(a, b)


@every_kernel
def test_float32_parameters_change_little(kind):
    gp, h = random_gp(kind), normal(4, 3, seed=1).float()
    want = [*FrozenGP(gp)(h), *FrozenGP(gp).difference(h, h.flip(0))]
    gp.to(torch.float32)
    got = [*FrozenGP(gp)(h), *FrozenGP(gp).difference(h, h.flip(0))]
    for a, b in zip(got, want, strict=True):
        assert_allclose(numpy(a), numpy(b), atol=1e-5)


def test_a_row_does_not_depend_on_its_batch():
    frozen, h = FrozenGP(random_gp()), normal(50, 3, seed=1)
    mean, var = frozen(h)
    effect, spread = frozen.difference(h, h.flip(0))
    for n in (0, 17, 49):
        row, other = h[n : n + 1], h.flip(0)[n : n + 1]
        assert_allclose(torch.cat(frozen(row)), torch.stack([mean[n], var[n]]), atol=1e-12)
        want = torch.stack([effect[n], spread[n]])
        assert_allclose(torch.cat(frozen.difference(row, other)), want, atol=1e-12)


def test_it_holds_copies_and_takes_no_gradient():
    gp, h = random_gp(), normal(4, 3, seed=1)
    frozen = FrozenGP(gp)
    want = frozen(h)
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    with torch.no_grad():
        for parameter in gp.parameters():
            parameter.add_(1)
    assert all(torch.equal(a, b) for a, b in zip(frozen(h), want, strict=True))
    assert not torch.equal(gp(h)[0], want.mean)


# Differences of pairs


@every_kernel
@pytest.mark.parametrize("shared", [False, True])
def test_differences_are_the_dense_formula(kind, shared):
    gp, (h1, h0) = random_gp(kind, T=2, shared_kernel=shared), pair()
    frozen = FrozenGP(gp)
    mean, var = frozen.difference(h1, h0)
    joint_mean, cov = frozen.joint_difference(h1, h0)
    average, spread = frozen.mean_difference(h1, h0)
    twin = unshared(gp) if shared else gp
    for t in range(2):
        want, want_cov = dense_difference(twin, h1, h0, t)
        assert_allclose(mean[:, t], want, atol=1e-9)
        assert_allclose(joint_mean[:, t], want, atol=1e-9)
        assert_allclose(average[t], want.mean(), atol=1e-9)
        assert_allclose(var[:, t], want_cov.diagonal(), atol=1e-8)
        assert_allclose(cov[t], want_cov, atol=1e-8)
        assert_allclose(spread[t], want_cov.mean(), atol=1e-8)


@every_kernel
def test_differences_come_from_the_joint_covariance(kind):
    gp, (h1, h0) = random_gp(kind, T=2), pair()
    frozen = FrozenGP(gp)
    (mean, var), (joint_mean, cov) = frozen.difference(h1, h0), frozen.joint_difference(h1, h0)

    want_mean, joint = gp.joint(torch.cat([h1, h0]))
    C = contrast(6)
    want_mean, want = C @ numpy(want_mean), C @ numpy(joint) @ C.T
    assert_allclose(mean, want_mean, atol=1e-10)
    assert_allclose(joint_mean, want_mean, atol=1e-10)
    assert_allclose(var, want.diagonal(axis1=1, axis2=2).T, atol=1e-8)
    assert_allclose(cov, want, atol=1e-8)


def test_the_diagonal_of_the_covariance_is_the_difference_row_by_row():
    frozen, (h1, h0) = FrozenGP(random_gp("matern32", T=2)), pair()
    mean, cov = frozen.joint_difference(h1, h0)
    want_mean, want_var = frozen.difference(h1, h0)
    assert_allclose(mean, want_mean, atol=1e-12)
    assert_allclose(cov.diagonal(dim1=1, dim2=2).T, want_var, atol=1e-9)


def test_difference_equals_monte_carlo():
    gp, (h1, h0) = random_gp(T=2), pair(3)
    mean, var = FrozenGP(gp).difference(h1, h0)

    joint_mean, cov = gp.joint(torch.cat([h1, h0]))
    noise = normal(200_000, 2, 6)  # (S, T, N)
    f = joint_mean.mT + torch.einsum("tnk,stk->stn", torch.linalg.cholesky(cov), noise)
    tau = (f[..., :3] - f[..., 3:]).mT  # (S, N, T)
    assert_allclose(mean, numpy(tau.mean(0)), atol=0.01)
    assert_allclose(var, numpy(tau.var(0)), rtol=0.02)


@every_kernel
@pytest.mark.parametrize("epsilon", [1e-6, 1e-9])
def test_difference_keeps_its_digits_when_the_points_almost_coincide(kind, epsilon):
    frozen, (h, u) = FrozenGP(random_gp(kind, T=2)), pair()
    mean, var = frozen.difference(h + epsilon * u, h)
    near_mean, near_var = frozen.difference(h + 1e-4 * u, h)  # still well conditioned

    power = 1 if kind == "matern12" else 2  # only this kernel has no derivative at 0
    assert_allclose(mean / epsilon, near_mean / 1e-4, rtol=0.01, atol=1e-3)
    assert_allclose(var / epsilon**power, near_var / 1e-4**power, rtol=0.01)


@every_kernel
def test_difference_of_equal_points_is_zero(kind):
    frozen, h = FrozenGP(random_gp(kind)), normal(6, 3, seed=1)
    mean, var = frozen.difference(h, h)
    assert (mean == 0).all() and (var == 0).all()
    assert (Kernel(kind).gap(h, h) == 0).all()


@pytest.mark.parametrize("block", [4, 1000])
@pytest.mark.parametrize("shared", [False, True])
def test_average_difference_is_the_average_of_the_joint_one(monkeypatch, block, shared):
    monkeypatch.setattr(module, "BLOCK", block)
    frozen, (h1, h0) = FrozenGP(random_gp("rbf", T=2, shared_kernel=shared)), pair(10)
    mean, var = frozen.mean_difference(h1, h0)
    joint_mean, cov = frozen.joint_difference(h1, h0)
    assert_allclose(mean, joint_mean.mean(0), atol=1e-12)
    assert_allclose(var, cov.mean((1, 2)), atol=1e-10)


@every_kernel
def test_gradients_of_joint_and_difference_reach_the_features(kind):
    frozen, h0 = FrozenGP(random_gp(kind, T=2, M=3, J=2)), normal(3, 2, seed=2)
    h = normal(3, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(frozen, (h,))
    assert torch.autograd.gradcheck(frozen.joint, (h,))
    assert torch.autograd.gradcheck(lambda h: frozen.difference(h, h0), (h,))


def test_effects_of_an_exact_gp_when_every_person_is_an_inducing_point():
    """τ = f([x, 1]) − f([x, 0]) of N people against the textbook posterior in numpy."""
    x, t = normal(40, 2), (normal(40, 1, seed=3) > 0).double()
    h, new = torch.cat([x, t], 1), normal(7, 2, seed=4)
    y = (x[:, :1] + t * x[:, 1:]).double() + 0.1 * normal(40, 1, seed=5)
    gp = InducingGP(h, 1, 1.5, "matern32", jitter=1e-12)
    set_optimal_q(gp, h, y, torch.tensor([0.01]))
    h1, h0 = (torch.cat([new, torch.full((7, 1), float(arm))], 1) for arm in (1, 0))
    frozen = FrozenGP(gp)
    mean, var = frozen.difference(h1, h0)
    average, spread = frozen.mean_difference(h1, h0)

    both = torch.cat([h1, h0])
    K, k, kk = (oracles.kernel(gp.kernel, a, b) for a, b in ((h, h), (h, both), (both, both)))
    want, cov = oracles.exact_posterior(K, k, kk, numpy(y)[:, 0], gp.mu.item(), 0.01)
    want, cov = contrast(7) @ want, contrast(7) @ cov @ contrast(7).T
    assert_allclose(mean[:, 0], want, atol=1e-6)
    assert_allclose(var[:, 0], np.diag(cov), atol=1e-6)
    assert_allclose([average[0], spread[0]], [want.mean(), cov.mean()], atol=1e-6)
