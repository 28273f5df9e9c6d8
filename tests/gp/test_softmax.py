from functools import cache
from math import log
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm
from torch.autograd import forward_ad

from due import DUE
from due.gp import Gaussian, InducingGP, Softmax, integral, softmax
from due.gp.softmax import integrals

from .oracles import normal

METHODS = ("exact", "monte_carlo", "mean_field")


def entropy(p):
    return -torch.special.xlogy(p, p).sum(-1)


@cache
def samples():
    """Ten million samples per case: tools/softmax_samples.py."""
    stored = np.load(Path(__file__).with_name("softmax_samples.npz"))
    return {name: torch.from_numpy(stored[name]).double() for name in stored.files}


def sampled(T):
    """Means, variances, E[p], E[log Σ exp f] and E[entropy(p)] of the cases of T classes."""
    return (samples()[f"{name} {T}"] for name in "mvpsH")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("T", [3, 10, 100, 1000])
def test_the_integral_is_that_of_ten_million_samples(T, dtype):
    assert samples()[f"n {T}"] == 10_000_000
    mean, var, want, log_sum, H = sampled(T)
    likelihood, y = Softmax(T), torch.arange(len(mean)) % T
    mean, var = mean.to(dtype), var.to(dtype)
    p = likelihood.predictive(mean, var).double()
    assert_allclose(p.sum(-1).numpy(), 1, atol=1e-5)
    assert_allclose(p.numpy(), want.numpy(), atol=5e-4)
    assert_allclose((entropy(p) / log(T)).numpy(), (entropy(want) / log(T)).numpy(), atol=5e-4)
    expected = likelihood.expected_entropy(mean, var).double()
    assert_allclose((expected / log(T)).numpy(), (H / log(T)).numpy(), atol=1e-3)
    assert (expected <= entropy(p) + 1e-3).all()
    want_log = mean.gather(-1, y[:, None])[:, 0].double() - log_sum
    for mode in (True, False):
        log_prob = likelihood.train(mode).expected_log_prob(mean, var, y)
        assert_allclose(log_prob.double().numpy(), want_log.numpy(), rtol=2e-4, atol=0.005)


@pytest.mark.parametrize("var", [0.01, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("gap", [0.0, 1.0, -5.0, 20.0])
def test_two_classes_are_those_of_quadrature(gap, var):
    """f_1 − f_0 ~ N(gap, 2 var)."""
    density = norm(gap, np.sqrt(2 * var)).pdf
    span = (gap - 12 * np.sqrt(2 * var), gap + 12 * np.sqrt(2 * var))
    points = {"points": [0.0], "limit": 500, "epsabs": 1e-12}

    def integral(g):
        return quad(lambda x: g(x) * density(x), *span, **points)[0]

    mean, v = torch.tensor([[0.0, gap]]).double(), torch.full((1, 2), var).double()
    likelihood = Softmax(2)
    assert_allclose(likelihood.predictive(mean, v)[0, 1], integral(expit), atol=1e-6)
    want = integral(lambda x: -np.logaddexp(0, -x))
    assert_allclose(likelihood.expected_log_prob(mean, v, torch.tensor([1])), want, rtol=1e-6)
    want = integral(lambda x: np.logaddexp(0, x) - x * expit(x))
    assert_allclose(likelihood.expected_entropy(mean, v), want, atol=1e-5)


@pytest.mark.parametrize("T", [3, 10, 100, 1000])
def test_without_variance_it_is_the_softmax_whatever_the_gap(T):
    mean = 4 * normal(200, T).float()
    mean[:, 0] += 20  # all other classes are rare
    log_sum, p, curvature = integrals(mean, torch.full_like(mean, 1e-12))
    want = torch.softmax(mean, -1)
    assert_allclose(p.numpy(), want.numpy(), atol=2e-4)
    assert_allclose(p.log().numpy(), torch.log_softmax(mean, -1).numpy(), atol=0.03)
    assert_allclose(log_sum.numpy(), torch.logsumexp(mean, -1).numpy(), rtol=2e-4)
    assert_allclose(curvature.numpy(), (want * (1 - want) / 2).numpy(), atol=1e-3)


def test_classes_that_are_left_out_change_nothing_beyond_the_bound():
    mean, var = normal(50, 200).float(), normal(50, 200, seed=1).exp().float() / 10
    mean[:, 8:] -= 25
    whole, few = integrals(mean, var), integrals(mean[:, :8], var[:, :8])
    assert_allclose(whole.p[:, :8].numpy(), few.p.numpy(), atol=4e-4)
    assert_allclose(whole.log_sum.numpy(), few.log_sum.numpy(), atol=1e-3)
    assert (whole.p[:, 8:] > 0).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.1, 6), st.floats(-2, 1.5), st.floats(0, 12))
def test_many_small_classes_may_be_taken_together(seed, spread, log_var, lead):
    T = 150
    mean, var = spread * normal(6, T, seed=seed), normal(6, T, seed=seed + 1).exp() * 10**log_var
    mean[:3, 0] += lead
    with patch.object(integral, "FEW", T + 1):
        with_all = integrals(mean, var)
    found = integrals(mean, var)
    assert_allclose(found.p.numpy(), with_all.p.numpy(), atol=1.5e-3)
    assert_allclose(found.log_sum.numpy(), with_all.log_sum.numpy(), rtol=1e-3, atol=3e-3)
    assert_allclose(found.curvature.numpy(), with_all.curvature.numpy(), atol=1e-3)


def test_the_elbo_is_that_of_a_hundred_thousand_samples():
    gp = InducingGP(normal(6, 2), T=7)
    gp.set_q(3 * normal(7, 6), torch.eye(6).double().expand(7, 6, 6))
    x, y = normal(12, 2, seed=1), torch.arange(12) % 7
    exact, drawn = (
        DUE(torch.nn.Identity(), gp, Softmax(7, samples=n), 12) for n in (None, 100_000)
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        want = drawn.train()(x, y)
    assert_allclose(exact.train()(x, y).item(), want.item(), atol=0.003)


@pytest.mark.parametrize("T", [2, 3, 10])
def test_expected_log_prob_in_training_is_unbiased(T):
    likelihood = Softmax(T, samples=50_000).train()
    mean, var = normal(4, T), normal(4, T, seed=1).exp()
    y = torch.arange(4) % T
    with torch.random.fork_rng():
        torch.manual_seed(0)
        noisy, again = (likelihood.expected_log_prob(mean, var, y) for _ in range(2))
    exact = likelihood.eval().expected_log_prob(mean, var, y)
    assert (noisy != again).all()
    assert_allclose(noisy.numpy(), exact.numpy(), atol=0.03)
    assert torch.equal(exact, likelihood.expected_log_prob(mean, var, y))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([2, 3, 10]), st.floats(-2, 2))
def test_expected_entropy_never_exceeds_the_entropy_of_the_mean(seed, T, log_var):
    likelihood = Softmax(T)
    mean, var = 3 * normal(5, T, seed=seed), 10**log_var * normal(5, T, seed=seed + 1).exp()
    expected = likelihood.expected_entropy(mean, var)
    assert (expected >= 0).all()
    assert (expected <= entropy(likelihood.predictive(mean, var)) + 2e-3).all()


# Symmetry

few_values = st.integers(-3, 3).map(float)  # so that ties are common


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([2, 3, 7, 20, 40]), st.sampled_from(["exact", "mean_field"]), st.data())
def test_permuting_classes_permutes_the_answer(T, method, data):
    mean = torch.from_numpy(data.draw(arrays(np.float64, (3, T), elements=few_values)))
    var = 10 ** torch.from_numpy(data.draw(arrays(np.float64, (3, T), elements=few_values)))
    order = torch.tensor(data.draw(st.permutations(range(T))))
    likelihood = Softmax(T, method).eval()
    y = torch.tensor(data.draw(st.lists(st.integers(0, T - 1), min_size=3, max_size=3)))

    p = likelihood.predictive(mean, var)
    permuted = likelihood.predictive(mean[:, order], var[:, order])
    if method == "exact":
        assert torch.equal(permuted, p[:, order])
    assert_allclose(permuted.numpy(), p[:, order].numpy(), atol=1e-12)
    expected = likelihood.expected_entropy(mean[:, order], var[:, order])
    assert_allclose(expected.numpy(), likelihood.expected_entropy(mean, var).numpy(), atol=1e-10)
    log_prob = likelihood.expected_log_prob(mean[:, order], var[:, order], order.argsort()[y])
    want = likelihood.expected_log_prob(mean, var, y)
    assert_allclose(log_prob.numpy(), want.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("T", [2, 3, 10, 100, 1000])
@pytest.mark.parametrize("var", [0.01, 25.0])
def test_where_all_classes_are_alike_the_answer_is_uniform(T, var):
    p = Softmax(T).predictive(torch.zeros(2, T), torch.full((2, T), var))
    assert_allclose(p.numpy(), 1 / T, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("T", [2, 3, 10, 100])
def test_a_row_does_not_depend_on_its_batch(method, T):
    likelihood, n = Softmax(T, method), 40 if T == 100 else 2000  # several blocks
    mean, var = 3 * normal(n, T).float(), normal(n, T, seed=1).exp().float()
    p = likelihood.predictive(mean, var)
    tolerance = 0 if method == "exact" and T > 2 else 1e-6  # bit for bit
    for rows in [*torch.arange(40).split(1), *torch.randperm(n).split([2, 3, 13, n - 18])]:
        again = likelihood.predictive(mean[rows], var[rows])
        assert_allclose(again.numpy(), p[rows].numpy(), rtol=0, atol=tolerance)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([3, 10, 26, 40, 150]),
    st.integers(1, 5),
    st.integers(0, 2**31),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_numpy_and_torch_integrate_alike(T, N, seed, dtype):
    mean, var = (
        3 * normal(N, T, seed=seed).to(dtype),
        normal(N, T, seed=seed + 1).exp().to(dtype),
    )
    found, by_torch = integrals(mean, var), integrals(mean.requires_grad_(), var)
    assert by_torch.p.requires_grad and not found.p.requires_grad
    tight = 1e-5 if dtype == torch.float32 else 1e-12
    for ours, theirs in zip(found, by_torch, strict=True):
        assert ours.dtype == dtype and ours.shape == theirs.shape
        assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=10 * tight, atol=tight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("by_torch", [False, True])
def test_half_precision_is_integrated_in_float32(dtype, by_torch):
    mean, var = 3 * normal(4, 5).to(dtype), normal(4, 5, seed=1).exp().to(dtype)
    mean.requires_grad_(by_torch), var.requires_grad_(by_torch)
    p = Softmax(5).predictive(mean, var)
    assert p.dtype == dtype
    assert torch.equal(p, Softmax(5).predictive(mean.float(), var.float()).to(dtype))


@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated, and warns of constants
@pytest.mark.parametrize("T", [3, 40])
def test_a_trace_answers_for_other_rows(T):
    def untyped(mean, var):  # checks of shapes cannot be traced
        return softmax._integrated(mean, var, curved=False)[0]

    mean, var = 3 * normal(9, T), normal(9, T, seed=1).exp()
    traced = torch.jit.trace(untyped, (mean[:4], var[:4]))
    want = Softmax(T).predictive(mean, var)  # of 40 classes few are integrated over
    assert_allclose(traced(mean, var).numpy(), want.numpy(), atol=1e-6 if T == 3 else 2e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_all_kinds_of_derivatives_agree():
    mean, var = normal(3, 4), normal(3, 4, seed=1).exp()
    direction = normal(3, 4, seed=2)

    def p(mean):
        return Softmax(4).predictive(mean, var)

    want = (torch.func.jacrev(p)(mean) * direction).sum((-1, -2))
    by_jvp = torch.func.jvp(p, (mean,), (direction,))[1]
    with forward_ad.dual_level():
        dual = p(forward_ad.make_dual(mean, direction))
        by_dual = forward_ad.unpack_dual(dual).tangent
    step = (p(mean + 1e-5 * direction) - p(mean - 1e-5 * direction)) / 2e-5
    for got in by_jvp, by_dual:
        assert_allclose(got.numpy(), want.numpy(), atol=1e-12)
    assert_allclose(step.numpy(), want.numpy(), atol=1e-4)  # nodes do not move with the mean


@pytest.mark.parametrize("T", [3, 40])
def test_no_row_has_no_answer(T):
    nothing = torch.empty(0, T)
    assert Softmax(T).predictive(nothing, nothing).shape == (0, T)
    assert Softmax(T).expected_entropy(nothing, nothing).shape == (0,)


@pytest.mark.parametrize("method", METHODS)
def test_no_variance_is_plain_softmax(method):
    mean = 3 * normal(6, 5)
    p = Softmax(5, method).predictive(mean, torch.zeros(6, 5).double())
    atol = 1e-4 if method == "exact" else 1e-12
    assert_allclose(p.numpy(), torch.softmax(mean, -1).numpy(), atol=atol)


@pytest.mark.parametrize("T", [2, 3, 10, 100, 1000])
def test_huge_logits_and_variances_stay_finite(T):
    """In float32, with gradients."""
    likelihood = Softmax(T).eval()
    sizes = torch.tensor([1e-12, 1e-6, 1.0, 1e4, 1e8])
    mean = torch.cat([1e4 * normal(5, T).float().clamp(-1, 1), 1e4 * normal(5, T).float().sign()])
    var = torch.cat([sizes[:, None].expand(5, T), sizes[torch.arange(5 * T).view(5, T) % 5]])
    mean, var = mean.requires_grad_(), var.clone().requires_grad_()
    p = likelihood.predictive(mean, var)
    assert torch.isfinite(p).all()
    assert_allclose(p.sum(-1).detach().numpy(), 1, atol=1e-5)
    assert torch.isfinite(likelihood.expected_entropy(mean, var)).all()
    log_prob = likelihood.expected_log_prob(mean, var, torch.zeros(10).long())
    assert torch.isfinite(log_prob).all()
    for grad in torch.autograd.grad(log_prob.sum(), (mean, var)):
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize("T", [2, 3, 10, 40])
def test_gradients_of_the_deterministic_loss(T):
    likelihood, y = Softmax(T).eval(), torch.arange(3) % T
    mean, var = normal(3, T).requires_grad_(), normal(3, T, seed=1).exp().requires_grad_()
    # the gradient of the exact integral, the finite difference of one with 24 nodes
    close: dict[str, Any] = {"atol": 1e-5 if T == 2 else 5e-4, "rtol": 1e-3}
    check = torch.autograd.gradcheck
    assert check(lambda m, v: likelihood.expected_log_prob(m, v, y), (mean, var), **close)
    assert check(likelihood.predictive, (mean, var), **close)
    assert check(softmax.expected_entropy, (mean, var), **close)


def test_nothing_touches_the_global_random_state():
    before = torch.get_rng_state()
    likelihood = Softmax(5).eval()
    likelihood.predictive(normal(3, 5), normal(3, 5).exp())
    likelihood.expected_log_prob(normal(3, 5), normal(3, 5).exp(), torch.tensor([0, 1, 2]))
    assert torch.equal(before, torch.get_rng_state())


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="'sobol' is not one of exact"):
        Softmax(3, "sobol")
    with pytest.raises(ValueError, match="at least two classes, not 1"):
        Softmax(1)


# Gaussian


@pytest.mark.parametrize("noises", [1, 2])
def test_gaussian_closed_form_equals_monte_carlo(noises):
    likelihood = Gaussian(noises, sigma2=0.4)
    likelihood.raw_sigma2.data += torch.arange(noises)
    mean, var, y = normal(3, 2), normal(3, 2, seed=1).exp(), normal(3, 2, seed=2)
    f = mean + var.sqrt() * normal(400_000, 3, 2, seed=3)

    want = torch.distributions.Normal(f, likelihood.sigma2.sqrt()).log_prob(y).sum(-1).mean(0)
    got = likelihood.expected_log_prob(mean, var, y)
    assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=0.01)
    predicted = likelihood.predictive(mean, var)
    observed = f + likelihood.sigma2.sqrt() * normal(400_000, 3, 2, seed=4)
    assert_allclose(predicted.mean.detach().numpy(), observed.mean(0).detach().numpy(), atol=0.02)
    assert_allclose(predicted.var.detach().numpy(), observed.var(0).detach().numpy(), rtol=0.02)
