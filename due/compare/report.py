"""The numbers of a comparison as a table and as a picture."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from due.experiments.contender import Contender
from due.experiments.journal import Json, versions_of
from due.experiments.layout import Table
from due.experiments.statistics import spread

CLASS_COLUMNS = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE"}
VALUE_COLUMNS = {"rmse": "RMSE", "nll": "NLL", "coverage": "95 % cover"}
FAR_COLUMNS = {"auroc": "AUROC", "aupr": "AUPR", "fpr95": "FPR95"}
HELD_OUT = (
    "Networks choose the epoch by a fifth of the rows, "
    "from which DUE then learns its noise and q(U)."
)
TIME_COLUMNS = {"fit_time": "fit ×", "predict_time": "predict ×"}


def summarise(methods: Mapping[str, Contender], lines: Mapping[str, Mapping[int, Json]]) -> Json:
    """Mean, standard error and median of each number of each method that has any line."""
    reference = lines[next(iter(methods))]
    rows: Json = {}
    for name, found in lines.items():
        if found:
            first, *_ = numbers = [line["numbers"] for line in found.values()]
            rows[name] = {
                "title": methods[name].title,
                **next(iter(found.values()))["settings"],
                "versions": versions_of(found.values()),
                "seeds": list(found),
                **{key: spread([number[key] for number in numbers]) for key in first},
                **_times(found, reference),
            }
    return rows


def _times(lines: Mapping[int, Json], reference: Mapping[int, Json]) -> Json:
    """Times as multiples of the reference's on the same seed."""
    pairs = [(lines[seed], reference[seed]) for seed in lines if seed in reference]
    times = {}
    for name in ("fit", "predict") if pairs else ():
        mine, its = np.array([[x["numbers"][f"{name}_seconds"] for x in pair] for pair in pairs]).T
        times[f"{name}_time"] = spread(mine / its)
    return times


def columns(report: Json) -> dict[str, str]:
    """Names of the numbers, and the headings of their columns."""
    quality = CLASS_COLUMNS if report["classes"] else VALUE_COLUMNS
    return {**quality, **FAR_COLUMNS, **TIME_COLUMNS}


def table(report: Json) -> Table:
    """One row per method."""
    shown = columns(report)
    rows = [
        [row["title"], *(_cell(key, row.get(key)) for key in shown)]
        for row in report["methods"].values()
    ]
    return Table(f"{report['data']}: {_seeds(report)}", ["", *shown.values()], rows)


def notes(report: Json) -> list[str]:
    """What the columns mean, and what is missing."""
    reference = report["times_relative_to"]
    return [
        f"AUROC, AUPR, FPR95: uncertainty of far rows against test rows; far are {report['far']}.",
        f"fit ×, predict ×: CPU time as a multiple of {reference}'s; prediction is uncertainty(X).",
        *([] if report["classes"] else [HELD_OUT]),
        *(
            f"{row['title']} by ood_score: AUROC {_cell('auroc', row['ood_auroc'])}."
            for row in report["methods"].values()
            if "ood_auroc" in row
        ),
        *(f"failed: {failure}" for failure in report["failures"]),
    ]


def _seeds(report: Json) -> str:
    counts = [len(row["seeds"]) for row in report["methods"].values()]
    fewest, most = min(counts), max(counts)
    if most == 1:
        return "one seed"
    some = f"{most}" if fewest == most else f"{fewest} to {most}"
    return f"mean ± standard error over {some} seeds"


def _cell(key: str, value: Json | None) -> str:
    if value is None:
        return "–"
    digits = 1 if key in TIME_COLUMNS else 3 if abs(value["mean"]) < 10 else 2
    mean = f"{value['mean']:.{digits}f}"
    return mean if value["stderr"] is None else f"{mean} ± {value['stderr']:.{digits}f}"


def draw(report: Json) -> Figure:
    """Error, NLL and AUROC of each method, with standard errors."""
    first, second, *_ = shown = columns(report)
    rows = list(report["methods"].values())
    places = list(range(len(rows)))[::-1]
    figure = Figure(figsize=(10, 1.2 + 0.32 * len(rows)), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    for ax, key in zip(axes, (first, second, "auroc"), strict=True):
        means = [row[key]["mean"] for row in rows]
        errors = [row[key]["stderr"] or 0.0 for row in rows]
        ax.errorbar(means, places, xerr=errors, fmt="o", markersize=5, capsize=3, color="tab:blue")
        ax.set_xlabel(f"{shown[key]}{' of far rows' if key == 'auroc' else ''}")
        ax.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(places, [row["title"] for row in rows])
    axes[0].set_ylim(-0.6, len(rows) - 0.4)
    figure.suptitle(f"{report['data']}: {_seeds(report)}", fontsize=10)
    return figure
