"""Noise that depends on x: rows left out, the mode of the log-noise, and when it is chosen."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime, minimize
from scipy.spatial.distance import cdist

from due.gp import Gaussian, collapsed_bound, held_out_noise, set_optimal_q
from due.gp.collapsed import NOISES, leave_one_out
from due.gp.noise import (
    Basis,
    NoiseShape,
    Residuals,
    best_level,
    choose_shape,
    fit_shape,
    log_densities,
    mode,
)

from .oracles import normal, random_gp


def a_shape(T=2, P=4, J=3):
    return NoiseShape(normal(P, J, seed=20), 0.5 * normal(T, P, seed=21), 1.7)


def draw(n, slope, seed, T=1):
    """Residuals of noise whose log-variance is slope · h₁, beside a small variance of f."""
    h, e = normal(n, 2, seed=seed), normal(n, T, seed=seed + 1)
    var = torch.full((n, T), 0.01, dtype=torch.float64)
    noise = 0.2 * (slope * h[:, :1]).exp()
    return Residuals(h, e.square() * (noise + var), var, torch.ones(n, dtype=torch.float64))


def test_the_shape_is_a_sum_of_bumps():
    shape, h = a_shape(), normal(5, 3, seed=1)
    kappa = np.exp(-cdist(h.numpy(), shape.centres.numpy(), "sqeuclidean") / (2 * 1.7**2))
    want = np.exp(kappa @ shape.alpha.detach().numpy().T)
    assert_allclose(shape(h).detach().numpy(), want, rtol=1e-10)
    assert_allclose(shape(1e4 * h).detach().numpy(), 1.0)  # far away the noise has its level


@pytest.mark.parametrize("noises", [1, 2])
def test_noise_of_the_likelihood(noises):
    likelihood, h = Gaussian(noises, 0.3, shape=a_shape()), normal(5, 3, seed=1)
    noise = likelihood.noise(h)
    assert_allclose(noise.detach(), (likelihood.sigma2 * a_shape()(h)).detach())
    mean, var, y = normal(5, 2, seed=2), normal(5, 2, seed=3).exp(), normal(5, 2, seed=4)
    sampled = torch.distributions.Normal(y, noise.sqrt())
    points, weights = np.polynomial.hermite_e.hermegauss(40)
    parts = [
        w * sampled.log_prob(mean + x * var.sqrt()).sum(1)
        for x, w in zip(points, weights, strict=True)
    ]
    want = torch.stack(parts).sum(0) / np.sqrt(2 * np.pi)
    assert_allclose(likelihood.expected_log_prob(mean, var, y, noise).detach(), want.detach())
    assert_allclose(likelihood.predictive(mean, var, noise).var.detach(), (var + noise).detach())


def test_gradient_of_the_bound_with_respect_to_the_shape():
    gp, h, y, shape = random_gp(), normal(10, 3, seed=1), normal(10, 2, seed=2), a_shape()
    likelihood = Gaussian(2, 0.3, shape)

    def bound(alpha):
        with torch.no_grad():
            shape.alpha.copy_(torch.from_numpy(alpha).reshape(2, 4))
        return collapsed_bound(gp, h, y, likelihood.noise(h)).item()

    start = shape.alpha.detach().numpy().ravel().copy()
    want = approx_fprime(start, bound, 1e-6)
    bound(start)
    collapsed_bound(gp, h, y, likelihood.noise(h)).backward()
    assert shape.alpha.grad is not None
    assert_allclose(shape.alpha.grad.numpy().ravel(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
def test_leaving_a_row_out_is_fitting_without_it(weighted):
    gp, h, y = random_gp("matern32"), normal(12, 3, seed=1), normal(12, 2, seed=2)
    noise, w = 0.3 * normal(12, 2, seed=5).exp(), normal(12, seed=6).abs() if weighted else None
    mean, var = leave_one_out(gp, h, y, noise, w)
    for i in range(12):
        others = torch.arange(12) != i
        part = None if w is None else w[others]
        set_optimal_q(gp, h[others], y[others], noise[others], part)
        want_mean, want_var = gp(h[i : i + 1])
        assert_allclose(mean[i].detach(), want_mean[0].detach(), rtol=1e-8, atol=1e-10)
        assert_allclose(var[i].detach(), want_var[0].detach(), rtol=1e-8)


def test_held_out_level_with_a_shape_is_the_best_of_its_grid():
    gp, shape = random_gp("matern32"), a_shape()
    h, new_h = normal(40, 3, seed=1), normal(15, 3, seed=2)
    y, new_y = (torch.sin(v[:, :2]) + 0.3 * normal(len(v), 2, seed=3) for v in (h, new_h))
    found = held_out_noise(gp, h, y, new_h, new_y, shape=shape)
    grid, scores = np.logspace(*NOISES), []
    for sigma2 in grid:
        set_optimal_q(gp, h, y, sigma2 * shape(h))
        mean, var = gp(new_h)
        new = torch.distributions.Normal(mean, (var + sigma2 * shape(new_h)).sqrt())
        scores.append(new.log_prob(new_y).sum(0))
    assert_allclose(found, grid[torch.stack(scores).argmax(0)], rtol=1e-6)


def test_the_mode_is_what_scipy_finds():
    rows, s = draw(60, 1.0, seed=0), 0.4
    basis = Basis(rows.h, 1.0)
    A = basis(rows.h).numpy()
    square, var = rows.square[:, 0].numpy(), rows.var[:, 0].numpy()

    def loss(u):
        total = var + np.exp(u[0] + A @ u[1:])
        return 0.5 * (np.log(total) + square / total).sum() + (u[1:] ** 2).sum() / (2 * s)

    want = minimize(loss, np.r_[np.log(0.2), np.zeros(A.shape[1])], method="BFGS").x
    u = mode(torch.from_numpy(A), rows, s)
    assert_allclose(A @ u[:, 0].numpy(), A @ want[1:], atol=5e-3)
    g = fit_shape(rows, s, 1.0)(rows.h).log()
    assert_allclose(g[:, 0], A @ u[:, 0].numpy(), atol=1e-3)


def test_the_level_makes_rows_most_probable():
    rows = draw(80, 0.0, seed=3, T=2)
    g = 0.3 * normal(80, 2, seed=9)
    level = best_level(rows, g)

    def total(level):
        normal_ = torch.distributions.Normal(0.0, (rows.var + level * g.exp()).sqrt())
        return normal_.log_prob(rows.square.sqrt())

    assert_allclose(log_densities(rows, g), total(level).sum(1))
    for factor in (0.9, 1.1):
        assert (total(level).sum(0) > total(factor * level).sum(0)).all()


def test_noise_that_varies_is_found_and_constant_noise_is_left_alone():
    found = [choose_shape(draw(300, 1.5, s), draw(80, 1.5, s + 500)) for s in range(5)]
    assert all(choice.shape is not None for choice in found)
    h = normal(200, 2, seed=77)
    assert found[0].shape is not None
    estimated = found[0].shape(h).log()[:, 0]
    assert np.corrcoef(estimated, h[:, 0])[0, 1] > 0.9
    false_alarms = sum(
        choose_shape(draw(300, 0.0, s), draw(80, 0.0, s + 500)).shape is not None
        for s in range(0, 40, 2)
    )
    assert false_alarms <= 6
    assert choose_shape(draw(300, 0.0, 0), draw(80, 0.0, 500), needed=True).shape is not None
