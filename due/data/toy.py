"""Toy data of the paper: random cosines (Figs. 1, 7), two blobs (Fig. 2), two moons (Fig. 3)."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from scipy.special import logsumexp
from sklearn.datasets import make_moons

BLOBS = np.array([[-2.0, 0.0], [2.0, 0.0]])  # centres, one class each
BLOB_STD = 0.5
STAR = np.array([2.0, 3.0])
X_RANGE, Y_RANGE = (-2.5, 3.5), (-3.0, 3.0)  # of the plane around the moons


class Moons(NamedTuple):
    """Points of two interleaved half circles and the half circle of each."""

    X: Float[ndarray, "N 2"]
    y: Int[ndarray, "N"]


class Blobs(NamedTuple):
    """Two Gaussian classes, and unrelated points of the plane with their log-density."""

    X: Float[ndarray, "N 2"]
    y: Int[ndarray, "N"]
    grid: Float[ndarray, "G 2"]
    log_density: Float[ndarray, "G"]
    star: Float[ndarray, "2"]


class Cosines(NamedTuple):
    """Inputs, noisy outcomes and the noiseless target f of each input."""

    X: Float[ndarray, "N 1"]
    y: Float[ndarray, "N"]
    f: Float[ndarray, "N"]


def two_moons(n: int = 1500, *, noise: float = 0.1, seed: int = 0) -> Moons:
    """scikit-learn's moons with Gaussian noise of standard deviation `noise`.

    >>> two_moons(4, noise=0.0).X.round(2).tolist()
    [[0.0, 0.5], [2.0, 0.5], [-1.0, 0.0], [1.0, 0.0]]
    """
    return Moons(*make_moons(n, noise=noise, random_state=seed))


def grid_points(n: int) -> Float[ndarray, "G 2"]:
    """n² points on `X_RANGE` × `Y_RANGE`, x fastest."""
    x, y = np.meshgrid(np.linspace(*X_RANGE, n), np.linspace(*Y_RANGE, n))
    return np.column_stack([x.ravel(), y.ravel()])


def two_blobs(n: int = 1000, *, n_grid: int = 40, seed: int = 0) -> Blobs:
    """Class y ~ U{0, 1}, x ~ N(±2 e₁, ½² I); n_grid² points on [−4, 4]² with log p(x); a star.

    The star (2, 3) is six standard deviations from class 1 along e₂, which tells nothing of the
    class: features that drop e₂ put the star on that class, features that keep distances do not.

    >>> two_blobs(10).star.tolist()
    [2.0, 3.0]
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    X = BLOBS[y] + BLOB_STD * rng.normal(size=(n, 2))
    axis = np.linspace(-4, 4, n_grid)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    return Blobs(X, y, grid, blob_log_density(grid), STAR.copy())


def blob_log_density(x: Float[ndarray, "N 2"]) -> Float[ndarray, "N"]:
    """Log-density log ½ Σ_k N(x; c_k, ½² I) of the distribution behind `two_blobs`."""
    squared = ((x[:, None] - BLOBS) ** 2).sum(-1)  # (N, 2)
    log_normal = -squared / (2 * BLOB_STD**2) - np.log(2 * np.pi * BLOB_STD**2)
    return np.asarray(logsumexp(log_normal, axis=1) - np.log(2))


def random_cosines(
    n: int = 1000, *, noise: float = 0.1, seed: int = 0, function_seed: int = 0
) -> Cosines:
    """Here x = 5 sign(ε₁) + clip(ε₂, −2, 2), y = f(x) + noise · ε₃, f = `cosine_sum`, ε ~ N(0, 1).

    The function depends on `function_seed` alone, so any n and `seed` share it; for one `seed`, a
    smaller set is the head of a larger one.

    >>> small, large = random_cosines(3), random_cosines(1000)
    >>> bool((small.y == large.y[:3]).all())
    True
    """
    sign, offset, error = np.random.default_rng(seed).normal(size=(n, 3)).T
    x = 5 * np.sign(sign) + offset.clip(-2, 2)
    f = cosine_sum(x, function_seed=function_seed)
    return Cosines(x[:, None], f + noise * error, f)


def cosine_sum(x: Float[ndarray, "N"], *, function_seed: int = 0) -> Float[ndarray, "N"]:
    """f(x) = Σ_k cos(W_k x + b_k), k = 1…30, W ~ N(0, 1), b ~ U(0, 2π) drawn by `function_seed`."""
    rng = np.random.default_rng(function_seed)
    W, b = rng.normal(size=30), rng.uniform(0, 2 * np.pi, size=30)
    f = np.zeros_like(x)
    for w, shift in zip(W, b, strict=True):  # a million x would make an (N, 30) array large
        f += np.cos(w * x + shift)
    return f
