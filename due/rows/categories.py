"""Columns of integers that act on y like codes of categories, not like amounts."""

import warnings
from typing import Any

import numpy as np
from scipy.stats import f as f_distribution

from due.rows.scale import Floats

FEWEST, MOST = 6, 50  # distinct values; a smooth function has no trouble with fewer
PER_VALUE = 5  # rows
LEVEL = 1e-4  # of the test, for all columns together


def warn_of_codes(estimator: Any, X: Floats, y: Floats) -> None:
    """Say which columns of a table look like codes."""
    columns = codes(X, y) if X.ndim == 2 else []
    if not columns:
        return
    names = getattr(estimator, "feature_names_in_", None)
    shown = columns if names is None else [str(names[column]) for column in columns]
    warnings.warn(
        f"columns {shown} hold integers that act on y like codes of categories, not like amounts: "
        "encode them, for example by scikit-learn's OneHotEncoder",
        stacklevel=3,
    )


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
