"""A saved estimator answers to the same bits."""

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from torch import nn

from due.estimators import DUEClassifier, DUERegressor
from due.storage import StorageError
from due.storage import model as archive

FAST = {"epochs": 5, "n_inducing": 10, "random_state": 0}


def assert_same_answers(again, model, X):
    assert_array_equal(again.predict(X), model.predict(X))
    assert again.predict(X).dtype == model.predict(X).dtype
    assert_array_equal(again.uncertainty(X), model.uncertainty(X))
    assert_array_equal(again.ood_score(X), model.ood_score(X))
    for got, want in zip(again.uncertainty_details(X), model.uncertainty_details(X), strict=True):
        assert_array_equal(got, want)


@pytest.mark.parametrize(
    "names",
    [["ham", "spam"], np.array(["ham", "spam"], dtype=object), [-3, 40], [False, True], [0.0, 1.0]],
    ids=str,
)
@pytest.mark.parametrize("kernel", ["rbf", "rq"])
def test_classifier(names, kernel, moons, tmp_path):
    X, y = moons
    model = DUEClassifier(**FAST, kernel=kernel, validation_fraction=0.2).fit(X, np.array(names)[y])
    model.save(tmp_path / "model")

    again = DUEClassifier.load(tmp_path / "model")

    assert_same_answers(again, model, X)
    assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.classes_.dtype == model.classes_.dtype
    assert again.get_params() == model.get_params()
    assert again.history_ == model.history_
    assert again.n_features_in_ == 2


@pytest.mark.parametrize("bound", ["collapsed", "elbo"])
@pytest.mark.parametrize("outputs", ["flat", "column", "two"])
def test_regressor(outputs, bound, waves, tmp_path):
    X, Y = waves
    y = {"flat": Y[:, 0], "column": Y[:, :1], "two": Y}[outputs]
    model = DUERegressor(**FAST, bound=bound).fit(X, y)
    model.save(tmp_path / "model")

    again = DUERegressor.load(tmp_path / "model")

    assert_same_answers(again, model, X)
    assert_array_equal(again.predict(X, return_std=True)[1], model.predict(X, return_std=True)[1])
    assert_array_equal(
        again.predict(X[:9], return_cov=True)[1], model.predict(X[:9], return_cov=True)[1]
    )
    assert_array_equal(again.sample_y(X[:9]), model.sample_y(X[:9]))
    assert again.get_params() == model.get_params()


def test_save_takes_the_place_of_the_model_before(moons, tmp_path):
    DUEClassifier(**FAST).fit(*moons).save(tmp_path)
    model = DUEClassifier(**{**FAST, "random_state": 1}).fit(*moons)
    model.save(tmp_path)
    assert_same_answers(DUEClassifier.load(tmp_path), model, moons[0])


def test_a_loaded_estimator_can_be_saved_and_trained_again(moons, tmp_path):
    DUEClassifier(**FAST, warm_start=True).fit(*moons).save(tmp_path)
    again = DUEClassifier.load(tmp_path)
    again.save(tmp_path / "copy")
    assert_same_answers(DUEClassifier.load(tmp_path / "copy"), again, moons[0])
    before = again.predict_proba(moons[0])
    again.fit(*moons)
    assert (again.predict_proba(moons[0]) != before).any()


def test_names_of_columns_are_kept(moons, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(moons[0], columns=["length", "width"])
    DUEClassifier(**FAST).fit(frame, moons[1]).save(tmp_path)
    again = DUEClassifier.load(tmp_path)
    assert_array_equal(again.feature_names_in_, ["length", "width"])
    with pytest.raises(ValueError, match="feature names should match"):
        again.predict(frame[["width", "length"]])


def test_the_config_is_plain_to_read(moons, tmp_path):
    DUEClassifier(**FAST).fit(*moons).save(tmp_path)
    estimator = json.loads((tmp_path / "config.json").read_text())["estimator"]
    assert estimator["name"] == "DUEClassifier"
    assert estimator["params"]["n_inducing"] == 10
    assert estimator["classes"] == [0, 1]


def own(shape):
    return nn.Sequential(nn.Linear(shape[0], 16), nn.ReLU(), nn.Linear(16, 8))


def narrower(shape):
    return nn.Sequential(nn.Linear(shape[0], 12), nn.ReLU(), nn.Linear(12, 8))


@pytest.mark.parametrize("c", [0.95, None])
def test_an_extractor_of_ones_own_is_needed_again(moons, tmp_path, c):
    model = DUEClassifier(own, **FAST, c=c).fit(*moons)
    model.save(tmp_path)
    with pytest.raises(StorageError, match="extractor of its own: pass the same .* extractor="):
        DUEClassifier.load(tmp_path)
    with pytest.raises(StorageError, match="saved weights do not fit the network"):
        DUEClassifier.load(tmp_path, narrower)
    assert_same_answers(DUEClassifier.load(tmp_path, own), model, moons[0])


def test_another_class_is_refused(moons, tmp_path):
    model = DUEClassifier(**FAST).fit(*moons)
    model.save(tmp_path / "estimator")
    with pytest.raises(StorageError, match="holds DUEClassifier, not a DUERegressor"):
        DUERegressor.load(tmp_path / "estimator")
    archive.save(model.model_, tmp_path / "model")
    with pytest.raises(StorageError, match="holds no estimator, not a DUEClassifier"):
        DUEClassifier.load(tmp_path / "model")
    with pytest.raises(StorageError, match="no model in"):
        DUEClassifier.load(tmp_path / "nowhere")


def test_device_can_be_chosen_on_load(moons, tmp_path):
    model = DUEClassifier(**FAST).fit(*moons)
    model.device = "cuda"  # as if it came from a larger machine
    model.save(tmp_path)
    again = DUEClassifier.load(tmp_path, device="cpu")
    assert again.device == "cpu"
    assert_array_equal(
        again.predict(moons[0]), again.classes_[again.predict_proba(moons[0]).argmax(1)]
    )


def test_a_state_of_numpy_as_seed_is_not_saved(moons, tmp_path):
    model = DUEClassifier(**{**FAST, "random_state": np.random.RandomState(0)}).fit(*moons)
    model.save(tmp_path)
    assert DUEClassifier.load(tmp_path).random_state is None
