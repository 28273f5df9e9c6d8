"""What users of scikit-learn expect without asking."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from due.estimators import DUEClassifier, DUERegressor
from due.rows.checks import ROWS
from due.training import Recipe

FAST = {"epochs": 5, "n_inducing": 10, "random_state": 0}
BOTH = pytest.mark.parametrize("Estimator", [DUEClassifier, DUERegressor])


@pytest.fixture(params=["classifier", "regressor", "two_outputs"])
def estimator(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def X(estimator):
    return np.random.default_rng(1).normal(size=(50, estimator.n_features_in_))


def answers(estimator, X):
    return [estimator.predict(X), *estimator.uncertainty_details(X)]


def assert_same(got, want):
    for a, b in zip(got, want, strict=True):
        assert_array_equal(a, b)


def test_clone_has_the_parameters_and_nothing_learned(estimator, X):
    copy = clone(estimator)
    assert copy.get_params() == estimator.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(X)


@BOTH
def test_parameters_are_kept_as_given(Estimator):
    params = Estimator().get_params()
    changed = {"c": 0.5, "n_inducing": 7, "kernel": "rq", "random_state": 3, "lr": 0.1}
    assert Estimator(**params).get_params() == params
    assert Estimator().set_params(**changed).get_params() == {**params, **changed}
    with pytest.raises(ValueError, match="Invalid parameter 'colour'"):
        Estimator().set_params(colour="red")


@BOTH
def test_parameters_are_used(Estimator, moons):
    model = Estimator(
        c=0.7, n_inducing=13, kernel="matern52", epochs=3, lr=1e-4, random_state=0
    ).fit(*moons)
    assert model.model_.gp.Z.shape == (13, 128)
    assert model.model_.gp.kernel.kind == "matern52"
    layers = [layer for layer in model.model_.f.modules() if isinstance(layer, torch.nn.Linear)]
    assert {layer.c for layer in layers} == {0.7}
    assert len(model.history_["loss"]) == 3
    assert model.history_["lr"][0] == 1e-4
    free = Estimator(c=None, **FAST).fit(*moons)
    layers = [layer for layer in free.model_.f.modules() if isinstance(layer, torch.nn.Linear)]
    assert len(layers) == 5 and not any(hasattr(layer, "c") for layer in layers)


@BOTH
def test_pipeline_with_weights(Estimator, moons):
    X, y = moons
    weight = np.linspace(0.5, 2, len(X))
    name = Estimator.__name__.lower()
    pipe = make_pipeline(StandardScaler(), Estimator(**FAST))
    pipe.fit(X, y, **{f"{name}__sample_weight": weight})
    scaled = StandardScaler().fit_transform(X)
    alone = Estimator(**FAST).fit(scaled, y, sample_weight=weight)
    assert_array_equal(pipe.predict(X), alone.predict(scaled))
    unweighted = Estimator(**FAST).fit(scaled, y)
    assert (unweighted.uncertainty(scaled) != alone.uncertainty(scaled)).any()


@BOTH
@pytest.mark.usefixtures("as_users_run")
def test_grid_search(Estimator, moons, tmp_path):
    grid = {"n_inducing": np.array([5, 10]), "kernel": ["rbf", "matern32"]}
    search = GridSearchCV(Estimator(epochs=3, random_state=0), grid, cv=2, error_score="raise")
    search.fit(*moons)
    assert search.best_params_["n_inducing"] in (5, 10)
    search.best_estimator_.save(tmp_path)  # numpy's numbers and all
    again = Estimator.load(tmp_path)
    assert_array_equal(again.predict(moons[0]), search.predict(moons[0]))


@BOTH
def test_fields_of_the_recipe_are_searched(Estimator, moons, tmp_path):
    grid = {"recipe__head_lr": [1e-3, 1e-2], "recipe__weight_decay": [0.1]}
    search = GridSearchCV(Estimator(**FAST), grid, cv=2, error_score="raise").fit(*moons)
    best = search.best_estimator_
    assert best.recipe == Recipe(weight_decay=0.1, **{"head_lr": best.recipe.head_lr})
    assert best.get_params()["recipe__weight_decay"] == 0.1
    assert clone(best).recipe == best.recipe
    best.save(tmp_path)
    assert Estimator.load(tmp_path).recipe == best.recipe
    plain = Estimator(**FAST, recipe=Recipe(patience=3))
    plain.set_params(recipe__patience=4)
    assert plain.recipe == Recipe(patience=4)


@BOTH
def test_cross_validation_in_two_processes(Estimator, moons):
    one, two = (cross_val_score(Estimator(**FAST), *moons, cv=2, n_jobs=n) for n in (1, 2))
    assert_allclose(one, two, rtol=1e-6)  # another process may have another number of threads


def test_pickle(estimator, X):
    again = pickle.loads(pickle.dumps(estimator))
    assert_same(answers(again, X), answers(estimator, X))


def test_joblib(estimator, X, tmp_path):
    joblib.dump(estimator, tmp_path / "model.joblib")
    again = joblib.load(tmp_path / "model.joblib")
    assert_same(answers(again, X), answers(estimator, X))


@BOTH
def test_pandas_in_numpy_out(Estimator, moons):
    frame, y = pd.DataFrame(moons[0], columns=["length", "width"]), pd.Series(moons[1])
    model = Estimator(**FAST).fit(frame, y)

    assert_array_equal(model.feature_names_in_, ["length", "width"])
    assert isinstance(model.predict(frame), np.ndarray)
    assert_same(answers(model, frame), answers(Estimator(**FAST).fit(*moons), moons[0]))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["width", "length"]])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(moons[0])


def test_pandas_labels_of_words(moons):
    y = pd.Series(moons[1]).map({0: "low", 1: "high"})
    model = DUEClassifier(**FAST).fit(pd.DataFrame(moons[0], columns=["a", "b"]), y)
    assert set(model.predict(pd.DataFrame(moons[0], columns=["a", "b"]))) <= {"low", "high"}


@BOTH
@pytest.mark.parametrize("fraction", [0.0, 0.2])
def test_the_same_seed_gives_the_same_bits(Estimator, moons, fraction):
    first, second, other = (
        Estimator(**{**FAST, "random_state": seed}, validation_fraction=fraction).fit(*moons)
        for seed in (0, 0, 1)
    )
    assert_same(answers(first, moons[0]), answers(second, moons[0]))
    assert (first.ood_score(moons[0]) != other.ood_score(moons[0])).any()


@BOTH
def test_the_global_generators_are_left_alone(Estimator, moons, tmp_path):
    def states():
        key = np.random.get_state(legacy=False)["state"]["key"]
        return torch.get_rng_state().numpy(), key.copy()

    before = states()
    model = Estimator(**FAST, validation_fraction=0.2).fit(*moons)
    answers(model, moons[0])
    if Estimator is DUERegressor:
        model.sample_y(moons[0][:5])
    model.save(tmp_path)
    Estimator.load(tmp_path)
    assert_same(states(), before)


def test_prediction_is_deterministic(estimator, X):
    torch.manual_seed(0)
    first = answers(estimator, X)
    torch.manual_seed(1)
    assert_same(answers(estimator, X), first)


def test_a_row_is_answered_alone_as_in_company(estimator, X):
    together = answers(estimator, X)
    for i in (0, 17, 49):
        for alone, of_all in zip(answers(estimator, X[i : i + 1]), together, strict=True):
            assert alone.shape == (1, *of_all.shape[1:])
            assert_allclose(alone[0], of_all[i], rtol=1e-8, atol=1e-9)
    for got, want in zip(answers(estimator, X[::-1]), together, strict=True):
        assert_allclose(got[::-1], want, rtol=1e-8, atol=1e-9)


def test_many_rows_go_through_in_parts(estimator):
    X = np.random.default_rng(2).normal(size=(5000, estimator.n_features_in_))
    assert len(X) > 2 * ROWS
    found = estimator.predict(X)
    assert len(found) == len(estimator.uncertainty(X)) == 5000
    for rows in (slice(0, 10), slice(2043, 2053), slice(4990, 5000)):
        assert_allclose(estimator.predict(X[rows]), found[rows], rtol=1e-9, atol=1e-9)


def test_predict_changes_nothing_in_the_estimator(estimator, X):
    before = pickle.dumps(estimator)
    answers(estimator, X)
    estimator.score_samples(X)
    assert pickle.dumps(estimator) == before


def test_rows_given_are_not_changed(estimator, X):
    before = X.copy()
    answers(estimator, X)
    assert_array_equal(X, before)
