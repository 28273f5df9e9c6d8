"""Columns of integers that act on y like codes of categories, not like amounts."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f as f_distribution

from due.rows.scale import Floats, share_a_unit

FEWEST, MOST = 6, 50  # distinct values; a smooth function has no trouble with fewer
PER_VALUE = 5  # rows; what is rarer tells nothing
RARE = 20  # rows of a class, and of a value if y is classes: in few rows one is an outlier
LEVEL = 1e-4  # of the test, for all columns together
ENOUGH = 10_000  # rows
CLASSES = 20  # the most frequent ones tell
FAR = 5  # median distances from the middle, beyond which a row of an amount is an outlier


def warn_of_codes(estimator: Any, X: Floats, y: NDArray[Any], stacklevel: int = 3) -> None:
    """Say which columns of a table look like codes; y is (N, T)."""
    columns = suspects(X, y)
    if not columns:
        return
    names = getattr(estimator, "feature_names_in_", None)
    shown = columns if names is None else [str(names[column]) for column in columns]
    warnings.warn(
        f"columns {shown} hold integers that act on y like codes of categories, not like amounts: "
        "encode them, for example by scikit-learn's OneHotEncoder",
        stacklevel=stacklevel,
    )


def suspects(X: Floats, y: NDArray[Any]) -> list[int]:
    """Columns that look like codes, judged on enough rows; pixels have none."""
    if X.ndim != 2 or share_a_unit(X):
        return []
    some = np.random.default_rng(0).permutation(len(X))[:ENOUGH]
    return codes(X[some], y[some].astype(np.float64))


def indicators(label: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether a row has each of the most frequent classes."""
    frequent = np.bincount(label).argsort(kind="stable")[::-1][:CLASSES]
    return label[:, None] == frequent


def codes(X: Floats, y: Floats) -> list[int]:
    """Columns whose values differ in their mean of y by more than a smooth function explains.

    An F-test of the means against a cubic, per output, on columns of few distinct integers: once a
    cubic of the value and once of its rank, and both must object. Outliers are pulled in before.
    """
    classes = all(len(np.unique(part)) <= 2 for part in y.T)
    if classes:
        higher = (y > y.min(0)).sum(0)
        y = y[:, np.minimum(higher, len(y) - higher) >= RARE]
    tests = X.shape[1] * y.shape[1]
    return [
        column
        for column in range(X.shape[1])
        if tests and _p_value(X[:, column], y, classes) < LEVEL / tests
    ]


def _p_value(x: Floats, y: Floats, classes: bool) -> float:
    """The smallest of all outputs; 1 for a column that cannot be codes."""
    values, group, count = np.unique(x, return_inverse=True, return_counts=True)
    if not FEWEST <= len(values) <= MOST or (values % 1).any():
        return 1.0
    known = (count >= (RARE if classes else PER_VALUE))[group]
    values, group = np.unique(x[known], return_inverse=True)
    if len(values) < FEWEST:
        return 1.0
    forms = values, np.arange(len(values), dtype=float)
    return max(_beyond_a_cubic(form, group, y[known], classes) for form in forms)


def _beyond_a_cubic(value: Floats, group: NDArray[np.intp], y: Floats, classes: bool) -> float:
    """The F-test's p-value of means by group, where rows of group i have the value i."""
    k, count = len(value), np.bincount(group)
    power = np.vander((value - value.mean()) / value.std(), 4)[group]
    rest = _without(power, y)
    if not classes:
        middle = np.median(rest, 0)
        reach = FAR * np.median(np.abs(rest - middle), 0)
        rest = _without(power, np.clip(rest, middle - reach, middle + reach))
    means = np.stack([np.bincount(group, weights=part) / count for part in rest.T], 1)  # (k, T)
    between = (count[:, None] * means**2).sum(0) / (k - 4)
    within = ((rest - means[group]) ** 2).sum(0) / (len(y) - k)
    ratio = between / np.maximum(within, 1e-12 * (y**2).mean(0) + 1e-300)  # beyond rounding
    return float(f_distribution.sf(ratio, k - 4, len(y) - k).min())


def _without(power: Floats, y: Floats) -> Floats:
    """What a least-squares fit leaves."""
    return y - power @ np.linalg.lstsq(power, y, rcond=None)[0]
