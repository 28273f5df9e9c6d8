import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.datasets import make_moons
from torch import nn
from torch.nn.functional import binary_cross_entropy, one_hot

from due.methods.duq import DUQ
from due.networks import FCResNet
from due.rows.source import Table
from due.training import Recipe, fit


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(T=3, penalty=0.5, **arguments):
    """A model in float64 whose kernels are neither 0 nor 1."""
    torch.manual_seed(0)
    f = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 4))
    return DUQ(f, 4, T, sigma=0.5, penalty=penalty, **arguments).double()


def numpy_kernel(model, x):
    """K_c(x_i), one number at a time."""
    z, W = model.f(x).detach().numpy(), model.W.detach().numpy()
    m, N = model.m.numpy(), model.N.numpy()
    K = np.empty((len(z), len(W)))
    for i in range(len(z)):
        for c in range(len(W)):
            gap = W[c] @ z[i] - m[c] / N[c]
            K[i, c] = np.exp(-np.mean(gap**2) / (2 * model.sigma**2))
    return K


@pytest.mark.parametrize(("T", "E"), [(2, None), (3, 6)])
def test_kernel_is_the_formula(T, E):
    model, x = make(T, E=E), normal(8, 2)
    assert_allclose(model.predict(x).detach(), numpy_kernel(model, x))
    assert_allclose(model.distance(x).detach(), -np.log(numpy_kernel(model, x)))


def test_answers_from_features_are_those_of_the_kernels():
    model, x = make(), normal(8, 2)
    K, h = numpy_kernel(model, x), model.f(x)
    assert_allclose(model.probabilities(h).detach(), K / K.sum(1, keepdims=True))
    assert_allclose(model.foreign(h).detach(), 1 - K.max(1))
    assert_allclose(model.nearest(h).detach(), -np.log(K.max(1)))


def test_centroids_are_the_moving_averages():
    model = make(gamma=0.9)
    W = model.W.detach().numpy()
    N, m = model.N.numpy().copy(), model.m.numpy().copy()
    for seed in range(3):
        x, y = normal(10, 2, seed=seed), torch.arange(10) % 2  # class 2 never comes
        model(x, y)
        z = model.f(x).detach().numpy()
        for c in range(3):
            rows = z[y.numpy() == c]
            N[c] = 0.9 * N[c] + 0.1 * len(rows)
            m[c] = 0.9 * m[c] + 0.1 * sum((W[c] @ row for row in rows), np.zeros(4))
    assert_allclose(model.N, N)
    assert_allclose(model.m, m)
    assert_allclose(model.centroids, m / N[:, None])


def test_centroids_rest_in_eval_mode_and_have_no_gradient():
    model, x, y = make().eval(), normal(6, 2), torch.arange(6) % 3
    before = model.m.clone()
    model(x, y)
    assert torch.equal(model.m, before)
    model.train()(x, y).backward()
    assert not torch.equal(model.m, before) and not model.m.requires_grad


def test_weights_count_as_repetitions_in_centroids_and_fit():
    x, y, w = normal(6, 2), torch.arange(6) % 3, torch.tensor([1, 2, 1, 3, 1, 1])
    once, again = make(penalty=0.0), make(penalty=0.0)
    fit = once(x, y, w.double())
    repeated = again(x.repeat_interleave(w, 0), y.repeat_interleave(w, 0))
    assert_allclose(fit.item() * 6, repeated.item() * w.sum().item())
    assert_allclose(once.m, again.m)


def test_loss_is_binary_cross_entropy():
    model, x, y = make().eval(), normal(8, 2), torch.arange(8) % 3
    want = binary_cross_entropy(model.predict(x), one_hot(y, 3).double())
    assert_allclose(model(x, y).item(), want.item())
    assert_allclose(model.losses(x, y).mean().item(), want.item())


@pytest.mark.parametrize("penalty", [0.5, 2.0])
def test_gradient_penalty_agrees_with_finite_differences(penalty):
    model, x, y = make(penalty=penalty, gamma=1.0), normal(6, 2), torch.arange(6) % 3
    eps, steps = 1e-6, torch.eye(2, dtype=torch.float64)
    columns = [
        (numpy_kernel(model, x + eps * s) - numpy_kernel(model, x - eps * s)).sum(1) / (2 * eps)
        for s in steps
    ]
    want = np.mean((np.linalg.norm(columns, axis=0) - 1) ** 2)
    got = model.train()(x, y) - model.eval()(x, y)
    assert_allclose(got.item(), penalty * want, rtol=1e-6)
    assert not x.requires_grad


def test_gradient_of_the_whole_loss_agrees_with_finite_differences():
    """The penalty is differentiated twice on its way to the weights."""
    model, x, y = make(gamma=1.0), normal(6, 2), torch.arange(6) % 3
    model(x, y).backward()
    for parameter in model.parameters():
        flat, grad, eps = parameter.data.view(-1), parameter.grad.view(-1), 1e-6
        flat[0] += eps
        above = model(x, y).item()
        flat[0] -= 2 * eps
        below = model(x, y).item()
        flat[0] += eps
        assert_allclose(grad[0], (above - below) / (2 * eps), rtol=1e-5, atol=1e-8)


def test_a_far_row_is_near_no_class_and_still_has_a_gradient():
    model, x, y = make().eval(), torch.full((1, 2), 1e3, dtype=torch.float64), torch.tensor([0])
    model.f = nn.Linear(2, 4).double()
    assert model.predict(x).max() < 1e-12
    assert torch.isfinite(model.distance(x)).all()
    loss = model(x, y)
    loss.backward()
    assert torch.isfinite(loss) and model.W.grad[0].abs().max() > 1


def test_a_row_on_a_foreign_centroid_is_finite():
    model = make(penalty=0.0)
    with torch.no_grad():
        model.W.zero_()
        model.m.zero_()
    loss = model(normal(3, 2), torch.arange(3))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_learns_two_moons_and_knows_none_of_the_classes_far_away():
    X, y = make_moons(300, noise=0.1, random_state=0)
    x, y = torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(y)
    torch.manual_seed(0)
    model = DUQ(FCResNet(2, 16, 2), 16, 2, sigma=0.3, gamma=0.99, penalty=0.1)
    fit(model, Table(x, y), Recipe(lr=5e-3, epochs=40, batch_size=64), progress=False)
    with torch.no_grad():
        K = model.predict(x)
        assert (K.argmax(-1) == y).float().mean() > 0.95
        far = model.predict(torch.tensor([[20.0, 20.0], [-20.0, 20.0]]))
    assert far.max() < 0.1 < K.amax(-1).median()


def test_state_holds_the_centroids():
    model, other, x = make(), make(), normal(6, 2)
    model(x, torch.arange(6) % 3)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.predict(x), model.predict(x))
