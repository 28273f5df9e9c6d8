"""What it brings to leave the least certain rows to somebody else."""

import numpy as np

from due.report import measure, plots
from due.report.answers import ClassRows, Floats
from due.report.blocks import Figure, Grid, Section, number, percent
from due.report.evidence import Evidence
from due.report.measure import Curve


def deferral(evidence: Evidence) -> Section | None:
    """What it brings to leave the least certain rows to somebody else."""
    rows, loss = evidence.rows, measure.losses(evidence.rows)
    if loss is None:
        return None
    classes = isinstance(rows, ClassRows)
    what = "error rate" if classes else "RMSE"
    write = percent if classes else number
    curves = {"by uncertainty": measure.risk_curve(loss, rows.uncertainty, not classes)}
    flat = float(loss.mean()) if classes else float(loss.mean()) ** 0.5
    curves["in random order"] = Curve(
        np.array([curves["by uncertainty"].kept[0], 1.0]), np.array([flat, flat])
    )
    curves["in ideal order"] = measure.risk_curve(loss, loss, not classes)
    curves |= dict(list(evidence.rivals.items())[:1])  # there are four colours
    left = {share: _left(loss, rows.uncertainty, share, classes) for share in measure.DEFERRED}
    fifth, word = left[0.2], "lowers" if left[0.2] < flat else "does not lower"
    words = [
        "Rows are kept from the most certain one on. With uncertainty that knows nothing the line "
        "would be flat, as in random order. The ideal order is by the errors themselves, which "
        "nobody knows beforehand.",
    ]
    words += [_beside(name, rival, left, classes) for name, rival in evidence.rivals.items()]
    others = list(curves.values())[1:]
    table = Grid(
        f"{what[0].upper()}{what[1:]} of the rows kept",
        ["left to somebody else", *curves],
        [["nobody", *(write(float(c.risk[-1])) for c in curves.values())]]
        + [
            [percent(share, 0), write(left[share]), *(write(_at(c, 1 - share)) for c in others)]
            for share in measure.DEFERRED
        ],
    )
    return Section(
        "deferral",
        "Leaving uncertain rows to a person",
        f"Leaving out the 20\u00a0% least certain rows {word} the {what} "
        + (
            f"from {write(flat)} to {write(fifth)}."
            if word == "lowers"
            else f"({write(flat)} on all rows, {write(fifth)} on those kept)."
        ),
        words,
        [
            Figure(
                plots.risk(curves, what, classes, f"{what} of the rows kept, against their share."),
                f"{what[0].upper()}{what[1:]} of the rows that are kept.",
                table,
                list(curves),
            )
        ],
    )


def _left(loss: Floats, uncertainty: Floats, share: float, classes: bool) -> float:
    value = measure.deferred(loss, uncertainty, share)
    return value if classes else value**0.5


def _at(curve: Curve, kept: float) -> float:
    return float(np.interp(kept, curve.kept, curve.risk))


def _beside(name: str, rival: Curve, left: dict[float, float], classes: bool) -> str:
    write = percent if classes else number
    others = {s: _at(rival, 1 - s) for s in left}
    parts = [
        f"{write(left[s])} against {write(others[s])} with {percent(s, 0)} left out" for s in left
    ]
    return f"Beside it, {name} on the same rows: {'; '.join(parts)}."
