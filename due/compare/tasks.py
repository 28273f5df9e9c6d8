"""Data sets to compare methods on: rows to learn from, rows like them, and rows far from them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree
from sklearn import datasets
from sklearn.model_selection import train_test_split

from due.data import toy, uci
from due.rows.scale import Floats

FAR = 2.0  # from any training point
MOVED = 3.0  # standard deviations of each column


class Task(NamedTuple):
    """Rows to learn from, rows like them, and rows unlike them. Labels are 0 … T − 1."""

    X: Floats
    y: NDArray[Any]
    X_test: Floats
    y_test: NDArray[Any]
    X_far: Floats


@dataclass(frozen=True)
class DataSet:
    """`load` makes the task of a seed; `far` describes its far rows."""

    classes: bool
    far: str
    load: Callable[[int], Task]


def digits(seed: int) -> Task:
    """Digits 0 to 4, of which 30 % are test rows; 5 to 9 are far."""
    X, y = datasets.load_digits(return_X_y=True)
    return _split(X[y < 5], y[y < 5], X[y >= 5], seed)


def wine(seed: int) -> Task:
    """Two cultivars, of which 30 % are test rows; the third is far."""
    X, y = datasets.load_wine(return_X_y=True)
    return _split(X[y < 2], y[y < 2], X[y == 2], seed)


def moons(seed: int) -> Task:
    """1,500 points, as many fresh ones, and the points of Figure 3's grid far from them."""
    X, y = toy.two_moons(1500, seed=seed)
    fresh = toy.two_moons(1500, seed=10_000 + seed)
    return Task(X, y, *fresh, _away(toy.grid_points(81), X))


def cosines(seed: int) -> Task:
    """1,000 rows of Figure 1, as many fresh ones, and points of [−15, 15] far from them."""
    rows, fresh = toy.random_cosines(seed=seed), toy.random_cosines(seed=10_000 + seed)
    grid = np.linspace(-15, 15, 1000)[:, None]
    return Task(rows.X, rows.y, fresh.X, fresh.y, _away(grid, rows.X))


def diabetes(seed: int) -> Task:
    """scikit-learn's table of 442 patients, of which 30 % are test rows; those moved are far."""
    X, y = datasets.load_diabetes(return_X_y=True)
    return _with_moved_rows(X, y, seed)


def breast_cancer(seed: int) -> Task:
    """scikit-learn's table of 569 patients, of which 30 % are test rows; those moved are far."""
    X, y = datasets.load_breast_cancer(return_X_y=True)
    return _with_moved_rows(X, y, seed)


def _uci(name: str) -> Callable[[int], Task]:
    def load(seed: int) -> Task:
        rows = uci.load(name, seed)
        return Task(*rows, _move(rows.X_test, rows.X_train, seed))

    return load


def _split(X: Floats, y: NDArray[Any], far: Floats, seed: int) -> Task:
    parts = train_test_split(X, y, test_size=0.3, random_state=seed, stratify=y)
    return Task(parts[0], parts[2], parts[1], parts[3], far)


def _with_moved_rows(X: Floats, y: NDArray[Any], seed: int) -> Task:
    train, test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=seed)
    return Task(train, y_train, test, y_test, _move(test, train, seed))


def _move(X: Floats, like: Floats, seed: int) -> Floats:
    """Each column of each row up or down by three standard deviations."""
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=X.shape)
    return X + MOVED * like.std(0) * signs


def _away(points: Floats, X: Floats) -> Floats:
    return points[KDTree(X).query(points)[0] > FAR]


ON_GRID = f"points more than {FAR:g} from any training row"
BY_MOVING = f"test rows with each column moved by {MOVED:g} standard deviations"
DATA = {
    "digits": DataSet(True, "digits 5 to 9, which no method has seen", digits),
    "moons": DataSet(True, ON_GRID, moons),
    "wine": DataSet(True, "a cultivar that no method has seen", wine),
    "breast-cancer": DataSet(True, BY_MOVING, breast_cancer),
    "diabetes": DataSet(False, BY_MOVING, diabetes),
    "cosines": DataSet(False, ON_GRID, cosines),
    **{name: DataSet(False, BY_MOVING, _uci(name)) for name in uci.NAMES},
}
