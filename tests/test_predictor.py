"""A predictor is all that an estimator answers from, and all that an export needs."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import entropy, norm

from due.baselines import (
    CEVAE,
    DKLITE,
    DDUClassifier,
    DUQClassifier,
    NetworkRegressor,
    SNGPClassifier,
    SNGPRegressor,
    SoftmaxClassifier,
    TARNet,
)
from due.estimators import DUECATE, DUEClassifier, DUERegressor
from due.gp import cholesky as cholesky_module
from due.networks import FCResNet

FEW = {"epochs": 3, "random_state": 0}
rng = np.random.default_rng(0)
X = rng.normal(size=(90, 3)) * [1.0, 20.0, 0.01] + [5.0, -40.0, 0.0]  # far from standard units
Z = (X - X.mean(0)) / X.std(0)
NEW = X.mean(0) + 2 * X.std(0) * rng.normal(size=(25, 3))
T = rng.integers(2, size=90)
LABELS = np.array(["a", "b", "c"])[np.digitize(Z[:, 0], [-0.5, 0.5])]
VALUES = 300 + 50 * (np.sin(2 * Z[:, 0]) + Z[:, 1])
OUTCOMES = VALUES + 30 * T * Z[:, 2]


def small(shape):
    return FCResNet(shape[0], 8, 2, dropout=0.1)


CLASSIFIERS = {
    "DUE": DUEClassifier(small, n_inducing=10, inducing="free", **FEW),
    "DUE monte_carlo": DUEClassifier(small, n_inducing=10, probabilities="monte_carlo", **FEW),
    "DUE raw": DUEClassifier(small, n_inducing=10, scale_inputs=False, **FEW),
    "softmax": SoftmaxClassifier(small, **FEW),
    "SNGP": SNGPClassifier(small, n_random_features=32, **FEW),
    "DUQ": DUQClassifier(small, **FEW),
    "DDU": DDUClassifier(small, **FEW),
}
REGRESSORS = {
    "DUE": DUERegressor(small, n_inducing=10, inducing="free", **FEW),
    "DUE two": DUERegressor(small, n_inducing=10, inducing="free", **FEW),
    "network": NetworkRegressor(small, **FEW),
    "SNGP": SNGPRegressor(small, n_random_features=32, **FEW),
}
EFFECTS = {
    "DUE": DUECATE(small, n_inducing=10, inducing="free", **FEW),
    "DUE input": DUECATE(
        small, n_inducing=10, treatment="input", inducing="free", own_scale=False, **FEW
    ),
    "DUE noise": DUECATE(small, n_inducing=10, inducing="free", finish="noise", **FEW),
    "TARNet": TARNet(width=8, **FEW),
    "CEVAE": CEVAE(width=8, latent=2, **FEW),
    "DKLITE": DKLITE(width=8, **FEW),
}
KINDS = {"class": CLASSIFIERS, "value": REGRESSORS, "effect": EFFECTS}
every = pytest.mark.parametrize(
    "kind, name", [(kind, name) for kind, models in KINDS.items() for name in models]
)
of = {
    kind: pytest.mark.parametrize("kind, name", [(kind, name) for name in models])
    for kind, models in KINDS.items()
}


@pytest.fixture(scope="module")
def fitted():
    """Each estimator, fitted once."""
    done = {}

    def get(kind, name):
        if (kind, name) not in done:
            model = KINDS[kind][name]
            two = np.column_stack([VALUES, X[:, 1]]) if name == "DUE two" else VALUES
            data = {"class": (X, LABELS), "value": (X, two), "effect": (OUTCOMES, T, X)}
            done[kind, name] = model.fit(*data[kind])
        return done[kind, name]

    return get


@torch.no_grad()
def ask(predictor, rows):
    return predictor(torch.as_tensor(rows))


def known(answer):
    return [part for part in answer if part is not None]


# The estimator answers what the predictor says, to the bit


@of["class"]
def test_a_classifier_answers_from_its_predictor(fitted, kind, name):
    model = fitted(kind, name)
    answer = ask(model.predictor_, NEW)
    assert_array_equal(model.predict_proba(NEW), answer.probabilities)
    assert_allclose(answer.probabilities.sum(1), 1, rtol=1e-12)
    assert_allclose(answer.entropy, entropy(answer.probabilities, axis=1), atol=1e-12)
    by_entropy = name not in ("DUQ", "DDU")
    uncertainty = answer.entropy if by_entropy else answer.ood_score
    assert_array_equal(model.uncertainty(NEW), uncertainty)
    assert_array_equal(
        model.predict(NEW), np.array(["a", "b", "c"])[answer.probabilities.argmax(1)]
    )
    if not isinstance(model, DUEClassifier):
        assert answer.aleatoric is answer.epistemic is answer.latent_variance is None
        return
    for got, want in zip(model.uncertainty_details(NEW), answer[1:6], strict=True):
        assert_array_equal(got, want)
    assert_array_equal(model.ood_score(NEW), answer.ood_score)
    gap = answer.entropy - answer.aleatoric
    assert_array_equal(answer.epistemic, gap)
    assert (gap >= 0).all() and (answer.aleatoric >= 0).all()


@of["value"]
def test_a_regressor_answers_from_its_predictor(fitted, kind, name, monkeypatch):
    model = fitted(kind, name)
    monkeypatch.setattr(model.predictor_, "levels", lambda: None)  # tests/estimators/test_noise.py
    answer = ask(model.predictor_, NEW)
    shape = (lambda part: part) if name == "DUE two" else (lambda part: part[:, 0])
    mean, var, noise = (shape(part.numpy()) for part in answer[:3])
    got_mean, got_std = model.predict(NEW, return_std=True)
    assert_array_equal(got_mean, mean)
    assert_array_equal(got_std, np.sqrt(var + noise))
    assert_array_equal(model.uncertainty(NEW), noise if name == "network" else var)
    for got, want in zip(model.moments(NEW), (mean, var, noise), strict=True):
        assert_array_equal(got, want)
    low, high = model.predict_interval(NEW, alpha=0.1)
    share, ratio = (part.numpy() for part in model.predictor_.tails())
    std = np.sqrt(var[..., None] + noise[..., None] * ratio)  # of the normals it is a mixture of
    outside = 2 * (share * norm.sf((high - mean)[..., None] / std)).sum(-1)
    assert_allclose(outside, 0.1, rtol=1e-8)
    assert_allclose(mean - low, high - mean)
    if isinstance(model, DUERegressor):
        want = var + noise, noise, var, answer.ood_score
        for a, b in zip(model.uncertainty_details(NEW), want, strict=True):
            assert_array_equal(a, b)
        assert_array_equal(model.ood_score(NEW), answer.ood_score)


@of["effect"]
@pytest.mark.filterwarnings("ignore:.*people are farther from everyone")
def test_effects_are_answered_from_the_predictor(fitted, kind, name):
    model = fitted(kind, name)
    answer = ask(model.predictor_, NEW)
    assert_array_equal(model.potential_outcomes(NEW), answer.outcomes)
    assert_allclose(model.effect(NEW), answer.effect, rtol=1e-9, atol=1e-9)
    if answer.variance is None:
        assert not hasattr(model, "effect_inference")
        return
    inference = model.effect_inference(NEW)
    assert_array_equal(inference.point_estimate, answer.effect)
    assert_array_equal(inference.stderr, np.sqrt(answer.variance.numpy()))
    if isinstance(model, DUECATE):
        assert_array_equal(1 - model.overlap(NEW).min(1), answer.ood_score)


def test_joint_answers_are_those_of_the_rows_one_by_one(fitted):
    model = fitted("value", "DUE two")
    mean, cov = model.predict(NEW, return_cov=True)
    want_mean, want_std = model.predict(NEW, return_std=True)
    assert_allclose(mean, want_mean, rtol=1e-9)
    assert_allclose(np.einsum("nnt->nt", cov), want_std**2, rtol=1e-7)

    model = fitted("effect", "DUE")
    mean, cov = model.predictor_.joint(torch.as_tensor(NEW))
    effect, var = model.predictor_.posterior(torch.as_tensor(NEW))
    average, spread = model.predictor_.average(torch.as_tensor(NEW))
    assert_allclose(mean, effect, rtol=1e-9, atol=1e-9)
    assert_allclose(cov.diagonal(), var, rtol=1e-6)
    assert_allclose([average.item(), spread.item()], [effect.mean(), cov.mean()], rtol=1e-6)


# Exports


@every
def test_it_exports_with_any_batch_size(fitted, kind, name):
    predictor, x = fitted(kind, name).predictor_, torch.as_tensor(NEW)
    batch = ({0: torch.export.Dim("N")},)
    run = torch.export.export(predictor, (x,), dynamic_shapes=batch).module()
    for rows in (x[:1], x[:2], x[:7], x, x.repeat(5, 1)):
        got, want = run(rows), ask(predictor, rows)
        assert type(got) is type(want)
        assert [part is None for part in got] == [part is None for part in want]
        for a, b in zip(known(got), known(want), strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


COMPILE = """
import numpy as np, torch
from due import DUECATE, DUEClassifier, DUERegressor

torch.set_num_threads(1)
X = np.random.default_rng(0).normal(size=(60, 2))
few = {"epochs": 2, "n_inducing": 5, "inducing": "free", "random_state": 0}
for model in (
    DUEClassifier(**few).fit(X, np.digitize(X[:, 0], [-0.5, 0.5])),
    DUERegressor(**few).fit(X, X[:, 0]),
    DUECATE(**few).fit(X[:, 0], X[:, 1] > 0, X=X),
):
    rows = torch.as_tensor(X)[:1]
    with torch.inference_mode():
        compiled = torch.compile(model.predictor_, backend="eager", fullgraph=True, dynamic=False)
        for got in compiled(rows), compiled(rows):
            for a, b in zip(got, model.predictor_(rows)):
                if b is not None:
                    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
"""


def test_it_compiles_as_one_graph():
    """In a process of its own, because checks of shapes in tests cannot be compiled."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILE], check=True)


# Rows


@every
def test_an_answer_does_not_depend_on_the_batch(fitted, kind, name):
    predictor = fitted(kind, name).predictor_
    together = known(ask(predictor, NEW))
    alone = zip(*(known(ask(predictor, row[None])) for row in NEW), strict=True)
    many = known(ask(predictor, np.repeat(NEW, 100, 0)))
    tolerance = 1e-6 if kind == "class" else 1e-9  # integrals over classes are float32
    for want, ones, lots in zip(together, alone, many, strict=True):
        scale = float(want.abs().max())
        assert_allclose(torch.cat(ones), want, rtol=tolerance, atol=tolerance * scale)
        assert_allclose(lots[::100], want, rtol=tolerance, atol=tolerance * scale)


@every
def test_rows_may_be_of_any_precision(fitted, kind, name):
    predictor = fitted(kind, name).predictor_
    rows = NEW.astype(np.float32)
    answers = known(ask(predictor, rows)), known(ask(predictor, rows.astype(float)))
    for got, want in zip(*answers, strict=True):
        assert got.dtype == torch.float64 and torch.equal(got, want)


@torch.no_grad()
def test_scales_are_inside(fitted):
    """Against the model in standard units, and the scales of the data by numpy."""
    z = torch.as_tensor((NEW - X.mean(0)) / X.std(0))
    model = fitted("class", "DUE").predictor_
    want = model.model.probabilities(model.model.f(z))
    assert_allclose(ask(model, NEW).probabilities, want, rtol=1e-6)

    raw = fitted("class", "DUE raw").predictor_
    want = raw.model.probabilities(raw.model.f(torch.as_tensor(NEW)))
    assert_allclose(ask(raw, NEW).probabilities, want, rtol=1e-6)

    model = fitted("value", "DUE").predictor_
    mean, var, noise = model.model.moments(model.model.f(z))
    got = ask(model, NEW)
    assert_allclose(got.mean, VALUES.mean() + VALUES.std() * mean, rtol=1e-9)
    assert_allclose(got.latent_variance, VALUES.var() * var, rtol=1e-9)
    assert_allclose(got.noise, VALUES.var() * noise, rtol=1e-9)
    assert_allclose(got.ood_score, model.model.foreign(model.model.f(z)), atol=1e-9)

    for name in ("DUE", "DKLITE"):
        model = fitted("effect", name).predictor_
        difference, outcomes = model.model.difference(z), model.model.outcomes(z)
        got = ask(model, NEW)
        assert_allclose(got.effect, OUTCOMES.std() * difference.mean[:, 0], rtol=1e-6, atol=1e-9)
        assert_allclose(got.variance, OUTCOMES.var() * difference.var[:, 0], rtol=1e-6)
        assert_allclose(got.outcomes, OUTCOMES.mean() + OUTCOMES.std() * outcomes, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:.*people are farther from everyone")
def test_effects_factorise_nothing_anew(fitted, monkeypatch):
    model = fitted("effect", "DUE")

    def refuse(*args, **kwargs):
        raise AssertionError("factorised")

    monkeypatch.setattr(torch.linalg, "cholesky_ex", refuse)
    monkeypatch.setattr(torch.linalg, "cholesky", refuse)
    monkeypatch.setattr(torch.linalg, "solve_triangular", refuse)
    with pytest.raises(AssertionError, match="factorised"):
        cholesky_module.cholesky(torch.eye(2, dtype=torch.float64)[None], 0.0)
    low, high = model.effect_interval(NEW)
    assert (high > low).all()
    assert model.ate_interval(NEW)[0] < model.ate(NEW) < model.ate_interval(NEW)[1]
    draws = model.sample_effect(NEW, 2000)
    assert_allclose(draws.mean(1), model.effect(NEW), atol=0.2 * float((high - low).max()))
    assert ((model.overlap(NEW) >= 0) & (model.overlap(NEW) <= 1)).all()
