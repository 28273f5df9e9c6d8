import json

import pytest
import torch
from numpy.testing import assert_allclose

from due.networks import AppendTreatment, FCResNet, FeedForward, PreactivationResNet

KINDS = [FCResNet, FeedForward, PreactivationResNet]


def relu(h):
    return h.clip(0)


def by_hand(network, x, block, last=lambda h: h):
    """The forward pass in numpy."""
    p = {name: value.detach().numpy() for name, value in network.named_parameters()}
    h = x @ p["first.weight"].T + p["first.bias"]
    for i in range(network.config["depth"]):
        h = block(h, lambda h, i=i: h @ p[f"blocks.{i}.weight"].T + p[f"blocks.{i}.bias"])
    return last(h)


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        (FCResNet, (lambda h, layer: h + relu(layer(h)),)),
        (FeedForward, (lambda h, layer: relu(layer(h)),)),
        (PreactivationResNet, (lambda h, layer: h + layer(relu(h)), relu)),
    ],
)
def test_forward_is_the_formula(kind, formula):
    network, x = kind(3, J=8, depth=2, activation="relu").eval(), torch.randn(5, 3)
    assert_allclose(network(x).detach().numpy(), by_hand(network, x.numpy(), *formula), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_config_rebuilds_the_network(kind, activation):
    network = kind(3, J=8, depth=2, activation=activation, dropout=0.1).eval()
    other = kind(**json.loads(json.dumps(network.config))).eval()
    other.load_state_dict(network.state_dict())
    x = torch.randn(5, 3)
    assert torch.equal(other(x), network(x))
    assert network.out_features == network(x).shape[1] == 8


def test_all_have_the_same_layers_from_the_same_seed():
    def weights(kind):
        torch.manual_seed(0)
        return kind(3, J=8, depth=2).state_dict()

    want = weights(FCResNet)
    for kind in KINDS:
        got = weights(kind)
        assert list(got) == list(want) and all(torch.equal(got[name], want[name]) for name in got)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_acts_in_training_only(kind):
    network, x = kind(3, dropout=0.5), torch.randn(5, 3)
    assert not torch.equal(network(x), network(x))
    network.eval()
    assert torch.equal(network(x), network(x))


def test_unknown_activation_is_named():
    with pytest.raises(Exception, match="tanh"):
        FCResNet(3, activation="tanh")


def test_treatment_is_appended_to_the_features_at_its_own_scale():
    f, xt = FCResNet(3, J=8), torch.randn(5, 4)
    h = AppendTreatment(f, a=2.0)(xt)
    torch.testing.assert_close(h, torch.cat([f(xt[:, :3]), 2 * xt[:, 3:]], 1))


def test_head_parameters_are_those_that_are_not_the_networks():
    network = AppendTreatment(FCResNet(3), own_scale=True)
    (head,) = network.head_parameters()
    assert head is network.log_a and head.requires_grad
    assert {*network.parameters()} - {*network.f.parameters()} == {head}
