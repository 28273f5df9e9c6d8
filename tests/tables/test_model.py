"""Fit, predict, evaluate, save: from rows as they are to answers."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from due import DUEClassifier, DUERegressor
from due.baselines import DeepEnsemble, NetworkRegressor, SoftmaxClassifier
from due.estimators.effects import quantile
from due.tables import TableModel, fit
from due.tables.calibration import calibrate
from due.tables.foreign import contributions
from due.tables.measure import of_classes, of_values

from . import frames


@pytest.mark.parametrize("name", ["classifier", "regressor", "effects"])
def test_a_saved_model_gives_the_same_bits(request, name, people, tmp_path):
    model = request.getfixturevalue(name)
    model.save(tmp_path)
    again = TableModel.load(tmp_path)
    pd.testing.assert_frame_equal(again.predict(people), model.predict(people), check_exact=True)
    assert again.measured == model.measured and again.settings == model.settings
    assert (again.split.parts(people) == model.split.parts(people)).all()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "README.md", "config.json", "model.safetensors",
    ]  # fmt: skip


def test_rivals_are_saved_too(people, tmp_path):
    rivals = {
        "y": SoftmaxClassifier(frames.small, epochs=2, random_state=0),
        "z": DeepEnsemble(NetworkRegressor(epochs=2), 2, random_state=0),
    }
    for target, rival in rivals.items():
        frame = people.drop(columns="z" if target == "y" else "y")
        model = fit(frame, target, estimator=rival, beside=False)
        model.save(tmp_path / target)
        own = frames.small if target == "y" else None
        again = TableModel.load(tmp_path / target, extractor=own)
        pd.testing.assert_frame_equal(again.predict(frame), model.predict(frame), check_exact=True)


def test_columns_of_the_input_stay_and_new_ones_follow(classifier, people):
    found = classifier.predict(people)
    pd.testing.assert_frame_equal(found[people.columns], people)
    assert list(found.columns[len(people.columns) :]) == [
        *("prediction", "probability", "probability_bad", "probability_good"),
        *("uncertainty", "ood_score", "ood_pvalue", "foreign_because"),
    ]
    again = classifier.predict(found)
    assert list(again.columns[: len(found.columns)]) == list(found.columns)
    assert (again["due_prediction"] == found["prediction"]).all()


def test_effects_come_with_both_outcomes_and_overlap(effects, people):
    found = effects.predict(people, echo=False)
    difference = found["outcome_treated"] - found["outcome_untreated"]
    np.testing.assert_allclose(found["effect"], difference, atol=1e-6)
    half = (found["upper"] - found["lower"]) / 2
    np.testing.assert_allclose(half, quantile(0.05) * found["uncertainty"], rtol=1e-9)
    assert found[["overlap_untreated", "overlap_treated"]].stack().between(0, 1).all()
    assert effects.schema.treatment.treated == "yes"


def test_a_foreign_row_names_its_column(classifier, regressor, people):
    for model in (classifier, regressor):
        row = people.head(1).assign(x=1e3)
        found = model.predict(row)
        assert found["ood_pvalue"][0] <= 0.05 and found["foreign_because"][0].startswith("x")
    lost = people.head(1).assign(city="Atlantis", x=50.0)
    assert (
        "city (a category that training did not have)"
        in (classifier.predict(lost)["foreign_because"][0])
    )


def test_contributions_are_those_of_a_sum(classifier):
    """Where the score is a sum over columns, a column's part is its own term."""

    class Additive:
        encoder = classifier.encoder

        def ood_scores(self, X):
            return X.sum(1)

    rng = np.random.default_rng(0)
    X = rng.normal(size=(5, len(Additive.encoder.typical())))
    shift = X - Additive.encoder.typical()
    wanted = np.column_stack([shift[:, place].sum(1) for place in Additive.encoder.slices()])
    np.testing.assert_allclose(contributions(Additive(), X), wanted, atol=1e-9)


def test_odd_cells_of_new_rows_are_counted(classifier, people):
    rows = people.head(4).assign(city=["Oslo", "Mars", "Mars", ""], x=["1", "many", "2", ""])
    found = classifier.oddities(rows)
    assert found["column 'city' holds a category that training did not have"] == 2
    assert found["column 'x' holds no number"] == 1
    assert found["column 'x' is missing, which it never was in training"] == 1
    assert np.isfinite(classifier.predict(rows, echo=False)["uncertainty"]).all()


def test_a_new_class_is_an_error_and_in_no_other_number(classifier, people):
    rows = people.head(20).drop(columns="z")
    plain = classifier.evaluate(rows)
    new = classifier.evaluate(rows.assign(y=["ugly"] * 5 + rows["y"].tolist()[5:]))
    assert new["new_labels"] == 5 and new["accuracy"] <= 0.75
    assert classifier.evaluate(rows[5:])["nll"] == pytest.approx(new["nll"])
    assert plain["new_labels"] == 0


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"y": "same"}, "one value, 'same', in all rows"),
        ({"y": None}, "is empty"),
        ({"y": [[1]] * frames.N}, "holds lists"),
        ({"y": [f"label {i}" for i in range(frames.N)]}, "different labels"),
    ],
)
def test_a_target_that_cannot_be_learned_is_refused(people, change, error):
    with pytest.raises(ValueError, match=error):
        frames.classifier(people.drop(columns="z").assign(**change))


def test_rows_without_a_target_are_left_out_with_a_word(people):
    frame = people.drop(columns="z")
    frame.loc[:20, "y"] = None
    model = frames.classifier(frame)
    assert sum(model.split.counts.values()) == frames.N - 21
    assert "21 rows without a target 'y' are left out" in model.data["odd"]


@pytest.mark.parametrize(
    ("cells", "task"),
    [
        (["a", "b"], "classification"),
        ([0, 1], "classification"),
        ([1, 2, 3], "classification"),
        ([True, False], "classification"),
        ([3, 4, 5, 6], "regression"),
        ([0.5, 1.5, 2.5], "regression"),
        (["1,5", "2,5", "3,5"], "regression"),
        (["1,234", "2,345", "9,999"], "regression"),
    ],
)
def test_the_task_follows_from_the_target(cells, task):
    from due.tables.target import look_at_target

    assert look_at_target("y", pd.Series(cells * 10, dtype=object), None).task == task


def test_names_and_tasks_are_checked(people):
    with pytest.raises(ValueError, match="target: no column 'Y'; did you mean 'y'"):
        fit(people, "Y")
    with pytest.raises(ValueError, match="treatment: no column"):
        fit(people, "z", treatment="membr")
    with pytest.raises(ValueError, match="3 values"):
        fit(people, "z", treatment="city")
    with pytest.raises(ValueError, match="one of classification, regression, effect"):
        fit(people, "z", task="ranking")
    with pytest.raises(ValueError, match="at least 30"):
        fit(people.head(10), "z")
    with pytest.raises(ValueError, match="holds 'good', which is no number"):
        fit(people, "y", task="regression")


def test_groups_and_time_are_kept_apart_and_out_of_the_inputs(people):
    frame = people.drop(columns="z").assign(who=people["id"] // 6)
    model = frames.classifier(frame, group="who")
    assert "who" not in model.schema.kinds
    parts = model.split.parts(frame)
    assert pd.Series(parts).groupby(frame["who"]).nunique().max() == 1
    model = frames.classifier(frame, time="day", ignore=["who"])
    parts = model.split.parts(frame)
    assert frame["day"][parts == "test"].min() > frame["day"][parts == "train"].max()
    assert "who" not in model.schema.kinds and model.settings["time"] == "day"


def test_labels_come_out_as_they_went_in(people):
    frame = people[["x", "city"]].assign(y=(people["x"] > 0).astype(int))
    for y, kind in ((frame["y"], int), (frame["y"].astype(bool), bool), (frame["y"].map(str), int)):
        model = frames.classifier(frame.assign(y=y))
        assert {type(label) for label in model.predict(frame)["prediction"].tolist()} == {kind}


# calibration


def test_pvalues_and_widths_are_conformal():
    rng = np.random.default_rng(0)
    alpha, hits, covered = 0.1, [], []
    for _ in range(400):
        scores = rng.normal(size=41) ** 2
        known = calibrate(scores[:-1], scores[:-1])
        hits.append(known.pvalues(scores[-1:])[0] <= alpha)
        covered.append(scores[-1] <= known.width(alpha))
    assert abs(np.mean(hits) - alpha) < 0.04 and abs(np.mean(covered) - (1 - alpha)) < 0.04
    few = calibrate(np.arange(5.0), np.arange(5.0))
    assert few.width(0.05) == quantile(0.05) and not few.holds(0.05)


def test_very_many_scores_are_thinned_without_a_change_of_the_quantiles():
    scores = np.random.default_rng(0).random(100_000)
    known = calibrate(scores, scores)
    assert len(known.ood) == 2000 and known.n == 100_000
    assert abs(known.width(0.05) - 0.95) < 0.003
    np.testing.assert_allclose(known.pvalues(np.array([0.3, 0.9])), [0.7, 0.1], atol=0.003)


def test_the_nll_of_values_is_that_of_the_models_own_density(regressor, people):
    rows = people.dropna(subset=[regressor.target.name])
    y = regressor.target.values(rows[regressor.target.name])
    density = regressor.estimator.log_density(regressor.encode(rows), y)
    assert regressor.evaluate(rows)["nll"] == pytest.approx(-density.mean())
    mean, std = regressor.estimator.predict(regressor.encode(rows), return_std=True)
    assert not np.isclose(density.mean(), norm(mean, std).logpdf(y).mean(), atol=1e-4)


def test_metrics_are_those_of_numpy():
    p = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.7, 0.3]])
    found = of_classes(p, np.array([0, 0, 1, -1]), np.array([0.1, 0.9, 0.2, 0.8]))
    assert found["accuracy"] == 0.5 and found["new_labels"] == 1
    assert found["nll"] == pytest.approx(-np.log([0.9, 0.4, 0.8]).mean())
    assert found["error_after_deferral"] == {"0": 0.5, "10": 0.5, "20": 0.5, "50": 0.0}
    y, mean = np.array([0.0, 1.0, 2.0, 9.0]), np.array([0.0, 1.0, 2.0, 3.0])
    std = np.array([1.0, 1.0, 1.0, 2.0])
    found = of_values(y, mean, std, mean - 2 * std, mean + 2 * std)
    assert found["rmse"] == 3 and found["coverage"] == 0.75
    assert found["rmse_after_deferral"]["50"] == 0


def test_python_and_defaults_agree_with_the_estimator(people):
    """The model is the estimator on the encoded training rows, nothing else."""
    frame = people.drop(columns="z")
    model = frames.classifier(frame)
    train = frame[model.split.parts(frame) == "train"]
    alone = DUEClassifier(epochs=3, n_inducing=10, random_state=0)
    alone.fit(model.encode(train), train["y"])
    probabilities = model.answers(frame)["probabilities"]
    np.testing.assert_array_equal(alone.predict_proba(model.encode(frame)), probabilities)


def test_numeric_codes_are_named_by_their_column(recwarn):
    rng = np.random.default_rng(0)
    shop = rng.integers(1, 10, 400)
    y = 3 * rng.normal(size=10)[shop] + 0.1 * rng.normal(size=400)
    frame = pd.DataFrame({"town": rng.choice(["a", "b"], 400), "shop": shop, "y": y})
    said: list[str] = []
    estimator = DUERegressor(epochs=2, random_state=0)
    fit(frame, "y", estimator=estimator, beside=False, say=said.append)
    assert [text for text in said if "codes" in text] == [
        "column 'shop' acts on the target like codes of categories, not like amounts: write them "
        "as texts, such as 'no. 5', and each gets a feature of its own"
    ]
    assert not [warning for warning in recwarn if "integers" in str(warning.message)]


@pytest.mark.parametrize("test", [20, 1, -0.2, float("nan")])
def test_a_share_is_below_one(people, test):
    with pytest.raises(ValueError, match=f"test={test:g} is not a share of at least 0 and below 1"):
        fit(people, "y", test=test)
