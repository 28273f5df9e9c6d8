"""Every method has the same life: start, loss, losses, settle, finish, predictor."""

import importlib.util
from typing import Any, cast

import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from due.gp import Gaussian, InducingGP, Normal, Softmax
from due.methods import DUE, Method, TreatmentDUE
from due.methods.cevae import CEVAENetwork
from due.methods.ddu import DDU
from due.methods.dklite import DKLITENetwork
from due.methods.due import DeepGP
from due.methods.duq import DUQ
from due.methods.gaussian import GaussianNetwork
from due.methods.method import Folded, Plain
from due.methods.sngp import SNGP, RandomFeatureGP, SNGPGaussian, SNGPSoftmax
from due.methods.softmax import SoftmaxNetwork
from due.methods.svdkl import SVDKL, GridGP, SVDKLGaussian, SVDKLSoftmax
from due.methods.tarnet import TARNetwork
from due.networks import AppendTreatment, FCResNet, n_features
from due.predictor import ClassPredictor, EffectPredictor, ValuePredictor
from due.rows.scale import Scale
from due.rows.source import Table
from due.training import Recipe, fit
from due.training.recipe import parameters_by_owner

VERBS = {"start", "forward", "losses", "settle", "finish", "predictor"}
N, D, J, T = 60, 3, 6, 3


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = normal(N, D)
CLASSES = (X[:, 0] > -0.5).long() + (X[:, 0] > 0.5).long()
VALUES = torch.stack([torch.sin(2 * X[:, 0]), X[:, 1]], 1) + 0.1 * normal(N, 2, seed=1)
ARM = (normal(N, 1, seed=2) > 0).float()
OUTCOME = X[:, :1] + ARM * (1 + X[:, 1:2]) + 0.1 * normal(N, 1, seed=3)
TABLES = {
    "class": Table(X, CLASSES),
    "value": Table(X, VALUES),
    "effect": Table(torch.cat([X, ARM], 1), OUTCOME),
}


def f():
    return FCResNet(D, J, 2)


def gp(outputs, width=J):
    return InducingGP(torch.zeros(8, width), outputs)


METHODS = {
    "DUE class": ("class", lambda: DUE(f(), gp(T), Softmax(T))),
    "DUE value": ("value", lambda: DUE(f(), gp(2), Gaussian(2))),
    "DUE collapsed": (
        "value",
        lambda: DUE(f(), gp(2), Gaussian(2), bound="collapsed", finish="noise"),
    ),
    "DUE class on data": ("class", lambda: DUE(f(), gp(T), Softmax(T), inducing="tied")),
    "DUE on data": (
        "value",
        lambda: DUE(f(), gp(2), Gaussian(2), bound="collapsed", finish="q", inducing="tied"),
    ),
    "DUE refreshed": ("value", lambda: DUE(f(), gp(2), Gaussian(2), inducing="refreshed")),
    "DUE exact": ("value", lambda: DUE(f(), gp(2), Gaussian(2), bound="exact", finish="noise")),
    "TreatmentDUE": (
        "effect",
        lambda: TreatmentDUE(AppendTreatment(f(), own_scale=True), gp(1, J + 1), Gaussian()),
    ),
    "SoftmaxNetwork": ("class", lambda: SoftmaxNetwork(f(), J, T)),
    "GaussianNetwork": ("value", lambda: GaussianNetwork(f(), J, 2)),
    "DUQ": ("class", lambda: DUQ(f(), J, T, sigma=0.5, gamma=0.9)),
    "DDU": ("class", lambda: DDU(f(), J, T)),
    "SNGPSoftmax": ("class", lambda: SNGPSoftmax(f(), RandomFeatureGP(J, T, 32))),
    "SNGPGaussian": (
        "value",
        lambda: SNGPGaussian(f(), RandomFeatureGP(J, 2, 32), learn_sigma2=True),
    ),
    "SVDKLSoftmax": ("class", lambda: SVDKLSoftmax(f(), GridGP(J, 12), T)),
    "SVDKLGaussian": ("value", lambda: SVDKLGaussian(f(), GridGP(J, 12), 2)),
    "TARNetwork": ("effect", lambda: TARNetwork(D, 8, 2, 0.1, 0.95)),
    "CEVAENetwork": ("effect", lambda: CEVAENetwork(D, 8, 2, 0.1, beta=1.0)),
    "DKLITENetwork": ("effect", lambda: DKLITENetwork(D, 8, 1.0, 1.0)),
}
every = pytest.mark.parametrize("name", METHODS)
no_gpytorch = importlib.util.find_spec("gpytorch") is None


def make(name):
    if no_gpytorch and name.startswith("SVDKL"):
        pytest.skip("SV-DKL is built on gpytorch")
    kind, build = METHODS[name]
    torch.manual_seed(0)
    return build(), TABLES[kind], kind


def train(name, epochs=8, **arguments):
    method, table, kind = make(name)
    recipe = Recipe(lr=1e-2, batch_size="all", epochs=epochs)
    return method, fit(method, table, recipe, progress=False, **arguments), kind


def test_all_methods_are_here():
    def final(kind):
        return [kind, *(c for child in kind.__subclasses__() for c in final(child))]

    ours = {kind for kind in final(Method) if kind.__module__.startswith("due.methods.")}
    assert ours - {type(build()) for _, build in METHODS.values()} == {
        kind for kind in ours if kind.__abstractmethods__
    }


@pytest.mark.parametrize("kind", [Method, Folded, Plain, DeepGP, SNGP, SVDKL])
def test_abstract_methods_cannot_be_built(kind):
    assert kind.__abstractmethods__
    with pytest.raises(TypeError, match="abstract"):
        kind()


def test_every_verb_is_abstract():
    assert Method.__abstractmethods__ == VERBS


@every
def test_it_implements_every_verb(name):
    method, _, _ = make(name)
    assert isinstance(method, Method) and not type(method).__abstractmethods__
    for verb in VERBS:
        assert getattr(type(method), verb) is not getattr(Method, verb)


@every
def test_the_loss_falls_in_a_few_steps(name):
    _, history, _ = train(name)
    assert len(history.loss) == 8
    first, last = sum(history.loss[:3]) / 3, sum(history.loss[-3:]) / 3
    assert last < first


@every
def test_held_out_losses_fall_too_and_choose_the_epoch(name):
    method, table, _ = make(name)
    rows = torch.arange(N)
    known, held_out = table.part(rows[:40]), table.part(rows[40:])
    recipe = Recipe(lr=1e-2, batch_size="all", epochs=12)
    history = fit(method, known, recipe, held_out=held_out, progress=False)
    values: list[Any] = history.validation
    assert history.best_epoch == min(range(len(values)), key=values.__getitem__)
    assert values[history.best_epoch] < values[0]


@every
def test_losses_are_one_per_row_and_each_row_for_itself(name):
    method, _, kind = train(name, epochs=2)
    x, y = TABLES[kind].data
    with torch.no_grad():
        together = method.losses(x, y)
        alone = torch.cat([method.losses(x[i : i + 1], y[i : i + 1]) for i in range(10)])
    assert together.shape == (N,)
    assert_allclose(alone, together[:10], rtol=1e-4, atol=1e-5)


WITHOUT_WEIGHTS = {"DKLITENetwork"}


@pytest.mark.parametrize("name", [name for name in METHODS if name not in WITHOUT_WEIGHTS])
def test_unit_weights_change_nothing_and_others_do(name):
    method, _, kind = train(name, epochs=2)
    x, y = TABLES[kind].data
    losses = []
    for w in (None, torch.ones(N), torch.full((N,), 2.0)):
        torch.manual_seed(1)
        with torch.no_grad():
            losses.append(method(x, y, w).item())
    assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert abs(losses[2] - losses[0]) > 1e-3


@every
def test_two_starts_with_one_seed_are_one_start(name):
    (a, table, _), (b, _, _) = make(name), make(name)
    for method in (a, b):
        method.start(table, 0)
    for (key, left), right in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(left, right), key


@every
def test_it_ends_in_eval_mode_and_its_predictor_is_a_copy_in_float64(name):
    method, _, kind = train(name, epochs=2)
    assert not any(module.training for module in method.modules())
    state = {key: value.clone() for key, value in method.state_dict().items()}
    model = method.predictor()
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    floats = [p for p in model.state_dict().values() if p.is_floating_point()]
    assert all(tensor.dtype == torch.float64 for tensor in floats)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert all(torch.equal(value, state[key]) for key, value in method.state_dict().items())


def outcomes(method, x):
    """E[y | x, t] of the method itself."""
    if not isinstance(method, TreatmentDUE):
        return method.outcomes(x)
    arms = [torch.cat([x, torch.full((len(x), 1), float(t))], 1) for t in (0, 1)]
    return torch.cat([cast(Normal, method.predict(rows)).mean for rows in arms], 1)


def answers(method, kind, x):
    """Of the predictor, and the same of the method itself."""
    model, one = method.predictor(), Scale.identity
    if kind == "class":
        p = method.predict(x)
        answer = ClassPredictor(model, one((D,)))(x)
        return answer.probabilities, p / p.sum(-1, keepdim=True)  # DUQ's kernels do not sum to 1
    if kind == "value":
        answer = ValuePredictor(model, one((D,)), one((2,)))(x)
        both = [answer.mean, answer.latent_variance + answer.noise]
        return torch.cat(both, 1), torch.cat(method.predict(x), 1)
    answer = EffectPredictor(model, one((D,)), one((1,)))(x[:, :-1])
    gap = answer.outcomes[:, 1] - answer.outcomes[:, 0]
    assert_allclose(answer.effect, gap, atol=1e-9)
    return answer.outcomes, outcomes(method, x[:, :-1])


@every
def test_the_predictor_predicts_what_the_method_does(name):
    method, _, kind = train(name, epochs=4)
    with torch.no_grad():
        got, want = answers(method, kind, TABLES[kind].data[0][:20])
    assert got.dtype == torch.float64
    assert_allclose(got, want, rtol=1e-3, atol=1e-4)  # trained in float32


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name][0] != "effect"])
def test_parts_of_the_network_and_of_the_head_are_apart(name):
    method, _, _ = make(name)
    network, head = parameters_by_owner(method)
    assert {id(p) for p in network} == {id(p) for p in method.f.parameters()}
    assert {id(p) for p in [*network, *head]} == {id(p) for p in method.parameters()}


def test_the_scale_of_the_treatment_learns_with_the_head():
    method, _, _ = make("TreatmentDUE")
    network, head = parameters_by_owner(method)
    assert any(p is method.f.log_a for p in head) and not any(p is method.f.log_a for p in network)


def test_features_of_a_network_are_counted_or_refused():
    assert n_features(nn.Linear(3, 5), torch.zeros(2, 3)) == 5
    with pytest.raises(ValueError, match="of shape \\(2, 3, 1\\) for 2 rows"):
        n_features(nn.Unflatten(1, (3, 1)), torch.zeros(2, 3))
