import copy

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.datasets import make_moons
from torch import nn

from due.methods.sngp import RandomFeatureGP, SNGPGaussian, SNGPSoftmax, orthogonal_rows
from due.networks import FCResNet
from due.rows.source import Table
from due.training import Recipe, fit


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def no_training(*args, **recipe):
    raise AssertionError("trained")


class Pieces(Table):
    """A table that is read in pieces of some rows."""

    piece = 7

    def chunks(self, rows=0):
        return super().chunks(self.piece)


def set_covariance(model, x, w=None, piece=7):
    rows = Pieces(x, torch.zeros(len(x)), w)
    rows.piece = piece
    model.finish(rows, None, 0, no_training)


def shaken(model):
    """The model in float64, every learned parameter with a value of its own."""
    model.double().eval()
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            if parameter.requires_grad:
                parameter.add_(0.5 * normal(*parameter.shape, seed=seed + 5))
    return model


def classifier(T=3, curvature="largest", S=40, **arguments):
    K = T if curvature == "per_class" else 1
    gp = RandomFeatureGP(4, T, S, lengthscale=1.7, ridge=0.3, K=K, **arguments)
    return shaken(SNGPSoftmax(nn.Linear(2, 4), gp, n_data=50, curvature=curvature))


def regressor(T=2, S=40, **arguments):
    gp = RandomFeatureGP(4, T, S, lengthscale=1.7, ridge=0.3)
    return shaken(SNGPGaussian(nn.Linear(2, 4), gp, n_data=50, **arguments))


def numpy_features(model, x):
    """φ and f = βφ + b, from the formulas."""
    gp, h = model.gp, model.f(x).detach().numpy()
    if gp.projection is not None:
        h = h @ gp.projection.numpy().T
    if isinstance(gp.norm, nn.LayerNorm):
        z = (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + gp.norm.eps)
        h = z * gp.norm.weight.detach().numpy() + gp.norm.bias.detach().numpy()
    angle = h @ gp.W.numpy().T / gp.lengthscale.item() + gp.phase.numpy()
    phi = np.sqrt(2 / gp.S) * np.cos(angle)
    return phi, phi @ gp.output.weight.detach().numpy().T + gp.output.bias.detach().numpy()


def numpy_softmax(f):
    e = np.exp(f - f.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("T", [2, 5])
@pytest.mark.parametrize("curvature", ["largest", "per_class", "one"])
@pytest.mark.parametrize("weighted", [False, True])
def test_covariance_of_a_classifier_is_the_dense_formula(T, curvature, weighted):
    model, x, new = classifier(T, curvature), normal(50, 2), normal(7, 2, seed=1)
    w = 1 + normal(50, seed=2).abs() if weighted else None
    set_covariance(model, x, w)

    phi, f = numpy_features(model, x)
    p = numpy_softmax(f)
    largest = p.max(1, keepdims=True)
    a = {"largest": largest * (1 - largest), "per_class": p * (1 - p), "one": largest**0}[curvature]
    a = a * (1 if w is None else w.numpy()[:, None])
    P = [0.3 * np.eye(40) + (phi * a_k[:, None]).T @ phi for a_k in a.T]
    cov = np.linalg.inv(P)
    assert_allclose(model.gp.covariance, cov, rtol=1e-9, atol=1e-12)

    phi, f = numpy_features(model, new)
    var = np.einsum("ns,ksr,nr->nk", phi, cov, phi) * np.ones((1, T))
    with torch.no_grad():
        assert_allclose(model.latent(new).mean, f, rtol=1e-9, atol=1e-9)
        assert_allclose(model.latent(new).var, var, rtol=1e-9)
        want = numpy_softmax(f / np.sqrt(1 + np.pi / 8 * var))
        assert_allclose(model.predict(new), want, rtol=1e-9)


@pytest.mark.parametrize("learned", [False, True])
def test_covariance_of_a_regression_is_the_dense_formula(learned):
    model, x, new = regressor(sigma2=0.2, learn_sigma2=learned), normal(50, 2), normal(7, 2, seed=1)
    set_covariance(model, x)
    sigma2 = model.likelihood.sigma2.item()
    assert learned != (abs(sigma2 - 0.2) < 1e-5)

    phi, _ = numpy_features(model, x)
    cov = np.linalg.inv(0.3 * np.eye(40) + phi.T @ phi / sigma2)
    assert_allclose(model.gp.covariance[0], cov, rtol=1e-9, atol=1e-12)

    phi, f = numpy_features(model, new)
    var = np.einsum("ns,sr,nr->n", phi, cov, phi)[:, None] * np.ones((1, 2))
    with torch.no_grad():
        assert_allclose(model.predict(new).mean, f, rtol=1e-9, atol=1e-9)
        assert_allclose(model.latent(new).var, var, rtol=1e-9)
        assert_allclose(model.predict(new).var, var + sigma2, rtol=1e-9)


def test_regression_is_bayesian_linear_regression_at_its_optimum():
    """The β that minimises the loss is the mean of the posterior whose covariance is stored."""
    model, x, y = regressor(T=1, sigma2=0.2), normal(50, 2), normal(50, 1, seed=3)
    set_covariance(model, x)
    phi = torch.as_tensor(numpy_features(model, x)[0])
    with torch.no_grad():
        model.gp.output.bias.zero_()
        beta = model.gp.covariance[0] @ phi.mT @ y / model.likelihood.sigma2
        model.gp.output.weight.copy_(beta.mT)
    model(x, y).backward()
    assert model.gp.output.weight.grad.abs().max() < 1e-12
    assert model.f.weight.grad.abs().max() > 1e-3


def test_losses_are_the_formulas():
    x, w = normal(50, 2), normal(50, seed=2).abs()
    model, y = classifier(), torch.arange(50) % 3
    beta = model.gp.output.weight.detach().numpy()
    penalty = 0.3 * (beta**2).sum() / 2 / 50
    nll = -np.log(numpy_softmax(numpy_features(model, x)[1])[np.arange(50), y])
    assert_allclose(model(x, y).item(), nll.mean() + penalty)
    assert_allclose(model(x, y, w).item(), (w.numpy() * nll).mean() + penalty)
    assert_allclose(model.losses(x, y).detach(), nll)

    model, y = regressor(), normal(50, 2, seed=4)
    beta = model.gp.output.weight.detach().numpy()
    penalty = 0.3 * (beta**2).sum() / 2 / 50
    error = 0.5 * (y.numpy() - numpy_features(model, x)[1]) ** 2 + 0.5 * np.log(2 * np.pi)
    assert_allclose(model(x, y).item(), error.sum(1).mean() + penalty, rtol=1e-5)  # σ² = 1 + 1e-6


@pytest.mark.parametrize("build", [classifier, regressor])
def test_covariance_does_not_depend_on_the_batches(build):
    model, x = build(), normal(50, 2)
    set_covariance(model, x)
    whole = model.gp.covariance
    for rows in (1, 7, 50):
        set_covariance(model, x, piece=rows)
        assert_allclose(model.gp.covariance, whole, rtol=1e-10, atol=1e-12)
    twice = copy.deepcopy(model)
    set_covariance(twice, torch.cat([x, x]))
    set_covariance(model, x, torch.full((50,), 2.0))
    assert_allclose(twice.gp.covariance, model.gp.covariance, rtol=1e-10, atol=1e-12)


def test_dropout_is_off_in_the_pass():
    x, clean = normal(50, 2), classifier()
    model = copy.deepcopy(clean)
    model.f = nn.Sequential(model.f, nn.Dropout(0.5))
    set_covariance(model.train(), x)
    set_covariance(clean, x)
    assert torch.equal(model.gp.covariance, clean.gp.covariance)


def kernel_error(S, seeds=20):
    h = normal(8, 3)
    want = torch.exp(-torch.cdist(h, h).square() / (2 * 1.3**2))
    errors = []
    for seed in range(seeds):
        gp = RandomFeatureGP(3, S=S, lengthscale=1.3, layer_norm=False, seed=seed).double()
        phi = gp.features(h)
        errors.append((phi @ phi.mT - want).square().mean())
    return torch.stack(errors).mean().sqrt().item()


def test_random_features_converge_to_the_rbf_kernel():
    errors = [kernel_error(S) for S in (16, 128, 1024)]
    assert errors[-1] < 0.03
    slopes = np.diff(np.log(errors)) / np.diff(np.log([16, 128, 1024]))
    assert_allclose(slopes, -0.5, atol=0.1)  # error ~ 1/√S


def test_rows_are_orthogonal_within_blocks_with_norms_of_gaussians():
    J, S = 16, 4000
    W = orthogonal_rows(S, J, torch.Generator().manual_seed(0))
    G = W[:J] @ W[:J].mT
    assert_allclose(G - torch.diag(G.diagonal()), np.zeros((J, J)), atol=1e-12)
    assert_allclose((W**2).sum(1).mean(), J, rtol=0.02)  # χ²: mean J, variance 2J
    assert_allclose((W**2).sum(1).var(), 2 * J, rtol=0.1)
    assert_allclose(W.mT @ W / S, np.eye(J), atol=0.06)
    assert orthogonal_rows(5, 16, torch.Generator().manual_seed(0)).shape == (5, 16)


def test_before_the_pass_the_variance_is_the_prior():
    model, x = classifier(), normal(5, 2)
    phi, _ = numpy_features(model, x)
    assert_allclose(model.latent(x).var[:, 0].detach(), (phi**2).sum(1) / 0.3)


def test_projection_and_length_scale_from_data():
    model, x = classifier(projection=3), normal(50, 2)
    inputs = model.gp.inputs(model.f(x)).detach()
    assert inputs.shape == (50, 3)
    model.gp.set_lengthscale(model.f(x))
    assert_allclose(model.gp.lengthscale, torch.pdist(inputs).mean())
    assert_allclose(model.latent(x).mean.detach(), numpy_features(model, x)[1])


@pytest.mark.parametrize("curvature", ["largest", "per_class"])
def test_state_holds_all_there_is(curvature):
    model, x = classifier(curvature=curvature, projection=3), normal(50, 2)
    set_covariance(model, x)
    other = classifier(curvature=curvature, projection=3, seed=9)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.predict(x), model.predict(x))


def test_learns_two_moons_and_doubts_far_away():
    X, y = make_moons(300, noise=0.1, random_state=0)
    x, y = torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(y)
    torch.manual_seed(0)
    gp = RandomFeatureGP(16, 2, 128, layer_norm=False)
    model = SNGPSoftmax(FCResNet(2, 16, 2), gp)
    fit(model, Table(x, y), Recipe(lr=5e-3, epochs=40, batch_size=64), progress=False)
    assert model.n_data == 300
    with torch.no_grad():
        assert (model.predict(x).argmax(-1) == y).float().mean() > 0.97
        far = torch.tensor([[20.0, 20.0], [-20.0, 20.0]])
        assert model.latent(far).var.min() > 2 * model.latent(x).var.mean()


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="K=2 is neither"):
        RandomFeatureGP(3, T=3, K=2)
    with pytest.raises(ValueError, match="needs a RandomFeatureGP with K=3"):
        SNGPSoftmax(nn.Identity(), RandomFeatureGP(3, T=3, S=4), 5, "per_class")
    with pytest.raises(ValueError, match="not one of largest"):
        SNGPSoftmax(nn.Identity(), RandomFeatureGP(3, T=3, S=4), 5, "exact")
