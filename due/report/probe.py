"""Questions to a model by changed rows: which columns drive it, and does it notice foreign rows?

A model is a function from rows as numbers, (N, F), to `Rows`. A column of the file may take several
of the F features; `columns` says which.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from due.report.answers import ClassRows, EffectRows, Floats, Rows, ValueRows
from due.report.measure import losses

Ask = Callable[[Floats], Rows]
Columns = Mapping[str, slice]
ROWS = 1_000  # asked about, at most: a mean change is known well enough from so many
SHUFFLED, BEYOND = "combinations never seen", "one value never seen"


class Driver(NamedTuple):
    """What shuffling one column does, on average over rows, to the answers.

    `prediction` is the mean change of the prediction: half the sum of |p − p′| over classes, or
    |mean − mean′|. `uncertainty` is the mean absolute change of the uncertainty. `loss` is how much
    the error rate or the RMSE grows, None where no truth is known.
    """

    column: str
    prediction: float
    uncertainty: float
    loss: float | None


class Foreign(NamedTuple):
    """Rows made foreign: how uncertain the model is about them, and how foreign they look to it."""

    uncertainty: Floats
    ood_score: Floats | None
    ood_pvalue: Floats | None


def drivers(
    ask: Ask, X: Floats, columns: Columns, truth: Any, repeats: int = 2, seed: int = 0
) -> list[Driver]:
    """One entry per column; `truth` is what `Rows.truth` takes, or None."""
    rng = np.random.default_rng(seed)
    before = _with_truth(ask(X), truth)
    found = []
    for name, place in columns.items():
        changes = []
        for _ in range(repeats):
            changed = X.copy()
            changed[:, place] = rng.permutation(X[:, place])
            changes.append(_change(before, _with_truth(ask(changed), truth)))
        prediction, uncertainty, loss = np.mean(changes, axis=0).tolist()
        known = None if np.isnan(loss) else loss
        found.append(Driver(name, prediction, uncertainty, known))
    return found


def made_foreign(
    ask: Ask, X: Floats, columns: Columns, beyond: Mapping[str, Floats], seed: int = 0
) -> dict[str, Foreign]:
    """Answers about two kinds of rows that were made foreign.

    In the first every column is shuffled on its own: each value is usual, the combination is not.
    In the second one column of each row, drawn at random, holds one of the cells in `beyond`:
    features, (cells, features of the column), of cells that training never had.
    """
    rng = np.random.default_rng(seed)
    shuffled = X.copy()
    for place in columns.values():
        shuffled[:, place] = rng.permutation(X[:, place])
    changed = {SHUFFLED: shuffled}
    if beyond:
        changed[BEYOND] = _one_beyond(X, columns, beyond, rng)
    answers = {name: ask(rows) for name, rows in changed.items()}
    return {k: Foreign(v.uncertainty, v.ood_score, v.ood_pvalue) for k, v in answers.items()}


def sample(n: int, limit: int = ROWS, seed: int = 0) -> Any:
    """Positions of at most `limit` of n rows, in order."""
    if n <= limit:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, limit, replace=False))


def prediction(rows: Rows) -> Floats:
    """(N, T): probabilities, the mean, or the effect."""
    if isinstance(rows, ClassRows):
        return rows.probabilities
    if isinstance(rows, ValueRows):
        return rows.mean[:, None]
    assert isinstance(rows, EffectRows)
    return rows.effect[:, None]


def _change(before: Rows, after: Rows) -> tuple[float, float, float]:
    moved = np.abs(prediction(after) - prediction(before)).sum(1).mean()
    if isinstance(before, ClassRows):
        moved = moved / 2
    uncertain = np.abs(after.uncertainty - before.uncertainty).mean()
    was, now = losses(before), losses(after)
    if was is None or now is None:
        return float(moved), float(uncertain), float("nan")
    root = isinstance(before, ValueRows)
    old, new = (np.sqrt(x.mean()) if root else x.mean() for x in (was, now))
    return float(moved), float(uncertain), float(new - old)


def _with_truth(rows: Rows, truth: Any) -> Rows:
    if truth is None or isinstance(rows, EffectRows):
        return rows
    return replace(rows, truth=truth)  # type: ignore[call-arg]


def _one_beyond(
    X: Floats, columns: Columns, beyond: Mapping[str, Floats], rng: np.random.Generator
) -> Floats:
    changed, which = X.copy(), rng.integers(len(beyond), size=len(X))
    for k, (name, cells) in enumerate(beyond.items()):
        here = np.flatnonzero(which == k)
        changed[here, columns[name]] = cells[rng.integers(len(cells), size=len(here))]
    return changed
