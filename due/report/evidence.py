"""All that a page says about a model: what was measured, and facts of its making. Plain JSON."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from due.report import answers
from due.report.answers import ClassRows, Floats, Rows
from due.report.measure import Curve
from due.report.probe import Ask, Columns, Driver, Foreign, drivers, made_foreign, sample

STORED = 100_000  # numbers of one array, at most, and
MOST = 2_000  # rows
FORMAT = 1
DIGITS = 6  # of a cell that holds a number
NUMBER = re.compile(r"[+-]?\d+\.\d+")


@dataclass(frozen=True)
class Evidence:
    """What was measured on rows that had no part in training.

    `where` says which rows; `cells` holds the cells of some of them, per column, by their place in
    `rows`, where the page may show them.
    """

    where: str
    rows: Rows
    drivers: list[Driver] = field(default_factory=list)
    foreign: dict[str, Foreign] = field(default_factory=dict)
    rivals: dict[str, Curve] = field(default_factory=dict)  # risk of other models, same rows
    cells: dict[str, list[str]] = field(default_factory=dict)
    widths: list[float] = field(default_factory=list)  # of intervals, as in `measure.coverage`


@dataclass(frozen=True)
class About:
    """Facts of a model's making. Texts may hold anything: the page escapes them."""

    target: str
    task: str
    treatment: str | None = None
    data: str = ""  # name of the file
    parts: dict[str, int] = field(default_factory=dict)  # rows to train on, to validate on, …
    columns: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # column: why
    odd: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    history: dict[str, Any] = field(default_factory=dict)
    created: str = ""
    version: str = ""


def gather(
    ask: Ask,
    X: Floats,
    rows: Rows,
    where: str,
    *,
    columns: Columns,
    beyond: Mapping[str, Floats],
    rivals: dict[str, Curve] | None = None,
    widths: Sequence[float] = (),
    cells: Mapping[str, Sequence[Any]] | None = None,
    seed: int = 0,
) -> Evidence:
    """Ask a model about changed rows and put all together.

    Parameters
    ----------
    ask
        From rows as numbers to answers.
    X, rows
        Rows that had no part in training, and the answers about them, with the truth if known.
    where
        What these rows are, in words.
    columns
        The features of each column of the file.
    beyond
        Features of cells that training never had, per column.
    rivals
        Risk curves of other models on the same rows, by name.
    widths
        Half the widths of intervals in standard deviations, for each of `measure.LEVELS`.
    cells
        The cells of all rows, per column, if the page may show some.
    """
    few = sample(len(X), seed=seed)
    truth = getattr(rows, "truth", None)
    known = None if truth is None else truth[few]
    return Evidence(
        where,
        rows,
        drivers(ask, X[few], columns, known, seed=seed),
        made_foreign(ask, X[few], columns, beyond, seed=seed),
        rivals or {},
        {name: [_cell(cell) for cell in column] for name, column in (cells or {}).items()},
        list(widths),
    )


def to_json(evidence: Evidence) -> dict[str, Any]:
    """As plain JSON, without cells; of many rows a part, drawn at random."""
    rows, T = evidence.rows, 1
    if isinstance(rows, ClassRows):
        T = len(rows.classes)
    kept = sample(len(rows), min(MOST, max(100, STORED // T)))
    return {
        "format": FORMAT,
        "where": evidence.where,
        "rows": answers.to_json(rows.take(kept)),
        "drivers": [list(driver) for driver in evidence.drivers],
        "foreign": {k: [_plain(a) for a in v] for k, v in evidence.foreign.items()},
        "rivals": {k: [_plain(a) for a in v] for k, v in evidence.rivals.items()},
        "widths": evidence.widths,
    }


def from_json(plain: Any) -> Evidence:
    """The evidence of `to_json`; anything else is refused with the reason."""
    try:
        if plain["format"] > FORMAT:
            raise ValueError(f"format {plain['format']} is newer than this due: upgrade due")
        rows = answers.from_json(plain["rows"])
        rivals = {str(k): Curve(*map(_array, v)) for k, v in plain["rivals"].items()}
        for name, curve in rivals.items():
            if not len(curve.kept) == len(curve.risk) > 0:
                raise ValueError(f"the curve of {name} has not one risk per share")
        return Evidence(
            str(plain["where"]),
            rows,
            [_driver(*driver) for driver in plain["drivers"]],
            {str(k): Foreign(*map(_maybe, v)) for k, v in plain["foreign"].items()},  # type: ignore[arg-type]
            rivals,
            widths=_array(plain["widths"]).tolist(),
        )
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"this is no evidence that due stored ({reason})") from error


def _driver(column: Any, prediction: Any, uncertainty: Any, loss: Any) -> Driver:
    return Driver(
        str(column), float(prediction), float(uncertainty), None if loss is None else float(loss)
    )


def _array(values: Any) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not np.isfinite(array).all():
        raise ValueError("a list of finite numbers is expected")
    return array


def _maybe(values: Any) -> Floats | None:
    return None if values is None else _array(values)


def _plain(array: Floats | None) -> list[float] | None:
    return None if array is None else [float(f"{value:.7g}") for value in array.tolist()]


def _cell(value: Any) -> str:
    missing = value is None or value != value  # NaN
    text = "" if missing else str(value)
    if len(text) > DIGITS + 3 and NUMBER.fullmatch(text):
        text = f"{float(text):.{DIGITS}g}"
    return text if len(text) <= 80 else text[:79] + "…"
