from functools import cache
from math import log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose

from due.gp import Gaussian, Softmax
from due.gp.softmax import rotations

from .oracles import normal

METHODS = ("quasi", "monte_carlo", "mean_field")


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


@pytest.mark.parametrize(("T", "tolerance"), [(2, 0.01), (3, 0.01), (10, 0.01), (100, 0.03)])
def test_default_probabilities_equal_a_million_samples(T, tolerance):
    p = Softmax(T).predictive(*cases(T))
    want, _, _ = million_samples(T)
    assert_allclose(p.sum(-1).numpy(), 1, atol=1e-9)
    assert_allclose((entropy(p) / log(T)).numpy(), (entropy(want) / log(T)).numpy(), atol=tolerance)
    assert_allclose(p.numpy(), want.numpy(), atol=0.02)


@pytest.mark.parametrize("T", [2, 3, 10, 100])
def test_expected_entropy_equals_a_million_samples_and_obeys_jensen(T):
    likelihood, (mean, var) = Softmax(T), cases(T)
    expected = likelihood.expected_entropy(mean, var)
    want = million_samples(T)[2]
    tolerance = 0.03 if T == 100 else 0.01
    assert_allclose((expected / log(T)).numpy(), (want / log(T)).numpy(), atol=tolerance)
    assert (expected <= entropy(likelihood.predictive(mean, var)) + 1e-9).all()


@pytest.mark.parametrize("T", [2, 3, 10, 100])
def test_expected_log_prob_in_eval_mode_equals_a_million_samples(T):
    likelihood, (mean, var) = Softmax(T).eval(), cases(T)
    y = torch.arange(len(mean)) % T
    got = likelihood.expected_log_prob(mean, var, y)
    want = million_samples(T)[1].gather(-1, y[:, None])[:, 0]
    tolerance = 0.05 if T == 100 else 0.01  # 16 points and their rotations carry 100 dimensions
    assert_allclose(got.numpy(), want.numpy(), rtol=tolerance, atol=0.01)


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
    assert (expected <= entropy(likelihood.predictive(mean, var)) + 1e-9).all()


# Symmetry

few_values = st.integers(-3, 3).map(float)  # so that ties are common


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([2, 3, 7, 20]), st.sampled_from(["quasi", "mean_field"]), st.data())
def test_permuting_classes_permutes_the_answer(T, method, data):
    mean = torch.from_numpy(data.draw(arrays(np.float64, (3, T), elements=few_values)))
    var = 10 ** torch.from_numpy(data.draw(arrays(np.float64, (3, T), elements=few_values)))
    order = torch.tensor(data.draw(st.permutations(range(T))))
    likelihood = Softmax(T, method).eval()
    y = torch.tensor(data.draw(st.lists(st.integers(0, T - 1), min_size=3, max_size=3)))

    p = likelihood.predictive(mean, var)
    permuted = likelihood.predictive(mean[:, order], var[:, order])
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


def test_rotations_give_every_class_every_coordinate():
    points = rotations(normal(4, 5))
    assert points.shape == (20, 5)
    for c in range(1, 5):
        assert torch.equal(points[:, c].sort().values, points[:, 0].sort().values)


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
    assert_allclose(p.numpy(), torch.softmax(mean, -1).numpy(), atol=1e-12)


@pytest.mark.parametrize("T", [2, 3, 10])
def test_huge_logits_and_variances_stay_finite(T):
    likelihood = Softmax(T).eval()
    mean, var = 1e4 * normal(4, T).float(), torch.full((4, T), 1e6)
    p = likelihood.predictive(mean, var)
    assert torch.isfinite(p).all()
    assert_allclose(p.sum(-1).numpy(), 1, atol=1e-5)
    assert torch.isfinite(likelihood.expected_entropy(mean, var)).all()
    assert torch.isfinite(likelihood.expected_log_prob(mean, var, torch.zeros(4).long())).all()


@pytest.mark.parametrize("T", [2, 3, 10])
def test_gradients_of_the_deterministic_loss(T):
    likelihood, y = Softmax(T).eval(), torch.arange(3) % T
    mean, var = normal(3, T).requires_grad_(), normal(3, T, seed=1).exp().requires_grad_()
    assert torch.autograd.gradcheck(lambda m, v: likelihood.expected_log_prob(m, v, y), (mean, var))
    assert torch.autograd.gradcheck(likelihood.predictive, (mean, var))


def test_nothing_touches_the_global_random_state():
    before = torch.get_rng_state()
    likelihood = Softmax(5).eval()
    likelihood.predictive(normal(3, 5), normal(3, 5).exp())
    likelihood.expected_log_prob(normal(3, 5), normal(3, 5).exp(), torch.tensor([0, 1, 2]))
    assert torch.equal(before, torch.get_rng_state())


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="'exact' is not one of quasi"):
        Softmax(3, "exact")
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
