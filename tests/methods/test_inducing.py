"""Inducing points on the data, Z = f(x_Z), and exact inference."""

import copy

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from due import DUECATE, DUEClassifier, DUERegressor
from due.gp import Gaussian, InducingGP, Softmax
from due.gp.exact import weighted_likelihood
from due.methods import DUE
from due.rows.source import Table
from due.storage.model import load, save
from due.training import Recipe, fit

N, D, J = 30, 3, 4
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(80, D))
SMOOTH = np.sin(2 * ROWS[:, 0]) + 0.1 * RNG.normal(size=80)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Y = normal(N, D, seed=1), normal(N, 1, seed=2)


def network(*layers):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(D, 8), nn.Tanh(), *layers, nn.Linear(8, J)).double()


def method(M=6, f=None, likelihood=None, **arguments):
    gp = InducingGP(torch.zeros(M, J), kernel="matern32", jitter=1e-10)
    model = DUE(f or network(), gp, likelihood or Gaussian(sigma2=0.2), **arguments)
    model.start(Table(X, Y), 0)
    return model


def gradients(loss, model):
    weights = list(model.f.parameters()) + list(model.gp.kernel.parameters())
    return torch.autograd.grad(loss, weights)


@pytest.mark.parametrize("placement", ["kmeans", "greedy"])
def test_inducing_points_are_features_of_training_rows(placement):
    model = method(bound="collapsed", inducing="tied", placement=placement)
    rows = [tuple(row) for row in X.tolist()]
    assert len({rows.index(tuple(row)) for row in model.x_Z.tolist()}) == 6
    with torch.no_grad():
        for weight in model.f.parameters():
            weight.add_(0.1)
    model.eval().settle(Table(X, Y))
    assert_allclose(model.gp.Z.detach(), model.f(model.x_Z).detach(), atol=1e-12)


def test_all_rows_as_inducing_points_are_exact_inference():
    """Marginal likelihood, gradient and posterior."""
    tied = method(N, bound="collapsed", inducing="tied")
    exact = method(bound="exact")
    want, got = exact(X, Y), tied(X, Y)
    likelihood = weighted_likelihood(exact.gp, exact.f(X), Y, exact.sigma2)
    assert_allclose(want.item(), -likelihood.item() / N, rtol=1e-12)
    assert_allclose(got.item(), want.item(), rtol=1e-6)
    for a, b in zip(gradients(got, tied), gradients(want, exact), strict=True):
        assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    new, known = normal(9, D, seed=3), Table(X, Y)
    for model in (tied, exact):
        model.eval().settle(known)
    while_training = exact.latent(new)
    exact.finish(known, None, 0, lambda *args, **recipe: None)
    for found in (tied.latent(new), exact.latent(new)):
        for a, b in zip(found, while_training, strict=True):
            assert_allclose(a.detach(), b.detach(), atol=1e-5)
    assert len(exact.gp.Z) == N and exact._given is None


@pytest.mark.parametrize("bound", ["collapsed", "elbo"])
def test_the_gradient_passes_through_the_inducing_points(bound):
    """Against finite differences of the whole loss."""
    model = method(bound=bound, inducing="tied")
    weight = model.f[0].weight
    model(X, Y).backward()
    for i, j in ((0, 0), (3, 2), (7, 1)):
        losses = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                weight[i, j] += step
            losses.append(model(X, Y).item())
            with torch.no_grad():
                weight[i, j] -= step
        assert_allclose(weight.grad[i, j].item(), (losses[0] - losses[1]) / 2e-5, rtol=1e-4)
    assert model.gp.Z.grad is None


def test_a_part_of_the_rows_gives_the_same_as_all_of_them():
    model = method(inducing="tied")
    parts = [model(X[i : i + 10], Y[i : i + 10]).item() for i in (0, 10, 20)]
    assert_allclose(np.mean(parts), model(X, Y).item(), rtol=1e-12)


def test_rows_that_moved_are_not_taken_for_inducing_points():
    model = method(bound="collapsed", inducing="tied")
    assert model._has_all(X) and not model._has_all(X.flip(0)) and not model._has_all(X[:3])
    assert_allclose(model(X.flip(0), Y.flip(0)).item(), model(X, Y).item(), rtol=1e-9)


def test_refreshed_points_move_every_so_often_and_take_no_gradient():
    model = method(inducing="refreshed", refresh=3)
    places = []
    for _ in range(7):
        with torch.no_grad():
            model.f[0].weight.add_(0.05)
        model(X[:10], Y[:10]).backward()
        places.append(model.gp.Z.detach().clone())
    moved = [not torch.equal(a, b) for a, b in zip(places, places[1:], strict=False)]
    assert moved == [False, False, True, False, False, True]
    assert model.gp.Z.grad is None
    assert_allclose(places[-1], model.f(model.x_Z).detach(), atol=1e-12)


@pytest.mark.parametrize("inducing", ["tied", "refreshed"])
def test_batch_norm_sees_batch_and_inducing_rows_once(inducing):
    model = method(f=network(nn.BatchNorm1d(8)), inducing=inducing)
    norm = model.f[2]
    passes, mean = int(norm.num_batches_tracked), norm.running_mean.clone()  # from the start
    model.train()
    model(X[:1], Y[:1])  # one row alone has no variance
    assert norm.num_batches_tracked == passes + 1
    seen = torch.tanh(model.f[0](torch.cat([model.x_Z, X[:1]])))
    assert_allclose(norm.running_mean, 0.9 * mean + 0.1 * seen.mean(0).detach(), rtol=1e-9)
    model.eval().settle(Table(X, Y))
    assert norm.num_batches_tracked == passes + 1


@pytest.mark.parametrize("inducing", ["tied", "refreshed"])
@pytest.mark.parametrize("bound", ["elbo", "collapsed", "exact"])
def test_a_killed_run_resumes_to_the_same_bits(inducing, bound, tmp_path):
    rows = Table(X.float(), Y.float())
    recipe = Recipe(lr=1e-2, epochs=6, batch_size=10 if bound == "elbo" else "all")

    def make():
        f = network(nn.Dropout(0.2)).float()
        gp = InducingGP(torch.zeros(6, J))
        return DUE(f, gp, Gaussian(), bound=bound, finish="q", inducing=inducing, refresh=4)

    def stop(epoch):
        if epoch == 3:
            raise KeyboardInterrupt

    whole, killed = make(), make()
    fit(whole, rows, recipe, held_out=rows, progress=False)
    arguments = {"held_out": rows, "progress": False, "checkpoint": tmp_path / "run.pt"}
    with pytest.raises(KeyboardInterrupt):
        fit(killed, rows, recipe, checkpoint_every=1, after_epoch=stop, **arguments)
    resumed = make()
    fit(resumed, rows, recipe, checkpoint_every=1, **arguments)
    for (name, a), b in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("arguments", [{"inducing": "tied"}, {"bound": "exact"}])
def test_a_saved_method_is_the_same(arguments, tmp_path):
    from due.networks import FCResNet

    model = DUE(FCResNet(D, J, 1), InducingGP(torch.zeros(6, J)), Gaussian(), **arguments)
    fit(model, Table(X.float(), Y.float()), Recipe(epochs=3), progress=False)
    save(model, tmp_path / "model")
    twin = load(tmp_path / "model")
    assert (twin.inducing, twin.bound) == (model.inducing, model.bound)
    assert torch.equal(twin.x_Z, model.x_Z) and torch.equal(twin.gp.Z, model.gp.Z)
    for a, b in zip(twin.predict(X.float()), model.predict(X.float()), strict=True):
        assert torch.equal(a, b)
    assert (
        copy.deepcopy(twin).gp.Z.requires_grad
        is twin.gp.Z.requires_grad
        is not bool(arguments.get("inducing"))
    )


SHELLS = {
    "regressor": lambda **how: DUERegressor(epochs=8, random_state=0, **how).fit(ROWS, SMOOTH),
    "classifier": lambda **how: DUEClassifier(epochs=3, random_state=0, **how).fit(
        ROWS, SMOOTH > 0
    ),
    "effects": lambda **how: DUECATE(epochs=8, random_state=0, **how).fit(
        SMOOTH, ROWS[:, 2] > 0, X=ROWS[:, :2]
    ),
}


@pytest.mark.parametrize("placement", ["kmeans", "greedy"])
@pytest.mark.parametrize("kind", SHELLS)
def test_every_estimator_may_have_its_inducing_points_on_the_data(kind, placement, tmp_path):
    model = SHELLS[kind](inducing="tied", placement=placement, n_inducing=7)
    f, gp, x_Z = model.model_.f, model.model_.gp, model.model_.x_Z
    with torch.no_grad():
        assert_allclose(gp.Z, f(x_Z), atol=1e-5)
    assert len(x_Z) == 7
    new = ROWS[:5, : model.n_features_in_]
    model.save(tmp_path / "model")
    twin = type(model).load(tmp_path / "model")
    assert_allclose(twin.uncertainty(new), model.uncertainty(new), rtol=1e-12)
    assert twin.inducing == "tied"


def test_exact_inference_through_the_estimator(tmp_path):
    model = SHELLS["regressor"](bound="exact", finish="q")
    assert model.history_["bound"] == "exact" and len(model.model_.gp.Z) == 80
    mean, std = model.predict(ROWS[:5], return_std=True)
    weighted = DUERegressor(epochs=8, random_state=0, bound="exact", finish="q").fit(
        np.concatenate([ROWS, ROWS[:9]]), np.concatenate([SMOOTH, SMOOTH[:9]])
    )
    assert len(weighted.model_.gp.Z) == 80  # equal rows are one row with a weight
    model.save(tmp_path / "model")
    twin = DUERegressor.load(tmp_path / "model")
    assert_allclose(twin.predict(ROWS[:5]), mean, rtol=1e-12)
    # the same posterior from all rows, by numpy
    scale, kernel = model.scale_, model.model_.gp.kernel
    h = model.model_.f(torch.as_tensor(scale(ROWS)).float()).detach().double()
    y = torch.as_tensor(model.y_scale_(SMOOTH[:, None]))
    noise = model.model_.noise_at(h).detach().expand(80, 1).numpy()[:, 0]
    K = kernel(h, h)[0].detach().numpy()
    mu = model.model_.gp.mu.item()
    want = mu + K[:5] @ np.linalg.solve(K + np.diag(noise), y.numpy()[:, 0] - mu)
    assert_allclose(model.y_scale_(mean[:, None])[:, 0], want, atol=1e-4)
    gone = np.einsum("ij,ji->i", K[:5], np.linalg.solve(K + np.diag(noise), K[:, :5]))
    var = K[0, 0] - gone + noise[:5]
    assert_allclose(std / model.y_scale_.std, np.sqrt(var), rtol=1e-3)


def test_exact_inference_has_a_limit_and_a_likelihood():
    model = DUE(network(), InducingGP(torch.zeros(2, J)), Gaussian(), bound="exact")
    with pytest.raises(ValueError, match=r"2001 rows are too many for bound='exact'"):
        model.start(Table(torch.zeros(2001, D).double(), torch.zeros(2001, 1)), 0)
    classes = DUE(network(), InducingGP(torch.zeros(2, J), 2), Softmax(2), bound="exact")
    with pytest.raises(TypeError, match="needs a Gaussian likelihood"):
        classes(X, torch.zeros(N).long())
