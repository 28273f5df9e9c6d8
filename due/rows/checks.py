"""What is refused at the boundary, with the value and the remedy."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from due.rows.scale import Floats

LARGEST = 1e140  # of a target
WEIGHTS = 1e-6, 1e9
SMALLEST_SHARE = 1e-12  # of the largest weight, below which a row has no influence
NUMBER = int | float | np.number
Rule = Callable[[str, Any], None]  # (name, value); raises


def argument(default: Any, rule: Rule, kw_only: bool = True) -> Any:
    """An argument of an estimator, with the rule to which `fit` holds it."""
    return field(default=default, kw_only=kw_only, metadata={"rule": rule})


def check_arguments(estimator: Any) -> None:
    """Raise at the first argument that breaks its rule, before any work is done."""
    for each in fields(estimator) if is_dataclass(estimator) else ():
        if "rule" in each.metadata:
            each.metadata["rule"](each.name, getattr(estimator, each.name))


def or_none(rule: Rule) -> Rule:
    """The rule, but None is allowed."""
    return lambda name, value: None if value is None else rule(name, value)


def one_of(known: Iterable[str]) -> Rule:
    """One of some words."""
    words = tuple(known)
    return _rule(lambda value: value in words, f"one of {', '.join(words)}")


def at_least(least: int) -> Rule:
    """A whole number that is not too small."""
    wanted = f"a whole number of at least {least}"
    return _rule(lambda value: _is_whole(value) and value >= least, wanted)


def _rule(holds: Callable[[Any], bool], wanted: str) -> Rule:
    def check(name: str, value: Any) -> None:
        if not holds(value):
            raise ValueError(f"{name}={value!r} is not {wanted}")

    return check


def _number(holds: Callable[[Any], bool], wanted: str) -> Rule:
    return _rule(lambda value: isinstance(value, NUMBER) and holds(value), wanted)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


check_whole = at_least(1)
check_positive = _number(lambda value: 0 < value < math.inf, "a number above 0")
check_not_negative = _number(lambda value: 0 <= value < math.inf, "a number of at least 0")
check_fraction = _number(lambda value: 0 <= value < 1, "in [0, 1); 0.2 takes a fifth, 0 nothing")


check_flag = _rule(lambda value: isinstance(value, bool | np.bool_), "True or False")


def check_device(name: str, value: Any) -> None:
    """A device that this machine has."""
    try:
        torch.empty(0, device=value)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(
            f"{name}={value!r} cannot be used on this machine ({reason}); give {name}='cpu', or a "
            "device that torch finds"
        ) from error


def check_share(name: str, value: Any) -> None:
    """A share, but neither nothing nor all."""
    check_fraction(name, value)
    check_positive(name, value)


def is_number(value: Any) -> bool:
    """Whether `float` takes it."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def check_columns(X: Any) -> None:
    """No column of a DataFrame holds words; scikit-learn would not say which one does."""
    if not hasattr(X, "dtypes") or not hasattr(X, "iloc"):
        return
    for name, column in X.items():
        kind = getattr(column.dtype, "kind", "O")
        if kind in "biufc":
            continue
        if kind in "mM":
            raise ValueError(
                f"column {name!r} of X holds dates or times ({column.iloc[0]}); turn it into "
                f"numbers, such as (X[{name!r}] - X[{name!r}].min()).dt.days"
            )
        words = [value for value in column.dropna() if not is_number(value)]
        if words and isinstance(words[0], list | tuple | dict | set | np.ndarray):
            raise ValueError(
                f"column {name!r} of X holds {words[0]!r}, a {type(words[0]).__name__}; a cell is "
                "one number: make it several columns"
            )
        if words:
            raise ValueError(
                f"could not convert string to float: column {name!r} of X holds {words[0]!r}; "
                "encode it, by pandas.get_dummies or scikit-learn's OneHotEncoder"
            )


def _check_weight(sample_weight: ArrayLike | None, X: Floats) -> Floats | None:
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
    low, high = WEIGHTS
    if not low <= weight.max() <= high:
        raise ValueError(
            f"sample_weight is at most {weight.max():g}: a weight counts how often a row is "
            f"repeated, so give weights between {low:g} and {high:g}, for example divided by "
            "their mean"
        )
    return np.where(weight < SMALLEST_SHARE * weight.max(), 0.0, weight)


def check_size(name: str, y: NDArray[Any]) -> None:
    """Values whose squares, which variances are, neither overflow nor vanish."""
    largest, spread = float(np.abs(y).max()), float(np.ptp(y, axis=0).max())
    if largest > LARGEST or 0 < spread < 1 / LARGEST:
        which = f"values up to {largest:g}" if largest > LARGEST else f"a range of {spread:g}"
        raise ValueError(
            f"{name} has {which}, whose squares no number holds; give it in another unit, such "
            f"that it lies between {1 / LARGEST:g} and {LARGEST:g}"
        )


def check_training(
    estimator: Any, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, **of_y: bool
) -> tuple[NDArray[Any], NDArray[Any], Floats | None, bool]:
    """X, y and weights as arrays, and whether `fit` starts anew; if not, rows are as they were."""
    anew = not (getattr(estimator, "warm_start", False) and estimator.__sklearn_is_fitted__())
    check_arguments(estimator)
    check_columns(X)
    rows, target = validate_data(
        estimator, X, y, dtype=DTYPES, allow_nd=True, ensure_min_samples=2, reset=anew, **of_y
    )
    if anew:
        estimator.pixels_ = holds_pixels(rows)
    else:
        _check_shape(estimator, rows)
    return rows, target, _check_weight(sample_weight, rows), anew


def check_classes(classes: NDArray[Any], before: NDArray[Any] | None) -> None:
    """At least two classes, and those of the last fit if this one goes on."""
    if len(classes) < 2:
        raise ValueError(
            f"y has one class only, {classes.tolist()[0]!r}; a classifier needs rows of two classes"
        )
    if before is not None and not np.array_equal(classes, before):
        raise ValueError(
            f"y has the classes {classes.tolist()}, the last fit had {before.tolist()}; "
            "warm_start goes on with the same ones, warm_start=False starts anew"
        )


def check_rows(estimator: Any, X: ArrayLike) -> NDArray[Any]:
    """Rows to predict, of the shape of those in `fit`."""
    check_is_fitted(estimator)
    check_columns(X)
    if len(getattr(estimator, "row_shape_", ())) > 1:  # validate_data would count channels only
        _check_shape(estimator, np.asarray(X))
    rows: NDArray[Any] = validate_data(estimator, X, dtype=DTYPES, allow_nd=True, reset=False)
    _check_shape(estimator, rows)
    return rows


def at_once(shape: Sequence[int]) -> int:
    """How many rows of this shape go through a network at once; images need more memory."""
    return ROWS if len(shape) < 2 else FEW_ROWS


ROWS, FEW_ROWS = 2048, 256  # vectors and images
DTYPES = [np.float64, np.float32, np.uint8]  # others become float64


def holds_pixels(rows: NDArray[Any]) -> bool:
    """Whether rows are images of uint8, 0 … 255."""
    return rows.ndim > 2 and rows.dtype == np.uint8


def _check_units(estimator: Any, rows: NDArray[Any]) -> None:
    """Images have the units of those in `fit`: pixels 0 … 255, or what they were divided by."""
    fitted, now = getattr(estimator, "pixels_", None), holds_pixels(rows)
    if fitted is None or rows.ndim < 3 or fitted == now:
        return
    if now:
        raise ValueError(
            f"images are uint8, 0 … 255, but {type(estimator).__name__} was fitted on images of "
            "floating-point values: prepare them as for fit, such as by X / 255"
        )
    if rows.max() <= 1 and (rows % 1).any():
        raise ValueError(
            f"images lie between {rows.min():.3g} and {rows.max():.3g}, but "
            f"{type(estimator).__name__} was fitted on uint8 images, 0 … 255: give them as they are"
        )


def _check_shape(estimator: Any, rows: NDArray[Any]) -> None:
    if rows.shape[1:] != estimator.row_shape_:
        raise ValueError(
            f"rows of X have shape {rows.shape[1:]}, but {type(estimator).__name__} was fitted on "
            f"rows of shape {estimator.row_shape_}"
        )
    _check_units(estimator, rows)
