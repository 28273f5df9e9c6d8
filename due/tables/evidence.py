"""What a report shows of a model of a table: its answers on rows, and facts of its making."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import due
from due.report.answers import ClassRows, EffectRows, Rows, ValueRows
from due.report.evidence import About, Evidence, gather
from due.report.measure import LEVELS, Curve
from due.rows.scale import Floats
from due.tables.answers import log_density
from due.tables.columns import EPOCH, Category, Column, Date, Numeric
from due.tables.encoder import Frame
from due.tables.split import TEST
from due.tables.target import CLASSIFICATION, EFFECT, REGRESSION

NEVER = "a word that no row of training had"


def evidence(
    model: Any,
    frame: Frame,
    where: str,
    *,
    rivals: dict[str, Curve] | None = None,
    show_cells: bool = False,
    seed: int = 0,
) -> Evidence:
    """Measure a `TableModel` on rows that had no part in training.

    Rows without a target are left out, unless none has one: then no truth is known.
    """
    known = with_truth(model, frame)
    rows = frame[known] if known.any() else frame
    encoder, X = model.encoder, model.encode(rows)
    columns = [column.name for column in encoder.columns_]
    widths: list[float] = []
    if model.task == REGRESSION and model.calibration.n:
        widths = [model.calibration.width(1 - level) for level in LEVELS.tolist()]
    return gather(
        lambda changed: answers(model, changed),
        X,
        answers(model, X, rows, truth=bool(known.any())),
        where,
        columns=dict(zip(columns, encoder.slices(), strict=True)),
        beyond=features_beyond(encoder.columns_),
        rivals=rivals,
        widths=widths,
        cells={name: rows[name].tolist() for name in columns} if show_cells else None,
        seed=seed,
    )


def forest_beside(measured: dict[str, Any]) -> dict[str, Curve]:
    """The risk of the random forest that `fit` measured on the test rows, if it did."""
    found = measured.get("random_forest", {})
    risks = found.get("error_after_deferral") or found.get("rmse_after_deferral")
    if not risks:
        return {}
    points = sorted((1 - int(percent) / 100, float(risk)) for percent, risk in risks.items())
    kept, risk = np.array(points).T
    return {"a random forest": Curve(kept, risk)}


class Unseen(NamedTuple):
    """Rows to measure on, what they are in words, and whether they are the test rows of the fit."""

    rows: Frame
    where: str
    tested: bool


def unseen(model: Any, frame: Frame, name: str) -> Unseen:
    """The rows of a file to measure on; of the very table of the fit these are its test rows."""
    known = with_truth(model, frame)
    rows = frame[known]
    needed = {*model.split.columns} <= {*frame.columns}
    if needed and len(rows) == sum(model.split.counts.values()):
        parts = model.split.parts(rows)
        counts = {part: int((parts == part).sum()) for part in model.split.counts}
        if counts == model.split.counts and counts[TEST]:
            return Unseen(rows[parts == TEST], f"the {counts[TEST]:,} test rows of {name}", True)
    used = rows if len(rows) else frame
    return Unseen(used, f"{len(used):,} rows of {name}", False)


def with_truth(model: Any, frame: Frame) -> NDArray[np.bool_]:
    """Which rows have a target, and of effects a treatment."""
    known = np.zeros(len(frame), bool)
    if model.target.name not in frame.columns:
        return known
    known = np.asarray(model.target.known(frame[model.target.name]), dtype=bool)
    if model.treatment is None:
        return known
    if model.treatment.name not in frame.columns:
        return np.zeros(len(frame), bool)
    return known & np.isfinite(model.treatment.arms(frame[model.treatment.name]))


def answers(model: Any, X: Floats, frame: Frame = None, truth: bool = False) -> Rows:
    """The model's answers about encoded rows; the frame they are of has their truth, if asked."""
    found = model.answers_to(X)
    given = {
        "row": np.arange(len(X)) + 1 if frame is None else _numbers(frame),
        "uncertainty": found["uncertainty"],
        "ood_score": _or_none(found["ood_score"]),
        "ood_pvalue": _or_none(found["ood_pvalue"]),
    }
    if model.task == CLASSIFICATION:
        names = tuple(map(str, model.classes.tolist()))
        y = _codes(model, frame) if truth else None
        return ClassRows(**given, classes=names, probabilities=found["probabilities"], truth=y)
    y = model.target.values(frame[model.target.name]) if truth else None
    if model.task == EFFECT:
        t = model.treatment.arms(frame[model.treatment.name]).astype(int) if truth else None
        return EffectRows(
            **given,
            effect=found["prediction"],
            std=found["uncertainty"],
            overlap=_or_none(found["overlap"]),
            outcomes=found["outcomes"],
            treatment=t,
            truth=y,
        )
    density = None if y is None else log_density(model.estimator, X, y)
    mean, std = found["prediction"], found["uncertainty"]
    return ValueRows(**given, mean=mean, std=std, truth=y, log_density=density)


def about(model: Any) -> About:
    """Facts of the making of a `TableModel`."""
    chosen = model.estimator.get_params(deep=False)
    plain = {k: v for k, v in chosen.items() if isinstance(v, str | int | float | bool)}
    said = ("target", "treatment", "task")  # elsewhere on the page
    called = {k: v for k, v in model.settings.items() if k not in said and v not in (None, [])}
    return About(
        target=model.target.name,
        task=model.task,
        treatment=None if model.treatment is None else model.treatment.name,
        data=str(model.data.get("source") or ""),
        parts={part: n for part, n in model.split.counts.items() if n},
        columns=[column.name for column in model.encoder.columns_],
        left_out={out.name: out.reason for out in model.encoder.left_out_},
        odd=list(model.data.get("odd", [])),
        settings={**called, **plain},
        history=model.history,
        created=str(model.data.get("created") or ""),
        version=due.__version__,
    )


def features_beyond(columns: list[Column]) -> dict[str, Floats]:
    """Features of cells that training never had, for each column that can have some."""
    cells = [(column, beyond(column)) for column in columns]
    return {c.name: c.encode(pd.Series(values)) for c, values in cells if values}


def beyond(column: Column) -> list[str]:
    """Cells that training never had: numbers beyond the range, a new word, far dates."""
    if isinstance(column, Numeric):
        width = column.high - column.low
        ends = (column.low - width, column.high + width)
        return [f"{end:.10g}".replace(".", column.decimal) for end in ends]
    if isinstance(column, Category):
        return [NEVER]
    if isinstance(column, Date):
        day = pd.Timestamp(EPOCH) + pd.Timedelta(days=column.median)
        style = "%Y-%m-%d" if column.style == "ISO8601" else column.style
        return [(day + pd.DateOffset(years=years)).strftime(style) for years in (-90, 90)]
    return []


def _codes(model: Any, frame: Frame) -> NDArray[np.int64]:
    place = {label: i for i, label in enumerate(model.classes.tolist())}
    labels = model.target.labels(frame[model.target.name]).tolist()
    return np.array([place.get(label, -1) for label in labels], dtype=np.int64)


def _numbers(frame: Frame) -> NDArray[np.int64]:
    """Number of each row in its file, from 1."""
    index = frame.index.to_numpy()
    return (index if index.dtype.kind in "iu" else np.arange(len(frame))) + 1


def _or_none(array: NDArray[Any]) -> NDArray[Any] | None:
    return array if np.isfinite(array).all() else None
