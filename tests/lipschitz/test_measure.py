import copy
from typing import Any

import pytest
import torch
from lipschitz_oracles import CASES, sigma
from torch import nn

from due.lipschitz import (
    batch_norm_constants,
    constrain,
    layers,
    lipschitz_ratios,
    singular_value,
)

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")


@pytest.mark.parametrize("name", CASES)
def test_singular_value_is_exact(name):
    layer, in_shape = copy.deepcopy(CASES[name])
    assert singular_value(layer, in_shape) == pytest.approx(sigma(layer, in_shape), rel=1e-5)


def test_singular_value_of_a_bounded_layer_is_the_effective_one_and_moves_no_v():
    layer: Any = constrain(nn.Conv2d(3, 4, 3, padding=1), 0.2, torch.zeros(1, 3, 6, 6)).train()
    v = layer.v.clone()
    assert singular_value(layer) == pytest.approx(0.2, rel=5e-3)
    assert torch.equal(layer.v, v)


def test_convolution_needs_an_image_size():
    with pytest.raises(ValueError, match="in_shape"):
        singular_value(nn.Conv2d(3, 4, 3))
    with pytest.raises(ValueError, match="ReLU"):
        singular_value(nn.ReLU())


def test_layers_of_a_network():
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(27, 2))
    got = layers(network, torch.zeros(1, 2, 5, 5))
    assert got["0"] == pytest.approx(sigma(network[0], (2, 5, 5)), rel=1e-5)
    assert got["1"] == pytest.approx(1.0, rel=1e-4)
    assert got["3"] == pytest.approx(sigma(network[3], (27,)))


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_constants_by_channel(affine):
    norm: Any = nn.BatchNorm1d(3, affine=affine)
    network = nn.Sequential(norm)
    norm.running_var.copy_(torch.tensor([0.25, 1.0, 4.0]))
    want = torch.tensor([2.0, 1.0, 0.5])
    torch.testing.assert_close(batch_norm_constants(network)["0"], want, rtol=1e-4, atol=0)
    constrain(network, 1.0, torch.zeros(2, 3))
    torch.testing.assert_close(batch_norm_constants(network)["0"], want / 2, rtol=1e-4, atol=0)


def test_ratios_of_a_diagonal_map():
    a, b = torch.eye(3), torch.zeros(3, 3)
    ratios = lipschitz_ratios(lambda x: x * torch.tensor([1.0, 2.0, 3.0]), a, b)
    assert ratios.ratios.tolist() == [1, 2, 3] and (ratios.lower, ratios.upper) == (1, 3)
    with pytest.raises(ValueError, match="pair 0"):
        lipschitz_ratios(lambda x: x, a, a)
