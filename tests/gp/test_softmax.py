from functools import cache
from math import log
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose

from due.gp import Gaussian, Softmax
from due.gp.softmax import integrals

from .oracles import normal

METHODS = ("exact", "monte_carlo", "mean_field")


def entropy(p):
    return -torch.special.xlogy(p, p).sum(-1)


def cases(T):
    """Means and variances (C, T): the prior at several variances, spread means, mixed variances."""
    prior = torch.tensor([0.01, 1.0, 25.0, 100.0])[:, None].expand(-1, T)
    spread = torch.tensor([0.01, 1.0, 100.0])[:, None].expand(-1, T)
    mixed = 10 ** (4 * torch.rand(2, T, generator=torch.Generator().manual_seed(0)) - 2)
    means = torch.cat([torch.zeros(4, T), 3 * normal(3, T).float(), torch.zeros(1, T)])
    means = torch.cat([means, 3 * normal(1, T, seed=1).float()])
    return means.double(), torch.cat([prior, spread, mixed]).double()


@cache
def million_samples(T):
    """E[p], E[log p] and E[entropy(p)] of the cases, from a million samples."""
    mean, var = (a.float() for a in cases(T))
    generator = torch.Generator().manual_seed(1)
    S, chunk = 1_000_000, 4_000_000 // (T * len(mean))
    p, log_p, H = torch.zeros(mean.shape), torch.zeros(mean.shape), torch.zeros(len(mean))
    for start in range(0, S, chunk):
        epsilon = torch.randn(min(chunk, S - start), 1, T, generator=generator)
        log_prob = torch.log_softmax(mean + var.sqrt() * epsilon, -1)
        prob = log_prob.exp()
        p += prob.sum(0) / S
        log_p += log_prob.sum(0) / S
        H -= (prob * log_prob).sum((0, -1)) / S
    return p.double(), log_p.double(), H.double()


@pytest.mark.parametrize(("T", "tolerance"), [(2, 0.001), (3, 0.002), (10, 0.002), (100, 0.004)])
def test_probabilities_equal_a_million_samples(T, tolerance):
    p = Softmax(T).predictive(*cases(T))
    want, _, _ = million_samples(T)
    assert_allclose(p.sum(-1).numpy(), 1, atol=1e-9)
    assert_allclose((entropy(p) / log(T)).numpy(), (entropy(want) / log(T)).numpy(), atol=tolerance)
    assert_allclose(p.numpy(), want.numpy(), atol=0.003)


@pytest.mark.parametrize("T", [2, 3, 10, 100])
def test_expected_entropy_equals_a_million_samples_and_obeys_jensen(T):
    likelihood, (mean, var) = Softmax(T), cases(T)
    expected = likelihood.expected_entropy(mean, var)
    want = million_samples(T)[2]
    assert_allclose((expected / log(T)).numpy(), (want / log(T)).numpy(), atol=0.005)
    assert (expected <= entropy(likelihood.predictive(mean, var)) + 1e-3).all()


@pytest.mark.parametrize("T", [2, 3, 10, 100])
def test_expected_log_prob_equals_a_million_samples(T):
    likelihood, (mean, var) = Softmax(T), cases(T)
    y = torch.arange(len(mean)) % T
    want = million_samples(T)[1].gather(-1, y[:, None])[:, 0]
    for mode in (True, False):
        got = likelihood.train(mode).expected_log_prob(mean, var, y)
        assert_allclose(got.numpy(), want.numpy(), rtol=0.003, atol=0.01)


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


def test_the_elbo_is_that_of_a_hundred_thousand_samples():
    mean, var = 2 * normal(30, 7), normal(30, 7, seed=1).exp()
    y = torch.arange(30) % 7
    exact = Softmax(7).train().expected_log_prob(mean, var, y).mean()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sampled = Softmax(7, samples=100_000).train().expected_log_prob(mean, var, y).mean()
    assert_allclose(exact, sampled, atol=0.003)


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
@given(st.sampled_from([2, 3, 7, 20]), st.sampled_from(["exact", "mean_field"]), st.data())
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
    likelihood = Softmax(T, method)
    mean, var = 3 * normal(40, T).float(), normal(40, T, seed=1).exp().float()
    p = likelihood.predictive(mean, var)
    alone = torch.cat([likelihood.predictive(mean[n : n + 1], var[n : n + 1]) for n in range(40)])
    assert_allclose(alone.numpy(), p.numpy(), atol=1e-6)
    assert_allclose(likelihood.predictive(mean[:T], var[:T]).numpy(), p[:T].numpy(), atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_no_variance_is_plain_softmax(method):
    mean = 3 * normal(6, 5)
    p = Softmax(5, method).predictive(mean, torch.zeros(6, 5).double())
    atol = 1e-4 if method == "exact" else 1e-12
    assert_allclose(p.numpy(), torch.softmax(mean, -1).numpy(), atol=atol)


@pytest.mark.parametrize("T", [2, 3, 10])
def test_huge_logits_and_variances_stay_finite(T):
    likelihood = Softmax(T).eval()
    mean, var = (
        1e4 * normal(4, T).float(),
        torch.tensor([1e-12, 1.0, 1e6, 1e8])[:, None].expand(4, T),
    )
    p = likelihood.predictive(mean, var)
    assert torch.isfinite(p).all()
    assert_allclose(p.sum(-1).numpy(), 1, atol=1e-5)
    assert torch.isfinite(likelihood.expected_entropy(mean, var)).all()
    assert torch.isfinite(likelihood.expected_log_prob(mean, var, torch.zeros(4).long())).all()


@pytest.mark.parametrize("T", [2, 3, 10])
def test_gradients_of_the_deterministic_loss(T):
    likelihood, y = Softmax(T).eval(), torch.arange(3) % T
    mean, var = normal(3, T).requires_grad_(), normal(3, T, seed=1).exp().requires_grad_()
    # the gradient of the exact integral, the finite difference of one with 24 nodes
    close: dict[str, Any] = {"atol": 1e-5 if T == 2 else 5e-4, "rtol": 1e-3}
    check = torch.autograd.gradcheck
    assert check(lambda m, v: likelihood.expected_log_prob(m, v, y), (mean, var), **close)
    assert check(likelihood.predictive, (mean, var), **close)


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
