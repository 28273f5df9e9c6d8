"""Rows to look at: the most and the least certain, and whom to refer."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from due.report import measure
from due.report.answers import ClassRows, EffectRows, Rows, ValueRows
from due.report.blocks import Grid, Section, number, percent
from due.report.evidence import Evidence
from due.report.sections.effects import Z

LISTED, SHOWN = 8, 4  # rows, and columns beside them


def rows(evidence: Evidence) -> Section:
    """The most and least certain rows, with what is known of them."""
    found = evidence.rows
    certain, uncertain = measure.order(found.uncertainty, LISTED)
    shown = _columns(evidence)
    effect = isinstance(found, EffectRows)
    last = "Refer these first" if effect else "Least certain"
    first, second = (
        _grid(evidence, places, shown, name)
        for places, name in ((uncertain, last), (certain, "Most certain"))
    )
    unsure = float(np.median(found.uncertainty[uncertain]))
    usual = float(np.median(found.uncertainty))
    words = [
        "Rows are numbered as in the file, from 1, the header not counted. Look at the least "
        "certain ones: are they odd, mislabelled, or of a kind that training had too little of?"
    ]
    if not evidence.cells:
        words.append("Cells are shown when a data file is given: due report MODEL DATA.")
    message = (
        f"The least certain rows have an uncertainty of {number(unsure)}; the median over all rows "
        f"is {number(usual)}."
    )
    if effect:
        message = (
            f"The effects least known have a standard deviation of {number(unsure)}; the "
            f"median over all rows is {number(usual)}."
        )
    title = "Whom to refer" if effect else "Most and least certain rows"
    return Section("rows", title, message, words, grids=[first, second])


def _columns(evidence: Evidence) -> list[str]:
    """Columns to show beside the rows: those that matter most, of the cells there are."""
    ranked = sorted(evidence.drivers, key=lambda d: -(d.prediction + d.uncertainty))
    names = [d.column for d in ranked] or list(evidence.cells)
    return [name for name in names if name in evidence.cells][:SHOWN]


def _grid(evidence: Evidence, places: Sequence[int] | Any, shown: list[str], name: str) -> Grid:
    header, describe = _answer(evidence.rows)
    header = ["row", *header, *shown]
    lines = [
        [f"{evidence.rows.row[i]:,}", *describe(int(i)), *(evidence.cells[c][i] for c in shown)]
        for i in places
    ]
    words = range(len(header) - len(shown), len(header))
    known = (1, 3) if isinstance(evidence.rows, ClassRows) else ()
    return Grid(name, header, lines, (*known, *words))


def _answer(found: Rows) -> tuple[list[str], Any]:
    """Names of what is said of a row, and a function that says it."""
    if isinstance(found, ClassRows):
        return _class(found)
    if isinstance(found, ValueRows):
        return _value(found)
    assert isinstance(found, EffectRows)
    return _effect(found)


def _class(found: ClassRows) -> tuple[list[str], Any]:
    names = (*found.classes, "a class never seen")  # the last is −1
    predicted, confidence = found.predicted, found.confidence

    def describe(i: int) -> list[str]:
        truth = [] if found.truth is None else [names[found.truth[i]]]
        return [names[predicted[i]], percent(float(confidence[i])), *truth]

    truth = [] if found.truth is None else ["truth"]
    return ["predicted", "confidence", *truth], describe


def _value(found: ValueRows) -> tuple[list[str], Any]:
    def describe(i: int) -> list[str]:
        truth = [] if found.truth is None else [number(float(found.truth[i]))]
        return [number(float(found.mean[i])), f"± {number(float(found.std[i]))}", *truth]

    truth = [] if found.truth is None else ["truth"]
    return ["predicted", "std", *truth], describe


def _effect(found: EffectRows) -> tuple[list[str], Any]:
    def describe(i: int) -> list[str]:
        mean, half = float(found.effect[i]), Z * float(found.std[i])
        near = [] if found.overlap is None else [number(float(found.overlap[i].min()))]
        return [number(mean), f"{number(mean - half)} to {number(mean + half)}", *near]

    return ["effect", "95 % interval", *([] if found.overlap is None else ["overlap"])], describe
