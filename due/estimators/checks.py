"""What is refused at the boundary, with the value and the remedy."""

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from due.estimators.rows import Floats

NUMBER = int | float | np.number


def check_whole(name: str, value: Any) -> None:
    """A whole number of at least 1."""
    if not (isinstance(value, int | np.integer) and value >= 1):
        raise ValueError(f"{name}={value!r} is not a whole number of at least 1")


def check_positive(name: str, value: Any) -> None:
    """A finite number above 0."""
    if not (isinstance(value, NUMBER) and 0 < value < math.inf):
        raise ValueError(f"{name}={value!r} is not a number above 0")


def check_not_negative(name: str, value: Any) -> None:
    """A finite number of at least 0."""
    if not (isinstance(value, NUMBER) and 0 <= value < math.inf):
        raise ValueError(f"{name}={value!r} is not a number of at least 0")


def check_fraction(name: str, value: Any) -> None:
    """A share, but not all."""
    if not (isinstance(value, NUMBER) and 0 <= value < 1):
        raise ValueError(f"{name}={value!r} is not in [0, 1); 0.2 takes a fifth, 0 nothing")


def is_number(value: Any) -> bool:
    """Whether `float` takes it."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def check_columns(X: Any) -> None:
    """No column of a DataFrame holds words; scikit-learn would not say which one does."""
    if not isinstance(X, pd.DataFrame):
        return
    for name, column in X.items():
        if pd.api.types.is_numeric_dtype(column):
            continue
        words = [value for value in column.dropna().unique() if not is_number(value)]
        if words:
            raise ValueError(
                f"could not convert string to float: column {name!r} of X holds {words[0]!r}; "
                "encode it, by pandas.get_dummies or scikit-learn's OneHotEncoder"
            )


def check_weight(sample_weight: ArrayLike | None, X: Floats) -> Floats | None:
    """Finite weights, none negative and not all zero."""
    if sample_weight is None:
        return None
    weight: Floats = _check_sample_weight(sample_weight, X, dtype=np.float64)
    if weight.min() < 0:
        raise ValueError(
            f"Negative values in sample_weight, such as {weight.min():g}: a weight counts how "
            "often a row is repeated"
        )
    if not weight.any():
        raise ValueError("sample_weight is zero everywhere: no row is left to learn from")
    return weight


def check_features(h: Tensor, n: int) -> None:
    """One feature vector for each of n rows."""
    if h.ndim != 2 or len(h) != n:
        raise ValueError(
            f"the extractor gives features of shape {tuple(h.shape)} for {n} rows; "
            "it must return one vector for each row, shape (N, J)"
        )
