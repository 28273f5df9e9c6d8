import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessRegressor, kernels

from due.gp import (
    Gaussian,
    InducingGP,
    Kernel,
    collapsed_bound,
    held_out_noise,
    log_marginal_likelihood,
    posterior,
    set_optimal_q,
)
from due.gp.collapsed import NOISES, condition
from due.gp.exact import Posterior, _LogNormal, weighted_likelihood

from . import oracles
from .oracles import KINDS, normal, random_gp

every_kernel = pytest.mark.parametrize("kind", KINDS)
SIGMA2 = torch.tensor([0.3, 0.5], dtype=torch.float64)


def numpy(tensor):
    return tensor.detach().numpy()


def elbo(gp, h, y, sigma2):
    """Σ_n E[log p(y_n | f_n)] − KL, with the noise given."""
    mean, var = gp(h)
    misfit = ((y - mean).square() + var) / sigma2
    return -0.5 * (torch.log(2 * torch.pi * sigma2) + misfit).sum() - gp.kl()


# The exact GP


@every_kernel
def test_exact_gp_is_five_lines_of_numpy(kind):
    kernel, mu = random_gp(kind).kernel, torch.tensor([0.2, -1.0], dtype=torch.float64)
    h, h_new, y = normal(9, 3), normal(4, 3, seed=1), normal(9, 2, seed=2)
    fit = log_marginal_likelihood(kernel, h, y, SIGMA2, mu)
    mean, cov = posterior(kernel, h, y, SIGMA2, h_new, mu)
    for t in range(2):
        y_t, mu_t, sigma2 = numpy(y[:, t]), mu[t].item(), SIGMA2[t].item()
        K = oracles.kernel(kernel, h, h, t)
        want = oracles.log_normal(y_t, mu_t, K + sigma2 * np.eye(9))
        assert_allclose(fit.total[t].item(), want, rtol=1e-7)
        k, kk = oracles.kernel(kernel, h, h_new, t), oracles.kernel(kernel, h_new, h_new, t)
        want_mean, want_cov = oracles.exact_posterior(K, k, kk, y_t, mu_t, sigma2)
        assert_allclose(numpy(mean[:, t]), want_mean, atol=1e-7)
        assert_allclose(numpy(cov[t]), want_cov, atol=1e-7)
    want = fit.data_fit - fit.complexity - 4.5 * np.log(2 * np.pi)
    assert_allclose(numpy(fit.total), numpy(want))
    assert (fit.data_fit <= 0).all()


def test_gradients_of_the_exact_likelihood_are_those_of_its_formula():
    B, r = normal(2, 6, 6), normal(2, 6, seed=1).requires_grad_()
    K = (B @ B.mT + 6 * torch.eye(6)).requires_grad_()
    data_fit, complexity = _LogNormal.apply(K, r, torch.linalg.cholesky(K.detach()))
    want = -0.5 * (r * torch.linalg.solve(K, r)).sum(-1), 0.5 * torch.logdet(K)
    weight = torch.tensor([1.0, -2.0], dtype=torch.float64)
    for got, its, variables in ((data_fit, want[0], (K, r)), (complexity, want[1], (K,))):
        assert_allclose(numpy(got), numpy(its))
        ours, theirs = (
            torch.autograd.grad((weight * value).sum(), variables, retain_graph=True)
            for value in (got, its)
        )
        for a, b in zip(ours, theirs, strict=True):
            assert_allclose(a, b, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        ("rbf", kernels.RBF(1.7)),
        ("matern12", kernels.Matern(1.7, nu=0.5)),
        ("matern32", kernels.Matern(1.7, nu=1.5)),
        ("matern52", kernels.Matern(1.7, nu=2.5)),
        ("rq", kernels.RationalQuadratic(1.7, alpha=1.0)),
    ],
)
def test_exact_gp_equals_scikit_learn(kind, theirs):
    kernel, sigma2 = Kernel(kind, 1, lengthscale=1.7, outputscale=2.0), torch.tensor([0.3]).double()
    h, h_new, y = normal(12, 3), normal(5, 3, seed=1), normal(12, 1, seed=2)
    mean, cov = posterior(kernel, h, y, sigma2, h_new)

    regressor = GaussianProcessRegressor(2.0 * theirs, alpha=sigma2.item(), optimizer=None)
    regressor.fit(numpy(h), numpy(y[:, 0]))
    want_mean, want_cov = regressor.predict(numpy(h_new), return_cov=True)
    assert_allclose(numpy(mean[:, 0]), want_mean, atol=1e-7)
    assert_allclose(numpy(cov[0]), want_cov, atol=1e-7)
    total = log_marginal_likelihood(kernel, h, y, sigma2).total.item()
    assert_allclose(total, regressor.log_marginal_likelihood_value_, atol=1e-6)


# With Z = X and the optimal q


@every_kernel
@pytest.mark.parametrize("shared", [False, True])
def test_recovers_the_exact_gp_when_inducing_inputs_are_the_data(kind, shared):
    X, X_new, y = 2 * normal(8, 3), normal(5, 3, seed=1), normal(8, 2, seed=2)
    gp = InducingGP(X, 2, 1.5, kind, shared_kernel=shared, jitter=1e-10)
    gp.mu.data = torch.tensor([0.2, -1.0], dtype=torch.float64)

    set_optimal_q(gp, X, y, SIGMA2)

    want = log_marginal_likelihood(gp.kernel, X, y, SIGMA2, gp.mu).total.sum().item()
    assert_allclose(elbo(gp, X, y, SIGMA2).item(), want, atol=1e-6)
    assert_allclose(collapsed_bound(gp, X, y, SIGMA2).item(), want, atol=1e-6)
    want_mean, want_cov = posterior(gp.kernel, X, y, SIGMA2, X_new, gp.mu)
    mean, cov = gp.joint(X_new)
    assert_allclose(numpy(mean), numpy(want_mean), atol=1e-7)
    assert_allclose(numpy(cov), numpy(want_cov), atol=1e-7)


# Titsias's bound


@every_kernel
def test_bound_is_titsias_formula(kind):
    gp = random_gp(kind, jitter=1e-8)
    h, y = normal(10, 3, seed=1), normal(10, 2, seed=2)
    want = 0.0
    for t in range(2):
        s = gp.kernel.outputscale[t].item()
        K_ZZ = oracles.kernel(gp.kernel, gp.Z, gp.Z, t) + 1e-8 * s * np.eye(6)
        K_ZX = oracles.kernel(gp.kernel, gp.Z, h, t)
        y_t, mu = numpy(y[:, t]), gp.mu[t].item()
        want += oracles.titsias(K_ZZ, K_ZX, np.full(10, s), y_t, mu, SIGMA2[t].item())
    assert_allclose(collapsed_bound(gp, h, y, SIGMA2).item(), want, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 2**31),
    st.integers(1, 15),
    st.floats(-3, 2),
    st.floats(-4, 2),
)
def test_bound_never_exceeds_the_marginal_likelihood(kind, seed, M, log_length, log_noise):
    gp = InducingGP(normal(M, 2, seed=seed), 1, 10**log_length, kind)
    h, y = normal(10, 2, seed=seed + 1), normal(10, 1, seed=seed + 2)
    sigma2 = torch.tensor([10**log_noise], dtype=torch.float64)
    exact = log_marginal_likelihood(gp.kernel, h, y, sigma2).total.item()
    assert collapsed_bound(gp, h, y, sigma2).item() <= exact + 1e-7 * abs(exact)


@pytest.mark.parametrize("shared", [False, True])
def test_integer_weights_repeat_rows(shared):
    gp, h, y = random_gp(shared_kernel=shared), normal(5, 3, seed=1), normal(5, 2, seed=2)
    w = torch.tensor([0, 1, 2, 3, 1])
    bound = collapsed_bound(gp, h, y, SIGMA2, w.double()).item()
    set_optimal_q(gp, h, y, SIGMA2, w.double())
    m, S = gp.m.clone(), gp.L_S @ gp.L_S.mT

    rows = torch.arange(5).repeat_interleave(w)
    assert_allclose(bound, collapsed_bound(gp, h[rows], y[rows], SIGMA2).item(), rtol=1e-12)
    set_optimal_q(gp, h[rows], y[rows], SIGMA2)
    assert_allclose(numpy(m), numpy(gp.m), atol=1e-12)
    assert_allclose(numpy(S), numpy(gp.L_S @ gp.L_S.mT), atol=1e-12)


@pytest.mark.parametrize("noises", [1, 2])
@pytest.mark.parametrize("shared", [False, True])
def test_one_noise_or_one_each_and_one_kernel_or_one_each(noises, shared):
    gp, h, y = random_gp(shared_kernel=shared), normal(7, 3, seed=1), normal(7, 2, seed=2)
    sigma2 = SIGMA2[:noises]
    want = 0.0
    for t in range(2):
        one = InducingGP(gp.Z, jitter=gp.jitter)
        one.kernel.raw_lengthscale.data = gp.kernel.raw_lengthscale.expand(2)[t : t + 1].detach()
        one.kernel.raw_outputscale.data = gp.kernel.raw_outputscale.expand(2)[t : t + 1].detach()
        one.mu.data = gp.mu[t : t + 1].detach()
        want += collapsed_bound(one, h, y[:, t : t + 1], sigma2.expand(2)[t : t + 1]).item()
    assert_allclose(collapsed_bound(gp, h, y, sigma2).item(), want, rtol=1e-10)
    set_optimal_q(gp, h, y, sigma2)
    assert_allclose(elbo(gp, h, y, sigma2).item(), want, rtol=1e-8)


@every_kernel
def test_optimal_q_attains_the_bound_and_nothing_near_it_does_better(kind):
    gp, h, y = random_gp(kind), normal(10, 3, seed=1), normal(10, 2, seed=2)
    set_optimal_q(gp, h, y, SIGMA2)
    best = elbo(gp, h, y, SIGMA2)
    assert_allclose(best.item(), collapsed_bound(gp, h, y, SIGMA2).item(), rtol=1e-9)
    gradients = torch.autograd.grad(best, [gp.m, gp.raw_L_S])
    assert all(g.abs().max() < 1e-7 for g in gradients)
    m, raw_L_S = gp.m.detach().clone(), gp.raw_L_S.detach().clone()
    for seed in range(20):
        scale = 10.0 ** -(seed % 4)
        gp.m.data = m + scale * normal(2, 6, seed=seed)
        gp.raw_L_S.data = raw_L_S + scale * normal(2, 6, 6, seed=seed + 100)
        assert elbo(gp, h, y, SIGMA2) < best


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_in_parts_give_the_same_q(shared, weighted):
    h, y = normal(23, 3), normal(23, 2, seed=2)
    sigma2 = normal(23, 2, seed=3).exp()
    weights = torch.arange(1, 24).double() if weighted else None
    whole, by_parts = (random_gp(shared_kernel=shared) for _ in range(2))
    set_optimal_q(whole, h, y, sigma2, weights)
    rows = torch.arange(23).split(7)
    condition(
        by_parts,
        ((h[r], y[r], sigma2[r], weights[r] if weights is not None else None) for r in rows),
    )
    assert_allclose(numpy(by_parts.m), numpy(whole.m), atol=1e-10)
    assert_allclose(numpy(by_parts.L_S), numpy(whole.L_S), atol=1e-10)


def test_one_covariance_of_outputs_with_noise_of_their_own():
    gp = random_gp(shared_kernel=True, shared_covariance=True)
    h, y = normal(9, 3), normal(9, 2, seed=2)
    set_optimal_q(gp, h, y, SIGMA2)
    lost = -elbo(gp, h, y, SIGMA2)
    grads = torch.autograd.grad(lost, [gp.m, gp.raw_L_S])
    assert all(float(grad.abs().max()) < 1e-8 for grad in grads)


def test_hundreds_of_gradient_steps_on_q_reach_the_closed_form():
    gp, h, y = random_gp(), normal(10, 3, seed=1), normal(10, 2, seed=2)
    want = collapsed_bound(gp, h, y, SIGMA2).item()
    optimiser = torch.optim.LBFGS(
        [gp.m, gp.raw_L_S], max_iter=200, line_search_fn="strong_wolfe", tolerance_change=1e-12
    )

    def loss():
        optimiser.zero_grad()
        value = -elbo(gp, h, y, SIGMA2)
        value.backward()
        return value

    optimiser.step(loss)
    assert_allclose(elbo(gp, h, y, SIGMA2).item(), want, atol=1e-6)


def test_gaussian_likelihood_starts_at_its_noise():
    likelihood = Gaussian(noises=2, sigma2=0.3)
    assert_allclose(numpy(likelihood.sigma2), [0.3, 0.3], rtol=1e-5)


# Noise that differs from row to row


def noise_of_rows(n=10, seed=5):
    return 0.3 * normal(n, 2, seed=seed).exp()


@every_kernel
def test_noise_by_row_is_the_dense_formula_in_numpy(kind):
    """log N(y | μ, Q + D) − ½ Σ_n (k_nn − q_nn) / D_nn."""
    gp, h, y, noise = random_gp(kind), normal(10, 3, seed=1), normal(10, 2, seed=2), noise_of_rows()
    want = 0.0
    for t in range(2):
        K_ZZ = oracles.kernel(gp.kernel, gp.Z, gp.Z, t)
        K_ZZ += gp.jitter * gp.kernel.outputscale[t].item() * np.eye(6)
        K_ZX, k = oracles.kernel(gp.kernel, gp.Z, h, t), gp.kernel.outputscale[t].item()
        Q, D = K_ZX.T @ np.linalg.solve(K_ZZ, K_ZX), numpy(noise[:, t])
        want += oracles.log_normal(numpy(y[:, t]), gp.mu[t].item(), Q + np.diag(D))
        want -= 0.5 * ((k - np.diag(Q)) / D).sum()
    assert_allclose(collapsed_bound(gp, h, y, noise).item(), want, rtol=1e-9)
    set_optimal_q(gp, h, y, noise)
    assert_allclose(elbo(gp, h, y, noise).item(), want, rtol=1e-8)


@every_kernel
def test_exact_likelihood_and_posterior_with_noise_by_row(kind):
    gp, h, y, noise = random_gp(kind), normal(10, 3, seed=1), normal(10, 2, seed=2), noise_of_rows()
    h_new = normal(4, 3, seed=6)
    mean, var = Posterior(gp, h, y, noise)(h_new)
    want = 0.0
    for t in range(2):
        K, D = oracles.kernel(gp.kernel, h, h, t), np.diag(numpy(noise[:, t]))
        y_t, mu = numpy(y[:, t]), gp.mu[t].item()
        want += oracles.log_normal(y_t, mu, K + D)
        G = np.linalg.solve(K + D, oracles.kernel(gp.kernel, h, h_new, t))
        assert_allclose(numpy(mean[:, t]), mu + G.T @ (y_t - mu), atol=1e-7)
        gone = (G * oracles.kernel(gp.kernel, h, h_new, t)).sum(0)
        assert_allclose(numpy(var[:, t]), gp.kernel.outputscale[t].item() - gone, atol=1e-7)
    assert_allclose(weighted_likelihood(gp, h, y, noise).item(), want, rtol=1e-7)


@pytest.mark.parametrize("noise", [SIGMA2, noise_of_rows()], ids=["one", "by row"])
def test_a_weight_of_the_exact_likelihood_repeats_its_row(noise):
    gp, h, y = random_gp(), normal(10, 3, seed=1), normal(10, 2, seed=2)
    w = torch.tensor([1, 2, 1, 3, 1, 1, 2, 1, 1, 1])
    rows = torch.arange(10).repeat_interleave(w)
    repeated = noise if noise.dim() == 1 else noise[rows]
    want = weighted_likelihood(gp, h[rows], y[rows], repeated).item()
    assert_allclose(weighted_likelihood(gp, h, y, noise, w.double()).item(), want, rtol=1e-9)
    mean, var = Posterior(gp, h, y, noise, w.double())(normal(4, 3, seed=6))
    want_mean, want_var = Posterior(gp, h[rows], y[rows], repeated)(normal(4, 3, seed=6))
    assert_allclose(numpy(mean), numpy(want_mean), atol=1e-9)
    assert_allclose(numpy(var), numpy(want_var), atol=1e-9)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_held_out_noise_is_the_best_of_its_grid(shared, weighted):
    """Against q(U) set anew for each σ² and the log density of the new rows, one by one."""
    gp = random_gp("matern32", T=2, shared_kernel=shared)
    h, new_h = normal(40, 3, seed=1), normal(15, 3, seed=2)
    y, new_y = torch.sin(h[:, :2]), torch.sin(new_h[:, :2])
    y, new_y = (v + torch.tensor([0.1, 0.4]) * normal(*v.shape, seed=3) for v in (y, new_y))
    w, new_w = ((normal(len(v), seed=4).abs() if weighted else None) for v in (h, new_h))

    found = held_out_noise(gp, h, y, new_h, new_y, w, new_w)

    grid, scores = np.logspace(*NOISES), []
    for sigma2 in grid:
        set_optimal_q(gp, h, y, torch.full((2,), sigma2), w)
        mean, var = gp(new_h)
        log_density = torch.distributions.Normal(mean, (var + sigma2).sqrt()).log_prob(new_y)
        scores.append(((1 if new_w is None else new_w[:, None]) * log_density).sum(0))
    total = torch.stack(scores)
    assert_allclose(found.numpy(), grid[total.argmax(0).numpy()], rtol=1e-6)
    one = held_out_noise(gp, h, y, new_h, new_y, w, new_w, shared=True)
    assert_allclose(one.numpy(), grid[total.sum(1).argmax()], rtol=1e-6)
