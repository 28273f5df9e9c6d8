import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.datasets import make_moons
from torch.func import jacrev

import due
from due.estimators import DUEClassifier
from due.gp import InducingGP, Softmax
from due.lipschitz import constrain
from due.methods import DUE
from due.networks import FCResNet, ReversibleConvNet, ReversibleNet


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def stretched(network, by=1.5):
    """The network with larger weights: nothing here may rest on small branches."""
    with torch.no_grad():
        for seed, parameter in enumerate(network.parameters()):
            parameter.copy_(by * normal(*parameter.shape, seed=seed) / parameter[0].numel() ** 0.5)
    return network.eval()


def n_weights(network):
    return sum(p.numel() for p in network.parameters() if p.ndim > 1)


@pytest.mark.parametrize(("D", "J"), [(2, 8), (3, 7), (5, 8), (6, 6), (1, 2)])
@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_inverse_returns_the_input(D, J, activation):
    network, x = ReversibleNet(D, J, depth=3, activation=activation).eval(), 3 * normal(20, D)
    assert network(x).shape == (20, J)
    assert_allclose(network.inverse(network(x)).detach(), x, atol=1e-5)


@pytest.mark.parametrize("J", [2, 5, 8])
def test_determinant_of_the_jacobian_is_one(J):
    network = stretched(ReversibleNet(J, J, depth=3, activation="elu")).double()
    x = normal(J, dtype=torch.float64)
    jacobian = jacrev(network)(x)
    sign, log_det = np.linalg.slogdet(jacobian.detach().numpy())
    assert abs(jacobian.detach() - torch.eye(J)).max() > 0.1
    assert_allclose([sign, log_det], [1, 0], atol=1e-9)


def test_padding_is_the_only_difference_between_widths_of_input():
    narrow, whole = ReversibleNet(3, 8, depth=2), ReversibleNet(8, 8, depth=2)
    whole.load_state_dict(narrow.state_dict())
    x = normal(5, 3)
    padded = torch.cat([x, torch.zeros(5, 5)], 1)
    assert torch.equal(narrow(x), whole(padded))


def test_has_the_weights_of_an_fc_resnet():
    D, J, depth = 3, 16, 4
    without_first = n_weights(FCResNet(D, J, depth)) - D * J
    assert n_weights(ReversibleNet(D, J, depth)) == without_first


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 4, 12)])
def test_images_come_back(shape):
    network, x = stretched(ReversibleConvNet(shape, stages=2), 1.0), normal(4, *shape)
    h = network(x)
    assert h.shape == (4, network.out_features)
    assert_allclose(network.inverse(h).detach(), x, atol=1e-5)


def test_determinant_for_images_is_one_in_absolute_value():
    network = stretched(ReversibleConvNet((2, 4, 4), channels=2, stages=2, depth=1)).double()
    x = normal(2, 4, 4, dtype=torch.float64)
    jacobian = jacrev(lambda x: network(x[None])[0])(x).flatten(1)  # (32, 32)
    _, log_det = np.linalg.slogdet(jacobian.detach().numpy())  # the sign is the squeezes'
    assert_allclose(log_det, 0, atol=1e-9)


def test_constrained_couplings_bound_the_distances_both_ways():
    """A branch has Lip ≤ c², so a coupling and its inverse have Lip ≤ (1 + c²)²."""
    c, depth, x = 0.9, 2, normal(30, 3)
    network = constrain(ReversibleNet(3, 8, depth), c, x).eval()
    before, after = torch.pdist(x), torch.pdist(network(x))
    bound = (1 + c**2) ** (2 * depth)
    assert (after <= bound * before).all() and (after >= before / bound).all()


def test_too_few_features_are_refused():
    with pytest.raises(ValueError, match="J=4 features cannot hold D=5"):
        ReversibleNet(5, 4)
    with pytest.raises(ValueError, match="channels=2"):
        ReversibleConvNet((3, 4, 4), channels=2)
    with pytest.raises(ValueError, match="6 × 6 cannot be halved 2 times"):
        ReversibleConvNet((1, 6, 6), stages=2)


@pytest.mark.parametrize(
    ("network", "x"),
    [
        (ReversibleNet(3, 8, depth=2, activation="elu", dropout=0.1), normal(12, 3)),
        (ReversibleConvNet((1, 4, 4), channels=2, stages=1, depth=1), normal(12, 1, 4, 4)),
    ],
)
def test_saves_within_a_model(network, x, tmp_path):
    json.dumps(network.config)
    constrain(network.eval(), 0.9, x)
    gp = InducingGP(network(x)[:4].detach().double(), 3)
    model = DUE(network, gp, Softmax(3), n_data=12).eval()
    due.save(model, tmp_path)
    other = due.load(tmp_path)
    assert type(other.f) is type(network)
    got, want = other.predict(x), model.predict(x)
    assert isinstance(got, torch.Tensor) and isinstance(want, torch.Tensor)
    assert torch.equal(got, want)


def test_extracts_features_for_due(tmp_path):
    X, y = make_moons(200, noise=0.1, random_state=0)

    def extractor(shape):
        return ReversibleNet(shape[0], 16, depth=3)

    model = DUEClassifier(extractor, c=None, n_inducing=8, epochs=20, lr=5e-3, random_state=0)
    model.fit(X, y)
    assert model.score(X, y) > 0.95
    assert model.uncertainty([[20.0, 20.0]])[0] > model.uncertainty(X).mean()
    x = torch.as_tensor(X, dtype=torch.float32)
    f = model.model_.f
    assert_allclose(f.inverse(f(x)).detach(), x, atol=1e-5)
    model.save(tmp_path)
    assert_allclose(
        DUEClassifier.load(tmp_path, extractor).predict_proba(X), model.predict_proba(X)
    )
