"""SNGP, DUQ, DDU, SV-DKL, GPDNN and the exact GP as estimators: each states its own uncertainty."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from due.baselines import (
    GPDNN,
    DDUClassifier,
    DeepEnsemble,
    DUQClassifier,
    ExactGPRegressor,
    SNGPClassifier,
    SNGPRegressor,
    SVDKLClassifier,
    SVDKLRegressor,
)
from due.baselines.classifiers import feed_forward
from due.data.toy import two_moons
from due.estimators import DUEClassifier
from due.gp import posterior
from due.lipschitz import constraints, singular_value
from due.methods import svdkl as svdkl_model
from due.metrics import entropy
from due.networks import FCResNet, FeedForward

BRIEF = {"epochs": 3, "random_state": 0}
FAR = [[50.0, 50.0]]


def small(shape):
    return FCResNet(shape[0], 8, 1)


@pytest.fixture(scope="module")
def moons():
    return two_moons(80)


@pytest.fixture(scope="module")
def wave():
    x = np.linspace(-3, 3, 60)[:, None]
    return x, 5 + 2 * np.sin(x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=60)


def scaled(model, X):
    return torch.as_tensor(model.scale_(np.asarray(X)))


# SNGP


def test_sngp_regressor_has_the_covariance_of_a_clean_pass_over_the_rows(wave):
    X, y = wave
    model = SNGPRegressor(small, n_random_features=12, ridge=0.7, validation_fraction=0, **BRIEF)
    model.fit(X, y)
    phi = model.predictor_.model.gp.features(model.predictor_.model.f(scaled(model, X))).numpy()
    sigma2 = model.model_.likelihood.sigma2.item()
    P = 0.7 * np.eye(12) + phi.T @ phi / sigma2
    latent = np.einsum("ns,ns->n", phi, np.linalg.solve(P, phi.T).T) * y.std() ** 2
    assert_allclose(model.uncertainty(X), latent, rtol=1e-4)
    _, std = model.predict(X, return_std=True)
    assert_allclose(std**2 - model.uncertainty(X), sigma2 * y.std() ** 2, rtol=1e-6)


def test_sngp_of_figure_1_has_unit_noise_that_is_not_learned(wave):
    model = SNGPRegressor(small, n_random_features=12, sigma2=1.0, **BRIEF).fit(*wave)
    assert model.model_.likelihood.sigma2.item() == pytest.approx(1.0, abs=1e-5)


def test_sngp_classifier_is_mean_field_and_its_uncertainty_the_entropy(moons):
    X, y = moons
    model = SNGPClassifier(small, n_random_features=12, **BRIEF).fit(X, y)
    with torch.no_grad():
        mean, var = model.predictor_.model.latent(scaled(model, X))
    want = softmax(mean.numpy() / np.sqrt(1 + np.pi / 8 * var.numpy()), axis=1)
    assert_allclose(model.predict_proba(X), want)
    assert_allclose(model.uncertainty(X), entropy(want))


def test_sngp_curvatures_and_layer_norm_are_chosen_by_name(moons):
    X, y = moons
    common = {"n_random_features": 12, **BRIEF}
    roots = {
        name: SNGPClassifier(small, curvature=name, **common).fit(X, y).model_.gp.root
        for name in ("largest", "per_class", "one")
    }
    assert [len(root) for root in roots.values()] == [1, 2, 1]
    assert not torch.equal(roots["largest"], roots["one"])
    normed = SNGPClassifier(small, layer_norm=True, **common).fit(X, y)
    assert isinstance(normed.model_.gp.norm, torch.nn.LayerNorm)


def test_sngp_takes_a_weight_for_a_repetition_and_goes_on_where_it_was(moons):
    X, y = moons
    weight = np.where(np.arange(80) < 30, 2.0, 1.0)
    twice = np.r_[np.arange(80), np.arange(30)]
    make = {"n_random_features": 12, "warm_start": True, **BRIEF}
    model = SNGPClassifier(small, **make).fit(X, y, sample_weight=weight)
    assert_allclose(
        model.predict_proba(X),
        SNGPClassifier(small, **make).fit(X[twice], y[twice]).predict_proba(X),
    )
    first = model.history_["loss"][0]
    assert model.fit(X, y, sample_weight=weight).history_["loss"][0] < first


# DUQ


def test_duq_doubts_where_no_kernel_is_near(moons):
    X, y = moons
    model = DUQClassifier(small, **BRIEF).fit(X, y)
    with torch.no_grad():
        K = model.predictor_.model.predict(scaled(model, X)).numpy()
    assert_allclose(model.uncertainty(X), 1 - K.max(1), atol=1e-12)
    assert_allclose(model.predict_proba(X), K / K.sum(1, keepdims=True))
    assert_allclose(model.distance(X), -np.log(K.max(1)))
    far = np.array([[1e4, 1e4]])  # exp underflows there
    assert model.uncertainty(far)[0] == 1
    assert model.distance(far)[0] > 1e3
    assert_allclose(model.predict_proba(far).sum(), 1)


def test_duq_has_centroids_of_any_length_and_no_bound_unless_asked(moons):
    model = DUQClassifier(small, centroid_size=3, **BRIEF).fit(*moons)
    assert model.model_.centroids.shape == (2, 3)
    assert not constraints(model.model_.f)


# DDU


def test_ddu_is_minus_the_log_density_of_scipy(moons):
    X, y = moons
    model = DDUClassifier(small, **BRIEF).fit(X, y)
    with torch.no_grad():
        z = model.predictor_.model.f(scaled(model, X)).numpy()
    jitter = model.model_.density.jitter.numpy()
    logs = [
        np.log(np.mean(y == c))
        + multivariate_normal(
            z[y == c].mean(0), np.cov(z[y == c].T, bias=True) + jitter[c] * np.eye(8)
        ).logpdf(z)
        for c in (0, 1)
    ]
    assert_allclose(model.uncertainty(X), -logsumexp(logs, axis=0), rtol=1e-2, atol=1e-2)
    assert_allclose(model.entropy(X), entropy(model.predict_proba(X)))
    assert model.uncertainty(FAR)[0] > model.uncertainty(X).max()


def test_ddu_survives_fewer_rows_than_features(moons):
    X, y = moons
    rows = np.r_[np.flatnonzero(y == 0)[:2], np.flatnonzero(y == 1)[:3]]
    model = DDUClassifier(**BRIEF).fit(X[rows], y[rows])
    assert (model.model_.density.jitter > 0).all()
    assert np.isfinite(model.uncertainty(X)).all()


# SV-DKL


def test_svdkl_scales_features_by_the_range_of_the_training_rows(moons):
    pytest.importorskip("gpytorch")
    X, y = moons
    model = SVDKLClassifier(small, n_grid=8, **BRIEF).fit(X, y)
    with torch.no_grad():
        h = model.model_.f(torch.as_tensor(model.scale_(X), dtype=torch.float32))
    scale = model.model_.gp.scale
    assert_allclose([scale.min_val, scale.max_val], [h.min(), h.max()], rtol=1e-5)


def test_svdkl_is_bounded_or_free(moons):
    pytest.importorskip("gpytorch")
    bounded, free = (
        SVDKLClassifier(small, c=c, n_grid=8, **BRIEF).fit(*moons) for c in (0.5, None)
    )
    assert singular_value(bounded.predictor_.model.f.first) <= 0.5 * 1.001
    assert not constraints(free.model_.f)


def test_svdkl_names_the_extra_it_needs(moons, monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(svdkl_model, "import_module", absent)
    with pytest.raises(ImportError, match=r"pip install 'due\[rivals\]'"):
        SVDKLClassifier(small, **BRIEF).fit(*moons)


def test_no_engine_is_imported_before_it_is_needed():
    check = "import sys, due.baselines; sys.exit('gpytorch' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.parametrize(
    "model",
    [
        SNGPRegressor(small, n_random_features=12, **BRIEF),
        SVDKLRegressor(small, n_grid=8, **BRIEF),
    ],
    ids=["sngp", "svdkl"],
)
def test_several_outputs_keep_their_shape_and_units(model, wave):
    if isinstance(model, SVDKLRegressor):
        pytest.importorskip("gpytorch")
    X, y = wave
    model.fit(X, np.column_stack([y, 1000 * y]))
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == model.uncertainty(X).shape == (60, 2)
    assert (std**2 > model.uncertainty(X)).all()
    assert (std[:, 1] > 100 * std[:, 0]).all()


# GPDNN


def test_gpdnn_is_due_on_a_plain_network_without_bound(moons, tmp_path):
    X, y = moons
    model = GPDNN(n_inducing=10, **BRIEF).fit(X, y)
    assert isinstance(model, DUEClassifier) and isinstance(model.model_.f, FeedForward)
    assert not constraints(model.model_.f)
    model.save(tmp_path)
    loaded = DUEClassifier.load(tmp_path, feed_forward)
    assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert GPDNN(c=0.9).c == 0.9
    with pytest.raises(ValueError, match="takes vectors"):
        feed_forward(torch.Size([3, 8, 8]))


# exact GP


def test_exact_gp_is_the_posterior_under_its_hyper_parameters(wave):
    X, y = wave
    model = ExactGPRegressor().fit(X, y)
    gp, new = model.gp_, np.linspace(-5, 5, 7)[:, None]
    with torch.no_grad():
        mean, cov = posterior(gp.kernel, gp.x, gp.y, gp.sigma2, scaled(model, new), gp.mu)
    assert_allclose(model.predict(new), mean[:, 0] * y.std() + y.mean())
    assert_allclose(model.uncertainty(new), cov[0].diagonal() * y.std() ** 2, rtol=1e-6)


def test_exact_gp_finds_no_worse_hyper_parameters_than_scikit_learn(wave):
    X, y = wave
    model = ExactGPRegressor().fit(X, y)
    kernel = ConstantKernel() * Matern(nu=1.5) + WhiteKernel()
    theirs = GaussianProcessRegressor(kernel, n_restarts_optimizer=2, random_state=0)
    theirs.fit(model.scale_(X), model.y_scale_(y[:, None])[:, 0])
    ours = -float(model.gp_().detach()) * len(X)
    assert ours > theirs.log_marginal_likelihood_value_ - 0.1


def test_exact_gp_refuses_more_rows_than_it_can_serve():
    with pytest.raises(ValueError, match="X has 5001 rows, an exact GP takes at most 5000"):
        ExactGPRegressor().fit(np.zeros((5001, 1)), np.zeros(5001))


def test_exact_gp_takes_inputs_as_they_are_and_serves_an_ensemble(wave):
    X, y = wave
    plain = ExactGPRegressor(scale_inputs=False, kernel="rbf", steps=5).fit(X, y)
    assert_array_equal(plain.scale_(X), X)
    both = DeepEnsemble(ExactGPRegressor(steps=5), 2).fit(X, y)
    one = ExactGPRegressor(steps=5).fit(X, y)
    assert_allclose(both.uncertainty(X), one.uncertainty(X))


# all


@pytest.mark.parametrize(
    ("kind", "argument"),
    [
        (SNGPClassifier, {"n_random_features": 0}),
        (SNGPClassifier, {"ridge": 0.0}),
        (SNGPClassifier, {"curvature": "none"}),
        (SNGPRegressor, {"sigma2": 0.0}),
        (DUQClassifier, {"sigma": 0.0}),
        (DUQClassifier, {"gamma": 1.0}),
        (DUQClassifier, {"penalty": -1.0}),
        (DUQClassifier, {"centroid_size": 0}),
        (SVDKLClassifier, {"n_grid": 5}),
        (SVDKLRegressor, {"lr": 0.0}),
        (DDUClassifier, {"c": 0.0}),
        (ExactGPRegressor, {"kernel": "cubic"}),
        (ExactGPRegressor, {"steps": 0}),
    ],
)
def test_bad_arguments_are_named(kind, argument, moons):
    name, value = next(iter(argument.items()))
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        kind(**argument).fit(*moons)
