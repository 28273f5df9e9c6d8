"""Student-t noise: its mixture of normals, its expectation, and the weights of rows."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.stats import norm, t

from due.gp import Gaussian, StudentT
from due.gp.likelihoods import student_mixture
from due.gp.noise import Residuals
from due.methods.noise import best_tails

from .oracles import normal


@pytest.mark.parametrize("nu", [3.0, 6.0, 30.0])
def test_it_is_a_mixture_of_normals(nu):
    share, ratio = (part.numpy() for part in student_mixture(nu))
    x = np.array([0.0, 0.5, 2.0, 8.0, 30.0])
    density = (share * norm.pdf(x[:, None], scale=np.sqrt(ratio))).sum(1)
    assert_allclose(density, t.pdf(x, nu), rtol=1e-3)
    assert_allclose((share * ratio).sum(), nu / (nu - 2), rtol=0.01)


def test_expected_log_prob_is_the_integral():
    likelihood = StudentT(2, 0.3, nu=4.0)
    mean, var, y = normal(3, 2, seed=1), 0.2 * normal(3, 2, seed=2).exp(), normal(3, 2, seed=3)
    scale = likelihood.sigma2.sqrt().detach().numpy()
    want = np.zeros(3)
    for n in range(3):
        for k in range(2):
            m, s, value = float(mean[n, k]), float(var[n, k]) ** 0.5, float(y[n, k])
            want[n] += quad(
                lambda f, m=m, s=s, value=value, k=k: (
                    norm.pdf(f, m, s) * t.logpdf(value, 4.0, f, scale[k])
                ),
                m - 8 * s,
                m + 8 * s,
            )[0]
    assert_allclose(likelihood.expected_log_prob(mean, var, y).detach(), want, rtol=1e-5)
    total = likelihood.predictive(mean, var).var
    assert_allclose(total.detach(), (var + 2 * likelihood.sigma2).detach())


def test_many_degrees_of_freedom_are_normal():
    many, gaussian = StudentT(1, 0.3, nu=1e6), Gaussian(1, 0.3)
    mean, var, y = normal(5, 1, seed=1), normal(5, 1, seed=2).exp(), normal(5, 1, seed=3)
    got, want = (each.expected_log_prob(mean, var, y).detach() for each in (many, gaussian))
    assert_allclose(got, want, rtol=1e-4)
    assert_allclose(many.precisions(mean, var, y, many.sigma2).detach(), 1, atol=1e-3)


def test_tails_of_residuals_are_found():
    rng = np.random.default_rng(0)
    for nu, low, high in ((3.0, 3.0, 4.0), (200.0, 10.0, 30.0)):
        e = 0.5 * t.rvs(nu, size=(3000, 1), random_state=rng)
        square = torch.from_numpy(e**2)
        rows = Residuals(square, square, torch.full_like(square, 1e-6), torch.ones(3000).double())
        flat = best_tails(rows, per_output=True, g=torch.zeros_like(square))
        assert low <= flat.nu <= high
        assert_allclose(flat.sigma2.sqrt(), 0.5, rtol=0.15)
        want = t.logpdf(e[:, 0], flat.nu, scale=flat.sigma2.sqrt())
        assert_allclose(flat.log_density, want, atol=2e-3)


def test_tails_are_those_of_residuals_relative_to_their_shape():
    rng = np.random.default_rng(1)
    g = torch.from_numpy(rng.normal(size=(900, 1)))
    e = torch.from_numpy(t.rvs(4.0, size=(900, 1), random_state=rng))
    nothing, one = torch.full_like(e, 1e-9), torch.ones(900).double()
    plain = best_tails(Residuals(e, e**2, nothing, one), True, torch.zeros_like(g))
    shaped = best_tails(Residuals(e, e**2 * g.exp(), nothing, one), True, g)
    assert shaped.nu == plain.nu
    assert_allclose(shaped.sigma2, plain.sigma2, rtol=1e-5)
    assert_allclose(shaped.log_density, plain.log_density - g[:, 0] / 2, atol=1e-4)


def test_many_small_residuals_do_not_hide_the_large_ones():
    rng = np.random.default_rng(0)
    e = rng.normal(size=(400, 1)) * np.where(np.arange(400) % 5 < 3, 0.01, 1.0)[:, None]
    square = torch.from_numpy(e**2)
    rows = Residuals(square, square, torch.full_like(square, 1e-9), torch.ones(400).double())
    for nus in ((5.0, 10.0, 30.0), (30.0,)):
        found = best_tails(rows, True, torch.zeros_like(square), nus)
        normal = norm.logpdf(e[:, 0], scale=np.sqrt(np.mean(e**2))).mean()
        assert found.log_density.mean() > normal - 0.02


def test_one_noise_of_two_outputs_has_one_level():
    rng = np.random.default_rng(0)
    square = torch.from_numpy((rng.normal(size=(300, 2)) * [0.1, 1.0]) ** 2)
    rows = Residuals(square, square, torch.full_like(square, 1e-9), torch.ones(300).double())
    found = best_tails(rows, False, torch.zeros_like(square))
    assert found.sigma2.shape == (1,) and 0.01 < found.sigma2 < 1


def test_normal_noise_of_the_same_variance_and_back():
    student = Gaussian(2, 0.3).with_tails(4.0, torch.tensor([0.2, 0.5], dtype=torch.float64))
    assert_allclose(student.sigma2.detach(), [0.2, 0.5], rtol=1e-6)
    gaussian = student.without_tails()
    assert_allclose(gaussian.sigma2.detach(), [0.4, 1.0], rtol=1e-6)
    assert gaussian.raw_sigma2 is student.raw_sigma2
