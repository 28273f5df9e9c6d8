"""Batch norm bounded together with the layer before or behind it."""

import copy
import json
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from due.lipschitz import (
    SilentNetworkWarning,
    apply_constraints,
    batch_norm_constants,
    constrain,
    constraints,
    fold,
    lipschitz_ratios,
    recalibrate_batch_norm,
    report,
    singular_value,
)
from due.lipschitz.bounded import Bounded
from due.lipschitz.pairs import pairs
from due.networks import ResNet18, WideResNet
from due.networks.wide_resnet import WideBlock

X = torch.randn(64, 1, 12, 12, generator=torch.Generator().manual_seed(0))


def names(network, x):
    by_layer = {layer: name for name, layer in network.named_modules()}
    found, last = pairs(network.eval(), x)
    return [(by_layer[a], by_layer[b]) for a, b in found], by_layer.get(last)


def test_pre_activation_pairs_a_norm_with_the_convolution_behind_it():
    found, last = names(WideResNet(10, 1, 1), X[:2])
    blocks = [f"groups.{i}.0" for i in range(3)]
    assert found == [(f"{block}.norm{k}", f"{block}.conv{k}") for block in blocks for k in (1, 2)]
    assert last == "norm"


def test_post_activation_pairs_it_with_the_one_before():
    found, last = names(ResNet18(1), X[:2])
    assert found[:3] == [
        ("first", "norm"),
        ("groups.0.0.conv1", "groups.0.0.norm1"),
        ("groups.0.0.conv2", "groups.0.0.norm2"),
    ]
    assert ("groups.1.0.shortcut.0", "groups.1.0.shortcut.1") in found
    assert len(found) == 20 and last is None


class Forked(nn.Module):
    """What the layer makes is seen by another one, too; and one layer is used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.other, self.twice = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.norm, self.last = nn.BatchNorm1d(3), nn.BatchNorm1d(3)

    def forward(self, x):
        h = self.first(x)
        return self.last(self.twice(self.twice(self.other(h) + self.norm(h))))


def test_layers_that_others_use_stay_alone():
    assert names(Forked(), torch.randn(4, 3)) == ([], "last")


def block(c, how):
    torch.manual_seed(0)
    network = WideBlock(8, 8, 1, 0.0)
    constrain(network, c, torch.randn(2, 8, 12, 12), batch_norm=how)
    return recalibrate_batch_norm(network, [torch.randn(32, 8, 12, 12) * 0.3]).eval()


def test_the_product_of_a_pair_is_held_and_so_is_the_block():
    c = 0.7
    network = block(c, "paired")
    L = {name: float(value.max()) for name, value in batch_norm_constants(network).items()}
    for k in (1, 2):
        conv = network.get_submodule(f"conv{k}")
        assert L[f"norm{k}"] > c  # alone it would not be allowed
        assert singular_value(conv) * L[f"norm{k}"] == pytest.approx(c, rel=5e-3)
    a, b = torch.randn(200, 8, 12, 12), torch.randn(200, 8, 12, 12)
    nearby = a + 1e-2 * torch.randn(200, 8, 12, 12)
    for other in (b, nearby):
        _, low, high = lipschitz_ratios(network, a, other)
        assert 1 - c**2 <= low <= high <= 1 + c**2


def test_a_new_network_is_not_silent_at_small_c():
    spread = {}
    for how in ("alone", "paired", None):
        torch.manual_seed(0)
        f = WideResNet(16, 1, 1, stride=2)
        if how == "alone":
            with pytest.warns(SilentNetworkWarning, match="batch_norm='paired', or c > 1"):
                constrain(f, 0.9, X[:2], batch_norm=how)
        elif how is not None:
            constrain(f, 0.9, X[:2], batch_norm=how)
        h = recalibrate_batch_norm(f, [X]).eval()(X)
        spread[how] = torch.pdist(h.detach()).mean().item()
    assert spread["alone"] < 0.01 * spread[None]
    assert spread["paired"] > 0.3 * spread[None]


def paired():
    torch.manual_seed(0)
    f = constrain(WideResNet(10, 1, 1, stride=2), 0.9, X[:2], batch_norm="paired")
    return recalibrate_batch_norm(f, [X]).eval()


def test_copies_folds_and_descriptions_compute_the_same():
    f = paired()
    want = f(X)
    other = apply_constraints(
        WideResNet(10, 1, 1, stride=2), json.loads(json.dumps(constraints(f)))
    )
    other.load_state_dict(f.state_dict())
    for network in (copy.deepcopy(f), pickle.loads(pickle.dumps(f)), fold(f), other.eval()):
        assert torch.equal(network(X), want)
    copied = copy.deepcopy(f)
    leader = copied.get_submodule("groups.0.0.conv1")
    assert isinstance(leader, Bounded)
    assert leader.partners[0] is copied.get_submodule("groups.0.0.norm1")


def test_beta_is_scaled_with_gamma_where_batch_norm_leads():
    torch.manual_seed(0)
    f = constrain(ResNet18(1), 0.9, X[:2], batch_norm="paired")
    with torch.no_grad():
        for name, p in f.named_parameters():
            if "norm" in name and name.endswith("bias"):
                p.normal_()
    recalibrate_batch_norm(f, [X[:8]]).eval()
    norm: Any = f.norm
    torch.testing.assert_close(norm.bias, norm._parameters["bias"] * norm.scale())
    assert torch.equal(fold(f)(X[:4]), f(X[:4]))
    norm.train()(torch.randn(4, 64, 3, 3)).sum().backward()
    assert norm._parameters["bias"].grad is not None


def test_another_call_takes_the_pairs_apart():
    f = constrain(paired(), 3.0, X[:2])
    assert not any(
        layer.led or layer.partners for layer in f.modules() if isinstance(layer, Bounded)
    )
    assert max(float(v.max()) for v in batch_norm_constants(f).values()) <= 3.0 * 1.0001


def test_norms_refreshed_now_and_then_hold_the_product_too():
    f = paired().train()
    f(X).square().sum().backward()
    conv = f.get_submodule("groups.1.0.conv1")
    before = conv.bounded_weight().detach()
    conv.refresh()
    assert not conv.slack
    torch.testing.assert_close(conv.bounded_weight().detach(), before, rtol=1e-3, atol=1e-6)
    conv.c = 1e6
    conv.refresh()
    assert conv.slack and torch.equal(conv.bounded_weight(), conv.raw_weight)


def test_report_names_the_leader():
    rows = {row.name: row for row in report(paired())}
    assert rows["groups.0.0.norm1"].note == "together with groups.0.0.conv1"
    assert rows["norm"].note == "in eval mode, in its own unit"
    assert all(row.bounded for row in rows.values())


def test_unknown_words_are_refused():
    with pytest.raises(ValueError, match="batch_norm='both' is not one of alone, paired"):
        constrain(nn.BatchNorm1d(2), 1.0, torch.zeros(2, 2), batch_norm="both")
