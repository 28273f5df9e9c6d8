import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from due.gp import Gaussian, InducingGP, Kernel, set_optimal_q
from due.gp.frozen import FrozenGP

from . import oracles
from .oracles import KINDS, normal, random_gp, unshared

every_kernel = pytest.mark.parametrize("kind", KINDS)
seeds = st.integers(0, 2**31)


def numpy(tensor):
    return tensor.detach().numpy()


# Oracles


@every_kernel
def test_kernel_is_the_textbook_formula(kind):
    kernel = random_gp(kind, T=3).kernel
    a, b = normal(7, 3, seed=1), normal(5, 3, seed=2)
    for t in range(3):
        assert_allclose(numpy(kernel(a, b)[t]), oracles.kernel(kernel, a, b, t), rtol=1e-12)


@every_kernel
def test_prior_variance_is_exact_on_the_diagonal(kind):
    """Rounding in ‖a‖² + ‖b‖² − 2ab would leave distances of 1e-8."""
    gp, h = random_gp(kind, T=2, J=50), 10 * normal(40, 50, seed=1)
    diagonal = gp.kernel(h, h).diagonal(dim1=-2, dim2=-1)
    assert torch.equal(diagonal, gp.kernel.outputscale[:, None].expand(2, 40))
    cov = gp.joint(h)[1].diagonal(dim1=-2, dim2=-1)
    assert_allclose(numpy(cov.mT), numpy(gp(h)[1]), atol=1e-12)


@every_kernel
@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize("N", [3, 8])  # also as many rows as outputs
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-8), (torch.float32, 1e-5)])
def test_equals_gpytorch(kind, T, N, dtype, atol):
    if kind == "matern12":
        atol = max(atol, 5e-8)  # k(h, h) in GPyTorch is off by 1e-8 s; the numpy oracle is not
    gp = random_gp(kind, T, jitter=1e-12)
    model = oracles.GPyTorchModel(gp, jitter=1e-12)
    h, y = normal(N, 3, seed=1).to(dtype), normal(N, T, seed=2).to(dtype)

    mean, var = gp(h)
    joint_mean, cov = gp.joint(h)
    likelihood = Gaussian(sigma2=0.3)
    elbo = likelihood.expected_log_prob(mean, var, y).mean() - gp.kl() / 100

    model.eval()
    q, (want_mean, want_cov) = model(h.double()), model.joint(h.double())
    kl = model.variational_strategy.kl_divergence()
    model.train()
    want_elbo = model.elbo(h.double(), y.double(), likelihood.sigma2.item(), n_data=100)
    pairs = [
        (mean, want_mean),
        (mean, q.mean.reshape(N, T)),
        (joint_mean, want_mean),
        (var, q.variance.reshape(N, T)),
        (cov, want_cov),
        (gp.kl(), kl),
        (elbo, want_elbo),
    ]
    assert mean.dtype == var.dtype == cov.dtype == dtype
    for got, want in pairs:
        assert_allclose(numpy(got), numpy(want), atol=atol, rtol=0)


@every_kernel
def test_jitter_equals_gpytorch(kind):
    gp = random_gp(kind, T=1, jitter=1e-3)
    jitter = 1e-3 * gp.kernel.outputscale.item()  # ours is a share of s
    h = normal(5, 3, seed=1)
    mean, cov = gp.joint(h)

    want_mean, want_cov = oracles.GPyTorchModel(gp, jitter).eval().joint(h)

    assert_allclose(numpy(mean), numpy(want_mean), atol=1e-8)
    want_cov = want_cov - jitter * torch.eye(5)  # it also adds jitter to what it predicts
    assert_allclose(numpy(cov), numpy(want_cov), atol=1e-8)


@every_kernel
@pytest.mark.parametrize("shared", [False, True])
def test_equals_the_unwhitened_formula(kind, shared):
    gp = random_gp(kind, T=2, shared_kernel=shared)
    h = normal(5, 3, seed=1)
    mean, var = gp(h)
    joint_mean, cov = gp.joint(h)
    if shared:  # the oracle reads one kernel an output
        gp = unshared(gp)
    for t in range(2):
        want_mean, want_cov = oracles.unwhitened(gp, h, t)
        assert_allclose(numpy(mean[:, t]), want_mean, atol=1e-10, rtol=0)
        assert_allclose(numpy(joint_mean[:, t]), want_mean, atol=1e-10, rtol=0)
        assert_allclose(numpy(var[:, t]), want_cov.diagonal(), atol=1e-10, rtol=0)
        assert_allclose(numpy(cov[t]), want_cov, atol=1e-10, rtol=0)


def test_kl_equals_torch_distributions():
    gp = random_gp(T=3)
    q = torch.distributions.MultivariateNormal(gp.m, scale_tril=gp.L_S)
    p = torch.distributions.MultivariateNormal(torch.zeros_like(gp.m), torch.eye(6).double())
    assert_allclose(gp.kl().item(), torch.distributions.kl_divergence(q, p).sum().item())


def test_with_kl_is_forward_and_kl():
    gp, h = random_gp(), normal(4, 3, seed=1)
    mean, var, kl = gp.with_kl(h)
    assert torch.equal(mean, gp(h)[0]) and torch.equal(var, gp(h)[1]) and kl == gp.kl()


@every_kernel
def test_shared_kernel_equals_equal_kernels(kind):
    gp = random_gp(kind, T=4, shared_kernel=True)
    twin = unshared(gp)
    h = normal(5, 3, seed=1)
    pairs = [
        (gp(h), twin(h)),
        (gp.joint(h), twin.joint(h)),
        ((gp.explained(h), gp.kl()), (twin.explained(h), twin.kl())),
    ]
    for got, want in pairs:
        for a, b in zip(got, want, strict=True):
            assert_allclose(numpy(a), numpy(b), atol=1e-12)


# Near and far


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(KINDS), seeds, st.booleans())
def test_far_from_the_data_the_posterior_is_the_prior(kind, seed, shared):
    gp = random_gp(kind, T=2, shared_kernel=shared)
    direction = torch.nn.functional.normalize(normal(5, 3, seed=seed), dim=-1)
    reach = 1e9 if kind == "rq" else 1e3  # rq has heavy tails
    mean, var = gp(reach * direction)
    _, cov = gp.joint(reach * direction[:1])

    s = gp.kernel.outputscale.expand(2)
    assert_allclose(numpy(mean), numpy(gp.mu.expand_as(mean)), atol=1e-6)
    assert_allclose(numpy(var), numpy(s.expand_as(var)), rtol=1e-6)
    assert_allclose(numpy(cov[:, 0, 0]), numpy(s), rtol=1e-6)
    assert (gp.explained(reach * direction) < 1e-6).all()


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(KINDS), seeds, st.floats(-3, 3))
def test_explained_is_a_share(kind, seed, log_scale):
    gp = random_gp(kind)
    explained = gp.explained(10**log_scale * normal(20, 3, seed=seed))
    assert ((explained >= 0) & (explained <= 1)).all()


def test_explained_is_one_minus_the_variance_ratio():
    gp, h = random_gp(), normal(8, 3, seed=1)
    gp.set_q(gp.m, 0.1 * gp.L_S)
    want = 1 - gp(h)[1] / gp.kernel.outputscale
    assert_allclose(numpy(gp.explained(h)), numpy(want), atol=1e-12)
    assert gp.explained(h).max() > 0.1


def test_explained_nears_one_on_plentiful_data():
    Z = normal(10, 2)
    gp = InducingGP(Z, lengthscale=2.0)
    set_optimal_q(gp, Z, normal(10, 1), torch.tensor([1e-4]))
    assert gp.explained(Z).min() > 0.99


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(KINDS), seeds)
def test_joint_covariance_is_symmetric_and_positive(kind, seed):
    gp = random_gp(kind)
    _, cov = gp.joint(normal(10, 3, seed=seed))
    assert_allclose(numpy(cov), numpy(cov.mT), atol=1e-12)
    assert torch.linalg.eigvalsh(cov).min() > -1e-7


# Housekeeping


def test_set_q_keeps_m_and_S_whatever_the_signs():
    gp, m = random_gp(), normal(2, 6, seed=1)
    L_S = normal(2, 6, 6, seed=2).tril()
    assert (L_S.diagonal(dim1=-2, dim2=-1) < 0).any()
    gp.set_q(m, L_S)
    assert torch.equal(gp.m, m)
    assert (gp.L_S.diagonal(dim1=-2, dim2=-1) > 0).all()
    assert_allclose(numpy(gp.L_S @ gp.L_S.mT), numpy(L_S @ L_S.mT), atol=1e-12)


@every_kernel
@pytest.mark.parametrize("shared", [False, True])
def test_survives_deepcopy_and_state_dict(kind, shared):
    gp, h = random_gp(kind, T=3, shared_kernel=shared), normal(4, 3, seed=1)
    fresh = InducingGP(torch.zeros(6, 3), 3, 9.0, kind, shared_kernel=shared)
    fresh.load_state_dict(gp.state_dict())
    for twin in (copy.deepcopy(gp), fresh):
        for got, want in zip(twin(h), gp(h), strict=True):
            assert torch.equal(got, want)


@every_kernel
def test_float32_parameters_change_little(kind):
    gp, h, y = random_gp(kind), normal(4, 3, seed=1).float(), normal(4, 2, seed=2).float()
    want = [*gp(h), gp.joint(h)[1], gp.kl()]
    gp.to(torch.float32)
    got = [*gp(h), gp.joint(h)[1], gp.kl()]
    for a, b in zip(got, want, strict=True):
        assert_allclose(numpy(a), numpy(b), atol=1e-5)
    set_optimal_q(gp, h, y, torch.tensor([0.3]))
    twin = copy.deepcopy(gp).double()
    set_optimal_q(twin, h, y, torch.tensor([0.3]))
    assert gp.m.dtype == torch.float32
    assert_allclose(numpy(gp(h)[0]), numpy(twin(h)[0]), atol=1e-5)


@every_kernel
def test_bfloat16_features_get_float32_answers(kind):
    gp, h = random_gp(kind), normal(4, 3, seed=1).bfloat16()
    pairs = [
        (gp(h), gp(h.float())),
        (gp.joint(h), gp.joint(h.float())),
        ((gp.explained(h),), (gp.explained(h.float()),)),
    ]
    for got, want in pairs:
        for a, b in zip(got, want, strict=True):
            assert a.dtype == torch.float32 and torch.equal(a, b)


def test_runs_under_bfloat16_autocast():
    gp, f = random_gp(), torch.nn.Linear(5, 3)
    x = normal(4, 5, seed=1).float()
    with torch.autocast("cpu", torch.bfloat16):
        h = f(x)
        mean, var = gp(h)
    assert h.dtype == torch.bfloat16
    assert_allclose(numpy(mean), numpy(gp(h.float())[0]), atol=1e-6)
    assert_allclose(numpy(var), numpy(gp(h.float())[1]), atol=1e-6)


def test_a_row_does_not_depend_on_its_batch():
    gp, h = random_gp(), normal(50, 3, seed=1)
    mean, var = gp(h)
    for n in (0, 17, 49):
        assert_allclose(numpy(gp(h[n : n + 1])[0][0]), numpy(mean[n]), atol=1e-12)
        assert_allclose(numpy(gp(h[n : n + 1])[1][0]), numpy(var[n]), atol=1e-12)


def test_unknown_kernel_is_refused():
    with pytest.raises(ValueError, match="'cosine' is not one of rbf, matern12"):
        InducingGP(torch.zeros(2, 2), kernel="cosine")


@given(st.floats(1e-8, 1e8))
def test_scales_start_where_they_are_told(value):
    kernel = Kernel("rbf", 2, lengthscale=value, outputscale=value)
    assert_allclose(numpy(kernel.lengthscale), np.full(2, value), rtol=1e-6)
    assert_allclose(numpy(kernel.outputscale), np.full(2, value), rtol=1e-6)


@pytest.mark.parametrize("kernel", ["rbf", "matern12", "matern32", "matern52", "rq"])
def test_a_finite_input_beyond_all_scales_gets_the_prior(kernel):
    gp = InducingGP(torch.randn(5, 2, dtype=torch.float64), kernel=kernel)
    mean, var = gp(torch.tensor([[1e160, 0.0]], dtype=torch.float64))
    assert_allclose(mean[0].detach(), gp.mu.detach())
    assert_allclose(var[0].detach(), gp.kernel.outputscale.detach())


def test_a_shared_covariance_is_that_of_equal_ones():
    Z, h = normal(5, 2), normal(4, 2, seed=1)
    m, L_S = normal(3, 5, seed=2), torch.linalg.cholesky(torch.eye(5).double() / 2 + 0.1)
    one = InducingGP(Z, 3, shared_kernel=True, shared_covariance=True)
    each = InducingGP(Z, 3, shared_kernel=True)
    one.set_q(m, L_S[None])
    each.set_q(m, L_S.expand(3, 5, 5))
    assert one.raw_L_S.shape == (1, 5, 5)
    for gp, want in ((one, each), (FrozenGP(one), FrozenGP(each))):
        for a, b in zip((*gp(h), *gp.joint(h)), (*want(h), *want.joint(h)), strict=True):
            assert a.shape == b.shape
            assert_allclose(a.detach().numpy(), b.detach().numpy(), atol=1e-12)
        assert_allclose(gp.explained(h).detach().numpy(), want.explained(h).detach().numpy())
    assert_allclose(one.kl().item(), each.kl().item(), rtol=1e-12)
    (one.with_kl(h)[1].sum() + one.kl()).backward()
    (each.with_kl(h)[1].sum() + each.kl()).backward()
    assert one.raw_L_S.grad is not None and each.raw_L_S.grad is not None
    assert_allclose(one.raw_L_S.grad[0].numpy(), each.raw_L_S.grad.sum(0).numpy(), atol=1e-10)
    with pytest.raises(ValueError, match="shared_covariance=True needs shared_kernel=True"):
        InducingGP(Z, 3, shared_covariance=True)
