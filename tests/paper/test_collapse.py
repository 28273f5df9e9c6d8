from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from due.experiments.artefact import average
from due.gp import InducingGP, Kernel, collapsed_bound, log_marginal_likelihood
from due.paper import collapse, deep_kernels, far_rows

SMOKE = replace(collapse.PRESETS["smoke"], uci=())
N = 40


@pytest.fixture(scope="module")
def smoke():
    return collapse.run(SMOKE, seed=0)


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    return h, torch.sin(3 * h[:, :1]) + 0.3


def exact(h, y, s):
    """A kernel with output scale s, its noise 0.2 s, and its terms."""
    kernel, sigma2 = Kernel("rbf", 1, 1.3, s), torch.tensor([0.2 * s], dtype=torch.float64)
    mu = torch.tensor([0.1], dtype=torch.float64)
    return kernel, sigma2, mu, collapse.exact_terms(kernel, h, y, sigma2, mu)


def sparse(h, y, s):
    gp = InducingGP(h[:7], 1, 1.3)
    gp.kernel = Kernel("rbf", 1, 1.3, s)
    sigma2 = torch.tensor([0.2 * s], dtype=torch.float64)
    return gp, sigma2, collapse.sparse_terms(gp, h, y, sigma2)


def in_numpy(K, r, s, sigma2):
    A = K + sigma2 * np.eye(len(r))
    data_fit = r @ np.linalg.solve(A, r) / 2
    log_det = np.linalg.slogdet(A)[1]
    unit = np.linalg.slogdet(K / s + sigma2 / s * np.eye(len(r)))[1]
    return data_fit, log_det / 2, unit


def total(terms):
    return -terms.data_fit - terms.complexity - terms.slack - N / 2 * np.log(2 * np.pi)


def test_exact_terms_are_those_of_numpy_and_sum_to_the_log_marginal_likelihood(rows):
    h, y = rows
    kernel, sigma2, mu, terms = exact(h, y, s=0.8)
    K = 0.8 * np.exp(-(np.linalg.norm(h.numpy()[:, None] - h.numpy(), axis=-1) ** 2) / 2 / 1.3**2)
    want = in_numpy(K, y.numpy()[:, 0] - 0.1, 0.8, sigma2.item())
    assert_allclose([terms.data_fit, terms.complexity, terms.log_det_unit], want, rtol=1e-8)
    with torch.no_grad():
        likelihood = log_marginal_likelihood(kernel, h, y, sigma2, mu).total.item()
    assert total(terms).item() == pytest.approx(likelihood, rel=1e-10)


def test_sparse_terms_are_those_of_numpy_and_sum_to_the_collapsed_bound(rows):
    h, y = rows
    gp, sigma2, terms = sparse(h, y, s=0.8)

    def k(a, b):
        return np.exp(-(np.linalg.norm(a[:, None] - b, axis=-1) ** 2) / 2 / 1.3**2)

    X, Z = h.numpy(), h.numpy()[:7]
    Q = 0.8 * k(X, Z) @ np.linalg.solve(k(Z, Z) + gp.jitter * np.eye(7), k(Z, X))
    want = in_numpy(Q, y.numpy()[:, 0], 0.8, sigma2.item())
    assert_allclose([terms.data_fit, terms.complexity, terms.log_det_unit], want, rtol=1e-8)
    assert_allclose(terms.slack, (0.8 * N - np.trace(Q)) / 2 / sigma2.item(), rtol=1e-8)
    with torch.no_grad():
        bound = collapsed_bound(gp, h, y, sigma2).item()
    assert total(terms).item() == pytest.approx(bound, rel=1e-8)


@pytest.mark.parametrize("kind", [exact, sparse])
def test_lemma_at_the_best_output_scale_the_data_fit_is_half_n(rows, kind):
    h, y = rows
    *_, terms = kind(h, y, s=0.8)
    s = (2 * terms.data_fit * 0.8 / N).item()  # s* = rᵀ (κ + σ̂² I)⁻¹ r / N
    *_, best = kind(h, y, s=s)
    assert best.data_fit.item() == pytest.approx(N / 2, abs=1e-6)
    assert best.log_det_unit.item() == pytest.approx(terms.log_det_unit.item(), abs=1e-6)
    for other in (0.9 * s, 1.1 * s):  # the optimum along s, with σ²/s as it is
        assert total(kind(h, y, s=other)[-1]) < total(best)


def test_points_on_top_of_one_another_raise_the_likelihood_without_bound(rows):
    """Proposition 1: two clusters that share y, noise → 0."""
    label = torch.arange(N)[:, None] % 2
    y = label.double() - 0.5
    found = []
    for spread, noise in ((0.1, 1e-2), (0.01, 1e-4), (0.001, 1e-6)):
        h = 5 * y + spread * rows[0][:, :1]
        mu = torch.zeros(1, dtype=torch.float64)
        sigma2 = torch.tensor([noise], dtype=torch.float64)
        found.append(total(collapse.exact_terms(Kernel("rbf", 1, 1.0, 0.25), h, y, sigma2, mu)))
    assert found[0] < found[1] - N < found[2] - 2 * N


def test_training_by_the_marginal_likelihood_ends_at_the_lemma():
    settings = replace(SMOKE, steps=1200, every=1200, gp_lr=0.02)
    x, y = collapse.cosine_rows(settings, seed=0)
    for gp in collapse.GPS:
        curve = collapse.follow(collapse.build(settings, "sound", gp, x, 0), settings, x, y)
        assert curve["data_fit"][-1] == pytest.approx(0.5, abs=0.05)


def test_the_report_has_all_curves_and_says_that_uci_was_skipped(smoke):
    assert smoke.numbers["uci_sets"] == 0 and "uci" not in smoke.numbers
    for network in deep_kernels.NETWORKS:
        for gp in collapse.GPS:
            curve = smoke.picture["curves"][network][gp]
            assert curve["step"] == [0, 3, 6]
            assert np.all(np.isfinite([curve[key] for key in curve]))
            terms = -np.array(curve["data_fit"]) - curve["complexity"] - curve["slack"]
            assert_allclose(
                terms - np.log(2 * np.pi) / 2, curve["log_likelihood"], rtol=1e-5, atol=1e-5
            )
    text = collapse.text(SMOKE, average([smoke.numbers]))
    assert "UCI sets: skipped" in text
    assert len(collapse.draw(SMOKE, [smoke]).axes) == 4


def test_a_uci_set_is_judged_near_and_far(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    (tmp_path / "uci").mkdir()
    np.savez(tmp_path / "uci" / "yacht.npz", x=x, y=x[:, 0], test_idx=[np.arange(10)])
    monkeypatch.setenv("DUE_DATA", str(tmp_path))
    assert deep_kernels.at_hand() == ("yacht",)
    settings = replace(SMOKE, uci=("yacht",), steps=1, every=1)
    result = collapse.run(settings, seed=0)
    for found in result.numbers["uci"]["yacht"].values():
        for far in settings.far:
            assert 0 <= found[f"far_{far:g}"]["std_over_prior"] <= 1 + 1e-6
            assert 0 <= found[f"far_{far:g}"]["auroc"] <= 1
    assert "yacht" in collapse.text(settings, average([result.numbers]))
    assert len(collapse.draw(settings, [result]).axes) == 8


def test_directions_have_unit_length_per_column():
    u = far_rows.directions(torch.zeros(5, 7), seed=0)
    assert_allclose(u.square().mean(1), np.ones(5), rtol=1e-6)
