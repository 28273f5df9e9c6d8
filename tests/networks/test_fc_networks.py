import json

import pytest
import torch
from numpy.testing import assert_allclose

from due.networks import FCResNet, FeedForward


def by_hand(network, x, skip):
    """The forward pass in numpy, with relu."""
    p = {name: value.detach().numpy() for name, value in network.named_parameters()}
    h = x @ p["first.weight"].T + p["first.bias"]
    for i in range(network.config["depth"]):
        h = skip * h + (h @ p[f"blocks.{i}.weight"].T + p[f"blocks.{i}.bias"]).clip(0)
    return h


@pytest.mark.parametrize(("kind", "skip"), [(FCResNet, 1), (FeedForward, 0)])
def test_forward_is_the_formula(kind, skip):
    network, x = kind(3, J=8, depth=2), torch.randn(5, 3)
    assert_allclose(network(x).detach().numpy(), by_hand(network, x.numpy(), skip), atol=1e-5)


@pytest.mark.parametrize("kind", [FCResNet, FeedForward])
@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_config_rebuilds_the_network(kind, activation):
    network = kind(3, J=8, depth=2, activation=activation, dropout=0.1).eval()
    other = kind(**json.loads(json.dumps(network.config))).eval()
    other.load_state_dict(network.state_dict())
    x = torch.randn(5, 3)
    assert torch.equal(other(x), network(x))
    assert network.out_features == network(x).shape[1] == 8


def test_both_have_the_same_layers():
    shapes = [
        {k: v.shape for k, v in kind(3).state_dict().items()} for kind in (FCResNet, FeedForward)
    ]
    assert shapes[0] == shapes[1]


def test_dropout_acts_in_training_only():
    network, x = FCResNet(3, dropout=0.5), torch.randn(5, 3)
    assert not torch.equal(network(x), network(x))
    network.eval()
    assert torch.equal(network(x), network(x))


def test_unknown_activation_is_named():
    with pytest.raises(Exception, match="tanh"):
        FCResNet(3, activation="tanh")
