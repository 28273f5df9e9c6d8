"""What a configuration may say: a rule per field, checked before anything is built from it.

To save a new field, add it to the table of its part: `ESTIMATOR` for what an estimator learned
(`_memory`, `_learned`), `MODEL` and the tables in it for what a deep GP is made of (`describe`).
A field that not every folder has is `optional`. A field that no table has is refused, as is one
with a value that its rule forbids; the error has its name. Next to these, the folder itself may
have any other part, such as the encoders of a table: whoever adds it checks it.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from due.gp.kernels import KINDS
from due.gp.likelihoods import METHODS
from due.methods.due import BOUNDS, FINISHES, INDUCING, NOISE_KINDS, PLACEMENTS
from due.storage.atomic import StorageError

MOST = 10_000  # passes of MC dropout
Rule = Callable[[Any, str], None]  # (value, where); raises


def _refused(where: str, value: Any, wanted: str) -> StorageError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}…"
    return StorageError(f"its field {where} is {shown}, not {wanted}")


def _rule(holds: Callable[[Any], bool], wanted: str) -> Rule:
    def check(value: Any, where: str) -> None:
        if not holds(value):
            raise _refused(where, value, wanted)

    return check


def _is_number(value: Any) -> bool:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return known and abs(value) < 1e308 and math.isfinite(value)


def one_of(words: Iterable[str]) -> Rule:
    """One of some words."""
    known = tuple(words)
    return _rule(lambda v: isinstance(v, str) and v in known, f"one of {', '.join(known)}")


def whole(least: int, most: int = 2**53) -> Rule:
    """A whole number within bounds."""
    wanted = f"a whole number of {least} … {most}"
    return _rule(lambda v: type(v) is int and least <= v <= most, wanted)


def or_none(rule: Rule) -> Rule:
    """The rule, or null."""
    return lambda value, where: None if value is None else rule(value, where)


def list_of(rule: Rule, length: int | None = None) -> Rule:
    """A list, each of whose items obeys the rule."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or length not in (None, len(value)):
            raise _refused(where, value, "a list" if length is None else f"a list of {length}")
        for i, item in enumerate(value):
            rule(item, f"{where}[{i}]")

    return check


def map_of(rule: Rule) -> Rule:
    """An object, each of whose values obeys the rule."""

    def check(value: Any, where: str) -> None:
        _check_map(value, where)
        for name, item in value.items():
            rule(item, f"{where}.{name}")

    return check


class optional:
    """A field that may be absent."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule


def table(fields: dict[str, Rule | optional]) -> Rule:
    """An object with these fields and no others."""

    def check(value: Any, where: str) -> None:
        _check_map(value, where)
        for name, rule in fields.items():
            if name in value:
                (rule.rule if isinstance(rule, optional) else rule)(value[name], f"{where}.{name}")
            elif not isinstance(rule, optional):
                raise StorageError(f"its field {where}.{name} is missing")
        for name in value:
            if name not in fields:
                raise StorageError(f"its field {where}.{name} is unknown to this version of due")

    return check


def _check_map(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise _refused(where, value, "an object with fields")


text = _rule(lambda v: isinstance(v, str), "a text")
flag = _rule(lambda v: isinstance(v, bool), "true or false")
number = _rule(_is_number, "a finite number")
positive = _rule(lambda v: _is_number(v) and v > 0, "a finite number above 0")
label = _rule(lambda v: isinstance(v, str | bool) or _is_number(v), "a label")
size = whole(1)
anything: Rule = lambda value, where: None  # noqa: E731


def numbers(rule: Rule) -> Rule:
    """Numbers in lists of any depth that a row may have."""

    def check(value: Any, where: str, depth: int = 0) -> None:
        if not isinstance(value, list) or depth == 4:
            rule(value, where)
            return
        if not value:
            raise _refused(where, value, "a list of numbers")
        for i, item in enumerate(value):
            check(item, f"{where}[{i}]", depth + 1)

    return check


def _params(value: Any, where: str) -> None:
    """They are held to the rules of the estimator's arguments, which know no upper bounds."""
    _check_map(value, where)
    if "n" in value:  # members, or passes
        whole(1, MOST)(value["n"], f"{where}.n")


SCALE = table({"mean": numbers(number), "std": numbers(positive)})

NETWORK = table({"name": text, "arguments": optional(map_of(anything))})

CONSTRAINT = table(
    {
        "c": positive,
        "in_shape": or_none(list_of(size)),
        "momentum": or_none(number),
        "partner": optional(or_none(text)),
        "own_unit": optional(flag),
    }
)

GP = table(
    {
        "T": size,
        "kernel": one_of(KINDS),
        "shared_kernel": flag,
        "shared_covariance": optional(flag),
        "jitter": positive,
    }
)

LIKELIHOOD = table(
    {
        "name": one_of(("Gaussian", "StudentT", "Softmax")),
        "noises": optional(size),
        "varying": optional(flag),
        "T": optional(size),
        "method": optional(one_of((*METHODS, "quasi"))),
        "samples": optional(or_none(size)),
    }
)

MODEL: Rule = table(
    {
        "members": optional(lambda value, where: list_of(MODEL)(value, where)),
        "network": optional(NETWORK),
        "constraints": optional(map_of(CONSTRAINT)),
        "gp": optional(GP),
        "likelihood": optional(LIKELIHOOD),
        "n_data": optional(size),
        "bound": optional(one_of(BOUNDS)),
        "finish": optional(one_of(FINISHES)),
        "inducing": optional(one_of(INDUCING)),
        "placement": optional(one_of(PLACEMENTS)),
        "refresh": optional(size),
        "noise": optional(one_of(NOISE_KINDS)),
        "kernels": optional(list_of(one_of(KINDS))),
        "treatment": optional(flag),
    }
)

PROBE = table(
    {
        "answers": list_of(text),
        "columns": optional(list_of(anything)),
        "classes": optional(list_of(text)),
        "flat": optional(flag),
    }
)

UNFITTED: dict[str, Rule | optional] = {
    "name": text,
    "params": _params,
    "own_extractor": flag,
    "wrapped": optional(lambda value, where: table(UNFITTED)(value, where)),
}

ESTIMATOR = table(
    {
        **UNFITTED,
        "feature_names": list_of(text),
        "row_shape": optional(list_of(size)),
        "pixels": optional(or_none(flag)),
        "scale": optional(SCALE),
        "y_scale": optional(SCALE),
        "history": optional(or_none(map_of(anything))),
        "classes": optional(list_of(label)),
        "classes_dtype": optional(text),
        "flat": optional(flag),
        "seed": optional(whole(0, 2**32 - 1)),
    }
)


PARTS = {"model": MODEL, "fitted": map_of(anything), "members": list_of(map_of(anything))}


def check_config(config: Any) -> None:
    """Hold an estimator's configuration to the tables; those of its members come with them."""
    _check_map(config, "config")
    ESTIMATOR(config.get("estimator"), "estimator")
    for name, rule in PARTS.items():
        if name in config:
            rule(config[name], name)
    saved = config["estimator"]
    if "row_shape" in saved and "scale" in saved:
        _check_row(saved["row_shape"], saved["scale"])


def _check_row(shape: list[int], scale: dict[str, Any]) -> None:
    """A row is as its scale has it: a 1 there is a channel's, and the treatment has no scale."""
    try:
        mean, std = (np.asarray(scale[name], dtype=np.float64).shape for name in ("mean", "std"))
    except ValueError as error:
        raise StorageError("its field estimator.scale has lists of unequal lengths") from error
    vectors = len(mean) == 1 and len(shape) == 1 and shape[0] - mean[0] in (0, 1)
    if mean != std or not (vectors or _broadcasts(mean, tuple(shape))):
        raise StorageError(
            f"its fields estimator.row_shape, {shape}, and estimator.scale, {list(mean)} and "
            f"{list(std)}, do not fit each other"
        )


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return len(a) == len(b) and all(m in (1, n) for m, n in zip(a, b, strict=True))
