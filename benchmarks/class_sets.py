"""Classification data for the benchmarks: bundled with scikit-learn, synthetic, 14 × 14 images."""

import gzip
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.model_selection import train_test_split

from due.data.download import find


class Split(NamedTuple):
    """Rows to learn from, and new ones."""

    X: NDArray[Any]
    y: NDArray[Any]
    X_new: NDArray[Any]
    y_new: NDArray[Any]


def blobs(T: int, D: int, std: float, n: int) -> Callable[[int], Split]:
    """T overlapping clouds in D dimensions, n rows to learn from and 4,000 new ones."""

    def make(seed: int) -> Split:
        X, y = datasets.make_blobs(
            n + 4000, D, centers=T, center_box=(-4, 4), cluster_std=std, random_state=seed
        )
        return Split(X[:n], y[:n], X[n:], y[n:])

    return make


def columns(seed: int) -> Split:
    X, y = datasets.make_classification(
        6000, 200, n_informative=4, n_redundant=0, n_clusters_per_class=2, random_state=seed
    )
    return Split(X[:1000], y[:1000], X[1000:], y[1000:])


def rings(seed: int) -> Split:
    X, y = datasets.make_gaussian_quantiles(
        n_samples=4000, n_features=4, n_classes=4, random_state=seed
    )
    return Split(X[:1000], y[:1000], X[1000:], y[1000:])


def moons(noise: float, n: int) -> Callable[[int], Split]:
    def make(seed: int) -> Split:
        X, y = datasets.make_moons(n + 2000, noise=noise, random_state=seed)
        return Split(X[:n], y[:n], X[n:], y[n:])

    return make


def bundled(load: Callable[..., Any]) -> Callable[[int], Split]:
    def make(seed: int) -> Split:
        X, y = load(return_X_y=True)
        a, b, c, d = train_test_split(X, y, test_size=0.4, random_state=seed, stratify=y)
        return Split(a, c, b, d)

    return make


def clothes(seed: int) -> Split:
    """Fashion-MNIST at 14 × 14, 2,000 images to learn from."""
    parts = []
    for name, header in (("images-idx3", 16), ("labels-idx1", 8)):
        path = find(f"fashion-mnist/train-{name}-ubyte.gz")
        assert path is not None
        parts.append(np.frombuffer(gzip.decompress(path.read_bytes())[header:], np.uint8))
    X = parts[0].reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196)
    rows = np.random.default_rng(seed).permutation(len(X))[:6000]
    X, y = X[rows], parts[1][rows]
    return Split(X[:2000], y[:2000], X[2000:], y[2000:])


SETS: dict[str, Callable[[int], Split]] = {
    "iris": bundled(datasets.load_iris),
    "wine": bundled(datasets.load_wine),
    "cancer": bundled(datasets.load_breast_cancer),
    "digits": bundled(datasets.load_digits),
    "moons": moons(0.1, 1000),
    "noisy moons": moons(0.3, 500),
    "rings": rings,
    "26 blobs": blobs(26, 5, 1.25, 2000),
    "200 columns": columns,
    "clothes 14 × 14": clothes,
}
MANY: dict[str, Callable[[int], Split]] = {
    "100 classes": blobs(100, 10, 1.5, 5000),
    "1,000 classes": blobs(1000, 10, 1.5, 10_000),
}


def has_clothes() -> bool:
    """Whether Fashion-MNIST is under `DUE_DATA`."""
    return find("fashion-mnist/train-images-idx3-ubyte.gz") is not None
