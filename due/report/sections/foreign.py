"""Whether rows that were made foreign look foreign, and uncertain."""

from typing import Any

from due import metrics
from due.report import measure, plots
from due.report.answers import ClassRows, Rows
from due.report.blocks import Figure, Section, histogram_grid, number, percent
from due.report.evidence import Evidence
from due.report.probe import BEYOND, SHUFFLED

ALPHA = 0.05  # rows with a p-value of at most this are flagged


def foreign(evidence: Evidence) -> Section | None:
    """Whether rows that were made foreign look foreign, and uncertain."""
    if not evidence.foreign:
        return None
    rows, others = evidence.rows, evidence.foreign
    scored = rows.ood_score is not None and all(f.ood_score is not None for f in others.values())
    auroc = {}
    if scored:
        auroc = {k: metrics.auroc(rows.ood_score, f.ood_score) for k, f in others.items()}  # type: ignore[arg-type]
    by_uncertainty = {k: metrics.auroc(rows.uncertainty, f.uncertainty) for k, f in others.items()}
    best = auroc or by_uncertainty
    name = BEYOND if BEYOND in best else SHUFFLED
    what = "a value that training never had" if name == BEYOND else "a combination never seen"
    words = [
        "What is foreign here was made from the measured rows. In “combinations never seen” each "
        "column is shuffled on its own: every value is usual, the row is not; where columns have "
        "little to do with one another such rows are ordinary. In “one value never seen” one "
        "column of each row, drawn at random, holds a number beyond its range or a category that "
        "training did not have.",
        _flags(evidence),
        "Two questions, two scores: the OOD score asks whether a row is foreign, the uncertainty "
        "whether the prediction will be wrong. A foreign row can be easy to predict, and an "
        "ordinary one hard.",
    ]
    figures = []
    if scored:
        groups = {"measured rows": rows.ood_score, **{k: f.ood_score for k, f in others.items()}}
        figures.append(_groups(groups, "OOD score", auroc))
    groups = {"measured rows": rows.uncertainty, **{k: f.uncertainty for k, f in others.items()}}
    figures.append(_groups(groups, unit_of_uncertainty(rows), by_uncertainty))
    return Section(
        "foreign",
        "Foreign rows",
        f"A row with {what} looks more foreign than an ordinary row in "
        f"{percent(best[name])} of all pairs.",
        [word for word in words if word],
        figures,
    )


def unit_of_uncertainty(rows: Rows) -> str:
    """Name of the uncertainty on an axis."""
    if isinstance(rows, ClassRows):
        return "uncertainty (entropy, nats)"
    return "uncertainty (standard deviation)"


def _flags(evidence: Evidence) -> str:
    rows = evidence.rows
    if rows.ood_pvalue is None:
        return ""
    flagged = float((rows.ood_pvalue <= ALPHA).mean())
    parts = [
        f"{percent(float((f.ood_pvalue <= ALPHA).mean()))} of “{k}”"
        for k, f in evidence.foreign.items()
        if f.ood_pvalue is not None
    ]
    return (
        f"Rows with an OOD p-value of at most {ALPHA:g} are flagged: {percent(flagged)} of the "
        f"measured rows (about {percent(ALPHA, 0)} are expected of ordinary ones)"
        + "".join(f", {part}" for part in parts)
        + "."
    )


def _groups(groups: dict[str, Any], title: str, auroc: dict[str, float]) -> Figure:
    found = measure.histogram(groups)
    areas = ", ".join(f"{number(area)} for {name}" for name, area in auroc.items())
    return Figure(
        plots.histogram(found, title, f"Histogram of the {title} of measured and foreign rows."),
        f"{title[0].upper()}{title[1:]}, in distribution and out of it. AUROC: {areas}.",
        histogram_grid(title, found, False),
        list(groups),
    )
