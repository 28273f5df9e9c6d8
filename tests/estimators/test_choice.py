"""Held-out rows choose among candidates, and the one they choose is what it would be alone."""

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern

from due.estimators import DUECATE
from due.estimators.cate import INPUTS
from due.estimators.choice import choose, weigh
from due.training.loop import DivergenceError

FEW = {"epochs": 15, "n_inducing": 10, "random_state": 0}


class Pretender:
    """Learns whatever held-out loss its argument says."""

    model_: Any
    history_: dict[str, Any]
    _multiplicity: ClassVar[dict[str, float]] = {}

    def __init__(self, loss=None):
        self.loss = loss

    def set_params(self, loss):
        self.loss = loss
        return self

    def _combine(self, trials, weights):
        assert trials.keys() >= weights.keys()


def learn(trial):
    if trial.loss == "diverges":
        raise DivergenceError("infinite")
    trial.model_, trial.predictor_, trial.row_shape_, trial._proof = trial.loss, None, (1,), None
    trial.history_ = {"held_out": trial.loss, "seconds": [1.0]}


def chosen(losses, n=50):
    estimator = Pretender()
    candidates = {name: {"loss": loss} for name, loss in losses.items()}
    choose(estimator, candidates, learn, 0, n)
    assert estimator.loss is None  # its own arguments stay
    assert estimator.model_ == losses[estimator.history_["chosen"]]
    return estimator.history_


def test_the_least_held_out_loss_is_kept_whatever_the_others_do():
    assert chosen({"a": 1.0, "b": -0.5, "c": 0.0})["chosen"] == "b"
    assert chosen({"a": float("nan"), "b": 3.0})["chosen"] == "b"
    history = chosen({"a": "diverges", "b": 3.0, "c": 4.0})
    assert history["chosen"] == "b" and history["candidates"] == {"a": None, "b": 3.0, "c": 4.0}
    assert history["seconds_of_all"] == 2.0


def test_without_held_out_rows_the_first_is_taken():
    assert chosen({"a": 1.0, "b": 0.0}, n=0)["candidates"] == {"a": 1.0}


def test_candidates_weigh_by_how_many_standard_errors_they_are_behind():
    weights = weigh(
        {"a": 1.0, "b": 1.1, "c": None, "d": float("nan"), "e": 9.0}, n=100, multiplicity={}
    )
    assert_allclose([weights["a"], weights["b"]], np.exp([0, -1]) / np.exp([0, -1]).sum())
    assert list(weights) == ["a", "b"]  # what diverged, and what hardly weighs, is left out
    more = weigh({"a": 1.0, "b": 1.1}, n=400, multiplicity={})
    assert_allclose(more["b"] / more["a"], np.exp(-2))
    twice = weigh({"a": 1.0, "b": 1.1}, n=400, multiplicity={"b": 2.0})
    assert_allclose(twice["b"] / twice["a"], 2 * np.exp(-2))


def test_if_all_diverge_that_is_said():
    with pytest.raises(DivergenceError, match="infinite"):
        chosen({"a": "diverges", "b": "diverges"})


def study(n=80):
    rng = np.random.default_rng(0)
    X, T = rng.normal(size=(n, 3)), rng.integers(2, size=n)
    return X[:, 0] + T * np.sin(X[:, 1]) + 0.1 * rng.normal(size=n), T, X


def test_the_chosen_model_is_bit_for_bit_that_candidate_alone():
    Y, T, X = study()
    model = DUECATE(**FEW, average=False).fit(Y, T, X)
    candidates = model._candidates(56)
    assert list(model.history_["candidates"]) == list(candidates) and len(candidates) > 1
    alone = {name: DUECATE(**FEW, **rest).fit(Y, T, X) for name, rest in candidates.items()}
    losses = {name: one.history_["held_out"] for name, one in alone.items()}
    assert losses == model.history_["candidates"]
    assert model.history_["chosen"] == min(losses, key=losses.__getitem__)
    assert_array_equal(model.effect(X), alone[model.history_["chosen"]].effect(X))


def test_the_held_out_loss_is_that_of_people_not_learned_from_at_the_best_noise():
    Y, T, X = study()
    known, (y, t, x) = (Y[:60], T[:60], X[:60]), (Y[60:], T[60:], X[60:])
    for given in ({"inducing": "free"}, {"bound": "exact"}):
        model = DUECATE(**FEW, **given, finish="nothing").fit(*known, validation=(y, t, x))
        assert "candidates" not in model.history_  # an argument leaves nothing to choose
        frozen = model.predictor_.model
        rows = torch.as_tensor(np.column_stack([model.scale_(x), t]))
        mean, var = (part.numpy()[:, 0] for part in frozen.gp(frozen.f(rows)))
        noises = model.model_.sigma2.item() * np.logspace(-2, 1, 61)[:, None]
        want = -norm(mean, np.sqrt(var + noises)).logpdf(model.y_scale_(y)).mean(1).max()
        assert_allclose(model.history_["held_out"], want, rtol=1e-4)


def test_a_chosen_model_without_a_network_is_saved_and_loaded(monkeypatch, tmp_path):
    Y, T, X = study()
    only = {name: {**INPUTS, "own_scale": name == "b"} for name in "ab"}
    monkeypatch.setattr(DUECATE, "_candidates", lambda self, n: only)
    model = DUECATE(**FEW).fit(Y, T, X)
    assert model.layers is None and model.history_["arguments"]["layers"] == 0
    model.save(tmp_path / "model")
    loaded = DUECATE.load(tmp_path / "model")
    assert_array_equal(loaded.effect(X), model.effect(X))
    assert loaded.history_ == model.history_


def test_without_a_network_it_is_gp_regression_on_scaled_inputs():
    Y, T, X = study()
    model = DUECATE(**{**FEW, "n_inducing": None}, layers=0, bound="exact").fit(Y, T, X)
    f, gp = model.model_.f, model.model_.gp
    (v, w1, w0), a = f.scale.detach().numpy(), f.log_a.exp().item()
    x = model.scale_(X)
    kernel = gp.kernel.outputscale.item() * Matern(gp.kernel.lengthscale.item(), "fixed", nu=1.5)
    arms = [np.broadcast_to(t, 80)[:, None] for t in (T, 1, 0)]
    rows = [np.column_stack([x * v, t * x * w1, (1 - t) * x * w0, a * t]) for t in arms]
    oracle = GaussianProcessRegressor(kernel, alpha=model.model_.sigma2.item(), optimizer=None)
    mu = gp.mu.item()
    oracle.fit(rows[0], model.y_scale_(Y[:, None])[:, 0] - mu)
    want = oracle.predict(rows[1]) - oracle.predict(rows[2])
    assert_allclose(model.effect(X), want * model.y_scale_.std[0], rtol=1e-4, atol=1e-5)


def test_candidates_follow_the_number_of_people_and_what_is_given():
    few, many, too_many = (DUECATE()._candidates(n) for n in (1000, 1001, 5001))
    assert list(few) == list(many) == ["free", "exact", "unscaled", "inputs"]
    assert few["inputs"] == {**few["exact"], "layers": 0}
    assert few["exact"]["bound"] == "exact" and many["exact"]["inducing"] == "tied"
    assert few["unscaled"] == {**few["exact"], "column_scales": False} != few["exact"]
    assert many["unscaled"]["inducing"] == "tied" and not many["unscaled"]["column_scales"]
    assert many["free"] == few["free"] and list(too_many) == ["free"]
    assert list(DUECATE(lambda shape: None)._candidates(100)) == ["free", "exact", "unscaled"]
    (given,) = DUECATE(dropout=0.3)._candidates(100).values()
    assert given == {"inducing": "free", "layers": 3, "dropout": 0.3, "column_scales": False}
