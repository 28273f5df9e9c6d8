"""What a model answered about some rows, as arrays: all that a page is computed from."""

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Abstract: N rows, each with its number in the file and how foreign it is.

    Every field that is an array has one entry per row; what is not known is None.
    """

    task: ClassVar[str]
    row: Ints  # number in the file, from 1, the header not counted
    uncertainty: Floats  # higher is less certain
    ood_score: Floats | None = None
    ood_pvalue: Floats | None = None

    def __post_init__(self) -> None:
        for name, value in self.arrays().items():
            if len(value) != len(self.row):
                raise ValueError(f"{name} has {len(value)} rows, row has {len(self.row)}")
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise ValueError(f"{name} holds a value that is not finite")

    def __len__(self) -> int:
        return len(self.row)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The fields that are arrays, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, np.ndarray)}

    def take(self, rows: NDArray[Any]) -> Self:
        """Some of the rows."""
        return replace(self, **{name: value[rows] for name, value in self.arrays().items()})


@dataclass(frozen=True, kw_only=True)
class ClassRows(Rows):
    """Class probabilities (N, T), and the true class as its code; −1 is a class never seen."""

    task = "classification"
    classes: tuple[str, ...]
    probabilities: Floats
    truth: Ints | None = None

    @property
    def predicted(self) -> Ints:
        """Code of the most probable class."""
        return np.asarray(self.probabilities.argmax(1), dtype=np.int64)

    @property
    def confidence(self) -> Floats:
        """Probability of the predicted class."""
        return np.asarray(self.probabilities.max(1))


@dataclass(frozen=True, kw_only=True)
class ValueRows(Rows):
    """Mean and standard deviation of a new observation, noise included, in the target's units.

    `log_density` is log p(truth); without it the predictions are taken for normal.
    """

    task = "regression"
    mean: Floats
    std: Floats
    truth: Floats | None = None
    log_density: Floats | None = None


@dataclass(frozen=True, kw_only=True)
class EffectRows(Rows):
    """Effect of the treatment and its standard deviation, without noise, in the outcome's units.

    `overlap` (N, 2) says how much the data of each arm inform the row, untreated first;
    `outcomes` (N, 2) are the expected outcomes without and with treatment. `treatment` and `truth`,
    the outcome that was observed, are known of rows that were treated already.
    """

    task = "effect"
    effect: Floats
    std: Floats
    overlap: Floats | None = None
    outcomes: Floats | None = None
    treatment: Ints | None = None
    truth: Floats | None = None


KINDS: dict[str, type[Rows]] = {kind.task: kind for kind in (ClassRows, ValueRows, EffectRows)}
WHOLE = {"row", "treatment"}


def to_json(rows: Rows) -> dict[str, Any]:
    """The rows as plain lists; numbers keep seven digits."""
    plain: dict[str, Any] = {name: _list(value) for name, value in rows.arrays().items()}
    if isinstance(rows, ClassRows):
        plain["classes"] = list(rows.classes)
    return {"task": rows.task, **plain}


def from_json(plain: dict[str, Any]) -> Rows:
    """The rows of `to_json`; what does not fit is refused."""
    if plain.get("task") not in KINDS:
        raise ValueError(f"unknown task {plain.get('task')!r}; known are {', '.join(KINDS)}")
    kind = KINDS[plain["task"]]
    names = {field.name for field in fields(kind)}
    found: dict[str, Any] = {}
    for name, value in plain.items():
        if name == "classes":
            found[name] = tuple(str(label) for label in value)
        elif name in names:
            whole = name in WHOLE or (name == "truth" and kind is ClassRows)
            found[name] = np.asarray(value, dtype=np.int64 if whole else np.float64)
    return kind(**found)


def _list(array: NDArray[Any]) -> list[Any]:
    if array.dtype.kind != "f":
        return array.tolist()
    return [_list(part) if part.ndim else float(f"{part:.7g}") for part in array]
