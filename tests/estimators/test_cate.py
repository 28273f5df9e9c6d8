"""DUECATE: effects and their doubt mean what they say, in EconML's words."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from torch import nn

from due.estimators import DUECATE, TreatmentColumn
from due.rows.study import Study
from due.storage import StorageError
from due.training import Recipe

FAST = {"epochs": 40, "n_inducing": 20, "inducing": "free", "random_state": 0}


def study(n=200, seed=0):
    """y = x₀ + t (1 + x₁) + N(0, .1²), treatment by a coin."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    t = rng.integers(2, size=n)
    return X[:, 0] + t * (1 + X[:, 1]) + 0.1 * rng.normal(size=n), t, X


@pytest.fixture(scope="module")
def model():
    Y, T, X = study()
    return DUECATE(random_state=0).fit(Y, T, X=X)


@pytest.fixture(scope="module")
def alone():
    """The best candidate, without the others."""
    Y, T, X = study()
    return DUECATE(average=False, random_state=0).fit(Y, T, X=X)


PEOPLE = np.array([[0.0, 0.0], [1.0, -1.0], [0.0, 2.0], [0.0, 12.0]])


# meaning


def test_learns_effects_and_doubts_what_it_never_saw(model):
    new = np.random.default_rng(1).normal(size=(200, 2))
    error = model.effect(new) - (1 + new[:, 1])
    assert np.sqrt(np.mean(error**2)) < 0.25  # the effects themselves vary by 1
    low, high = model.effect_interval(new)
    assert np.mean((low <= 1 + new[:, 1]) & (1 + new[:, 1] <= high)) > 0.85
    assert model.uncertainty(PEOPLE)[3] > 10 * model.uncertainty(PEOPLE)[0]


def test_closed_form_is_what_samples_of_both_outcomes_say(alone):
    rows = [np.column_stack([alone.scale_(PEOPLE), np.full(4, t)]) for t in (1.0, 0.0)]
    h = alone.predictor_.model.f(torch.as_tensor(np.concatenate(rows)))
    mean, cov = (part.detach().double() for part in alone.model_.gp.joint(h))
    noise = torch.randn(8, 200_000, generator=torch.Generator().manual_seed(0)).double()
    f = mean + torch.linalg.cholesky(cov[0] + 1e-10 * torch.eye(8)) @ noise
    tau = (f[:4] - f[4:]).numpy() * alone.y_scale_.std[0]
    assert_allclose(alone.effect(PEOPLE), tau.mean(1), atol=0.02)
    assert_allclose(alone.uncertainty(PEOPLE), tau.var(1), rtol=0.02)


def test_several_members_are_a_mixture_of_what_each_says(model):
    """Against draws: a member by its weight, then an effect of its own."""
    mixed, unit = model.predictor_.model, model.y_scale_.std[0]
    assert len(mixed.members) == len(model.history_["members"]) > 1
    x = torch.as_tensor(model.scale_(PEOPLE))
    rng = np.random.default_rng(0)
    counts = rng.multinomial(400_000, mixed.weights.numpy())
    draws = []
    for one, n in zip(mixed.members, counts, strict=True):
        mean, cov = one.joint_difference(x)
        draws.append(rng.multivariate_normal(mean[:, 0].numpy(), cov[0].numpy(), n))
    tau = unit * np.concatenate(draws)
    assert_allclose(model.effect(PEOPLE), tau.mean(0), atol=0.02)
    assert_allclose(model.uncertainty(PEOPLE), tau.var(0), rtol=0.03)
    mean, cov = mixed.joint_difference(x)
    assert_allclose(cov[0].numpy() * unit**2, np.cov(tau.T), rtol=0.05, atol=0.01)
    inference = model.ate_inference(PEOPLE)
    assert_allclose(inference.var, cov[0].numpy().mean() * unit**2, rtol=1e-8)
    outcomes = [one.outcomes(x).numpy() for one in mixed.members]
    assert_allclose(
        model.y_scale_(model.potential_outcomes(PEOPLE)),
        np.average(outcomes, axis=0, weights=mixed.weights.numpy()),
    )


def test_members_are_the_candidates_bit_for_bit_and_saved_with_their_weights(tmp_path):
    Y, T, X = study(100)
    few = {"epochs": 15, "n_inducing": 10, "random_state": 0}
    model = DUECATE(**few).fit(Y, T, X)
    members = model.history_["members"]
    assert np.isclose(sum(one["weight"] for one in members), 1) and len(members) > 1
    best = max(members, key=lambda one: one["weight"])
    assert best["name"] == model.history_["chosen"]
    x = torch.as_tensor(model.scale_(PEOPLE))
    for part, one in zip(model.predictor_.model.members, members, strict=True):
        single = DUECATE(**few, **one["arguments"]).fit(Y, T, X)
        assert_array_equal(part.outcomes(x), single.predictor_.model.outcomes(x))
    model.save(tmp_path / "model")
    loaded = DUECATE.load(tmp_path / "model")
    assert_array_equal(loaded.effect(X), model.effect(X))
    assert_array_equal(loaded.uncertainty(X), model.uncertainty(X))
    assert loaded.history_ == model.history_


def test_a_forged_share_of_a_member_is_refused(tmp_path):
    Y, T, X = study(100)
    model = DUECATE(epochs=15, n_inducing=10, random_state=0).fit(Y, T, X)
    for forged in (2 * model.model_.weights, -model.model_.weights, model.model_.weights[:1]):
        model.model_.weights = forged
        model.save(tmp_path / "model")
        with pytest.raises(StorageError, match="weights"):
            DUECATE.load(tmp_path / "model")


def test_joint_draws_have_the_marginals_and_the_average_of_the_closed_forms(model):
    draws = model.sample_effect(PEOPLE, 100_000)
    assert draws.shape == (4, 100_000)
    assert_allclose(draws.mean(1), model.effect(PEOPLE), atol=0.02)
    assert_allclose(draws.var(1), model.uncertainty(PEOPLE), rtol=0.03)
    low, high = model.ate_interval(PEOPLE, alpha=0.1)
    assert_allclose([low, high], np.quantile(draws.mean(0), [0.05, 0.95]), atol=0.03)
    assert low < model.ate(PEOPLE) < high
    assert_array_equal(draws[:, :1], model.sample_effect(PEOPLE, 100_000)[:, :1])


def test_effect_is_the_difference_of_the_potential_outcomes(model):
    outcomes = model.potential_outcomes(PEOPLE)
    assert outcomes.shape == (4, 2)
    assert_allclose(model.effect(PEOPLE), outcomes[:, 1] - outcomes[:, 0], atol=1e-12)
    assert_allclose(model.effect(PEOPLE), model.effect_inference(PEOPLE).point_estimate, atol=1e-9)
    assert_allclose(model.ate(PEOPLE), model.effect(PEOPLE).mean())


def test_a_person_is_answered_alike_alone_and_in_company(model):
    crowd = np.random.default_rng(0).normal(size=(3000, 2))
    alone = model.effect_inference(crowd[2999:])
    among = model.effect_inference(crowd)
    assert_allclose(among.point_estimate[2999:], alone.point_estimate, rtol=1e-9)
    assert_allclose(among.stderr[2999:], alone.stderr, rtol=1e-6)


def test_reversing_the_treatments_reverses_the_effect(model):
    there, back = model.effect_inference(PEOPLE), model.effect_inference(PEOPLE, T0=1, T1=0)
    assert_array_equal(there.point_estimate, -back.point_estimate)
    assert_array_equal(there.stderr, back.stderr)
    low, high = model.ate_interval(PEOPLE)
    assert model.ate_interval(PEOPLE, T0=1, T1=0) == (-high, -low)
    assert model.ate_interval(PEOPLE, 1, 1) == (0.0, 0.0)
    with pytest.raises(ValueError, match="those of all people"):
        model.ate_interval(PEOPLE, T0=[0, 1, 0, 1])
    mixed = model.effect(PEOPLE, T0=[0, 1, 0, 1], T1=1)
    assert_allclose(mixed, model.effect(PEOPLE) * [1, 0, 1, 0], atol=0)


def test_summary_has_econmls_columns(model):
    inference = model.effect_inference(PEOPLE)
    frame = inference.summary_frame(alpha=0.1, value=1.0)
    columns = ["point_estimate", "stderr", "zstat", "pvalue", "ci_lower", "ci_upper"]
    assert list(frame.columns) == columns and len(frame) == 4
    assert_allclose(frame["stderr"] ** 2, model.uncertainty(PEOPLE))
    assert_allclose(frame["zstat"], (frame["point_estimate"] - 1) / frame["stderr"])
    low, high = model.effect_interval(PEOPLE, alpha=0.1)
    assert_allclose(frame["ci_lower"], low)
    assert_allclose((high - low) / 2, 1.6448536 * inference.stderr)
    assert_allclose(model.effect_std(PEOPLE), inference.stderr)


# overlap


def test_overlap_is_high_among_people_and_low_far_away(model):
    with pytest.warns(UserWarning, match="1 of 4 people are farther from everyone"):
        overlap = model.overlap(PEOPLE)
    assert overlap.shape == (4, 2) and ((overlap >= 0) & (overlap <= 1)).all()
    assert overlap[0].min() > 0.95 and overlap[3].max() < 0.8


def test_a_treatment_that_follows_from_a_covariate_shows_in_the_overlap():
    Y, _, X = study()
    T = (X[:, 0] > 0).astype(int)
    model = DUECATE(inducing="free", random_state=0).fit(Y + T, T, X=X)
    with pytest.warns(UserWarning, match="farther from everyone (un)?treated"):
        overlap = model.overlap([[-6.0, 0.0], [1.0, 0.0]])
    assert overlap[0, 1] < overlap[0, 0] and overlap[1, 0] < overlap[1, 1]
    assert model.uncertainty([[-3.0, 0.0]]) > 4 * model.uncertainty([[0.0, 0.0]])


def test_one_person_apart_does_not_hide_others_who_are_alone():
    Y, T, X = study()
    X[np.flatnonzero(T == 1)[0]] = 60.0
    model = DUECATE(**FAST).fit(Y, T, X=X)
    with pytest.warns(UserWarning) as caught:
        model.overlap([[12.0, -12.0]])
    words = [str(warning.message) for warning in caught]
    assert any("1 of 1 people are farther from everyone treated" in word for word in words)


def test_an_arm_of_a_few_people_is_warned_of():
    Y, _, X = study(60)
    T = (np.arange(60) < 2).astype(int)
    model = DUECATE(**FAST).fit(Y, T, X=X)
    with pytest.warns(UserWarning, match="only 2 of the people learned from are treated"):
        model.overlap(X[:1])


def test_people_of_validation_count_in_the_overlap_if_the_gp_learned_from_them():
    Y, T, X = study()
    apart = np.where(np.arange(200)[:, None] < 140, X, X + 20)
    known, given = (Y[:140], T[:140], apart[:140]), (Y[140:], T[140:], apart[140:])
    overlaps = []
    for finish in ("gp", "nothing"):
        model = DUECATE(**FAST, finish=finish).fit(*known, validation=given)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            overlaps.append(model.overlap(apart[140:]).mean())
    assert overlaps[0] > 0.5 > overlaps[1]


# options


@pytest.mark.parametrize("options", [{"own_scale": False}, {"treatment": "input"}])
def test_treatment_may_enter_elsewhere(options):
    Y, T, X = study()
    if "treatment" in options:
        options = {**options, "own_scale": False}
    model = DUECATE(inducing="free", random_state=0, **options).fit(Y, T, X=X)
    new = np.random.default_rng(1).normal(size=(100, 2))
    assert np.sqrt(np.mean((model.effect(new) - 1 - new[:, 1]) ** 2)) < 0.6


def test_a_scale_of_its_own_is_learned_and_bounded_layers_raise_no_warning(alone):
    f = alone.model_.f
    assert f.log_a.requires_grad and abs(f.log_a.item()) > 0.05


def test_the_papers_recipe_is_the_stochastic_bound():
    Y, T, X = study()
    model = DUECATE.paper(random_state=0, epochs=3).fit(Y, T, X=X)
    assert model.recipe is not None
    assert model.history_["bound"] == "elbo" and model.recipe.batch_size == 100
    assert not model.model_.f.log_a.requires_grad


@pytest.mark.parametrize("finish", ["gp", "noise", "q", "nothing"])
def test_people_of_validation_are_learned_from_only_after_the_features(finish):
    Y, T, X = study()
    known, (y, *given) = (Y[:140], T[:140], X[:140]), (Y[140:], T[140:], X[140:])
    once = DUECATE(
        epochs=1, n_inducing=20, inducing="free", finish=finish, random_state=0
    )  # no epoch to choose
    model, other = (clone(once).fit(*known, validation=(v, *given)) for v in (y, y[::-1]))
    assert model.history_["rows"] == 140
    assert model.history_["loss"] == other.history_["loss"]
    assert model.history_["validation"] != other.history_["validation"]
    assert np.allclose(model.effect(X), other.effect(X), rtol=1e-6) == (finish == "nothing")


def test_held_out_people_are_of_both_arms():
    Y, _, X = study(60)
    T = (np.arange(60) % 12 == 0).astype(int)  # 5 treated
    for seed in range(30):
        kept, held = Study(X, T, Y).hold_out(0.3, seed)
        assert 3 <= kept.t.sum() <= 4 and len(held.y) == 18
    model = DUECATE(**{**FAST, "epochs": 2}).fit(Y, T, X)
    assert model.history_["rows"] == 42


# habits


def test_own_extractor_clone_pandas_and_names():
    Y, T, X = study()
    frame = pd.DataFrame(X, columns=["age", "weight"])
    extractor = Wide
    model = clone(DUECATE(extractor, **FAST))
    model.fit(pd.Series(Y), pd.DataFrame({"t": T}), X=frame)
    assert list(model.feature_names_in_) == ["age", "weight"]
    assert_array_equal(model.effect(frame), model.fit(Y, T, frame).effect(frame))
    with pytest.raises(ValueError, match="feature names"):
        model.effect(frame[["weight", "age"]])


def test_saved_and_loaded_it_answers_bit_for_bit(tmp_path, model):
    model.save(tmp_path / "effects")
    loaded = DUECATE.load(tmp_path / "effects")
    assert_array_equal(loaded.effect(PEOPLE), model.effect(PEOPLE))
    assert_array_equal(loaded.uncertainty(PEOPLE), model.uncertainty(PEOPLE))
    with pytest.warns(UserWarning):
        assert_array_equal(loaded.overlap(PEOPLE), model.overlap(PEOPLE))
    assert loaded.get_params() == model.get_params()
    assert loaded.ate_interval(PEOPLE) == model.ate_interval(PEOPLE)


def test_a_saved_extractor_is_asked_for(tmp_path):
    Y, T, X = study()
    model = DUECATE(Wide, **FAST).fit(Y, T, X)
    model.save(tmp_path / "own")
    with pytest.raises(StorageError, match="extractor="):
        DUECATE.load(tmp_path / "own")
    assert_array_equal(DUECATE.load(tmp_path / "own", Wide).effect(X), model.effect(X))


def test_serves_model_selection_through_the_adapter():
    Y, T, X = study(100)
    rows = np.column_stack([T, X])
    adapter = TreatmentColumn(DUECATE(**FAST), column=0)
    search = GridSearchCV(adapter, {"estimator__n_inducing": [5, 20]}, cv=2).fit(rows, Y)
    assert search.best_estimator_.estimator_.effect(X).shape == (100,)
    assert cross_val_score(adapter, rows, Y, cv=2).mean() > 0.3
    direct = DUECATE(**FAST).fit(Y, T, X).potential_outcomes(X)
    assert_array_equal(adapter.fit(rows, Y).predict(rows), direct[np.arange(100), T])
    with pytest.raises(ValueError, match="say which column"):
        TreatmentColumn(DUECATE(**FAST), column=1).fit(rows, Y)
    frame = pd.DataFrame(rows, columns=["treat", "age", "weight"])
    named = TreatmentColumn(DUECATE(**FAST), column="treat").fit(frame, Y)
    assert_allclose(named.predict(frame), adapter.predict(rows), rtol=1e-9)
    with pytest.raises(ValueError, match=r"column='dose' of \['treat', 'age', 'weight'\]"):
        TreatmentColumn(DUECATE(**FAST), column="dose").fit(frame, Y)


class Wide(nn.Sequential):
    """An extractor of one's own: the class itself is the function from shape to module."""

    def __init__(self, shape):
        super().__init__(nn.Linear(shape[0], 16), nn.ELU())


# bad input


def bad(change, message, error=ValueError):
    return pytest.param(change, message, error, id=message[:30])


@pytest.mark.parametrize(
    ("change", "message", "error"),
    [
        bad(lambda Y, T, X: (X, T, Y), r"fit\(Y, T, X=X\)"),  # CausalML
        bad(lambda Y, T, X: (X, Y, T), r"Y has shape \(60, 2\).*fit\(Y, T, X=X\)"),  # CATENets
        bad(lambda Y, T, X: (T, Y, X), r"T holds .*a treatment is 0 or 1"),
        bad(lambda Y, T, X: (Y, T, None), "X is missing"),
        bad(lambda Y, T, X: (Y[:-1], T, X), "59, 60 and 60 rows"),
        bad(lambda Y, T, X: (Y, T + 1, X), "T holds 2; a treatment is 0 or 1"),
        bad(lambda Y, T, X: (Y, np.where(T, "yes", "no"), X), "T holds '(yes|no)' in row 0"),
        bad(lambda Y, T, X: ([*Y[:-1], "n/a"], T, X), "Y holds 'n/a' in row 59"),
        bad(lambda Y, T, X: (Y, T + 1, X), r"\(T == 2\).astype\(int\) says so of 1 and 2"),
        bad(lambda Y, T, X: (Y, np.arange(60) % 3, X), "T holds 2; .* two at a time"),
        bad(lambda Y, T, X: (Y, np.ones_like(T), X), "nobody in T is untreated"),
        bad(lambda Y, T, X: (Y, np.zeros_like(T), X), "nobody in T is treated"),
        bad(lambda Y, T, X: (np.where(np.arange(60) == 7, np.nan, Y), T, X), "first in row 7"),
        bad(lambda Y, T, X: (Y, np.where(np.arange(60) == 3, np.nan, T), X), "first in row 3"),
        bad(lambda Y, T, X: (Y, T, np.where(X > 2, np.inf, X)), "infinity"),
        bad(lambda Y, T, X: (Y, T, X[:, 0]), "Expected 2D array"),
        bad(lambda Y, T, X: (Y[:1], T[:1], X[:1]), "nobody in T is"),
        bad(lambda Y, T, X: (np.column_stack([Y, Y]), T, X), r"Y has shape \(60, 2\)"),
    ],
)
def test_refuses(change, message, error):
    Y, T, X = study(60, seed=1)
    X[0, 0] = 2.5
    with pytest.raises(error, match=message):
        DUECATE(**FAST).fit(*change(Y, T, X))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"treatment": "output"}, "features, input"),
        ({"treatment": "input", "own_scale": True}, "own_scale=True needs"),
        ({"recipe": Recipe(weight_decay=-1.0)}, "weight_decay=-1.0"),
        ({"bound": "tight"}, "auto, collapsed, elbo"),
    ],
)
def test_refuses_parameters(options, message):
    Y, T, X = study(60)
    with pytest.raises(ValueError, match=message):
        DUECATE(**FAST, **options).fit(Y, T, X)


def test_refuses_other_treatments_at_prediction(model):
    for T0 in (2, "no", [0, 1]):
        with pytest.raises(ValueError, match="is not a treatment"):
            model.effect(PEOPLE, T0=T0)
    with pytest.raises(ValueError, match="alpha=95"):
        model.effect_interval(PEOPLE, alpha=95)
    with pytest.raises(ValueError, match="2 features"):
        model.effect(np.ones((3, 5)))
    with pytest.raises(NotFittedError):
        DUECATE().effect(PEOPLE)
    with pytest.raises(ValueError, match="validation has 2 parts"):
        Y, T, X = study(60)
        DUECATE().fit(Y, T, X, validation=(Y, T))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="validation_fraction"):
        DUECATE().fit(Y, T, X, validation=0.2)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [(0.0, 1000.0), (2019.0, 2020.0), (0.0, 1e-6), (7e5, 7e5)])
def test_a_column_of_two_values_may_be_of_any_size(values):
    Y, T, X = study()
    coin = np.random.default_rng(5).integers(2, size=200)
    coded = np.column_stack([X, np.array(values)[coin]])
    plain = np.column_stack([X, coin if values[0] < values[1] else 0 * coin])
    a, b = (DUECATE(**FAST).fit(Y, T, rows).effect_inference(rows) for rows in (coded, plain))
    assert_allclose(a.point_estimate, b.point_estimate, atol=1e-3)
    assert_allclose(a.stderr, b.stderr, rtol=1e-2)


@pytest.mark.parametrize("column", [np.full(60, 3.0), np.arange(60) * 1e-12, np.arange(60) * 1e12])
def test_columns_of_any_scale_are_taken(column):
    Y, T, X = study(60)
    rows = np.column_stack([X, column])
    spread = column.std() if np.ptp(column) else 1.0
    plain = np.column_stack([X, (column - column.mean()) / spread])
    a, b = (DUECATE(**FAST).fit(Y, T, part).effect_inference(part) for part in (rows, plain))
    assert_allclose(a.point_estimate, b.point_estimate, atol=1e-3)
    assert_allclose(a.stderr, b.stderr, rtol=1e-2)


def test_few_people_and_a_constant_outcome_are_taken():
    model = DUECATE(**FAST).fit([1.0, 1.0, 1.0, 1.0], [0, 1, 0, 1], [[0.0], [0.0], [1.0], [1.0]])
    assert_allclose(model.effect([[0.5]]), 0.0, atol=0.2)
