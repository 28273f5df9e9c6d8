"""A saved rival answers to the same bits, and nothing of it is pickled."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.linear_model import LinearRegression

from due.baselines import (
    CEVAE,
    DKLITE,
    ArmGP,
    DeepEnsemble,
    EnsembleClassifier,
    EnsembleEffects,
    EnsembleRegressor,
    MCDropout,
    NetworkRegressor,
    SoftmaxClassifier,
    TARNet,
    TLearner,
)
from due.data.toy import two_moons
from due.estimators import DUECATE, DUEClassifier, DUERegressor
from due.networks import FCResNet
from due.storage import StorageError

TINY = {"epochs": 2, "random_state": 0}
SLIM = {**TINY, "width": 16}
GP = {"epochs": 2, "n_inducing": 10}


def droppy(shape):
    return FCResNet(shape[0], 16, 2, dropout=0.3)


def wider(shape):
    return FCResNet(shape[0], 17, 2, dropout=0.3)


CLASSIFIERS = [
    SoftmaxClassifier(droppy, **TINY),
    SoftmaxClassifier(droppy, c=0.9, validation_fraction=0.2, **TINY),
    DeepEnsemble(SoftmaxClassifier(droppy, epochs=2), 2, random_state=0),
    MCDropout(SoftmaxClassifier(droppy, epochs=2), 3, random_state=0),
    DeepEnsemble(DUEClassifier(droppy, **GP), 2, random_state=0),
]
REGRESSORS = [
    NetworkRegressor(droppy, c=0.9, **TINY),
    DeepEnsemble(NetworkRegressor(droppy, epochs=2), 2, random_state=0),
    MCDropout(NetworkRegressor(droppy, epochs=2), 3, random_state=0),
    DeepEnsemble(MCDropout(DUERegressor(droppy, **GP), 2), 2, random_state=0),
]
EFFECTS = [
    TARNet(**SLIM),
    TARNet(c=None, **SLIM),
    CEVAE(latent=3, **SLIM),
    DKLITE(**SLIM),
    ArmGP(steps=3),
    DeepEnsemble(TARNet(epochs=2, width=16), 2, random_state=0),
    MCDropout(CEVAE(epochs=2, width=16), 3, random_state=0),
    DeepEnsemble(MCDropout(TARNet(epochs=2, width=16), 3), 2, random_state=0),
    DeepEnsemble(DUECATE(**GP, inducing="free"), 2, random_state=0),
]


def name(model):
    inner = getattr(model, "estimator", None)
    return type(model).__name__ + ("" if inner is None else f"-{name(inner)}")


def refuse(*_, **__):
    raise AssertionError("unpickled")


def again(model, path, **given):
    model.save(path)
    with pytest.MonkeyPatch.context() as patch:
        for function in ("load", "loads"):
            patch.setattr(pickle, function, refuse)
        loaded = type(model).load(path, **given)
    assert str(loaded) == str(model)
    return loaded


def fit_moons(model):
    X, y = two_moons(100)
    return X, model.fit(pd.DataFrame(X, columns=["a", "b"]), np.array(["ham", "spam"])[y])


@pytest.mark.parametrize("model", CLASSIFIERS, ids=name)
def test_classifier(model, tmp_path):
    X, model = fit_moons(model)
    frame = pd.DataFrame(X, columns=["a", "b"])
    loaded = again(model, tmp_path, extractor=droppy)
    assert_array_equal(loaded.predict_proba(frame), model.predict_proba(frame))
    assert_array_equal(loaded.predict(frame), model.predict(frame))
    assert_array_equal(loaded.uncertainty(frame), model.uncertainty(frame))
    assert list(loaded.feature_names_in_) == ["a", "b"]
    assert loaded.n_features_in_ == 2


@pytest.mark.parametrize("model", REGRESSORS, ids=name)
@pytest.mark.parametrize("T", [None, 2])
def test_regressor(model, T, tmp_path):
    X = np.linspace(-3, 3, 60)[:, None]
    Y = np.sin(X[:, 0]) if T is None else np.column_stack([np.sin(X), np.cos(X)])
    model.fit(X, Y)
    loaded = again(model, tmp_path, extractor=droppy)
    for got, want in zip(
        loaded.predict(X, return_std=True), model.predict(X, return_std=True), strict=True
    ):
        assert_array_equal(got, want)
    assert_array_equal(loaded.uncertainty(X), model.uncertainty(X))


@pytest.mark.parametrize("model", EFFECTS, ids=name)
def test_effects(model, study, fresh, tmp_path):
    X = pd.DataFrame(fresh[0], columns=["a", "b", "c"])
    model.fit(study.y, study.t, pd.DataFrame(study.X, columns=X.columns))
    loaded = again(model, tmp_path)
    assert_array_equal(loaded.potential_outcomes(X), model.potential_outcomes(X))
    if hasattr(model, "uncertainty"):
        assert_array_equal(loaded.uncertainty(X), model.uncertainty(X))
        assert loaded.ate_interval(X) == model.ate_interval(X)
    assert list(loaded.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names"):
        loaded.effect(X[["b", "a", "c"]])


def test_a_loaded_estimator_can_be_fitted_and_saved_again(study, tmp_path):
    people = study.y, study.t, study.X
    model = DeepEnsemble(TARNet(epochs=2, width=16), 2, random_state=0).fit(*people)
    loaded = again(model, tmp_path)
    assert_array_equal(again(loaded, tmp_path).effect(study.X), model.effect(study.X))
    assert_array_equal(loaded.fit(*people).effect(study.X), model.effect(study.X))


def test_an_extractor_of_ones_own_is_needed_again(tmp_path):
    _, model = fit_moons(DeepEnsemble(SoftmaxClassifier(droppy, epochs=1), 2, random_state=0))
    model.save(tmp_path)
    with pytest.raises(StorageError, match="extractor of its own: pass the same"):
        EnsembleClassifier.load(tmp_path)
    with pytest.raises(StorageError, match="saved weights do not fit the network"):
        EnsembleClassifier.load(tmp_path, wider)


def test_the_default_network_needs_nothing(tmp_path):
    X, model = fit_moons(DeepEnsemble(SoftmaxClassifier(epochs=1), 2, random_state=0))
    frame = pd.DataFrame(X, columns=["a", "b"])
    assert_array_equal(again(model, tmp_path).predict_proba(frame), model.predict_proba(frame))


def test_it_is_loaded_by_the_class_that_saved_it(study, tmp_path):
    model = DeepEnsemble(TARNet(**SLIM), 2).fit(study.y, study.t, study.X)
    model.save(tmp_path)
    with pytest.raises(StorageError, match="holds EnsembleEffects, not a EnsembleRegressor"):
        EnsembleRegressor.load(tmp_path)
    with pytest.raises(StorageError, match="holds EnsembleEffects, not a TARNet"):
        TARNet.load(tmp_path)


def test_a_file_names_no_class_but_ours(study, tmp_path, monkeypatch):
    model = DeepEnsemble(TARNet(**SLIM), 1).fit(study.y, study.t, study.X)
    config, tensors = model._state()
    for name in ("SampledEffects.__init__", "system", "DeepEnsemble", "TLearner"):
        config["estimator"]["wrapped"]["name"] = name
        monkeypatch.setattr("due.storage.files.load", lambda path: (config, tensors))
        with pytest.raises(StorageError, match="no estimator of this due that saves"):
            EnsembleEffects.load(tmp_path)


def test_what_cannot_be_saved_without_pickle_says_so(study, tmp_path):
    assert not hasattr(TLearner(), "save")
    effects = DeepEnsemble(TLearner(LinearRegression()), 2).fit(study.y, study.t, study.X)
    with pytest.raises(StorageError, match="TLearner has no save without pickle"):
        effects.save(tmp_path)
    values = DeepEnsemble(LinearRegression(), 2).fit(study.X, study.y)
    with pytest.raises(StorageError, match="LinearRegression has no save without pickle"):
        values.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_config_is_plain_to_read(study, tmp_path):
    model = DeepEnsemble(TARNet(**SLIM), 2, random_state=0).fit(study.y, study.t, study.X)
    model.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["estimator"]["wrapped"]["params"]["width"] == 16
    assert [member["estimator"]["name"] for member in config["members"]] == ["TARNet"] * 2


def test_device_can_be_chosen_on_load(study, tmp_path):
    model = DeepEnsemble(TARNet(**SLIM), 2, random_state=0).fit(study.y, study.t, study.X)
    for part in (model.estimator, *model.estimators_):
        part.device = "cuda"  # as if it came from a larger machine
    model.save(tmp_path)
    loaded = EnsembleEffects.load(tmp_path, device="cpu")
    assert {part.device for part in (loaded.estimator, *loaded.estimators_)} == {"cpu"}
    assert np.isfinite(loaded.effect(study.X)).all()
