import copy
import json
from typing import Any

import pytest
import torch
from lipschitz_oracles import raw_sigma, sigma
from torch import nn

from due.lipschitz import (
    SpectralNorm,
    UnboundedLayerWarning,
    apply_constraints,
    constrain,
    constraints,
    converge,
    fold,
    recalibrate_batch_norm,
    report,
)


def image_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Sequential(nn.Conv2d(6, 6, 1, stride=2), nn.ConvTranspose2d(6, 4, 2, stride=2)),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def is_bounded(network):
    return {row.name: row.bounded for row in report(network)}


def test_returns_the_same_network_with_the_same_parameters():
    network = image_net()
    parameters = dict(network.named_parameters())
    values = {name: p.detach().clone() for name, p in parameters.items()}
    assert constrain(network, 0.5, X) is network
    for name, p in network.named_parameters():
        assert p is parameters[name] and torch.equal(p, values[name])
    assert all(is_bounded(network).values())


def test_modes_statistics_and_hooks_are_as_before():
    network = image_net().train()
    network[3].eval()
    network[1].running_mean.fill_(3)
    constrain(network, 0.5, X)
    assert network.training and network[1].training and not network[3][0].training
    assert (network[1].running_mean == 3).all() and network[1].num_batches_tracked == 0
    assert not any(m._forward_pre_hooks for m in network.modules())


@pytest.mark.parametrize("c", [0, -1.0, float("nan")])
def test_c_must_be_positive(c):
    with pytest.raises(ValueError, match=rf"c is {c}.*above 0"):
        constrain(nn.Linear(2, 2), c, torch.zeros(1, 2))


def test_the_network_may_be_one_layer():
    layer = nn.Linear(3, 3)
    nn.init.eye_(layer.weight)
    assert constrain(layer, 0.5, torch.zeros(1, 3)) is layer
    torch.testing.assert_close(layer(torch.eye(3)), 0.5 * torch.eye(3) + layer.bias)


def test_shared_layers_are_bounded_once_and_for_the_largest_image():
    conv = nn.Conv2d(3, 3, 3, padding=1)
    network = nn.Sequential(conv, nn.MaxPool2d(2), conv)
    constrain(network, 0.5, torch.zeros(1, 3, 8, 8))
    assert network[0] is network[2]
    assert conv.v.shape == (1, 3, 8, 8)
    assert len(report(network)) == 1


def test_another_c_and_another_size_are_estimated_again():
    layer: Any = nn.Conv2d(3, 3, 3, padding=1)
    constrain(layer, 0.5, torch.zeros(1, 3, 4, 4))
    small = layer.sigma().item()
    constrain(layer, 0.2, torch.zeros(1, 3, 16, 16))
    assert layer.v.shape == (1, 3, 16, 16) and layer.c == 0.2
    assert layer.sigma().item() > small
    assert sigma(layer, (3, 16, 16)) == pytest.approx(0.2, rel=5e-3)


def test_a_state_without_v_loads_and_v_is_found_again():
    plain, network = image_net(), constrain(image_net(), 0.5, X)
    with torch.no_grad():
        plain[0].weight.copy_(torch.randn_like(plain[0].weight))
    network.load_state_dict(plain.state_dict())
    fresh = constrain(copy.deepcopy(plain), 0.5, X)
    assert network[0].sigma().item() == pytest.approx(fresh[0].sigma().item(), rel=5e-3)


def test_a_state_of_another_image_size_brings_its_v():
    at_8 = constrain(image_net(), 0.5, X)
    at_16 = constrain(image_net(), 0.5, torch.zeros(1, 3, 16, 16))
    at_8.load_state_dict(at_16.state_dict())
    assert at_8[0].v.shape == (1, 3, 16, 16)
    assert torch.equal(at_8.eval()(X), at_16.eval()(X))


def test_assigned_state_loads():
    network, other = constrain(image_net(), 0.5, X), constrain(image_net(), 0.5, X)
    network.load_state_dict(other.state_dict(), assign=True)
    assert torch.equal(network.eval()(X), other.eval()(X))


def test_a_missing_weight_is_still_an_error():
    network = constrain(image_net(), 0.5, X)
    state = network.state_dict()
    del state["0.weight"]
    with pytest.raises(RuntimeError, match="0.weight"):
        network.load_state_dict(state)


class Detour(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(3, 3), nn.Conv2d(3, 3, 3)
        self.spare = nn.Linear(3, 3)

    def forward(self, x):
        return self.used(x)


def test_layers_the_example_does_not_reach():
    network = Detour()
    with pytest.warns(UnboundedLayerWarning, match=r"unused \(Conv2d\).*did not reach"):
        constrain(network, 0.5, torch.zeros(1, 3))
    assert is_bounded(network) == {"used": True, "unused": False, "spare": True}


class OwnForward(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.alpha * x


@pytest.mark.parametrize(
    ("layer", "x", "reason"),
    [
        (nn.LayerNorm(3), torch.randn(2, 3), "statistics of each input"),
        (nn.GroupNorm(1, 3, affine=False), torch.randn(2, 3), "statistics of each input"),
        (nn.InstanceNorm1d(3), torch.randn(2, 3, 4), "statistics of each input"),
        (nn.Embedding(4, 3), torch.tensor([[1, 2]]), "table of vectors"),
        (nn.LSTM(3, 2), torch.randn(2, 3), "recurrent"),
        (nn.PReLU(), torch.randn(2, 3), r"own parameters \(weight\)"),
        (Scaled(), torch.randn(2, 3), r"own parameters \(alpha\)"),
        (OwnForward(3, 3), torch.randn(2, 3), "replaces Linear.forward"),
        (nn.Linear(3, 3, dtype=torch.complex64), torch.randn(2, 3) + 0j, "complex"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), torch.randn(2, 3), "parametrised"),
        (
            nn.utils.parametrizations.orthogonal(nn.Conv1d(3, 3, 2)),
            torch.randn(2, 3, 4),
            "parametr",
        ),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else None,
)
def test_what_cannot_be_bounded_is_said_and_left(layer, x, reason):
    before = layer(x)
    with pytest.warns(UnboundedLayerWarning, match=reason):
        constrain(layer, 0.5, x)
    after = layer(x)
    assert torch.equal(*(y[0] if isinstance(y, tuple) else y for y in (after, before)))


def test_transformer_layer_works_with_a_warning():
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    x = torch.randn(2, 3, 8)
    with pytest.warns(UnboundedLayerWarning):
        constrain(layer, 0.5, x)
    rows = is_bounded(layer)
    assert not rows["self_attn"] and not rows["norm1"]
    assert rows["self_attn.out_proj"] and rows["linear1"] and rows["linear2"]
    layer.train()(x).sum().backward()
    with torch.no_grad():
        fast = layer.eval()(x)  # torch's fused path, which reads the weights
    torch.testing.assert_close(fast, layer(x).detach())


def test_lazy_layers_are_materialised_by_the_example():
    network = nn.Sequential(
        nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2)
    )
    constrain(network, 0.5, X)
    assert is_bounded(network) == {"0": True, "1": True, "3": True}
    assert sigma(network[0], (3, 8, 8)) == pytest.approx(0.5, rel=5e-3)


def test_recalibration_averages_the_statistics_of_the_loader():
    network = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6))
    batches = [torch.randn(4, 3, 8, 8), torch.randn(4, 3, 8, 8) + 1]
    constrain(network, 0.1, X, recalibrate=[(x, None) for x in batches])
    with torch.no_grad():
        h = [network[0].eval()(x) for x in batches]
    mean = torch.stack([x.mean((0, 2, 3)) for x in h]).mean(0)
    var = torch.stack([x.var((0, 2, 3)) for x in h]).mean(0)
    torch.testing.assert_close(network[1].running_mean, mean)
    torch.testing.assert_close(network[1].running_var, var)
    assert network[1].momentum == 0.01 and network[1].training


def test_recalibration_on_nothing_is_an_error():
    with pytest.raises(ValueError, match="loader is empty"):
        recalibrate_batch_norm(constrain(image_net(), 0.5, X), [])


@pytest.mark.parametrize("affine", [True, False])
def test_fold_computes_the_same_with_plain_layers(affine):
    network = image_net()
    network[1] = nn.BatchNorm2d(6, affine=affine)
    constrain(network, 0.3, X)
    folded = fold(network)
    assert torch.equal(folded.eval()(X), network.eval()(X))
    assert {type(m) for m in folded.modules()} == {type(m) for m in image_net().modules()}
    assert list(folded.state_dict()) == list(image_net().state_dict())
    assert isinstance(network[0], SpectralNorm)
    fresh = image_net().eval()
    fresh.load_state_dict(folded.state_dict())
    assert torch.equal(fresh(X), folded(X))


def test_constraints_make_a_plain_network_the_same_again():
    network = constrain(image_net(), 0.3, X, batch_norm_momentum=0.05).train()
    network(X)
    bounds = json.loads(json.dumps(constraints(network)))
    other = apply_constraints(image_net(), bounds)
    other.load_state_dict(network.state_dict())
    assert torch.equal(other.eval()(X), network.eval()(X))
    assert [type(m) for m in other.modules()] == [type(m) for m in network.modules()]
    assert constraints(other) == constraints(network)


def test_constraints_then_converge_bound_a_fresh_network():
    bounds = constraints(constrain(image_net(), 0.3, X))
    network = converge(apply_constraints(image_net(), bounds))
    assert sigma(network[0], (3, 8, 8)) == pytest.approx(0.3, rel=5e-3)


def test_report_prints_a_table():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 2), nn.LayerNorm(2))
    with pytest.warns(UnboundedLayerWarning):
        constrain(network, 0.5, torch.zeros(1, 3, 5, 5))
    head, conv, linear, norm = str(report(network)).splitlines()
    assert head.split() == ["layer", "kind", "sigma", "c", "bounded", "note"]
    assert conv.index("Conv2d") == linear.index("Linear") == head.index("kind")
    assert "up to 5×5" in conv and " yes " in conv
    assert norm.split()[:5] == ["3", "LayerNorm", "–", "–", "no"]
    assert report(network)[1].sigma == pytest.approx(raw_sigma(network[2], (36,)), rel=5e-3)


def test_report_of_an_unconstrained_network_lists_every_layer():
    rows = report(image_net())
    assert [row.name for row in rows] == ["0", "1", "3.0", "3.1", "6"]
    assert not any(row.bounded for row in rows)


def test_an_activation_steeper_than_one_is_warned_about():
    network = nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.ReLU())
    with pytest.warns(UnboundedLayerWarning, match="slope reaches 1.13"):
        constrain(network, 0.95, torch.zeros(2, 3))
    assert [row.kind for row in report(network)] == ["Linear", "GELU"]
