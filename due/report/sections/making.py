"""How the model was made: its training and its settings."""

from typing import Any

import numpy as np

from due.report import plots
from due.report.blocks import Figure, Grid, Section, count, number, plain
from due.report.evidence import About


def training(about: About) -> Section | None:
    """How training went."""
    series = [about.history.get(name) or [] for name in ("loss", "validation")]
    loss, validation = (
        np.array([np.nan if v is None else float(v) for v in values]) for values in series
    )
    if not np.isfinite(loss).any():
        return None
    best = about.history.get("best_epoch")
    best = best if isinstance(best, int) and np.isfinite(validation).any() else None
    bound = {"collapsed": "the collapsed bound", "exact": "the exact marginal likelihood"}
    learned = bound.get(about.history.get("bound", ""), "the ELBO")
    message = f"It trained for {count(len(loss), 'epoch')}" + (
        f" and kept number {best + 1}, the best on held-out rows."
        if best is not None
        else ", with a learning rate that falls to zero."
    )
    words = [f"The loss per row is the negative of {learned}; lower is better."]
    if best is not None:
        words.append(
            "Held-out rows are measured by their own loss, so the two lines need not meet. Once "
            "the held-out line rises, the model has begun to learn its training rows by heart."
        )
    names = ["training rows", "held-out rows"] if best is not None else ["training rows"]
    grid = [
        [
            str(e + 1),
            number(float(v)),
            number(float(validation[e]))
            if e < len(validation) and np.isfinite(validation[e])
            else "–",
        ]
        for e, v in enumerate(loss)
    ]
    return Section(
        "training",
        "Training",
        message,
        words,
        [
            Figure(
                plots.training(loss, validation, best, "Loss per epoch."),
                "Loss per epoch." + (" The dashed line is the epoch kept." if best else ""),
                Grid(
                    "Loss per epoch",
                    ["epoch", *["training rows", "held-out rows"]],
                    grid[:: -(-len(grid) // 100)],
                    (),
                ),
                names,
            )
        ],
    )


def settings(about: About) -> Section:
    """How the model was made."""
    made = [
        ["target", about.target],
        *([["treatment", about.treatment]] if about.treatment else []),
        ["task", about.task],
        ["data", about.data or "–"],
        *([f"rows: {name}", f"{n:,}"] for name, n in about.parts.items()),
        ["columns used", f"{len(about.columns)}"],
        *([["made", about.created]] if about.created else []),
        ["version of due", about.version or "–"],
    ]
    grids = [Grid("The model", ["what", "value"], made, (0, 1))]
    if about.settings:
        rows = [[str(name), plain(value)] for name, value in _flat(about.settings)]
        grids.append(Grid("Settings", ["setting", "value"], rows, (0, 1)))
    if about.left_out:
        rows = [[name, why] for name, why in about.left_out.items()]
        grids.append(Grid("Columns left out", ["column", "why"], rows, (0, 1)))
    return Section("settings", "How it was made", f"It predicts “{about.target}”.", grids=grids)


def _flat(nested: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in nested.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", value))
    return found
