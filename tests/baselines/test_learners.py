import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import LinearRegression

from due.baselines import SLearner, TLearner

FOREST = RandomForestRegressor(20, random_state=3)


def test_s_learner_is_one_regressor_asked_twice(study, fresh):
    X, _ = fresh
    model = SLearner(FOREST).fit(study.y, study.t, study.X)
    forest = RandomForestRegressor(20, random_state=3).fit(np.c_[study.X, study.t], study.y)
    with_t, without = np.c_[X, np.ones(200)], np.c_[X, np.zeros(200)]
    assert_allclose(model.effect(X), forest.predict(with_t) - forest.predict(without))
    trees = [tree.predict(with_t) - tree.predict(without) for tree in forest.estimators_]
    assert_allclose(model.uncertainty(X), np.var(trees, axis=0))
    assert_allclose(model.sample_effect(X).mean(1), model.effect(X))


def test_t_learner_is_one_regressor_an_arm(study, fresh):
    X, _ = fresh
    model = TLearner(FOREST).fit(study.y, study.t, study.X)
    arms = [
        RandomForestRegressor(20, random_state=3).fit(study.X[study.t == a], study.y[study.t == a])
        for a in (0, 1)
    ]
    assert_allclose(model.effect(X), arms[1].predict(X) - arms[0].predict(X))
    trees = [np.array([tree.predict(X) for tree in arm.estimators_]) for arm in arms]
    assert_allclose(model.uncertainty(X), trees[0].var(0) + trees[1].var(0))
    low, high = model.ate_interval(X)
    want = trees[0].mean(1).var() + trees[1].mean(1).var()
    assert_allclose((high - low) / 2, 1.959964 * np.sqrt(want), rtol=1e-5)


@pytest.mark.parametrize("kind", [SLearner, TLearner])
def test_default_is_a_forest_that_learns(kind, study, fresh, rmse):
    X, tau = fresh
    model = kind(random_state=0).fit(study.y, study.t, study.X)
    assert rmse(model.effect(X), tau) < 0.6 * tau.std()


@pytest.mark.parametrize("kind", [SLearner, TLearner])
def test_a_seed_fixes_the_fit(kind, study):
    forest = RandomForestRegressor(5)
    a, b, c = (
        kind(forest, random_state=seed).fit(study.y, study.t, study.X).effect(study.X)
        for seed in (0, 0, 1)
    )
    assert_array_equal(a, b)
    assert np.abs(a - c).max() > 0


@pytest.mark.parametrize("regressor", [LinearRegression(), GradientBoostingRegressor()])
@pytest.mark.parametrize("kind", [SLearner, TLearner])
def test_no_forest_no_uncertainty(kind, regressor, study):
    model = kind(regressor).fit(study.y, study.t, study.X)
    assert np.isfinite(model.effect(study.X)).all()
    with pytest.raises(TypeError, match="no forest"):
        model.uncertainty(study.X)
