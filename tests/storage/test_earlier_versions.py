"""Folders written by format version 1 as of due 0.1.0: they load, and answer as they did.

`version_1` has one folder per kind of estimator; `answers.npz` the rows asked about and what the
version that wrote them answered.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import due
from due.networks import FCResNet
from due.storage.estimator import kind_of
from due.training import Recipe

HOME = Path(__file__).parent / "version_1"
BARE = ["model-classes", "model-values"]
FOLDERS = sorted(path.name for path in HOME.iterdir() if path.is_dir() and path.name not in BARE)
SOFTMAX = 2e-3  # the error of the quasi-random points with which that version integrated
ANSWERS = dict(np.load(HOME / "answers.npz"))
KINDS = {
    *("DUEClassifier", "SoftmaxClassifier", "DUQClassifier", "SNGPClassifier", "DDUClassifier"),
    *("SVDKLClassifier", "EnsembleClassifier", "DropoutClassifier"),
    *("DUERegressor", "NetworkRegressor", "SNGPRegressor", "SVDKLRegressor", "ExactGPRegressor"),
    *("EnsembleRegressor", "DropoutRegressor"),
    *("DUECATE", "TARNet", "CEVAE", "DKLITE", "ArmGP", "EnsembleEffects", "DropoutEffects"),
}
every = pytest.mark.parametrize("folder", FOLDERS)


def small(shape):
    return FCResNet(shape[0], 8, 2, dropout=0.1)


def encoder(shape):
    return FCResNet(shape[0], 12, 1, activation="elu", dropout=0.1)


def header(folder):
    return json.loads((HOME / folder / "config.json").read_text())["estimator"]


def extractor(folder):
    if not header(folder)["own_extractor"]:
        return None
    return encoder if folder.startswith("effect") else small


def load(folder, path=None):
    if "svdkl" in folder and importlib.util.find_spec("gpytorch") is None:
        pytest.skip("SV-DKL is built on gpytorch")
    return kind_of(header(folder)).load(path or HOME / folder, extractor(folder))


def stored(folder):
    """What the earlier version answered, by the name of the question."""
    name = folder.replace("-", "/", 1) + "/"
    return {key.removeprefix(name): a for key, a in ANSWERS.items() if key.startswith(name)}


def ask(model, question, X):
    """The answer to a question by its name in `answers.npz`."""
    if question.startswith("details."):
        return getattr(model.uncertainty_details(X), question.removeprefix("details."))
    if question in ("mean", "std"):
        return model.predict(X, return_std=True)[question == "std"]
    if question in ("lower", "upper"):
        return model.effect_interval(X)[question == "upper"]
    if question == "cov":
        return model.predict(X, return_cov=True)[1]
    name = {"probabilities": "predict_proba", "outcomes": "potential_outcomes"}
    return np.asarray(getattr(model, name.get(question, question))(X))


def answers(model, folder):
    X = ANSWERS[f"{folder.split('-')[0]}/rows"]
    questions = stored(folder)
    if not hasattr(model, "effect_interval"):
        questions = questions.keys() - {"lower", "upper"}  # which were stored as 0
    return {question: ask(model, question, X) for question in questions}


def test_every_kind_of_estimator_is_here():
    assert {header(folder)["name"] for folder in FOLDERS} == KINDS


@every
@pytest.mark.filterwarnings("ignore:.*people are farther from everyone")
def test_it_loads_and_answers_as_it_did(folder):
    got, want = answers(load(folder), folder), stored(folder)
    assert len(got) >= 2
    for question, value in got.items():
        scale = max(1.0, float(np.abs(want[question]).max()))
        atol = SOFTMAX if folder == "class-due" else 1e-6
        assert_allclose(value / scale, want[question] / scale, atol=atol, rtol=0, err_msg=question)


@every
@pytest.mark.filterwarnings("ignore:.*people are farther from everyone")
def test_saved_anew_it_is_a_folder_of_this_version(folder, tmp_path):
    model = load(folder)
    model.save(tmp_path)
    again = load(folder, tmp_path)
    assert str(again) == str(model)
    old, new = answers(model, folder), answers(again, folder)
    for question in old:
        assert_array_equal(new[question], old[question], err_msg=question)


@pytest.mark.parametrize("folder", BARE)
@torch.no_grad()
def test_a_bare_model_loads_and_answers_as_it_did(folder, tmp_path):
    model, rows = due.load(HOME / folder), torch.as_tensor(ANSWERS["model/rows"])
    due.save(model, tmp_path)
    for twin in (model, due.load(tmp_path)):
        answer = twin.predict(rows)
        got = torch.cat(list(answer), 1) if isinstance(answer, tuple) else answer
        atol = SOFTMAX if folder == "model-classes" else 1e-6
        assert_allclose(got, ANSWERS[folder.replace("-", "/")], atol=atol, rtol=0)


def test_arguments_of_training_are_in_the_recipe_now():
    model = load("effect-cate-paper")
    assert model.recipe == Recipe(head_lr=4e-3, patience=20)
    assert (model.epochs, model.lr, model.batch_size) == (6, 1e-3, 100)
    assert model.model_.bound == "elbo" and not model.own_scale


def test_a_fit_goes_on_from_a_loaded_folder():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), np.repeat(["a", "b", "c", "a"], 10)
    model = load("class-due").set_params(warm_start=True, epochs=1)
    before = model.predict_proba(X)
    assert np.abs(model.fit(X, y).predict_proba(X) - before).max() > 1e-4
