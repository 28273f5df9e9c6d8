"""What is plotted, against short computations of the same thing."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, norm
from sklearn.calibration import calibration_curve

from due.report import answers, evidence, measure
from due.report.answers import ClassRows, ValueRows
from report.pages import ASK, BEYOND, COLUMNS, HOSTILE, made, table, truth


def classes(n=200, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet([1.0, 1.0, 1.0], size=n)
    y = np.array([rng.choice(3, p=row) for row in p])
    return ClassRows(
        row=np.arange(n) + 1,
        uncertainty=-(p * np.log(p)).sum(1),
        classes=("a", "b", "c"),
        probabilities=p,
        truth=y,
    )


def values(n=200, width=1.0):
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=n), rng.uniform(0.5, 2, size=n)
    y = rng.normal(mean, width * std)
    return ValueRows(row=np.arange(n) + 1, uncertainty=std, mean=mean, std=std, truth=y)


def test_the_nll_is_that_of_the_models_own_density():
    rows = values()
    own = replace(rows, log_density=np.linspace(-3, -1, 200))
    assert measure.scores(own)["nll"] == pytest.approx(2.0)
    assert measure.scores(own.take(np.arange(2)))["nll"] == pytest.approx(2.995, abs=1e-3)
    assert measure.scores(answers.from_json(answers.to_json(own)))["nll"] == pytest.approx(2.0)
    normal = -norm(rows.mean, rows.std).logpdf(rows.truth).mean()
    assert measure.scores(rows)["nll"] == pytest.approx(normal)


def test_reliability_is_that_of_scikit_learn():
    rows = classes()
    right = measure.correct(rows)
    share, said = calibration_curve(right, rows.confidence, n_bins=10, strategy="quantile")
    bins = measure.reliability(rows)
    assert [b.accuracy for b in bins] == pytest.approx(share)
    assert [b.confidence for b in bins] == pytest.approx(said)
    assert sum(b.rows for b in bins) == len(rows)


def test_groups_of_almost_one_confidence_are_drawn_as_one():
    rows = classes(100)
    sure = np.tile([0.001, 0.001, 0.998], (100, 1))
    sure[:10] = [0.2, 0.2, 0.6]
    bins = measure.reliability(replace(rows, probabilities=sure))
    assert [b.rows for b in bins] == [10, 90]
    assert bins[1].accuracy == np.mean(rows.truth[10:] == 2)


@given(k=st.integers(0, 50), more=st.integers(1, 50))
def test_the_range_of_a_share_is_that_of_scipy(k, more):
    n = k + more
    found = binomtest(k, n).proportion_ci(method="wilson")
    assert measure.wilson(k / n, n) == pytest.approx((found.low, found.high), abs=1e-12)


def test_coverage_counts_rows_in_intervals_by_normal_and_given_widths():
    rows = values()
    for level in measure.coverage(rows):
        low, high = norm.interval(level.nominal, rows.mean, rows.std)
        inside = np.mean((low <= rows.truth) & (rows.truth <= high))
        assert level.observed == pytest.approx(inside)
        assert level.low <= level.nominal <= level.high
    widths = np.linspace(0, 1, len(measure.LEVELS)).tolist()
    distance = np.abs(rows.truth - rows.mean) / rows.std
    for level, z in zip(measure.coverage(rows, widths), widths, strict=True):
        assert level.observed == np.mean(distance <= z)
    at = widths[list(measure.LEVELS).index(0.9)]
    assert measure.scores(rows, widths)["coverage_90"] == np.mean(distance <= at)


def test_intervals_half_as_wide_as_they_should_be_leave_the_band():
    assert measure.at_90(measure.coverage(values())).low < 0.9
    narrow = measure.at_90(measure.coverage(values(width=2.0)))
    assert narrow.observed < narrow.low


def test_the_risk_curve_is_the_mean_loss_of_the_most_certain():
    rows = classes()
    loss = measure.losses(rows)
    assert loss is not None
    curve = measure.risk_curve(loss, rows.uncertainty)
    order = np.argsort(rows.uncertainty)
    for kept, risk in zip(curve.kept, curve.risk, strict=True):
        assert risk == pytest.approx(loss[order][: round(kept * len(loss))].mean())
    assert len(curve.kept) <= measure.POINTS and curve.kept[-1] == 1
    root = measure.risk_curve(loss, rows.uncertainty, root=True)
    assert root.risk**2 == pytest.approx(curve.risk)
    assert measure.deferred(loss, rows.uncertainty, 0.2) == pytest.approx(loss[order][:160].mean())


@pytest.mark.parametrize("n", [1, 2, 5, 19, 20, 21, 1000])
def test_curves_exist_for_any_number_of_rows(n):
    curve = measure.risk_curve(np.ones(n), np.arange(n))
    assert curve.kept[-1] == 1 and (curve.risk == 1).all()


def test_a_class_never_seen_counts_as_wrong_and_has_no_likelihood():
    rows = classes(4)
    new = answers.from_json({**answers.to_json(rows), "truth": [-1, -1, -1, -1]})
    assert measure.scores(new)["accuracy"] == 0
    assert "nll" not in measure.scores(new)


def test_a_histogram_has_shares_that_add_up_also_of_equal_values():
    found = measure.histogram({"a": np.arange(100.0), "b": np.full(7, 50.0)})
    assert [share.sum() for share in found.shares.values()] == pytest.approx([1, 1])
    equal = measure.histogram({"a": np.zeros(5)})
    assert equal.shares["a"].sum() == 1


def test_a_calibrated_model_is_not_called_over_confident_and_a_bold_one_is():
    gap, error = measure.miscalibration(classes(2000))
    assert abs(gap) < 3 * error
    rows = classes(2000)
    bold = rows.probabilities**4
    bold /= bold.sum(1, keepdims=True)
    gap, error = measure.miscalibration(replace(rows, probabilities=bold))
    assert gap > 5 * error


# What columns do


def test_only_the_columns_that_a_model_uses_drive_it():
    found = {driver.column: driver for driver in made("classification")[1].drivers}
    assert found[HOSTILE].prediction > 0.1 and found[HOSTILE].loss > 0.05
    assert found["b"][1:] == found["c"][1:] == (0, 0, 0)
    found = {driver.column: driver for driver in made("regression")[1].drivers}
    assert found[HOSTILE].uncertainty == 0 and found["b"].uncertainty > 0.2
    assert found["b"].prediction == 0 and found[HOSTILE].prediction > 1


def test_shuffling_a_column_moves_its_features_together():
    X = table()
    seen = []

    def ask(rows):
        seen.append(rows)
        return ASK["regression"](rows)

    rows = truth(ASK["regression"](X))
    before = X.copy()
    found = evidence.gather(ask, X, rows, "here", columns=COLUMNS, beyond=BEYOND)
    assert (before == X).all()
    pairs = {tuple(pair) for pair in X[:, 2:]}
    assert all({tuple(pair) for pair in changed[:, 2:]} == pairs for changed in seen)
    shuffled = seen[-2]
    assert (np.sort(shuffled, 0) == np.sort(X, 0)).all() and (shuffled != X).any(0).all()
    scores = {name: np.array(made.ood_score) for name, made in found.foreign.items()}
    assert (scores["one value never seen"] == 1).all()
    assert scores["combinations never seen"].mean() < 0.2


# Storage


def test_evidence_survives_json(page):
    _, _, found = page
    back = evidence.from_json(evidence.to_json(found))
    for name, array in found.rows.arrays().items():
        assert back.rows.arrays()[name] == pytest.approx(array, rel=1e-6, abs=1e-12)
    assert back.drivers == found.drivers and list(back.foreign) == list(found.foreign)
    assert back.where == found.where and back.cells == {} and back.widths == found.widths
    assert evidence.to_json(back) == evidence.to_json(found)


def test_of_many_rows_a_part_is_stored():
    rows = classes(5000)
    back = evidence.from_json(evidence.to_json(evidence.Evidence("here", rows))).rows
    assert len(back) == evidence.MOST
    assert back.uncertainty == pytest.approx(rows.uncertainty[back.row - 1], rel=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "newer"),
        ({"format": "x"}, "no evidence"),
        ({"rows": {"task": "theft"}}, "unknown task"),
        ({"rows": 3}, "no evidence"),
        ({"rivals": {"r": [[1.0], [1.0, 2.0]]}}, "one risk per share"),
        ({"drivers": [["a", {}, 1, None]]}, "no evidence"),
        ({"foreign": {"f": [[None], None, None]}}, "finite"),
        ({"widths": ["wide"]}, "could not convert"),
        ({"foreign": [1]}, "no evidence"),
    ],
)
def test_what_is_no_evidence_is_refused(change, message, tmp_path):
    plain = {**evidence.to_json(made("regression")[1]), **change}
    with pytest.raises(ValueError, match=message):
        evidence.from_json(plain)


def test_rows_that_are_not_finite_or_of_different_numbers_are_refused():
    plain = answers.to_json(values(3))
    with pytest.raises(ValueError, match="not finite"):
        answers.from_json({**plain, "mean": [1.0, float("nan"), 2.0]})
    with pytest.raises(ValueError, match="mean has 2 rows, row has 3"):
        answers.from_json({**plain, "mean": [1.0, 2.0]})
