"""Columns of integers that act on y like codes of categories, not like amounts."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f as f_distribution

from due.rows.scale import Floats, share_a_unit

FEWEST, MOST = 6, 50  # distinct values; a smooth function has no trouble with fewer
PER_VALUE = 5  # rows
LEVEL = 1e-4  # of the test, for all columns together
ENOUGH = 10_000  # rows
CLASSES = 20  # the most frequent ones tell


def warn_of_codes(estimator: Any, X: Floats, y: NDArray[Any]) -> None:
    """Say which columns of a table look like codes; y is (N, T)."""
    some = slice(0, None, -(-len(X) // ENOUGH))
    table = X.ndim == 2 and not share_a_unit(X)
    columns = codes(X[some], y[some].astype(np.float64)) if table else []
    if not columns:
        return
    names = getattr(estimator, "feature_names_in_", None)
    shown = columns if names is None else [str(names[column]) for column in columns]
    warnings.warn(
        f"columns {shown} hold integers that act on y like codes of categories, not like amounts: "
        "encode them, for example by scikit-learn's OneHotEncoder",
        stacklevel=3,
    )


def indicators(label: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether a row has each of the most frequent classes."""
    frequent = np.bincount(label).argsort(kind="stable")[::-1][:CLASSES]
    return label[:, None] == frequent


def codes(X: Floats, y: Floats) -> list[int]:
    """Columns whose values differ in their mean of y by more than a cubic of the value explains.

    An F-test of the means against the cubic, per output, on columns of few distinct integers.
    """
    found = []
    for column in range(X.shape[1]):
        values, group, count = np.unique(X[:, column], return_inverse=True, return_counts=True)
        k = len(values)
        if not FEWEST <= k <= MOST or len(X) < PER_VALUE * k or (values % 1).any():
            continue
        means = np.stack([np.bincount(group, weights=part) / count for part in y.T], 1)  # (k, T)
        power = np.vander((values - values.mean()) / values.std(), 4)
        root = np.sqrt(count)[:, None]
        fitted = power @ np.linalg.lstsq(root * power, root * means, rcond=None)[0]
        between = (count[:, None] * (means - fitted) ** 2).sum(0) / (k - 4)
        within = ((y - means[group]) ** 2).sum(0) / (len(y) - k)
        ratio = between / np.maximum(within, 1e-12 * (y**2).mean(0) + 1e-300)  # beyond rounding
        tail = f_distribution.sf(ratio, k - 4, len(y) - k)
        if tail.min() < LEVEL / (X.shape[1] * y.shape[1]):
            found.append(column)
    return found
