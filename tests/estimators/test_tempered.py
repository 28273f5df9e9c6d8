"""A classifier's temperature: where it comes from, what it changes and what it leaves alone."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_gaussian_quantiles

from due.estimators import DUEClassifier
from due.metrics import nll


def rings(n, seed=0):
    return make_gaussian_quantiles(n_samples=n, n_features=4, n_classes=4, random_state=seed)


@pytest.fixture(scope="module")
def both():
    X, y = (part[:600] for part in rings(1600))
    plain, tempered = (
        DUEClassifier(epochs=40, tempered=flag, random_state=0).fit(X, y) for flag in (False, True)
    )
    return plain, tempered


def test_rows_held_out_make_it_less_cautious_and_more_probable(both):
    plain, tempered = both
    X, y = (part[600:] for part in rings(1600))
    p, q = (model.predict_proba(X) for model in both)
    assert "temperature" not in plain.history_ and tempered.history_["temperature"] < 0.9
    assert q.max(1).mean() > p.max(1).mean()
    assert nll(q, y) < nll(p, y) - 0.01


def test_distance_and_its_p_value_stay_as_they_are(both):
    plain, tempered = both
    X = rings(50, seed=1)[0]
    assert_array_equal(tempered.ood_score(X), plain.ood_score(X))
    assert_array_equal(tempered.ood_pvalue(X), plain.ood_pvalue(X))
    far = np.full((1, 4), 1e3)
    even = -np.log(1 / 4)
    assert_allclose([model.uncertainty(far)[0] for model in both], even, rtol=0.05)


def test_without_held_out_rows_there_is_none():
    X, y = rings(120)
    assert "temperature" not in DUEClassifier(epochs=2, random_state=0).fit(X, y).history_
    watched = DUEClassifier(epochs=2, validation_fraction=0.2, random_state=0).fit(X, y)
    assert "temperature" in watched.history_


def test_it_is_saved(both, tmp_path):
    both[1].save(tmp_path / "model")
    loaded = DUEClassifier.load(tmp_path / "model")
    X = rings(50, seed=1)[0]
    assert_array_equal(loaded.predict_proba(X), both[1].predict_proba(X))
    assert loaded.history_["temperature"] == both[1].history_["temperature"]


def test_scales_of_many_columns_learn_faster():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 50)) * np.arange(1, 51)
    few, many = (
        DUEClassifier(epochs=1, random_state=0).fit(X[:, :n], X[:, 0] > 0) for n in (49, 50)
    )
    assert [model._default_recipe(60).head_lr for model in (few, many)] == [5e-3, 1e-2]
    plain = DUEClassifier(epochs=1, column_scales=False, random_state=0).fit(X, X[:, 0] > 0)
    assert plain._default_recipe(60).head_lr == 5e-3
