"""`fit`: look at a table, divide its rows, encode, train, calibrate, measure."""

import warnings
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from due.estimators import DUECATE, DUEClassifier, DUERegressor
from due.report.evidence import to_json
from due.rows.categories import indicators, suspects
from due.rows.scale import Floats
from due.tables.answers import ask, ood_scores
from due.tables.calibration import Calibration, calibrate
from due.tables.encoder import Frame, TableEncoder, as_frame
from due.tables.evidence import evidence, forest_beside
from due.tables.forest import forest
from due.tables.model import TableModel
from due.tables.names import nearest
from due.tables.split import CALIBRATION, LEAST, TEST, TRAIN, VALIDATION, Split, divide
from due.tables.target import (
    CLASSIFICATION,
    EFFECT,
    REGRESSION,
    TASKS,
    Target,
    Treatment,
    look_at_target,
    look_at_treatment,
)

FEWEST = 30  # rows
SHARES = {  # classifiers choose no epoch
    CLASSIFICATION: {VALIDATION: 0.0, CALIBRATION: 0.1, TEST: 0.2},
    REGRESSION: {VALIDATION: 0.15, CALIBRATION: 0.1, TEST: 0.2},
    EFFECT: {VALIDATION: 0.2, CALIBRATION: 0.1, TEST: 0.1},
}
ESTIMATORS: dict[str, Callable[..., Any]] = {
    CLASSIFICATION: DUEClassifier,
    REGRESSION: DUERegressor,
    EFFECT: DUECATE,
}


def fit(
    frame: Frame,
    target: str,
    *,
    treatment: str | None = None,
    task: str | None = None,
    estimator: Any = None,
    group: str | None = None,
    time: str | None = None,
    ignore: Sequence[str] = (),
    keep: Sequence[str] = (),
    test: float | None = None,
    beside: bool = True,
    seed: int = 0,
    verbose: bool = False,
    say: Callable[[str], object] = lambda text: None,
) -> TableModel:
    """A model of the column `target` of a table, measured on rows that it has not seen.

    Parameters
    ----------
    frame
        A pandas DataFrame; columns may hold numbers, words, truth values, dates, or texts of any
        of these, and cells may be missing.
    treatment
        A column with two values: predict the effect of the second on the target, per row.
    task
        "classification" or "regression"; None takes what the target looks like.
    estimator
        An unfitted estimator of ours; None takes DUE with its defaults.
    group
        A column: rows with the same value stay together, all in training or all in testing.
    time
        A column with dates or numbers: train on the earliest rows, test on the latest.
    ignore
        Columns not to use.
    keep
        Columns to use although they look like identifiers.
    test
        Share of the rows to measure on; None takes 0.2 (of effects 0.1).
    beside
        Measure a random forest on the same rows too.
    say
        Called with a sentence per step.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=300)
    >>> frame = pd.DataFrame({"x": x, "y": np.where(x > 0, "high", "low")})
    >>> model = fit(frame, target="y", estimator=DUEClassifier(epochs=5, random_state=0))
    >>> model.task
    'classification'
    >>> model.predict(pd.DataFrame({"x": [1.0, -1.0]}))["prediction"].tolist()
    ['high', 'low']
    """
    if test is not None and not 0 <= test < 1:
        raise ValueError(f"test={test:g} is not a share of at least 0 and below 1; 0.2 is usual")
    table = as_frame(frame)
    _check_names(table, target=target, treatment=treatment, group=group, time=time)
    for name in (*ignore, *keep):
        _check_names(table, column=name)
    seen = look(table, target, treatment, task)
    rows, odd = _usable(table, seen.target, seen.treatment)
    say(f"task: {seen.target.task}, because {seen.target.reason}")
    shares = SHARES[seen.target.task] | ({} if test is None else {TEST: test})
    shares[CALIBRATION] = max(shares[CALIBRATION], min(0.3, LEAST / len(rows)))
    strata = target if seen.target.task == CLASSIFICATION else treatment
    split = divide(rows, shares, seed=seed, by=strata, group=group, time=time)
    parts = split.parts(rows)

    away = {target, treatment, group, *ignore}
    encoder = TableEncoder(keep=tuple(keep))
    inputs = rows.drop(columns=[name for name in away if name in rows.columns])
    encoder.fit(inputs[parts == TRAIN])
    estimator = estimator or ESTIMATORS[seen.target.task](random_state=seed, verbose=verbose)
    say(_in_short(split, encoder))
    if not (parts == CALIBRATION).any():
        why = "" if group is None else f": column {group!r} has {rows[group].nunique()} groups"
        say(f"no rows to tell what is foreign{why}; p-values are left out")
    X = encoder.transform(inputs)
    for name in _codes(seen.target, rows, X, parts == TRAIN, encoder):
        say(
            f"column {name!r} acts on the target like codes of categories, not like amounts: "
            "write them as texts, such as 'no. 5', and each gets a feature of its own"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "columns .* hold integers")  # said, with other names
        _train(estimator, seen, rows, X, parts)
    model = TableModel(
        seen.target,
        seen.treatment,
        encoder,
        estimator,
        split,
        _calibrate(estimator, seen.target, rows[parts == CALIBRATION], encoder),
        data={"rows": len(table), "odd": odd + seen.odd + encoder.odd_},
        settings={"target": target, "treatment": treatment, "task": seen.target.task}
        | {
            "group": group,
            "time": time,
            "ignore": list(ignore),
            "keep": list(keep),
            "test": shares[TEST],
        }
        | {"seed": seed, "estimator": type(estimator).__name__},
    )
    if (parts == TEST).any():
        model.measured = model.evaluate(rows[parts == TEST])
        if seen.treatment is None and beside:
            say("a random forest on the same rows, for comparison")
            y = seen.target.read(rows[target])
            known, new = np.isin(parts, (TRAIN, VALIDATION)), parts == TEST
            found = forest(seen.target.task, X[known], y[known], X[new], y[new], seed)
            model.measured["random_forest"] = found
        beside_it = forest_beside(model.measured)
        where = f"{(parts == TEST).sum():,} rows that had no part in training"
        model.evidence = to_json(evidence(model, rows[parts == TEST], where, rivals=beside_it))
    return model


class Look(NamedTuple):
    """What the target and the treatment are."""

    target: Target
    treatment: Treatment | None
    odd: list[str]


def look(table: Frame, target: str, treatment: str | None, task: str | None) -> Look:
    """Which task the table is for; refuses a target or a treatment that cannot be learned."""
    _check_names(table, target=target, treatment=treatment)
    if task is not None and task not in TASKS:
        raise ValueError(f"task={task!r} is not one of {', '.join(TASKS)}")
    if len(table) < FEWEST:
        raise ValueError(f"the table has {len(table)} rows; give at least {FEWEST}")
    decimal = table.attrs.get("decimal", ".")
    if treatment is None:
        if task == EFFECT:
            raise ValueError("an effect needs treatment=: the column that says who was treated")
        return Look(look_at_target(target, table[target], task, decimal), None, [])
    arms, odd = look_at_treatment(treatment, table[treatment])
    return Look(look_at_target(target, table[target], EFFECT, decimal), arms, odd)


def _usable(table: Frame, target: Target, treatment: Treatment | None) -> tuple[Frame, list[str]]:
    """Rows that have a target (and a treatment), and a word on the others."""
    known = target.known(table[target.name])
    odd = []
    if not known.all():
        odd.append(f"{(~known).sum():,} rows without a target {target.name!r} are left out")
    if treatment is not None:
        treated = np.isfinite(treatment.arms(table[treatment.name]))
        if not treated.all():
            odd.append(f"{(~treated).sum():,} rows without a treatment are left out")
        known &= treated
    rows = table[known]
    if len(rows) < FEWEST:
        raise ValueError(
            f"{len(rows)} rows have a target {target.name!r}; give at least {FEWEST} of them"
        )
    rows.attrs.update(table.attrs)
    return rows, odd


def _codes(target: Target, rows: Frame, X: Floats, known: Any, encoder: TableEncoder) -> list[str]:
    """Numeric columns that look like codes."""
    y = target.read(rows[target.name])[known]
    labels = target.task == CLASSIFICATION
    of_y = indicators(np.unique(y, return_inverse=True)[1]) if labels else y[:, None]
    names = encoder.get_feature_names_out()
    return [str(names[column]) for column in suspects(X[known], of_y)]


def _train(estimator: Any, look: Look, rows: Frame, X: Floats, parts: Any) -> None:
    known, watched = parts == TRAIN, parts == VALIDATION
    if "validation" not in signature(estimator.fit).parameters:  # it chooses some of its own
        known, watched = known | watched, np.zeros(len(parts), bool)
    y = look.target.read(rows[look.target.name])
    if look.treatment is None:
        more: Any = {"validation": (X[watched], y[watched])} if watched.any() else {}
        estimator.fit(X[known], y[known], **more)
        return
    t = look.treatment.arms(rows[look.treatment.name])
    more = {"validation": (y[watched], t[watched], X[watched])} if watched.any() else {}
    estimator.fit(y[known], t[known], X=X[known], **more)


def _calibrate(estimator: Any, target: Target, rows: Frame, encoder: TableEncoder) -> Calibration:
    X = encoder.transform(rows)
    if not len(X):
        return calibrate(np.empty(0))
    if target.task != REGRESSION:
        return calibrate(ood_scores(estimator, target.task, X))
    found = ask(estimator, target.task, X)
    y = target.values(rows[target.name])
    residuals = np.abs(y - found["prediction"]) / found["uncertainty"]
    return calibrate(found["ood_score"], residuals)


def _in_short(split: Split, encoder: TableEncoder) -> str:
    rows = ", ".join(f"{count:,} {part}" for part, count in split.counts.items() if count)
    features = len(encoder.get_feature_names_out())
    return f"rows: {rows}; {len(encoder.columns_)} columns as {features} features"


def _check_names(table: Frame, **columns: str | None) -> None:
    for role, name in columns.items():
        if name is not None and name not in table.columns:
            raise ValueError(f"{role}: no column {name!r}{nearest(name, table.columns)}")
    chosen = [name for name in columns.values() if name is not None]
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"one column has two roles: {columns}")
