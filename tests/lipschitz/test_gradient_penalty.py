import pytest
import torch
from torch import nn

from due.lipschitz import gradient_penalty


def test_linear_model_in_closed_form():
    model = nn.Linear(3, 2)
    x = torch.randn(5, 3, requires_grad=True)
    got = gradient_penalty(model(x), x, target=0.7)
    want = (model.weight.sum(0).norm() - 0.7) ** 2  # the same gradient everywhere
    torch.testing.assert_close(got, want)
    got.backward()
    (grad,) = torch.autograd.grad(want, model.weight)
    torch.testing.assert_close(model.weight.grad, grad)


def test_agrees_with_finite_differences():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    eps = 1e-6
    with torch.no_grad():
        steps = eps * torch.eye(3, dtype=torch.float64)
        columns = [(model(x + s) - model(x - s)).sum(1) / (2 * eps) for s in steps]
        want = (torch.stack(columns, 1).norm(dim=1) - 1).square().mean()
    torch.testing.assert_close(gradient_penalty(model(x), x), want, rtol=1e-6, atol=1e-9)


def test_images_and_scalar_outputs():
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    got = gradient_penalty(x.square().flatten(1).sum(1), x, target=0.0)
    torch.testing.assert_close(got, 4 * x.square().flatten(1).sum(1).mean())


def test_x_must_require_gradients():
    x = torch.randn(2, 3)
    with pytest.raises(ValueError, match="requires_grad_"):
        gradient_penalty(x, x)
