"""What a model of effects missed: signed by arm, residuals must not depend on any covariate.

If E[y | x, t] is right, (2t − 1)(y − E[y | x, t]) has mean zero whatever x is. Where people who
had no part in training show otherwise, the effect varies in a way that the model has not found,
and its intervals are too narrow.
"""

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kruskal

from due.rows.scale import Floats

GROUPS = 6  # of people along a column
SMALLEST = 5  # people of a group
ALARM = 1e-3  # of the p-value


class Missed(NamedTuple):
    """The column along which most of the effect was missed, and how likely that is by chance."""

    column: int
    p: float


def missed_effect(X: Floats, t: Floats, residual: Floats) -> Missed:
    """A Kruskal–Wallis test of the signed residuals per column, with Bonferroni's correction.

    It compares ranks, so outcomes with heavy tails do not alarm it.
    """
    signed = np.where(t == 1, residual, -residual)
    chances = [_chance(signed, column) for column in X.T]
    least = int(np.argmin(chances))
    return Missed(least, min(1.0, len(chances) * chances[least]))


def warn_of(missed: Missed, names: NDArray[np.str_] | None) -> None:
    """Say so if chance does not explain it."""
    if missed.p >= ALARM:
        return
    column = missed.column if names is None else repr(str(names[missed.column]))
    warnings.warn(
        f"among held-out people the effect varies with column {column} in a way that the model "
        f"has not found (p = {missed.p:.1g}): its intervals are too narrow. More people help, or "
        "other candidates: see the docs on failed fits",
        stacklevel=5,
    )


def _chance(signed: Floats, column: Floats) -> float:
    """The p-value of the groups along one column."""
    values, group = np.unique(column, return_inverse=True)
    if len(values) > GROUPS:
        group = np.searchsorted(np.quantile(column, np.arange(1, GROUPS) / GROUPS), column)
    parts = [signed[group == each] for each in np.unique(group)]
    parts = [part for part in parts if len(part) >= SMALLEST]
    if len(parts) < 2 or np.ptp(np.concatenate(parts)) == 0:
        return 1.0
    return float(kruskal(*parts).pvalue)
