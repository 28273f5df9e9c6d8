import warnings

import pytest
import torch
from numpy.linalg import LinAlgError
from numpy.testing import assert_allclose
from torch.func import functional_call

from due.gp import (
    FrozenGP,
    Gaussian,
    InducingGP,
    JitterWarning,
    Softmax,
    collapsed_bound,
    initialise,
    set_optimal_q,
)
from due.gp.cholesky import cholesky
from due.gp.kernels import squared_distance

from .oracles import KINDS, normal, random_gp

every_kernel = pytest.mark.parametrize("kind", KINDS)
SIGMA2 = torch.tensor([0.3], dtype=torch.float64)


def check_all_outputs_and_gradients(gp, h, y):
    h = h.clone().requires_grad_()
    mean, var = gp(h)
    _, cov = gp.joint(h)
    difference = FrozenGP(gp).difference(h, h.flip(0))
    for value in (mean, var, cov, *difference, gp.explained(h)):
        assert torch.isfinite(value).all()
    assert (var > 0).all()
    loss = (y - mean).square().sum() + var.sum() + cov.sum() + sum(d.sum() for d in difference)
    loss = loss + gp.kl() - collapsed_bound(gp, h, y, SIGMA2)
    for gradient in torch.autograd.grad(loss, [h, *gp.parameters()]):
        assert torch.isfinite(gradient).all()


# Points that coincide, almost coincide, and lie far apart


@every_kernel
def test_coinciding_points(kind):
    Z = normal(4, 3)[[0, 0, 1, 1, 1, 2]]
    gp = InducingGP(Z, 2, 1.5, kind)
    check_all_outputs_and_gradients(gp, Z[[0, 0, 2, 5]], normal(4, 2, seed=1))


@every_kernel
def test_all_points_in_one(kind):
    gp = InducingGP(torch.ones(8, 3), 2, 1.0, kind)
    check_all_outputs_and_gradients(gp, torch.ones(4, 3).double(), normal(4, 2, seed=1))


@every_kernel
@pytest.mark.parametrize("distance", [1e-12, 1e-6, 1e6])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_points_at_extreme_distances(kind, distance, offset):
    gp = InducingGP(offset + distance * normal(8, 3), 2, 1.0, kind)
    h = offset + distance * normal(5, 3, seed=1)
    check_all_outputs_and_gradients(gp, h, normal(5, 2, seed=2))


@every_kernel
def test_clusters_collapsed_by_training(kind):
    """What a well trained classifier's features look like: one point a class, tight and far."""
    centres = normal(10, 64)
    h = centres.repeat(20, 1) + 1e-9 * normal(200, 64, seed=1)
    Z, lengthscale = initialise(h, 100)
    check_all_outputs_and_gradients(
        InducingGP(Z, 2, lengthscale, kind), h[:20], normal(20, 2, seed=2)
    )


@every_kernel
def test_more_inducing_points_than_distinct_features(kind):
    h = normal(3, 2)[torch.arange(30) % 3]
    Z, lengthscale = initialise(h, 12)
    gp = InducingGP(Z, 1, lengthscale, kind)
    y = normal(30, 1, seed=1)
    set_optimal_q(gp, h, y, SIGMA2)
    check_all_outputs_and_gradients(gp, h, y)


def test_squared_distance_keeps_its_digits_far_from_the_origin():
    a, b = normal(5, 3), normal(4, 3, seed=1)
    want = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()
    got = squared_distance(a + 2.0**20, b + 2.0**20)  # exact shift, up to the last few bits
    assert_allclose(got.numpy(), want.numpy(), atol=1e-8)


def test_ten_thousand_random_deep_kernels_factorise():
    """100 random networks × 100 kernels: any feature scale, collapsed or spread, any length."""
    count = 0
    for seed in range(100):
        kind, scale = KINDS[seed % 5], 10.0 ** (seed % 9 - 6)
        x = normal(24, 5, seed=seed)
        h = torch.tanh(x @ normal(5, 16, seed=seed + 1)) @ normal(16, 4, seed=seed + 2)
        h = torch.relu(h) if seed % 3 == 0 else h  # many exact zeros
        h = h.round() if seed % 7 == 0 else h  # many ties
        gp = InducingGP(scale * h, 100, 1.0, kind)
        gp.kernel.raw_lengthscale.data = 3 * normal(100, seed=seed)  # l from 1e-4 to 10
        gp.kernel.raw_outputscale.data = 3 * normal(100, seed=seed + 3)
        A = gp.project(scale * h[:3])
        count += len(A)
        assert torch.isfinite(A).all()
    assert count == 10_000


# Jitter


def test_jitter_is_not_grown_where_it_suffices():
    K = torch.ones(1, 5, 5).double()
    L = cholesky(K, 1e-6)
    assert_allclose((L @ L.mT).numpy(), (K + 1e-6 * torch.eye(5)).numpy(), atol=1e-15)


def test_jitter_grows_only_on_failure_and_says_so():
    v = normal(5)
    v = v / v.norm()
    K = torch.eye(5).double() - (1 + 3e-5) * torch.outer(v, v)  # smallest eigenvalue −3e-5
    with pytest.warns(JitterWarning, match="size 5 is singular: jitter grew from 1e-06 to 1e-04"):
        L = cholesky(K[None], 1e-6)
    assert_allclose((L @ L.mT)[0].numpy(), (K + 1e-4 * torch.eye(5)).numpy(), atol=1e-12)


def test_a_matrix_beyond_repair_is_an_error():
    with pytest.raises(LinAlgError, match="not positive definite even with jitter 1e-02"):
        cholesky(torch.eye(3).double()[None] - 2, 1e-6)


def test_well_separated_points_need_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        random_gp(jitter=1e-12)(normal(3, 3))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_named(bad):
    gp, h, y = random_gp(), normal(4, 3, seed=1), normal(4, 2, seed=2)
    h[1, 0] = bad
    for attempt in (
        lambda: collapsed_bound(gp, h, y, SIGMA2),
        lambda: set_optimal_q(gp, h, y, SIGMA2),
        lambda: initialise(h, 2),
    ):
        with pytest.raises((LinAlgError, ValueError), match="NaN or infinite"):
            attempt()
    gp.Z.data[0, 0] = bad
    with pytest.raises(LinAlgError, match="NaN or infinite entries.*lower the learning rate"):
        gp(normal(4, 3))


def test_a_nan_row_spoils_no_other_row():
    gp, h = random_gp(), normal(4, 3, seed=1)
    mean, _ = gp(h)
    h[1, 0] = float("nan")
    got, _ = gp(h)
    rows = [0, 2, 3]
    assert_allclose(got[rows].detach().numpy(), mean[rows].detach().numpy(), atol=1e-12)
    assert torch.isnan(got[1]).all()


# Gradients against finite differences


def gradcheck(function, gp, h, **tolerance):
    """`function(gp, h)` with respect to the features and to every parameter."""
    names, values = zip(*gp.named_parameters(), strict=True)
    leaves = [value.detach().clone().requires_grad_() for value in values]

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gp = gp

        def forward(self, h):
            return function(self.gp, h)

    def call(h, *values):
        named = {f"gp.{name}": value for name, value in zip(names, values, strict=True)}
        return functional_call(Module(), named, (h,))

    return torch.autograd.gradcheck(call, (h.clone().requires_grad_(), *leaves), **tolerance)


@every_kernel
@pytest.mark.parametrize("shared", [False, True])
def test_gradients_of_the_elbo(kind, shared):
    gp = random_gp(kind, T=2, M=3, J=2, shared_kernel=shared)
    y, likelihood = normal(4, 2, seed=2), Gaussian()

    def elbo(gp, h):
        mean, var, kl = gp.with_kl(h)
        return likelihood.expected_log_prob(mean, var, y).sum() - kl

    assert gradcheck(elbo, gp, normal(4, 2, seed=1))


@every_kernel
@pytest.mark.parametrize("shared", [False, True])
def test_gradients_of_the_collapsed_bound(kind, shared):
    gp = random_gp(kind, T=2, M=3, J=2, shared_kernel=shared)
    y = normal(4, 2, seed=2)
    assert gradcheck(lambda gp, h: collapsed_bound(gp, h, y, SIGMA2), gp, normal(4, 2, seed=1))


@every_kernel
def test_gradients_with_inducing_points_among_the_features_and_noise_by_row(kind):
    gp = random_gp(kind, T=2, M=3, J=2)
    gp.Z.requires_grad_(False)
    y, noise = normal(4, 2, seed=2), normal(4, 2, seed=3).exp()

    def bound(gp, h):
        return collapsed_bound(gp, h, y, noise * h[:, :1].exp(), Z=h[[2, 0, 3]])

    assert gradcheck(bound, gp, normal(4, 2, seed=1))


@every_kernel
def test_gradients_of_the_joint_covariance(kind):
    gp = random_gp(kind, T=2, M=3, J=2)
    assert gradcheck(lambda gp, h: gp.joint(h), gp, normal(3, 2, seed=1))


@every_kernel
def test_second_gradients(kind):
    gp, h = random_gp(kind, T=2, M=3, J=2), normal(3, 2, seed=1).requires_grad_()

    def latent(h, Z):
        return functional_call(gp, {"Z": Z}, (h,))

    assert torch.autograd.gradgradcheck(latent, (h, gp.Z), atol=1e-4)


def test_gradients_of_the_classification_elbo():
    gp, likelihood, y = random_gp(T=3, M=3, J=2), Softmax(3).eval(), torch.tensor([0, 2, 1])

    def elbo(gp, h):
        mean, var, kl = gp.with_kl(h)
        return likelihood.expected_log_prob(mean, var, y).sum() - kl

    # the gradient of the exact integral, the finite difference of one with 24 nodes
    assert gradcheck(elbo, gp, normal(3, 2, seed=1), atol=2e-3, rtol=1e-2)


@pytest.mark.parametrize("kind", ["rbf", "matern32", "matern52", "rq"])
def test_gradients_where_points_coincide(kind):
    """These kernels are differentiable there, so finite differences still judge."""
    gp = random_gp(kind, T=1, M=3, J=2)
    h = gp.Z.detach()[[0, 0, 1]].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda h: gp(h), (h,), atol=1e-4)


def test_matern12_has_no_direction_where_points_coincide():
    gp = InducingGP(torch.zeros(1, 2), kernel="matern12")
    gp.m.data.fill_(1.0)
    h = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(gp(h)[0].sum(), h)
    assert (gradient == 0).all()
