"""`ood_pvalue` is uniform on rows like those of training, and small on others."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.stats import binom, kstest
from sklearn.datasets import load_digits, make_moons

from due import DUEClassifier, DUERegressor
from due.networks import FCResNet

FAST = {"epochs": 4, "n_inducing": 10}


def small(shape):
    return FCResNet(shape[0], 16, 1)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    seen = y < 5
    X_seen, y_seen, rows = X[seen], y[seen], np.random.default_rng(0).permutation(seen.sum())
    known, new = rows[:600], rows[600:]
    model = DUEClassifier(small, epochs=20, random_state=0).fit(X_seen[known], y_seen[known])
    return model, X_seen[new], X[~seen]


def test_it_is_the_conformal_p_value_of_the_score(digits):
    model, new, unseen = digits
    known = model.model_.calibration.numpy()
    assert len(known) == 60 and model.history_["rows"] == 540
    rows = np.concatenate([new, unseen])
    want = [(1 + (known >= score).sum()) / 61 for score in model.ood_score(rows)]
    assert_array_equal(model.ood_pvalue(rows), want)


def test_seen_classes_are_seldom_flagged_and_unseen_ones_often(digits):
    model, new, unseen = digits
    assert (model.ood_pvalue(new) <= 0.05).mean() < 0.15
    assert (model.ood_pvalue(unseen) <= 0.05).mean() > 0.6


def test_over_many_draws_it_is_uniform_and_keeps_its_false_alarm_rate():
    """One new row per draw of the calibration rows: the guarantee is over both."""
    X, y = make_moons(8000, noise=0.2, random_state=0)
    model = DUEClassifier(small, random_state=0, **FAST).fit(X[:500], y[:500])
    scores = model.ood_score(X[500:])
    rng, p = np.random.default_rng(0), []
    frozen = model.predictor_.model
    for _ in range(200):
        rows = rng.choice(len(scores), 100, replace=False)
        frozen.calibration = frozen.calibration.new_tensor(np.sort(scores[rows[1:]]))
        p.append(float(frozen.pvalue(frozen.calibration.new_tensor(scores[rows[:1]]))[0]))
    # on the grid 1/100 … 1; spread over each step it is uniform
    assert kstest(np.array(p) - rng.random(200) / 100, "uniform").pvalue > 0.01
    for alpha in (0.01, 0.05, 0.1):
        assert (np.array(p) <= alpha).sum() <= binom.ppf(0.999, 200, alpha)


def test_held_out_rows_had_no_part_in_training():
    X, y = make_moons(600, noise=0.2, random_state=0)
    a = DUEClassifier(small, random_state=0, **FAST, calibration_fraction=0.2).fit(X, y)
    assert a.history_["rows"] == 480 and len(a.model_.calibration) == 120
    watched = DUEClassifier(small, random_state=0, **FAST, validation_fraction=0.25).fit(X, y)
    assert watched.history_["rows"] == 450 and len(watched.model_.calibration) == 150
    both = DUEClassifier(
        small, random_state=0, **FAST, validation_fraction=0.25, calibration_fraction=0.2
    ).fit(X, y)
    assert both.history_["rows"] == 360 and len(both.model_.calibration) == 90


def test_few_rows_are_all_trained_on_and_have_no_p_values():
    X, y = make_moons(100, noise=0.2, random_state=0)
    model = DUEClassifier(small, **FAST).fit(X, y)
    assert model.history_["rows"] == 100
    with pytest.raises(ValueError, match="no rows were held out for p-values: fit with"):
        model.ood_pvalue(X)


@pytest.mark.parametrize("Estimator", [DUEClassifier, DUERegressor])
def test_it_survives_a_save(Estimator, tmp_path):
    X, y = make_moons(520, noise=0.2, random_state=0)
    model = Estimator(small, random_state=0, **FAST).fit(X, y)
    model.save(tmp_path)
    again = Estimator.load(tmp_path, small)
    assert_array_equal(again.ood_pvalue(X), model.ood_pvalue(X))
    answer = model.predictor_(model._tensor(X[:3]))
    assert_array_equal(answer.ood_pvalue.numpy(), model.ood_pvalue(X[:3]))
