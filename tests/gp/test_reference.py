"""due.gp.Reference is the variance ratio of an exact GP."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from due.gp import Kernel, Reference
from due.gp.reference import JITTER


def points(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def matern32(a, b, lengthscale):
    r = np.sqrt(3) * np.linalg.norm(a[:, None] - b[None], axis=-1) / lengthscale
    return (1 + r) * np.exp(-r)


def test_is_the_share_of_variance_that_an_exact_gp_loses():
    H, new = points(30, 3), points(10, 3, seed=1)
    kernel = Kernel("matern32", T=1, lengthscale=1.3, outputscale=2.5)

    got = Reference(torch.from_numpy(H), kernel)(torch.from_numpy(new))

    s = 2.5
    K, k = s * matern32(H, H, 1.3), s * matern32(H, new, 1.3)
    posterior = s - np.einsum("pn,pn->n", k, np.linalg.solve(K + s * JITTER * np.eye(30), k))
    assert_allclose(got, 1 - posterior / s, atol=1e-8)


def test_length_scales_are_averaged():
    kernel = Kernel("rbf", T=2)
    with torch.no_grad():
        kernel.raw_lengthscale.copy_(torch.tensor([0.3, 2.0]))
    mean = Kernel("rbf", T=1, lengthscale=kernel.lengthscale.mean().item())
    H, new = torch.from_numpy(points(20, 2)), torch.from_numpy(points(5, 2, seed=1))
    assert_allclose(Reference(H, kernel)(new), Reference(H, mean)(new), rtol=1e-12)


@pytest.mark.parametrize("kind", ["rbf", "matern12", "matern32", "matern52", "rq"])
def test_one_on_the_data_and_zero_far_away(kind):
    H = torch.from_numpy(points(40, 2))
    reference = Reference(H, Kernel(kind, lengthscale=0.5))

    on, far = reference(H), reference(H + 1e6)

    assert ((on >= 1 - 2 * JITTER) & (on <= 1)).all()
    assert_allclose(far, 0, atol=1e-6)


def test_repeated_rows_change_nothing_but_jitter():
    H = torch.from_numpy(points(20, 2))
    new, kernel = torch.from_numpy(points(10, 2, seed=1)), Kernel("matern32")
    twice = Reference(torch.cat([H, H]), kernel)(new)
    assert_allclose(twice, Reference(H, kernel)(new), atol=1e-3)


def test_holds_its_own_copy_and_learns_nothing():
    H = torch.from_numpy(points(10, 2))
    kernel = Kernel("rbf")
    reference = Reference(H, kernel)
    before = reference(H[:3] + 0.1)
    with torch.no_grad():
        kernel.raw_lengthscale.fill_(5.0)
    moved = H[:3] + 0.1
    H.zero_()
    assert_allclose(reference(moved), before)
    assert not any(parameter.requires_grad for parameter in reference.parameters())
    assert kernel.raw_lengthscale.requires_grad
