import numpy as np
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch.optim import SGD

from due import DUECATE
from due.networks import ArmColumns
from due.networks.arm_columns import FADED


def with_weights(v: list[float], w1: list[float], w0: list[float]) -> ArmColumns:
    f = ArmColumns(len(v))
    f.weights.data = torch.tensor([*v, *w1, *w0])
    return f


def test_distances_within_an_arm_have_its_own_weights():
    f = with_weights([1.0, 0.25], [0.5, 0.0], [0.0, 0.16])
    f.log_a.data.fill_(0.3)
    x, y = torch.randn(2, 5, 2, generator=torch.Generator().manual_seed(0))
    square = (x - y).square()
    for t, own in ((1.0, [0.5, 0.0]), (0.0, [0.0, 0.16])):
        at = torch.full((5, 1), t)
        got = (f(torch.cat([x, at], 1)) - f(torch.cat([y, at], 1))).square().sum(1)
        weights = torch.tensor([1.0, 0.25]) + torch.tensor(own) + 2 * FADED
        assert_allclose(got.detach(), square @ weights, rtol=1e-4)


def test_at_the_centre_arms_are_apart_by_the_scale_of_the_treatment():
    f = with_weights([1.0], [0.5], [0.5])
    f.log_a.data.fill_(0.3)
    rows = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    assert_allclose((f(rows)[0] - f(rows)[1]).norm().item(), np.exp(0.3), rtol=1e-6)
    assert not ArmColumns(1, own_scale=False).log_a.requires_grad


def test_a_faded_column_has_the_slope_of_a_squared_distance():
    x = torch.tensor([[0.0, 0.0, 1.0], [3.0, 2.0, 1.0]])
    for v in (0.0, 0.4):
        f = with_weights([v, 0.5], [0.0, 0.1], [0.2, 0.3])
        (-(f(x[1:]) - f(x[:1])).square().sum()).backward()
        assert f.weights.grad is not None
        assert_allclose(f.weights.grad.numpy(), [-9, -4, -9, -4, 0, 0], rtol=1e-5)


def test_at_an_end_only_the_way_back_is_open():
    f = with_weights([-0.1, -0.1, 1.1], [1.1, 0.5, 0.5], [0.5, 0.5, 0.5])
    signs = torch.tensor([1.0, -1, 1, -1, 1, 1, 1, 1, 1])
    (f.scale.flatten() * signs).sum().backward()
    assert f.weights.grad is not None
    assert_array_equal(np.sign(f.weights.grad.numpy()), [0, -1, 1, 0, 1, 1, 1, 1, 1])
    SGD(f.parameters(), lr=1e-3).step()
    assert f.weights[1] > -0.1 and f.weights[2] < 1.1 and f.weights[0] == torch.tensor(-0.1)


def test_a_column_that_matters_comes_back_from_nothing(monkeypatch):
    """The effect varies with column 0 alone, whose weights start at 0."""
    rng = np.random.default_rng(0)
    X, T = rng.normal(size=(200, 3)), rng.integers(2, size=200)
    Y = X[:, 1] + T * np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=200)
    faded = with_weights([0.0, 1.0, 1.0], [0.0, 0.1, 0.1], [0.0, 0.1, 0.1])
    monkeypatch.setattr(DUECATE, "_network", lambda self, shape: faded)
    model = DUECATE(bound="exact", layers=0, random_state=0).fit(Y, T, X)
    together = model.model_.f.scale.detach().square().sum(0).sqrt().numpy()
    assert together[0] > 0.3 > 5 * together[2]
