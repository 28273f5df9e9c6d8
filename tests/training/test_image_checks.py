"""What `fit` refuses of images and labels, before it trains."""

import jaxtyping
import pytest
import torch

from due import DUE, Images, Recipe, Table, constrain, fit
from due.gp import InducingGP, Softmax
from due.methods.ddu import DDU
from due.methods.duq import DUQ
from due.methods.softmax import SoftmaxNetwork
from due.networks import VGG, ResNet18, WideResNet

RECIPE = Recipe(batch_size=8, epochs=1)


@pytest.fixture(autouse=True)
def as_users_run(monkeypatch):
    """Without the annotation checks of our tests."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def due(f):
    return DUE(f, InducingGP(torch.zeros(3, 64), 3), Softmax(3))


def images(size=12, channels=1, y=None):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (16, channels, size, size), generator=generator, dtype=torch.uint8)
    return Images(x, torch.arange(16) % 3 if y is None else y)


@pytest.mark.parametrize("label", [3, -1])
@pytest.mark.parametrize(
    "method",
    [
        due,
        lambda f: SoftmaxNetwork(f, 64, 3),
        lambda f: DUQ(f, 64, 3),
        lambda f: DDU(f, 64, 3),
    ],
)
def test_a_label_outside_of_the_classes_is_named(method, label):
    y = torch.arange(16) % 3
    y[5] = label
    model = method(WideResNet(10, 1, 1))
    with pytest.raises(ValueError, match=rf"label of row 5 is {label}, but the classes are 0 … 2"):
        fit(model, images(y=y), RECIPE)
    with pytest.raises(ValueError, match=rf"label of row 5 is {label}"):
        fit(model, images(), RECIPE, held_out=images(y=y))


def test_labels_are_whole_numbers():
    rows = Table(torch.randn(4, 1, 8, 8), torch.zeros(4))
    with pytest.raises(ValueError, match=r"labels are torch.float32 .* whole numbers 0 … 2"):
        fit(due(WideResNet(10, 1, 1)), rows, RECIPE)


def test_images_larger_than_the_example_break_the_bound():
    f = constrain(WideResNet(10, 1, 1, stride=2), 3.0, torch.zeros(2, 1, 12, 12))
    with pytest.raises(ValueError, match=r"bounded for images up to 12 × 12 and now sees 16 × 16"):
        fit(due(f), images(size=16), RECIPE)
    fit(due(f), images(size=8), RECIPE)  # smaller ones keep it


@pytest.mark.parametrize(
    "network", [lambda: WideResNet(10, 1, 3), lambda: VGG(3, 1 / 16), lambda: ResNet18(3)]
)
def test_networks_name_wrong_channels_and_raw_pixels(network):
    f = network().eval()
    with pytest.raises(ValueError, match=r"shape \(2, 1, 8, 8\); this network takes \(N, 3, h"):
        f(torch.zeros(2, 1, 8, 8))
    with pytest.raises(ValueError, match=r"images are torch.uint8; .* normalised as in training"):
        f(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))


def test_a_method_names_them_too():
    f = constrain(WideResNet(10, 1, 1, stride=2), 3.0, torch.zeros(2, 1, 12, 12))
    model = due(f).eval()
    with pytest.raises(ValueError, match="normalised as in training"):
        model.predict(images().table.data[0])
    with pytest.raises(ValueError, match=r"this network takes \(N, 1, height, width\)"):
        fit(model, images(channels=3), RECIPE)
