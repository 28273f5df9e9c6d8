"""Many differences at once: the dense joint covariance, an exact GP in numpy, and averages."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from due.gp import InducingGP, joint_difference, mean_difference, set_optimal_q
from due.gp import difference as module

from . import oracles
from .oracles import KINDS, normal, random_gp

every_kernel = pytest.mark.parametrize("kind", KINDS)


def numpy(tensor):
    return tensor.detach().numpy()


@every_kernel
def test_covariance_of_differences_comes_from_the_joint_covariance(kind):
    gp, h1, h0 = random_gp(kind, T=2), normal(6, 3, seed=1), normal(6, 3, seed=2)
    mean, cov = joint_difference(gp, h1, h0)

    joint_mean, joint = gp.joint(torch.cat([h1, h0]))
    C = np.hstack([np.eye(6), -np.eye(6)])  # f(h1) − f(h0) = C [f(h1), f(h0)]
    assert_allclose(numpy(mean), C @ numpy(joint_mean), atol=1e-12)
    assert_allclose(numpy(cov), C @ numpy(joint) @ C.T, atol=1e-8)


def test_its_diagonal_is_the_difference_row_by_row():
    gp, h1, h0 = random_gp("matern32", T=2), normal(6, 3, seed=1), normal(6, 3, seed=2)
    mean, cov = joint_difference(gp, h1, h0)
    want_mean, want_var = gp.difference(h1, h0)
    assert_allclose(numpy(mean), numpy(want_mean), atol=1e-12)
    assert_allclose(numpy(cov.diagonal(dim1=1, dim2=2)).T, numpy(want_var), atol=1e-9)


@pytest.mark.parametrize("block", [4, 1000])
@pytest.mark.parametrize("shared", [False, True])
def test_average_difference_is_the_average_of_the_joint_one(monkeypatch, block, shared):
    monkeypatch.setattr(module, "BLOCK", block)
    gp = random_gp("rbf", T=2, shared_kernel=shared)
    h1, h0 = normal(10, 3, seed=1), normal(10, 3, seed=2)
    mean, var = mean_difference(gp, h1, h0)
    joint_mean, cov = joint_difference(gp, h1, h0)
    assert_allclose(numpy(mean), numpy(joint_mean.mean(0)), atol=1e-12)
    assert_allclose(numpy(var), numpy(cov.mean((1, 2))), atol=1e-10)


def test_effects_of_an_exact_gp_when_every_person_is_an_inducing_point():
    """τ = f([x, 1]) − f([x, 0]) of N people against the textbook posterior in numpy."""
    x, t = normal(40, 2), (normal(40, 1, seed=3) > 0).double()
    h, new = torch.cat([x, t], 1), normal(7, 2, seed=4)
    y = (x[:, :1] + t * x[:, 1:]).double() + 0.1 * normal(40, 1, seed=5)
    gp = InducingGP(h, 1, 1.5, "matern32", jitter=1e-12)
    set_optimal_q(gp, h, y, torch.tensor([0.01]))
    h1, h0 = (torch.cat([new, torch.full((7, 1), float(arm))], 1) for arm in (1, 0))
    mean, var = gp.difference(h1, h0)

    both = torch.cat([h1, h0])
    K, k, kk = (oracles.kernel(gp.kernel, a, b) for a, b in ((h, h), (h, both), (both, both)))
    want, cov = oracles.exact_posterior(K, k, kk, numpy(y)[:, 0], gp.mu.item(), 0.01)
    C = np.hstack([np.eye(7), -np.eye(7)])
    assert_allclose(numpy(mean)[:, 0], C @ want, atol=1e-6)
    assert_allclose(numpy(var)[:, 0], np.diag(C @ cov @ C.T), atol=1e-6)
