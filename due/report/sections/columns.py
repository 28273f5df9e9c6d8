"""Which columns the answers depend on."""

from due.report import plots
from due.report.answers import ClassRows
from due.report.blocks import Figure, Grid, Section, number
from due.report.evidence import Evidence
from due.report.probe import Driver

BARS = 12  # columns in a plot


def columns(evidence: Evidence) -> Section | None:
    """Which columns the answers depend on."""
    if not evidence.drivers:
        return None
    rows = evidence.rows
    first = max(evidence.drivers, key=lambda d: d.prediction)
    second = max(evidence.drivers, key=lambda d: d.uncertainty)
    moved = {
        "classification": "change of the probabilities",
        "regression": "change of the prediction",
        "effect": "change of the effect",
    }[rows.task]
    same = first.column == second.column
    growth = "error rate" if isinstance(rows, ClassRows) else "RMSE"
    message = f"The prediction depends most on “{first.column}”, the uncertainty " + (
        "too." if same else f"on “{second.column}”."
    )
    return Section(
        "columns",
        "Which columns matter",
        message,
        [
            "One column at a time is shuffled among the rows, and the mean change of the answer is "
            "measured. Columns that say the same share their importance: shuffling one of them "
            "leaves the other. A large bar says what the model uses, not what causes the target.",
        ],
        [
            _bars(evidence.drivers, "prediction", moved, growth),
            _bars(evidence.drivers, "uncertainty", "change of the uncertainty", growth),
        ],
    )


def _bars(found: list[Driver], by: str, title: str, growth: str) -> Figure:
    largest = sorted(found, key=lambda d: -getattr(d, by))
    shown = largest[:BARS]
    sizes = [float(getattr(d, by)) for d in shown]
    more = "" if len(found) <= BARS else f" The {BARS} largest of {len(found)}."
    return Figure(
        plots.bars([d.column for d in shown], sizes, title, f"Columns that drive the {by}."),
        f"What shuffling a column does to the {by}.{more}",
        Grid(
            f"Columns by {title}",
            ["column", title, f"growth of the {growth}"],
            [
                [d.column, number(getattr(d, by)), "–" if d.loss is None else number(d.loss)]
                for d in largest
            ],
        ),
    )
