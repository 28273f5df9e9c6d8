import json
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from due.estimators import DUEClassifier
from due.gp import Gaussian, InducingGP, Softmax
from due.gp.kernels import KINDS
from due.lipschitz import constrain, constraints
from due.methods import DUE
from due.networks import FCResNet, FeedForward
from due.storage import StorageError, save
from due.storage import model as archive


class ConvNet(nn.Sequential):
    """A network that is not ours: x (N, 2, 6, 6) → h (N, 5)."""

    def __init__(self, channels=4):
        super().__init__(
            nn.Conv2d(2, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(channels, 5),
        )


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make(f, x, likelihood, T=1, c=0.9, kernel="matern32", shared=False, steps=3):
    """A model after a few steps of training, and its data."""
    if c is not None:
        constrain(f, c, x)
    gp = InducingGP(f(x)[:6].detach().double(), T, 2.0, kernel, shared, jitter=1e-5)
    model = DUE(f, gp, likelihood, n_data=len(x))
    y = torch.arange(len(x)) % T if isinstance(likelihood, Softmax) else normal(len(x), T, seed=1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        train(model, x, y, steps)
    return model.eval(), x, y


def train(model, x, y, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    model.train()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def regression(f=None, **arguments):
    return make(f or FCResNet(3, 5, depth=2, dropout=0.1), normal(20, 3), Gaussian(), **arguments)


def images(likelihood=None, **arguments):
    T = 3 if likelihood is None else 1
    return make(ConvNet(), normal(20, 2, 6, 6), likelihood or Softmax(T), T, **arguments)


def tensors(output):
    return list(output) if isinstance(output, tuple) else [output]


def assert_identical(a, b, x):
    """The same bits out, and the same state."""
    with torch.no_grad():
        for one, other in [(a.predict(x), b.predict(x)), (a.latent(x), b.latent(x))]:
            for left, right in zip(tensors(one), tensors(other), strict=True):
                assert left.dtype == right.dtype and torch.equal(left, right)
    old, new = a.state_dict(), b.state_dict()
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old)
    assert all(old[name].dtype == new[name].dtype for name in old)


@pytest.mark.parametrize("c", [0.9, None], ids=["constrained", "unconstrained"])
@pytest.mark.parametrize("cls", [FCResNet, FeedForward])
@pytest.mark.parametrize(
    "likelihood, T",
    [
        (Gaussian(), 1),
        (Gaussian(noises=2), 2),
        (Softmax(2), 2),
        (Softmax(4, "monte_carlo", samples=7), 4),
        (Softmax(4, "mean_field"), 4),
    ],
    ids=str,
)
def test_our_networks_come_back_to_the_bit(likelihood, T, cls, c, tmp_path):
    model, x, _ = make(cls(3, 5, depth=2, activation="elu"), normal(20, 3), likelihood, T, c)
    archive.save(model, tmp_path / "model")
    loaded = archive.load(tmp_path / "model")
    assert not loaded.training and type(loaded.f) is cls and loaded.f.config == model.f.config
    assert constraints(loaded.f) == constraints(model.f)
    assert loaded.n_data == 20
    assert vars(loaded.likelihood).get("samples") == vars(likelihood).get("samples")
    assert_identical(model, loaded, x)


@pytest.mark.parametrize("likelihood", [None, Gaussian()], ids=["softmax", "gaussian"])
@pytest.mark.parametrize("c", [0.9, None], ids=["constrained", "unconstrained"])
def test_a_network_of_your_own_comes_back_to_the_bit(c, likelihood, tmp_path):
    model, x, _ = images(likelihood, c=c)
    archive.save(model, tmp_path)
    loaded = archive.load(tmp_path, f=ConvNet())
    assert constraints(loaded.f) == constraints(model.f)
    assert_identical(model, loaded, x)


def test_a_network_already_constrained_may_be_given(tmp_path):
    model, x, _ = images()
    archive.save(model, tmp_path)
    assert_identical(model, archive.load(tmp_path, constrain(ConvNet(), 3.0, x[:1, :, :4, :4])), x)


@pytest.mark.parametrize("kernel", KINDS)
@pytest.mark.parametrize("shared", [False, True])
def test_the_kernel_is_the_one_that_was_saved(kernel, shared, tmp_path):
    model, x, _ = make(
        FCResNet(3, 5, depth=1), normal(20, 3), Softmax(3), 3, kernel=kernel, shared=shared
    )
    archive.save(model, tmp_path)
    loaded = archive.load(tmp_path)
    assert loaded.gp.kernel.kind == kernel and loaded.gp.shared_kernel is shared
    assert loaded.gp.jitter == 1e-5
    assert_identical(model, loaded, x)


def test_a_float64_model_stays_float64(tmp_path):
    model, x, _ = regression()
    model.double()
    archive.save(model, tmp_path)
    assert_identical(model, archive.load(tmp_path), x.double())


def test_power_iteration_vectors_survive(tmp_path):
    model, _, _ = images()
    archive.save(model, tmp_path)
    loaded = archive.load(tmp_path, ConvNet())
    for name in ("0", "3", "6"):
        layers: list[Any] = [each.f.get_submodule(name) for each in (model, loaded)]
        was, now = layers
        assert torch.equal(was.v, now.v)
        assert torch.equal(was.sigma(), now.sigma())
        assert torch.equal(was.weight, now.weight)


@pytest.mark.parametrize("make_model", [regression, images])
def test_training_goes_on_as_if_it_had_never_been_saved(make_model, tmp_path):
    model, x, y = make_model()
    archive.save(model, tmp_path)
    loaded = archive.load(tmp_path, ConvNet() if make_model is images else None)
    losses = []
    for one in (model, loaded):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            losses.append(train(one, x, y, steps=5))
    assert losses[0] == losses[1] and len(set(losses[0])) == 5
    assert_identical(model.eval(), loaded.eval(), x)


def test_load_never_unpickles(tmp_path, monkeypatch):
    model, x, _ = regression()
    archive.save(model, tmp_path)

    def refuse(*args, **kwargs):
        raise AssertionError("unpickled")

    for module, name in [
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
        (pickle, "_Unpickler"),
        (torch, "load"),
        (torch.serialization, "load"),
    ]:
        monkeypatch.setattr(module, name, refuse)
    assert_identical(model, archive.load(tmp_path), x)


def test_saving_again_replaces_the_model(tmp_path):
    model, x, _ = regression()
    archive.save(model, tmp_path)
    other, _, _ = regression(FeedForward(3, 5, depth=1), c=None, kernel="rbf")
    archive.save(other, tmp_path)
    assert_identical(other, archive.load(tmp_path), x)


def test_the_config_is_for_people_to_read(tmp_path):
    model, _, _ = regression()
    archive.save(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())["model"]
    assert config["network"]["name"] == "FCResNet"
    assert config["gp"]["kernel"] == "matern32"
    assert config["constraints"]["blocks.0"]["c"] == 0.9


# what cannot be loaded says why


def test_a_network_of_your_own_has_to_be_given(tmp_path):
    model, _, _ = images()
    archive.save(model, tmp_path)
    with pytest.raises(StorageError, match=r"test_model\.ConvNet.*not one of ours.*pass it"):
        archive.load(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda: ConvNet(channels=6), id="other sizes"),
        pytest.param(lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, 5)), id="fewer layers"),
        pytest.param(lambda: FCResNet(3, 5), id="other names"),
        pytest.param(lambda: nn.Sequential(), id="empty"),
        pytest.param(
            lambda: nn.Sequential(nn.ReLU(), *list(ConvNet())[1:]), id="no weight to bound"
        ),
        pytest.param(
            lambda: nn.Sequential(*list(ConvNet())[:3], nn.BatchNorm2d(4), *list(ConvNet())[4:]),
            id="batch norm for convolution",
        ),
        pytest.param(
            lambda: nn.Sequential(nn.Conv2d(2, 4, 3, bias=True), *list(ConvNet())[1:]),
            id="one parameter more",
        ),
    ],
)
@pytest.mark.parametrize("c", [0.9, None], ids=["constrained", "unconstrained"])
def test_the_wrong_network_is_refused(c, wrong, tmp_path):
    model, _, _ = images(c=c)
    archive.save(model, tmp_path)
    with pytest.raises(StorageError, match=r"Give the network that was trained"):
        archive.load(tmp_path, wrong())


def test_bounds_that_were_not_there_are_refused(tmp_path):
    model, x, _ = images(c=None)
    archive.save(model, tmp_path)
    with pytest.raises(StorageError, match=r"Give the network that was trained"):
        archive.load(tmp_path, constrain(ConvNet(), 0.1, x))


def test_a_file_without_a_model_is_refused(tmp_path):
    save(tmp_path, {}, {"a": torch.zeros(1)})
    with pytest.raises(StorageError, match="holds no bare DUE model"):
        archive.load(tmp_path)


def test_a_saved_estimator_is_loaded_by_its_class(tmp_path):
    X = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)).numpy()
    DUEClassifier(epochs=1, n_inducing=4).fit(X, X[:, 0] > 0).save(tmp_path)
    with pytest.raises(StorageError, match="DUEClassifier.load"):
        archive.load(tmp_path)
