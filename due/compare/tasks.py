"""Data sets to compare methods on: rows to learn from, rows like them, and rows far from them."""

from collections.abc import Callable, Mapping
from functools import partial
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


class DataSet(NamedTuple):
    """`load` makes the task of a seed; `far` describes its far rows; `settings` identify it."""

    classes: bool
    far: str
    load: Callable[[int], Task]
    settings: Mapping[str, Any] = {}


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


def unseen(load: Callable[..., Any], known: int, seed: int) -> Task:
    """The first `known` classes of a table, of which 30 % are test rows; the others are far."""
    X, y = load(return_X_y=True)
    rows = y < known
    parts = train_test_split(X[rows], y[rows], test_size=0.3, random_state=seed, stratify=y[rows])
    return Task(parts[0], parts[2], parts[1], parts[3], X[~rows])


def moved(load: Callable[..., Any], seed: int) -> Task:
    """A table of scikit-learn, of which 30 % are test rows; those moved are far."""
    parts = train_test_split(*load(return_X_y=True), test_size=0.3, random_state=seed)
    return with_moved_rows(parts[0], parts[2], parts[1], parts[3], seed)


def of_uci(name: str, seed: int) -> Task:
    """The split of this number of a UCI set; its test rows moved are far."""
    return with_moved_rows(*uci.load(name, seed), seed)


def with_moved_rows(
    X: Floats, y: NDArray[Any], X_test: Floats, y_test: NDArray[Any], seed: int
) -> Task:
    """Each column of each test row up or down by three standard deviations."""
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=X_test.shape)
    return Task(X, y, X_test, y_test, X_test + MOVED * X.std(0) * signs)


def _away(points: Floats, X: Floats) -> Floats:
    return points[KDTree(X).query(points)[0] > FAR]


ON_GRID = f"points more than {FAR:g} from any training row"
BY_MOVING = f"test rows with each column moved by {MOVED:g} standard deviations"
DIGITS, WINE = "digits 5 to 9, which no method has seen", "a cultivar that no method has seen"
DATA = {
    "digits": DataSet(True, DIGITS, partial(unseen, datasets.load_digits, 5)),
    "moons": DataSet(True, ON_GRID, moons),
    "wine": DataSet(True, WINE, partial(unseen, datasets.load_wine, 2)),
    "breast-cancer": DataSet(True, BY_MOVING, partial(moved, datasets.load_breast_cancer)),
    "diabetes": DataSet(False, BY_MOVING, partial(moved, datasets.load_diabetes)),
    "cosines": DataSet(False, ON_GRID, cosines),
    **{name: DataSet(False, BY_MOVING, partial(of_uci, name)) for name in uci.NAMES},
}
