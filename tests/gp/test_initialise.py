import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.spatial.distance import pdist
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from torch import nn

from due.gp import InducingGP, Kernel, Softmax, features, initialise, warm_start
from due.gp.initialise import nearest_rows, spread_rows

from .oracles import normal


def blobs(T=4, n=400, seed=0):
    X, y = make_blobs(n, 6, centers=T, cluster_std=0.7, random_state=seed)
    return torch.from_numpy(X), torch.from_numpy(y)


def classifier(h, y, M=20):
    Z, lengthscale = initialise(h, M)
    gp = InducingGP(Z, int(y.max()) + 1, lengthscale)
    warm_start(gp, h, y)
    return gp


# features


def test_features_are_those_of_the_rows_it_names():
    f, X = nn.Linear(5, 3), normal(700, 5).float()
    h, rows = features(f, X, p=600)
    assert len(rows) == 600 == len(set(rows.tolist()))
    assert_allclose(h.numpy(), f(X[rows]).detach().numpy(), atol=1e-6)
    assert not h.requires_grad


def test_all_rows_if_there_are_fewer():
    h, rows = features(nn.Identity(), normal(9, 2), p=1000)
    assert sorted(rows.tolist()) == list(range(9)) and len(h) == 9


def test_features_are_computed_in_eval_mode_which_then_ends():
    f, X = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(5)), normal(50, 5).float()
    h, rows = features(f.train(), X)
    assert f.training and f[1].num_batches_tracked == 0
    assert_allclose(h.numpy(), f.eval()(X[rows]).detach().numpy(), atol=1e-6)
    features(f.eval(), X)
    assert not f.training


def test_seeds_decide_and_the_global_random_state_is_left_alone():
    X = normal(50, 3)
    torch_state = torch.get_rng_state()
    numpy_state = np.random.get_state(legacy=False)["state"]["key"].copy()
    h, rows = features(nn.Identity(), X, p=20, seed=3)
    Z, lengthscale = initialise(h, 4, seed=3)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert (numpy_state == np.random.get_state(legacy=False)["state"]["key"]).all()

    assert torch.equal(rows, features(nn.Identity(), X, p=20, seed=3)[1])
    assert not torch.equal(rows, features(nn.Identity(), X, p=20, seed=4)[1])
    again, length_again = initialise(h, 4, seed=3)
    assert torch.equal(Z, again) and lengthscale == length_again


# initialise


def test_centroids_and_length_scale_equal_scikit_learn_and_scipy():
    h = normal(200, 4)
    Z, lengthscale = initialise(h.float(), 7, seed=1)
    points = h.float().double().numpy()
    want = KMeans(7, n_init=1, random_state=1).fit(points).cluster_centers_
    assert_allclose(Z.numpy(), want, atol=1e-12)
    assert_allclose(lengthscale, pdist(points).mean(), rtol=1e-12)


def test_centroids_of_separated_blobs_are_their_means():
    X, y = blobs()
    Z, _ = initialise(X, 4)
    means = torch.stack([X[y == c].mean(0) for c in range(4)])
    nearest = torch.cdist(means, Z).min(1)
    assert nearest.values.max() < 1e-9 and len(nearest.indices.unique()) == 4


@pytest.mark.parametrize("p", [1, 3, 6])
def test_fewer_points_than_inducing_points_are_repeated(p):
    h = normal(p, 2)
    Z, lengthscale = initialise(h, 6)
    assert Z.shape == (6, 2) and lengthscale > 0
    assert torch.equal(Z[:p], h)
    assert torch.isfinite(InducingGP(Z, 2, lengthscale)(h)[1]).all()


def test_features_without_spread_give_length_scale_one():
    Z, lengthscale = initialise(torch.ones(30, 2), 4)
    assert lengthscale == 1.0 and torch.equal(Z, torch.ones(4, 2).double())


def test_bfloat16_features():
    h = normal(50, 3).bfloat16()
    Z, lengthscale = initialise(h, 5)
    assert Z.dtype == torch.float64
    assert_allclose(lengthscale, pdist(h.double().numpy()).mean())


# warm_start


@pytest.mark.parametrize("T", [2, 4, 10])
def test_warm_start_classifies_separable_blobs_without_training(T):
    X, y = blobs(T)
    gp = classifier(X[:200], y[:200])
    p = Softmax(T).predictive(*gp(X[200:]))
    assert (p.argmax(1) == y[200:]).double().mean() > 0.97
    assert p.gather(1, y[200:, None]).mean() > 0.8


def test_warm_start_is_regression_on_centred_one_hot_labels():
    X, y = blobs()
    mean, var = classifier(X, y, M=60)(X)
    target = 6 * (nn.functional.one_hot(y, 4).double() - 1 / 4)
    assert (mean - target).abs().mean() < 0.5
    assert (var < 0.1).all()


def test_without_a_warm_start_no_gradient_reaches_the_features():
    X, y = blobs()
    Z, lengthscale = initialise(X, 20)
    likelihood = Softmax(4).eval()

    def gradient(gp):
        h = X.clone().requires_grad_()
        mean, var = gp(h)
        loss = -likelihood.expected_log_prob(mean, var, y).mean()
        return torch.autograd.grad(loss, h)[0].abs().max().item()

    cold = InducingGP(Z, 4, lengthscale)  # m = 0, S = I: q is the prior everywhere
    assert gradient(cold) < 1e-12
    assert gradient(classifier(X, y)) > 1e-6


# Rows to be inducing points


def test_nearest_rows_are_each_taken_once_and_near():
    h = normal(200, 3)
    Z, _ = initialise(h, 20)
    rows = nearest_rows(h, Z)
    assert len(set(rows.tolist())) == 20
    distance = torch.cdist(Z, h)
    assert (distance[range(20), rows] <= distance.sort(1).values[:, 3]).all()
    assert torch.equal(nearest_rows(h, h[5:9]), torch.arange(5, 9))
    assert nearest_rows(h[:3], h[:5]).tolist() == [0, 1, 2, 0, 1]  # fewer rows than centres


def test_spread_rows_maximise_the_variance_that_is_left():
    """Against κ_ii − κ_iZ κ_ZZ⁻¹ κ_Zi, computed anew for each row that is added."""
    h, kernel = normal(40, 2), Kernel("matern32", 1, 1.3)
    rows = spread_rows(h, kernel, 8).tolist()
    K = kernel.correlation(torch.cdist(h, h).square())[0].detach().numpy()
    for m in range(1, 8):
        known = K[np.ix_(rows[:m], rows[:m])]
        cross = K[rows[:m]]
        left = 1 - (cross * np.linalg.solve(known, cross)).sum(0)
        assert_allclose(left[rows[m]], left.max(), atol=1e-9)
    same = torch.cat([h, h])
    assert len(set(spread_rows(same, kernel, 60).tolist())) == 60  # though half of them repeat
