import numpy as np
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.datasets import make_moons

from due.data import toy


def test_moons_are_those_of_scikit_learn():
    X, y = toy.two_moons(50, noise=0.2, seed=3)
    want_X, want_y = make_moons(50, noise=0.2, random_state=3)
    assert_array_equal(X, want_X)
    assert_array_equal(y, want_y)


def test_blobs_have_the_stated_centres_and_spread():
    blobs = toy.two_blobs(20_000)
    for label, centre in enumerate(toy.BLOBS):
        points = blobs.X[blobs.y == label]
        assert_allclose(points.mean(0), centre, atol=0.02)
        assert_allclose(np.cov(points.T), toy.BLOB_STD**2 * np.eye(2), atol=0.02)


def test_log_density_is_that_of_the_mixture_and_finite_far_away():
    blobs = toy.two_blobs(10, n_grid=9)
    cov = toy.BLOB_STD**2 * np.eye(2)
    density = sum(0.5 * multivariate_normal(centre, cov).pdf(blobs.grid) for centre in toy.BLOBS)
    assert_allclose(np.exp(blobs.log_density), density)
    assert blobs.grid.shape == (81, 2)
    assert np.isfinite(toy.blob_log_density(np.full((1, 2), 1e3))).all()


def test_the_star_is_unrelated_to_the_data_but_shares_a_coordinate_with_a_class():
    blobs = toy.two_blobs(5000)
    distance = np.linalg.norm(blobs.X - blobs.star, axis=1).min()
    assert distance > 2 * toy.BLOB_STD
    assert blobs.star[0] == toy.BLOBS[1, 0]


def test_cosines_follow_their_formula():
    X, y, f = toy.random_cosines(2000, noise=0.1, seed=5, function_seed=7)
    rng = np.random.default_rng(7)
    W, b = rng.normal(size=30), rng.uniform(0, 2 * np.pi, size=30)
    assert_allclose(f, np.cos(X * W + b).sum(1))
    assert_allclose((y - f).std(), 0.1, rtol=0.05)
    assert np.all((np.abs(X) >= 3) & (np.abs(X) <= 7))
    assert_allclose(np.mean(X > 0), 0.5, atol=0.05)
    clipped = np.isin(np.abs(X), [3, 7]).mean()
    assert_allclose(clipped, 0.0455, atol=0.02)  # P(|ε| > 2)


def test_sizes_and_data_seeds_share_the_function():
    small, large, other = (
        toy.random_cosines(100),
        toy.random_cosines(5000),
        toy.random_cosines(100, seed=1),
    )
    assert_array_equal(small.X, large.X[:100])
    assert_array_equal(small.f, large.f[:100])
    assert not np.array_equal(small.X, other.X)
    assert_array_equal(other.f, toy.cosine_sum(other.X[:, 0]))
    assert not np.allclose(other.f, toy.cosine_sum(other.X[:, 0], function_seed=1))


def test_noise_moves_outcomes_only():
    quiet, loud = toy.random_cosines(50, noise=0.0), toy.random_cosines(50, noise=1.0)
    assert_array_equal(quiet.y, quiet.f)
    assert_array_equal(quiet.X, loud.X)
    assert_array_equal(quiet.f, loud.f)
