"""One temperature for all classes, against a grid and against labels drawn at a known one."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import softmax

from due.gp import InducingGP, Softmax
from due.gp.temperature import SPREAD, best_temperature


def drawn(tau, n=20_000, T=5):
    """Means, tiny variances, and labels from softmax(mean / tau)."""
    rng = np.random.default_rng(0)
    mean = rng.normal(size=(n, T))
    p = softmax(mean / tau, axis=1)
    y = (p.cumsum(1) < rng.random((n, 1))).sum(1).clip(0, T - 1)
    return torch.as_tensor(mean), torch.full((n, T), 1e-9).double(), torch.as_tensor(y)


@pytest.mark.parametrize("tau", [0.3, 1.0, 2.5])
def test_recovers_the_temperature_that_labels_were_drawn_at(tau):
    assert_allclose(best_temperature(Softmax(5), *drawn(tau)), tau, rtol=0.05)


def test_is_the_least_of_a_grid_with_its_prior():
    mean, var, y = (part[:40] for part in drawn(0.3))
    log_tau = np.linspace(np.log(0.02), np.log(5), 2001)
    p = softmax(mean.numpy() / np.exp(log_tau)[:, None, None], axis=-1)
    surprise = -np.log(p[:, np.arange(40), y.numpy()]).sum(1) + (log_tau / SPREAD) ** 2 / 2
    want = np.exp(log_tau[surprise.argmin()])
    assert_allclose(best_temperature(Softmax(5), mean, var, y), want, rtol=0.02)


def test_a_weight_counts_as_so_many_rows():
    mean, var, y = (part[:30] for part in drawn(0.3))
    weights = torch.arange(30).double() % 3
    repeated = [part.repeat_interleave(weights.long(), 0) for part in (mean, var, y)]
    found = best_temperature(Softmax(5), mean, var, y, weights)
    assert_allclose(found, best_temperature(Softmax(5), *repeated), rtol=1e-6)


def test_few_rows_that_are_all_right_do_not_make_it_certain():
    mean, var = torch.eye(5).double() * 3, torch.full((5, 5), 0.1).double()
    assert 0.2 < best_temperature(Softmax(5), mean, var, torch.arange(5)) < 1


@pytest.mark.parametrize("shared", [True, False])
def test_a_gp_divides_its_function_by_it(shared):
    torch.manual_seed(0)
    gp = InducingGP(torch.randn(6, 2), 3, shared_kernel=shared)
    with torch.no_grad():
        for part in (gp.mu, gp.m, gp.raw_L_S):
            part.copy_(torch.randn_like(part))
    h = torch.randn(7, 2).double()
    with torch.no_grad():
        mean, var = gp(h)
        gp.temper(0.4)
        after = gp(h)
    assert_allclose(after[0], mean / 0.4, rtol=1e-10)
    assert_allclose(after[1], var / 0.16, rtol=1e-10)
