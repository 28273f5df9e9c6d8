"""Wide ResNet, VGG-19 and ResNet-18: published sizes, and what bounds do to them."""

import copy

import pytest
import torch
from torch import nn

from due.lipschitz import constrain, layers, recalibrate_batch_norm
from due.networks import VGG, ResNet18, WideResNet


def parameters(network):
    return sum(p.numel() for p in network.parameters())


def test_parameters_are_as_published():
    with torch.device("meta"):
        assert parameters(WideResNet(28, 10)) + 641 * 10 == 36_479_194  # 36.5 M
        assert parameters(ResNet18()) + 513 * 10 == 11_173_962  # 11.2 M
        convolutions = [m for m in VGG().modules() if isinstance(m, nn.Conv2d)]
        assert len(convolutions) == 16
        assert sum(map(parameters, convolutions)) == 20_024_384  # 20.0 M, as in VGG-19
        assert WideResNet(28, 10).out_features == 640


NETWORKS = {
    "wrn": lambda: WideResNet(10, 1, 1),
    "wrn strided": lambda: WideResNet(16, 1, 1, stride=2),
    "vgg": lambda: VGG(1, 1 / 16),
    "resnet18": lambda: ResNet18(1),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("size", [8, 28, 33])
def test_one_vector_per_image_of_any_size(name, size):
    torch.manual_seed(0)
    network = NETWORKS[name]().eval()
    x = torch.randn(3, 1, size, size)
    h = network(x)
    assert h.shape == (3, network.out_features)
    torch.testing.assert_close(network(x[1:2])[0], h[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_bound_too_large_to_matter_changes_nothing(layout):
    torch.manual_seed(0)
    plain = WideResNet(10, 1, 1, stride=2).to(memory_format=layout)  # type: ignore[call-overload]
    bounded = constrain(
        copy.deepcopy(plain), 1e6, torch.zeros(2, 1, 12, 12), batch_norm_momentum=0.1
    )
    x = torch.randn(4, 1, 12, 12)
    for network in (plain, bounded):
        network.train()(x).square().sum().backward()
    assert torch.equal(plain.eval()(x), bounded.eval()(x))
    pairs = zip(plain.parameters(), bounded.parameters(), strict=True)
    assert all(torch.equal(p.grad, q.grad) for p, q in pairs if p.grad is not None)


def test_recalibration_of_bounded_batch_norm_ends_at_a_fixed_point():
    torch.manual_seed(0)
    network = constrain(WideResNet(16, 1, 1, stride=2), 3.0, torch.zeros(2, 1, 16, 16))
    batches = torch.randn(128, 1, 16, 16).split(64)
    recalibrate_batch_norm(network, iter(batches))
    before = {name: b.clone() for name, b in network.named_buffers() if "running" in name}
    recalibrate_batch_norm(network, batches, passes=1)
    for name, b in network.named_buffers():
        if "running_var" in name:
            torch.testing.assert_close(b, before[name], rtol=5e-3, atol=1e-6)
    assert max(layers(network, batches[0][:2]).values()) <= 3.0 * 1.01


def test_one_pass_of_recalibration_is_not_enough():
    """The scale of γ depends on the variance, so a pass moves the input of the next layers."""
    torch.manual_seed(0)
    network = constrain(WideResNet(16, 1, 1, stride=2), 3.0, torch.zeros(2, 1, 16, 16))
    batches = torch.randn(128, 1, 16, 16).split(64)
    variances = []
    for _ in range(8):
        recalibrate_batch_norm(network, batches, passes=1)
        buffers = dict(network.named_buffers())
        variances.append(torch.cat([b for n, b in buffers.items() if "running_var" in n]))
    errors = [float(((v - variances[-1]).abs() / variances[-1]).max()) for v in variances[:5]]
    assert errors[0] > 0.3 and errors[-1] < 0.01
    assert errors == sorted(errors, reverse=True)


def test_wrong_depth_is_named():
    with pytest.raises(ValueError, match="depth is 12; a Wide ResNet has 10, 16"):
        WideResNet(12, 1)
