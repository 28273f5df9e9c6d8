"""Noise that depends on x, as a user meets it."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm

from due import DUERegressor
from due.estimators import regressor
from due.estimators.regressor import Tails, half_width
from due.gp import Gaussian, StudentT, set_optimal_q
from due.gp.initialise import evaluate
from due.storage.atomic import StorageError

FAST: dict[str, Any] = {"epochs": 80, "n_inducing": 20, "random_state": 0}


def std_at(x):
    return 0.05 + 0.6 / (1 + np.exp(-4 * x))


def draw(n, seed, std=std_at):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 1))
    return X, np.sin(X[:, 0]) + std(X[:, 0]) * rng.normal(size=n)


@pytest.fixture(scope="module")
def model():
    return DUERegressor(**FAST).fit(*draw(400, 0))


@pytest.mark.parametrize("bound", ["collapsed", "exact", "elbo"])
def test_it_is_found_under_every_bound(bound, model):
    if bound != "collapsed":
        epochs = {"elbo": 30, "exact": 60}[bound]
        arguments = {**FAST, "epochs": epochs, "bound": bound}
        model = DUERegressor(**arguments).fit(*draw(700 if bound == "elbo" else 250, 0))
    assert model.history_["noise"]["kind"] == "varying"
    X, y = draw(2000, 1)
    aleatoric = model.uncertainty_details(X).aleatoric
    for part in (X[:, 0] < -1.5, X[:, 0] > 1.5):
        assert 0.6 < np.sqrt(aleatoric[part].mean() / np.mean(std_at(X[part, 0]) ** 2)) < 1.6
    low, high = model.predict_interval(X, alpha=0.1)
    quiet, _, loud = np.array_split(np.argsort(high - low), 3)
    inside = (low <= y) & (y <= high)
    assert inside[quiet].mean() > 0.85 and 0.75 < inside[loud].mean() < 0.99  # one fit: ± .05
    assert (high - low)[loud].mean() > 2 * (high - low)[quiet].mean()


def test_everything_that_speaks_of_y_has_the_noise_of_its_row(model):
    X = np.array([[-2.5], [0.0], [2.5]])
    total, aleatoric, epistemic, _ = model.uncertainty_details(X)
    assert aleatoric[2] > 9 * aleatoric[0]
    assert_allclose(total, aleatoric + epistemic)
    assert_allclose(model.predict(X, return_std=True)[1] ** 2, total)
    assert_allclose(np.diag(model.predict(X, return_cov=True)[1]), total)
    assert_allclose(model.uncertainty(X), epistemic)
    draws = model.sample_y(X, 20_000)
    assert_allclose(draws.var(1), total, rtol=0.1)


def test_saved_and_exported(model, tmp_path):
    X, _ = draw(50, 2)
    model.save(tmp_path / "model")
    again = DUERegressor.load(tmp_path / "model")
    assert_array_equal(again.predict(X, return_std=True)[1], model.predict(X, return_std=True)[1])
    assert again.history_ == model.history_
    x, batch = torch.from_numpy(X), ({0: torch.export.Dim("N")},)
    exported = torch.export.export(model.predictor_, (x,), dynamic_shapes=batch).module()
    assert_allclose(exported(x[:7]).noise, model.moments(X[:7]).aleatoric[:, None], rtol=1e-9)


def test_constant_noise_stays_constant_and_can_be_asked_for():
    X, y = draw(400, 3, std=lambda x: 0.2)
    model = DUERegressor(**FAST).fit(X, y)
    asked = DUERegressor(**FAST, noise="constant").fit(*draw(400, 0))
    for one in (model, asked):
        assert np.ptp(one.moments(X).aleatoric) == 0
    assert model.history_["noise"]["kind"] == "constant" and "noise" not in asked.history_
    assert model.history_["noise"]["nu"] >= 10  # the noise is normal
    assert 0.16 < np.sqrt(model.moments(X).aleatoric[0]) < 0.25
    forced = DUERegressor(**FAST, noise="varying").fit(X, y)
    assert np.ptp(forced.moments(X).aleatoric) > 0


def test_outputs_have_noise_of_their_own():
    X, y = draw(400, 0)
    other = np.cos(X[:, 0]) + std_at(-X[:, 0]) * np.random.default_rng(9).normal(size=400)
    model = DUERegressor(**FAST).fit(X, np.column_stack([y, other]))
    left, right = model.moments([[-2.5], [2.5]]).aleatoric
    assert right[0] > 4 * left[0] and left[1] > 4 * right[1]


def test_warm_start_goes_on_and_learns_the_noise_anew(model):
    X, y = draw(300, 0)
    model = DUERegressor(**{**FAST, "epochs": 30}, warm_start=True).fit(X, y)
    model.fit(X, y)
    assert model.history_["noise"]["kind"] == "varying"


def test_weights_count_as_repetitions():
    X, y = draw(250, 0)
    weight = np.random.default_rng(1).integers(1, 4, 250)
    arguments = {**FAST, "epochs": 20}
    weighted = DUERegressor(**arguments).fit(X, y, sample_weight=weight)
    rows = np.repeat(np.arange(250), weight)
    repeated = DUERegressor(**arguments).fit(X[rows], y[rows])
    assert weighted.history_["noise"] == repeated.history_["noise"]
    assert_array_equal(weighted.moments(X).aleatoric, repeated.moments(X).aleatoric)


def with_outliers(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 1))
    noise = 0.1 * rng.standard_t(2.5, size=n)
    noise[rng.random(n) < 0.05] *= 20
    return X, np.sin(2 * X[:, 0]) + noise


@pytest.mark.parametrize("bound", ["collapsed", "elbo", "exact"])
def test_a_student_t_resists_outliers(bound, tmp_path):
    X, y = with_outliers(250 if bound == "exact" else 400, 0)
    new, y_new = with_outliers(1000, 1)
    arguments = {**FAST, "epochs": 40, "bound": bound}
    models = {
        noise: DUERegressor(**arguments, noise=noise).fit(X, y) for noise in ("student", "constant")
    }
    truth = np.sin(2 * new[:, 0])
    errors = {
        noise: np.sqrt(np.mean((model.predict(new) - truth) ** 2))
        for noise, model in models.items()
    }
    density = {noise: model.log_density(new, y_new).mean() for noise, model in models.items()}
    assert density["student"] > density["constant"] + 0.1
    student = models["student"]
    assert student.history_["noise"] == {"kind": "student", "nu": 3.0}
    if bound != "elbo":
        assert errors["student"] < errors["constant"]
    low, high = student.predict_interval(new, alpha=0.2)
    assert 0.7 < np.mean((low <= y_new) & (y_new <= high)) < 0.9
    student.save(tmp_path / "model")
    again = DUERegressor.load(tmp_path / "model")
    assert_array_equal(again.log_density(new, y_new), student.log_density(new, y_new))


def test_density_and_interval_of_a_student_t_fit_its_draws():
    model = DUERegressor(**{**FAST, "epochs": 20}, noise="student").fit(*with_outliers(300, 0))
    x = np.array([[0.3], [9.0]])
    draws = model.sample_y(x, 40_000)
    low, high = model.predict_interval(x, alpha=0.1)
    share = ((low[:, None] <= draws) & (draws <= high[:, None])).mean(1)
    assert_allclose(share, 0.9, atol=0.01)
    grid = np.linspace(-40, 40, 40_001)
    density = np.exp(model.log_density(np.full((len(grid), 1), 0.3), grid))
    assert_allclose(density.sum() * (grid[1] - grid[0]), 1, atol=0.01)


def test_tails_are_learned_on_top_of_the_shape(tmp_path):
    """Varying noise with outliers: the density of new rows is better with tails than without."""
    rng = np.random.default_rng(4)
    X, Xn = rng.uniform(-3, 3, (2, 500, 1))
    y, yn = (np.sin(x[:, 0]) + std_at(x[:, 0]) * rng.standard_t(3, size=500) for x in (X, Xn))
    arguments = {**FAST, "epochs": 60}
    normal, auto = (DUERegressor(**arguments, noise=kind).fit(X, y) for kind in ("varying", "auto"))
    assert auto.history_["noise"]["kind"] == "varying" and auto.history_["noise"]["nu"] == 5
    assert auto.log_density(Xn, yn).mean() > normal.log_density(Xn, yn).mean() + 0.02
    low, high = auto.predict_interval(Xn, alpha=0.1)
    assert 0.85 < np.mean((low <= yn) & (yn <= high)) < 0.95
    auto.save(tmp_path / "model")
    again = DUERegressor.load(tmp_path / "model")
    assert_array_equal(again.log_density(Xn, yn), auto.log_density(Xn, yn))


def test_a_warm_start_learns_tails_anew():
    model = DUERegressor(**{**FAST, "epochs": 20}, warm_start=True).fit(*draw(300, 0))
    first: Any = model.model_.likelihood
    again: Any = model.fit(*draw(300, 0)).model_.likelihood
    assert isinstance(again, StudentT) and again is not first and again.shape is not None
    model.set_params(validation_fraction=0.0).fit(*draw(300, 0))
    without: Any = model.model_.likelihood
    assert isinstance(without, Gaussian) and without.shape is None
    assert "noise" not in model.history_ and "held_out" not in model.history_


def test_under_the_elbo_too_q_is_the_optimum_given_the_training_rows(monkeypatch):
    monkeypatch.setattr("due.rows.source.at_once", lambda shape: 70)  # in parts
    X, y = draw(300, 0)
    model = DUERegressor(**{**FAST, "epochs": 10}, bound="elbo")
    model.fit(X, y, validation=draw(100, 1))
    assert model.history_["noise"]["kind"] == "varying" and "kernel" in model.history_
    due = model.model_
    h = evaluate(due.f, torch.as_tensor(model.scale_(X)).float())
    want = deepcopy(due.gp)
    target = torch.as_tensor(model.y_scale_(y[:, None])).float()
    set_optimal_q(want, h, target, due.additive.variance(h))
    for got, ours in zip(due.gp(h), want(h), strict=True):
        assert_allclose(got.detach(), ours.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("noise", ["auto", "varying", "constant"])
@pytest.mark.parametrize("held", [1, 2, 5])
def test_few_held_out_rows_tell_a_level_and_no_shape(noise, held):
    X, y = draw(60, 0)
    model = DUERegressor(**{**FAST, "epochs": 3}, bound="elbo", noise=noise)
    model.fit(X, y, validation=(X[:held], y[:held]))
    assert model.history_.get("noise", {"kind": "constant"})["kind"] == "constant"
    assert np.isfinite(model.predict_interval(X)).all() and np.isfinite(model.history_["held_out"])


@pytest.mark.parametrize("bound", ["collapsed", "elbo"])
def test_what_held_out_rows_lose_is_that_of_the_finished_model(bound):
    X, y = draw(300, 0)
    new = draw(200, 1)
    model = DUERegressor(**{**FAST, "epochs": 20}, bound=bound, noise="constant")
    model.fit(X, y, validation=new)
    standard = -model.log_density(*new).mean() - np.log(model.y_scale_.std[0])
    assert_allclose(model.history_["held_out"], standard, atol=0.05)


@pytest.mark.parametrize("bound", ["collapsed", "elbo"])
def test_a_student_t_goes_on_where_it_was(bound):
    X, y = with_outliers(200, 0)
    arguments = {**FAST, "epochs": 10, "bound": bound}
    model = DUERegressor(**arguments, noise="student", warm_start=True).fit(X, y)
    first = np.mean((model.predict(X) - np.sin(2 * X[:, 0])) ** 2)
    for _ in range(3):
        model.fit(X, y)
    assert np.mean((model.predict(X) - np.sin(2 * X[:, 0])) ** 2) < first


def test_the_mean_is_that_of_y_also_where_the_noise_is_skewed():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (500, 1))
    y = np.sin(X[:, 0]) + rng.lognormal(size=500)
    model = DUERegressor(**{**FAST, "epochs": 60}).fit(X, y)
    assert model.history_["noise"]["nu"] == 5
    assert abs(np.mean(model.predict(X) - y)) < 0.05
    assert abs(np.mean(DUERegressor(**FAST, noise="student").fit(X, y).predict(X) - y)) > 0.2


def test_draws_of_many_near_rows_with_little_noise():
    X = np.linspace(-3, 3, 200)[:, None]
    model = DUERegressor(**{**FAST, "epochs": 30}).fit(X, 2 * X[:, 0] + 1)
    near = np.linspace(-0.01, 0.01, 100)[:, None]
    draws = model.sample_y(near, 2000)
    assert_allclose(draws.mean(1), model.predict(near), atol=0.01)


def test_many_rows_are_answered_in_parts(monkeypatch):
    model = DUERegressor(**{**FAST, "epochs": 5}).fit(*draw(100, 0))
    X, y = draw(25, 1)
    want = *model.predict_interval(X), model.log_density(X, y)
    monkeypatch.setattr(regressor, "AT_ONCE", 10)
    got = *model.predict_interval(X), model.log_density(X, y)
    for a, b in zip(got, want, strict=True):
        assert_allclose(a, b, rtol=1e-9)


def test_nearly_normal_tails_have_a_density_everywhere():
    model = DUERegressor(**{**FAST, "epochs": 20}).fit(*draw(300, 3, std=lambda x: 0.2))
    model.predictor_.model.likelihood.nu.fill_(30.0)
    far = np.array([0.0, 1e-9, 3.0, 1e4])
    density = model.log_density(np.zeros((4, 1)), far)  # a warning is an error here
    assert np.isfinite(density).all() and (np.diff(density) < 0)[1:].all()


def test_half_of_an_interval_has_its_probability():
    tails = Tails(np.array([0.2, 0.7, 0.1]), np.array([0.1, 1.0, 20.0]))
    var, noise = np.array([0.5, 1e-6]), np.array([2.0, 3.0])
    std = np.sqrt(var[:, None] + noise[:, None] * tails.ratio)
    for alpha in (0.9, 0.32, 0.05, 1e-3, 1e-8):
        half = half_width(np.full(2, norm.isf(alpha / 2)), var, noise, tails)
        assert_allclose(2 * (tails.share * norm.sf(half[:, None] / std)).sum(1), alpha, rtol=1e-6)


def test_density_of_normal_noise():
    model = DUERegressor(**{**FAST, "epochs": 20}, noise="varying").fit(*draw(300, 0))
    X, y = draw(50, 5)
    mean, std = model.predict(X, return_std=True)
    want = -0.5 * (np.log(2 * np.pi * std**2) + ((y - mean) / std) ** 2)
    assert_allclose(model.log_density(X, y), want)
    with pytest.raises(ValueError, match=r"y has shape \(3,\), the rows of X give \(50,\)"):
        model.log_density(X, y[:3])


def two_kinds(n, seed):
    """Errors that are ±1 where x > 0, and normal where not: no Student-t fits both."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 1))
    either = rng.choice([-1.0, 1.0], n)
    return X, np.sin(X[:, 0]) + np.where(X[:, 0] > 0, either, 0.1 * rng.normal(size=n))


@pytest.mark.parametrize("bound", ["collapsed", "elbo"])
def test_intervals_cover_as_held_out_rows_say(bound):
    """Where all errors are ±1, a 95 % interval need not reach twice as far."""
    X, y = two_kinds(1200, 0)
    new, y_new = two_kinds(2000, 1)
    model = DUERegressor(**{**FAST, "epochs": 40, "bound": bound}).fit(X, y)
    low, high = model.predict_interval(new, alpha=0.05)
    inside, loud = (low <= y_new) & (y_new <= high), new[:, 0] > 0.5
    assert 0.9 < inside.mean() < 0.99
    likelihood = model.predictor_.model.likelihood
    likelihood.level_z = likelihood.level_z[:0]  # as the density has it
    plain = model.predict_interval(new, alpha=0.05)
    assert np.mean((high - low)[loud]) < 0.92 * np.mean((plain[1] - plain[0])[loud])


def test_levels_are_saved_and_learned_anew(tmp_path):
    X, y = two_kinds(400, 0)
    model = DUERegressor(**{**FAST, "epochs": 10}, warm_start=True).fit(X, y)
    first = model.model_.likelihood.level_z
    assert first.shape == (1, 6, 101) and np.shape(model.history_["noise"]["widths_90"]) == (1, 3)
    model.save(tmp_path / "model")
    again = DUERegressor.load(tmp_path / "model")
    for alpha in (0.5, 0.05, 1e-12):
        for got, want in zip(
            again.predict_interval(X, alpha), model.predict_interval(X, alpha), strict=True
        ):
            assert_array_equal(got, want)
    other = np.sin(X[:, 0]) + 0.3 * np.random.default_rng(1).normal(size=400)
    assert not torch.equal(model.fit(X, other).model_.likelihood.level_z, first)
    model.set_params(validation_fraction=0.0).fit(X, y)
    assert model.predictor_.levels() is None


def test_a_file_with_levels_that_cannot_be_is_refused(tmp_path):
    model = DUERegressor(**{**FAST, "epochs": 5}).fit(*two_kinds(200, 0))
    model.model_.likelihood.level_z.neg_()
    model.save(tmp_path / "model")
    with pytest.raises(StorageError, match="levels are not rising"):
        DUERegressor.load(tmp_path / "model")


def test_each_output_has_levels_in_its_units():
    X, y = two_kinds(400, 0)
    both = np.column_stack([y, 1000 * y[::-1]])
    model = DUERegressor(**{**FAST, "epochs": 10}).fit(X, both)
    std = model.predictor_.levels().std.numpy()
    assert std.shape == (2, 6) and 200 < (std[1] / std[0]).mean() < 5000
    low, high = model.predict_interval(X, alpha=0.2)
    assert low.shape == high.shape == both.shape
    assert (((low <= both) & (both <= high)).mean(0) > 0.7).all()


@pytest.fixture(scope="module")
def narrowed():
    """Its intervals are narrower than its density where x > 0."""
    return DUERegressor(**{**FAST, "epochs": 40}).fit(*two_kinds(1200, 0))


def test_intervals_grow_with_their_level_and_stay_near_the_density(narrowed):
    X = np.linspace(-3, 3, 50)[:, None]
    alphas = [0.9, 0.7, 0.5, 0.1, 0.02, 0.01, 0.005, 1e-3, 1e-4, 1e-8, 1e-20]
    halves = np.stack([np.subtract(*narrowed.predict_interval(X, a)[::-1]) / 2 for a in alphas])
    assert np.isfinite(halves).all() and (np.diff(halves, axis=0) > 0).all()
    _, var, noise = narrowed.moments(X)
    scores = [np.full(50, norm.isf(alpha / 2)) for alpha in alphas]
    plain = np.stack([half_width(z, var, noise, narrowed._tails()) for z in scores])
    ratio = halves / plain
    assert (ratio[2:] > 0.4).all() and (ratio[2:] < 1.6).all()
    assert_allclose(ratio[-3:], ratio[-4:-1])  # of what no row can tell: as much as at the last


def test_far_from_the_data_no_interval_is_narrower_than_the_density(narrowed):
    far = np.array([[30.0], [1e3]])
    _, var, noise = narrowed.moments(far)
    for alpha in (0.5, 0.1, 0.05):
        low, high = narrowed.predict_interval(far, alpha)
        plain = half_width(np.full(2, norm.isf(alpha / 2)), var, noise, narrowed._tails())
        assert ((high - low) / 2 > 0.999 * plain).all()


def test_polishing_the_gp_keeps_the_shape_of_the_noise():
    model = DUERegressor(**FAST, finish="gp", noise="varying").fit(*draw(300, 0))
    aleatoric = model.uncertainty_details(np.array([[-2.0], [2.0]])).aleatoric
    assert aleatoric[1] > 4 * aleatoric[0]
