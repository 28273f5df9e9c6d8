"""What the answers mean: weights, probabilities, variances, distance from the data."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax
from scipy.stats import entropy
from torch import nn

from due.estimators import DUEClassifier, DUERegressor
from due.methods import due as due_module
from due.rows import source as source_module
from due.training import Recipe

FAST = {"epochs": 5, "n_inducing": 10, "random_state": 0}
BOTH = pytest.mark.parametrize("Estimator", [DUEClassifier, DUERegressor])
GRID = np.linspace(-2.5, 2.5, 40)[:, None]


def answers(estimator, X):
    return [estimator.predict(X), *estimator.uncertainty_details(X)]


# rows and their weights


@BOTH
@pytest.mark.parametrize("fraction", [0.0, 0.2])
def test_whole_weights_are_repetitions_in_any_order(Estimator, moons, fraction):
    X, y = moons
    generator = np.random.default_rng(0)
    weight = generator.integers(0, 4, len(X))
    rows = generator.permutation(np.repeat(np.arange(len(X)), weight))

    weighted = Estimator(**FAST, validation_fraction=fraction).fit(X, y, sample_weight=weight)
    repeated = Estimator(**FAST, validation_fraction=fraction).fit(X[rows], y[rows])

    for got, want in zip(answers(weighted, X), answers(repeated, X), strict=True):
        assert_array_equal(got, want)


@pytest.mark.parametrize("bound", ["collapsed", "elbo"])
def test_repetitions_count_even_where_all_rows_have_as_many(waves, bound, monkeypatch):
    monkeypatch.setattr(source_module, "CANONICAL_ROWS", 0)  # repetitions stay written out
    monkeypatch.setattr(due_module, "initialise", lambda h, M, seed: initial(h[:M]))
    X, y = waves[0][:40], waves[1][:40, 0]
    options: dict[str, Any] = {"epochs": 80, "n_inducing": 10, "random_state": 0, "bound": bound}
    options |= {
        "calibration_fraction": 0.0,
        "validation_fraction": 0.0,
        "batch_size": 1000,
        "recipe": Recipe(head_lr=0.05),
    }

    once, weighted, written_out = (
        DUERegressor(identity, **options, c=None).fit(*rows)
        for rows in ((X, y), (X, y, np.full(40, 25.0)), (np.tile(X, (25, 1)), np.tile(y, 25)))
    )

    assert_allclose(weighted.predict(GRID), written_out.predict(GRID), atol=0.02)
    assert_allclose(weighted.uncertainty(GRID), written_out.uncertainty(GRID), rtol=0.05)
    assert np.median(weighted.uncertainty(GRID) / once.uncertainty(GRID)) < 0.7


@BOTH
def test_features_do_not_run_away_from_the_inducing_points(Estimator, moons):
    model = Estimator(epochs=30, n_inducing=20, lr=0.01, random_state=0, validation_fraction=0.0)
    loss = model.fit(*moons).history_["loss"]
    assert max(loss) < 1.3 * loss[0]
    assert model.ood_score(moons[0]).max() < 0.2


def identity(shape):
    return nn.Flatten()


def initial(h):
    return torch.linspace(-1.5, 1.5, len(h))[:, None].to(h).double(), 1.0


@BOTH
def test_many_rows_are_not_sorted(Estimator, moons, monkeypatch):
    X, y = (np.concatenate([part, part]) for part in moons)
    assert Estimator(**FAST, validation_fraction=0.0).fit(X, y).history_["rows"] == 200
    monkeypatch.setattr(source_module, "CANONICAL_ROWS", 100)
    assert Estimator(**FAST, validation_fraction=0.0).fit(X, y).history_["rows"] == 400


# classes


@pytest.fixture(scope="module")
def three():
    """Three clouds, and a model of them."""
    generator = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 60)
    X = generator.normal(size=(180, 2)) + np.array([[0, 3], [3, 0], [-3, 0]])[y]
    return X, y, DUEClassifier(epochs=30, n_inducing=20, random_state=0).fit(X, y)


def test_learns_the_classes(moons, classifier, three):
    X, y, model = three
    assert classifier.score(*moons) > 0.95
    assert model.score(X, y) > 0.9


def test_probabilities(three):
    X, _, model = three
    probs = model.predict_proba(X)
    assert probs.shape == (180, 3)
    assert (probs >= 0).all()
    assert_allclose(probs.sum(1), 1, rtol=1e-12)
    assert_array_equal(model.predict(X), model.classes_[probs.argmax(1)])
    assert_allclose(model.uncertainty(X), entropy(probs, axis=1), atol=1e-9)


@pytest.mark.parametrize("which", ["two", "three"])
def test_entropy_is_aleatoric_plus_epistemic(which, classifier, three):
    model, T = (classifier, 2) if which == "two" else (three[2], 3)
    X = np.random.default_rng(0).normal(size=(100, 2)) * 5

    total, aleatoric, epistemic, variance, ood = model.uncertainty_details(X)

    assert_array_equal(total, model.uncertainty(X))
    assert_array_equal(ood, model.ood_score(X))
    assert_allclose(total, aleatoric + epistemic, atol=1e-6)
    assert ((total >= 0) & (total <= np.log(T) + 1e-9)).all()
    assert ((aleatoric >= 0) & (epistemic >= 0)).all()
    assert (variance > 0).all()


def test_details_against_plain_sampling(three):
    X, _, model = three
    rows = X[:5]
    mean, var = latent(model, rows)
    epsilon = np.random.default_rng(0).normal(size=(100_000, *mean.shape))
    logits = mean + np.sqrt(var) * epsilon
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)

    details = model.uncertainty_details(rows)

    assert_allclose(model.predict_proba(rows), probs.mean(0), atol=0.01)
    assert_allclose(details.aleatoric, entropy(probs, axis=-1).mean(0), atol=0.01)
    assert_allclose(details.latent_variance, var.mean(-1))


def latent(model, X):
    with torch.no_grad():
        frozen = model.predictor_.model
        mean, var = frozen.gp(frozen.f(torch.from_numpy(model.scale_(X))))
    return mean.numpy(), var.numpy()


def test_ways_to_probabilities_are_what_they_say(moons):
    fast = {"epochs": 15, "n_inducing": 10, "random_state": 0}
    X = moons[0]
    ways = {
        name: DUEClassifier(**fast, probabilities=name).fit(*moons)
        for name in ("exact", "monte_carlo", "mean_field")
    }
    mean, var = latent(ways["exact"], X)
    draws = np.random.default_rng(0).standard_normal((20_000, 1, 2))
    assert_allclose(
        ways["exact"].predict_proba(X), softmax(mean + np.sqrt(var) * draws, -1).mean(0), atol=0.01
    )
    few = ways["monte_carlo"].predictor_.model.likelihood.epsilon.numpy()[:, None]
    assert_allclose(
        ways["monte_carlo"].predict_proba(X),
        softmax(mean + np.sqrt(var) * few, -1).mean(0),
        atol=1e-6,
    )
    assert_allclose(
        ways["mean_field"].predict_proba(X),
        softmax(mean / np.sqrt(1 + np.pi / 8 * var), -1),
        atol=1e-6,
    )


def test_warm_start_of_q_is_a_parameter(moons):
    still = {"epochs": 1, "lr": 1e-9, "recipe": Recipe(head_lr=1e-9), "random_state": 0}
    warm, cold = (DUEClassifier(**still, warm_start_q=q).fit(*moons) for q in (True, False))
    assert warm.score(*moons) > 0.9  # before any training it knows the classes
    assert_allclose(cold.uncertainty(moons[0]), np.log(2), rtol=1e-6)


# distance from the data


@pytest.mark.parametrize("which", ["classifier", "regressor", "two_outputs"])
def test_ood_score_is_low_on_the_data_and_high_far_away(which, request, moons, waves):
    model = request.getfixturevalue(which)
    X = moons[0] if which == "classifier" else waves[0]
    on, far = model.ood_score(X), model.ood_score(X + 1000)

    assert on.shape == (len(X),)
    assert ((on >= 0) & (on <= 1)).all()
    assert np.median(on) < 0.02
    assert (far > 0.98).all()
    assert (far <= 1).all()
    assert_array_equal(model.score_samples(X), -on)


def test_far_away_nothing_is_known(moons, classifier, regressor, waves):
    far = classifier.uncertainty_details(moons[0] + 1000)
    assert_allclose(far.entropy, np.log(2), atol=0.1)
    assert regressor.uncertainty(waves[0] + 1000).min() > 3 * regressor.uncertainty(waves[0]).max()


# values


def test_learns_the_values(waves, regressor, two_outputs):
    X, Y = waves
    assert regressor.score(X, Y[:, 0]) > 0.85
    assert_allclose(regressor.predict(GRID), np.sin(GRID[:, 0]), atol=0.25)
    assert two_outputs.predict(GRID).shape == (40, 2)
    assert_allclose(two_outputs.predict(GRID)[:, 0], np.sin(GRID[:, 0]), atol=0.25)
    assert_allclose(two_outputs.predict(GRID)[:, 1], np.cos(GRID[:, 0]), atol=0.25)


@pytest.mark.parametrize("which", ["regressor", "two_outputs"])
def test_variance_of_an_observation_is_latent_plus_noise(which, request):
    model = request.getfixturevalue(which)
    mean, std = model.predict(GRID, return_std=True)
    details = model.uncertainty_details(GRID)

    assert_array_equal(mean, model.predict(GRID))
    for part in (std, *details[:3]):
        assert part.shape == mean.shape
    assert_array_equal(details.epistemic, model.uncertainty(GRID))
    assert_allclose(std**2, details.total, rtol=1e-9)
    assert_allclose(details.total, details.aleatoric + details.epistemic)
    assert (details.aleatoric > 0).all()


@pytest.mark.parametrize("which", ["regressor", "two_outputs"])
def test_covariance_is_the_models_joint_plus_noise(which, request):
    model = request.getfixturevalue(which)
    mean, cov = model.predict(GRID, return_cov=True)
    _, std = model.predict(GRID, return_std=True)

    assert_allclose(mean, model.predict(GRID), atol=1e-9)
    diagonal = np.stack([cov[i, i] for i in range(40)])
    assert_allclose(diagonal, std**2, rtol=1e-7)

    x = torch.from_numpy(model.scale_(GRID))
    with torch.no_grad():
        _, joint = model.model_.gp.joint(model.predictor_.model.f(x))  # (T, N, N)
        sigma2 = model.model_.likelihood.variance(model.predictor_.model.f(x))
    want = (joint + sigma2[:, None, None] * torch.eye(40)).numpy()
    want = np.moveaxis(want, 0, -1) * model.y_scale_.std**2
    assert_allclose(cov, want[..., 0] if which == "regressor" else want, atol=1e-12)


def test_intervals_cover_what_they_say():
    generator = np.random.default_rng(0)
    x = generator.uniform(-2, 2, (2400, 1))
    y = np.sin(2 * x[:, 0]) + 0.3 * generator.standard_normal(2400)
    model = DUERegressor(n_inducing=20, random_state=0).fit(x[:400], y[:400])
    noise = np.sqrt(model.uncertainty_details(x[:1]).aleatoric[0])
    assert_allclose(noise, 0.3, rtol=0.15)
    for alpha in (0.05, 0.5):
        lower, upper = model.predict_interval(x[400:], alpha=alpha)
        covered = ((lower < y[400:]) & (y[400:] < upper)).mean()
        assert_allclose(covered, 1 - alpha, atol=0.05)


@pytest.mark.parametrize("which", ["regressor", "two_outputs"])
def test_draws_have_the_predicted_moments(which, request):
    model = request.getfixturevalue(which)
    X = GRID[::8]
    draws = model.sample_y(X, n_samples=40_000, random_state=0)
    mean, cov = model.predict(X, return_cov=True)

    assert draws.shape == (*mean.shape, 40_000)
    assert_allclose(draws.mean(-1), mean, atol=0.01)
    for t in range(2 if which == "two_outputs" else 1):
        of_output = draws[:, t] if which == "two_outputs" else draws
        want = cov[..., t] if which == "two_outputs" else cov
        assert_allclose(np.cov(of_output), want, atol=0.003)
    assert_array_equal(model.sample_y(X, random_state=1), model.sample_y(X, random_state=1))
    assert (model.sample_y(X, random_state=1) != model.sample_y(X, random_state=2)).all()


def test_answers_follow_the_units_of_y(waves):
    X, y = waves[0], waves[1][:, 0]
    plain, scaled = (DUERegressor(**FAST).fit(X, values) for values in (y, -(2.0**20) * y))
    assert_allclose(scaled.predict(GRID), -(2.0**20) * plain.predict(GRID), rtol=1e-3, atol=1e3)

    units = DUERegressor(**FAST).fit(X, 1024 * y + 5000)
    assert_allclose(units.predict(GRID), 1024 * plain.predict(GRID) + 5000, rtol=1e-3)
    assert_allclose(
        units.predict(GRID, return_std=True)[1],
        1024 * plain.predict(GRID, return_std=True)[1],
        rtol=1e-3,
    )
    assert_allclose(units.uncertainty(GRID), 1024**2 * plain.uncertainty(GRID), rtol=1e-3)
    assert_allclose(units.ood_score(GRID), plain.ood_score(GRID), atol=1e-3)


def test_a_column_of_y_stays_a_column(waves):
    X, Y = waves
    flat, column = DUERegressor(**FAST).fit(X, Y[:, 0]), DUERegressor(**FAST).fit(X, Y[:, :1])
    assert column.predict(GRID).shape == (40, 1)
    assert column.predict(GRID, return_cov=True)[1].shape == (40, 40, 1)
    assert column.sample_y(GRID, 3).shape == (40, 1, 3)
    assert_array_equal(column.predict(GRID)[:, 0], flat.predict(GRID))


# training


def test_history_says_which_bound(waves, monkeypatch):
    X, y = waves[0], waves[1][:, 0]
    assert DUERegressor(**FAST).fit(X, y).history_["bound"] == "collapsed"
    assert DUERegressor(**FAST, bound="elbo").fit(X, y).history_["bound"] == "elbo"
    monkeypatch.setattr(due_module, "COLLAPSED_ROWS", 100)
    assert DUERegressor(**FAST).fit(X, y).history_["bound"] == "elbo"
    assert DUERegressor(**FAST, bound="collapsed").fit(X, y).history_["bound"] == "collapsed"


def test_the_elbo_learns_too(waves):
    X, Y = waves
    model = DUERegressor(epochs=60, n_inducing=20, bound="elbo", random_state=0).fit(X, Y[:, 0])
    assert model.history_["bound"] == "elbo"
    assert model.score(X, Y[:, 0]) > 0.85


@BOTH
def test_held_out_rows_stop_the_training(Estimator, moons):
    options = {"epochs": 100, "n_inducing": 10, "lr": 0.05, "random_state": 0}
    model = Estimator(**options, validation_fraction=0.25, recipe=Recipe(patience=3)).fit(*moons)
    history = model.history_

    assert history["rows"] == 150
    assert history["stopped_early"]
    assert len(history["loss"]) == history["best_epoch"] + 1 + 3 < 100
    assert history["validation"][history["best_epoch"]] == min(history["validation"])


@BOTH
def test_without_held_out_rows_all_are_used_and_the_rate_falls(Estimator, moons):
    history = Estimator(**FAST, validation_fraction=0.0).fit(*moons).history_
    assert history["rows"] == 200
    assert history["validation"] == []
    assert not history["stopped_early"]
    assert (np.diff(history["lr"]) < 0).all()


@BOTH
def test_warm_start_goes_on(Estimator, moons):
    model = Estimator(**{**FAST, "epochs": 30}, warm_start=True, validation_fraction=0.0)
    first = model.fit(*moons).history_["loss"]
    network, scale = model.model_, model.scale_
    second = model.fit(*moons).history_["loss"]

    assert second[0] < first[0]
    assert second[-1] < first[0]
    model.fit(moons[0] * 2, moons[1])
    assert model.model_ is network
    assert model.scale_ is scale
    cold = model.set_params(warm_start=False).fit(*moons)
    assert cold.model_ is not network
    assert_array_equal(cold.history_["loss"], first)


# extractors


def small_conv(shape):
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 16)
    )


@BOTH
def test_images_through_a_network_of_ones_own(Estimator):
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 120)
    X = generator.normal(size=(120, 1, 8, 8)) * 0.3
    X[:, 0, :4] += y[:, None, None]
    model = Estimator(small_conv, epochs=30, n_inducing=20, random_state=0).fit(X, y)

    assert model.score(X, y) > 0.8
    assert model.n_features_in_ == 1
    assert model.model_.gp.Z.shape == (20, 16)
    assert model.uncertainty(X).shape == (120,)
    assert np.median(model.ood_score(X + 100)) > np.median(model.ood_score(X))


@pytest.mark.parametrize("sigma", [0.02, 0.5])
def test_noise_of_a_regression_is_found_whatever_its_size(sigma):
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, (200, 1))
    model = DUERegressor(random_state=0).fit(x, np.sin(x[:, 0]) + sigma * rng.normal(size=200))
    aleatoric = model.uncertainty_details(x[:1]).aleatoric[0]
    assert 0.7 * sigma < np.sqrt(aleatoric) < 1.5 * sigma


@pytest.mark.parametrize("finish", ["noise", "q", "gp", "nothing"])
def test_each_way_to_finish_predicts(waves, finish):
    X, Y = waves
    model = DUERegressor(epochs=60, n_inducing=20, finish=finish, random_state=0).fit(X, Y)
    assert np.sqrt(np.mean((model.predict(X) - Y) ** 2)) < 0.35
