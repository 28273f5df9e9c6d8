import numpy as np
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch.optim import SGD

from due import DUECATE
from due.networks import ScaledColumns


def with_weights(*v: float) -> ScaledColumns:
    f = ScaledColumns(len(v))
    f.v.data = torch.tensor(v)
    return f


def test_columns_are_scaled_by_the_roots_of_weights_between_0_and_1():
    f = with_weights(-1.0, 0.0, 0.25, 7.0)
    x = torch.randn(5, 4)
    assert_allclose(f.scale.detach(), np.sqrt([1e-4, 1e-4, 0.2501, 1.0001]), rtol=1e-6)
    assert_allclose(f(x).detach(), (x * f.scale).detach())


def test_a_faded_column_has_the_slope_of_a_squared_distance():
    x = torch.tensor([[0.0, 0.0], [3.0, 2.0]])
    for v in (0.0, 0.4):
        f = with_weights(v, 0.5)
        (-(f(x[1:]) - f(x[:1])).square().sum()).backward()  # −Σ_d v_d Δ_d²
        assert f.v.grad is not None
        assert_allclose(f.v.grad.numpy(), [-9.0, -4.0], rtol=1e-5)


def test_at_an_end_only_the_way_back_is_open():
    f = with_weights(-0.1, -0.1, 1.1, 1.1, 0.5)
    (f.scale * torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])).sum().backward()
    assert f.v.grad is not None
    assert_array_equal(np.sign(f.v.grad.numpy()), [0, -1, 1, 0, 1])
    SGD(f.parameters(), lr=1e-3).step()
    assert f.v[1] > -0.1 and f.v[2] < 1.1 and f.v[0] == torch.tensor(-0.1)


def test_a_column_that_matters_comes_back_from_nothing(monkeypatch):
    """The effect varies with column 0 alone, whose weight starts at 0."""
    rng = np.random.default_rng(0)
    X, T = rng.normal(size=(200, 3)), rng.integers(2, size=200)
    Y = X[:, 1] + T * np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=200)
    monkeypatch.setattr(DUECATE, "_encoder", lambda self, shape: with_weights(0.0, 1.0, 1.0))
    model = DUECATE(bound="exact", layers=0, random_state=0).fit(Y, T, X)
    scale = model.model_.f.f.scale.detach().numpy()
    assert scale[0] > 0.3 > 10 * scale[2]
