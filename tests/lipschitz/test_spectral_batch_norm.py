import copy

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from due.lipschitz import UnboundedLayerWarning, batch_norm_constants, constrain

SHAPES = {nn.BatchNorm1d: (6, 5), nn.BatchNorm2d: (6, 5, 3, 3), nn.BatchNorm3d: (6, 5, 2, 2, 2)}


def trained(kind, **options):
    """A batch-norm layer as training might leave it."""
    torch.manual_seed(0)
    layer = kind(5, **options)
    with torch.no_grad():
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.05, 2)
        if layer.affine:
            layer.weight.normal_()
            layer.bias.normal_()
    return layer


def by_formula(layer, x, c):
    """γ / max(1, max|γ|/√(var+ε) / c) · (x − mean)/√(var+ε) + β, in numpy."""
    mean, var = layer.running_mean.numpy(), layer.running_var.numpy()
    gamma = layer.weight.detach().numpy() if layer.affine else np.ones(5)
    beta = layer.bias.detach().numpy() if layer.affine else np.zeros(5)
    lip = np.max(np.abs(gamma) / np.sqrt(var + layer.eps))
    gamma = gamma / max(1.0, lip / c)
    rows = np.moveaxis(x.numpy(), 1, -1)
    return np.moveaxis((rows - mean) / np.sqrt(var + layer.eps) * gamma + beta, -1, 1)


@pytest.mark.parametrize("kind", [*SHAPES, nn.SyncBatchNorm])
@pytest.mark.parametrize("c", [0.5, 2.0, 100.0])
@pytest.mark.parametrize("affine", [True, False])
def test_eval_output_is_the_formula(kind, c, affine):
    layer = trained(kind, affine=affine)
    x = torch.randn(SHAPES.get(kind, (6, 5, 3, 3)))
    want = by_formula(layer, x, c)
    constrain(layer, c, x).eval()
    assert_allclose(layer(x).detach().numpy(), want, atol=1e-5)


def test_training_uses_the_running_variance_for_the_bound_and_batch_statistics_to_normalise():
    layer = trained(nn.BatchNorm1d)
    x = torch.randn(6, 5)
    lip = (layer.weight.abs() / (layer.running_var + layer.eps).sqrt()).max()
    want = (x - x.mean(0)) / (x.var(0, correction=0) + layer.eps).sqrt()
    want = want * layer.weight / max(1.0, lip / 0.5) + layer.bias
    torch.testing.assert_close(constrain(layer, 0.5, x).train()(x), want)


def test_statistics_are_kept_and_momentum_is_set():
    layer = trained(nn.BatchNorm2d)
    before = copy.deepcopy(layer.state_dict())
    constrain(layer, 0.5, torch.randn(6, 5, 3, 3))
    assert layer.momentum == 0.01
    assert list(layer.state_dict()) == list(before)
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name])
    assert constrain(layer, 0.5, torch.randn(6, 5, 3, 3), batch_norm_momentum=0.3).momentum == 0.3


def test_huge_c_changes_no_bit():
    layer = trained(nn.BatchNorm2d)
    plain, x = copy.deepcopy(layer), torch.randn(6, 5, 3, 3)
    constrain(layer, float("inf"), x)
    assert torch.equal(layer.eval()(x), plain.eval()(x))
    assert torch.equal(layer.train()(x), plain.train()(x))


def test_without_running_statistics_it_is_reported():
    layer = nn.BatchNorm1d(5, track_running_stats=False)
    with pytest.warns(UnboundedLayerWarning, match="track_running_stats=True"):
        constrain(layer, 0.5, torch.randn(6, 5))


def test_gradient_flows_through_the_bound():
    layer = trained(nn.BatchNorm1d).double()
    x = torch.randn(6, 5).double()
    constrain(layer, 0.5, x).eval()
    gamma = layer.raw_weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda g: torch.func.functional_call(layer, {"weight": g}, (x,)), gamma
    )


def test_trains_and_stays_bounded():
    layer = trained(nn.BatchNorm1d)
    constrain(layer, 0.5, torch.randn(6, 5)).train()
    optimiser = torch.optim.SGD(layer.parameters(), 0.5)
    for _ in range(20):
        optimiser.zero_grad()
        (-layer(torch.randn(6, 5)).square().sum()).backward()
        optimiser.step()
    assert batch_norm_constants(layer)[""].max() <= 0.5 + 1e-6
