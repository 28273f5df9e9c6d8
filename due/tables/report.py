"""`due report` as a function of files: one page about a model."""

from pathlib import Path
from typing import Any

from due.report.evidence import Evidence, from_json
from due.report.page import render
from due.report.probe import sample
from due.storage import StorageError, atomic_write
from due.tables.evidence import about, evidence, forest_beside, unseen
from due.tables.model import TableModel
from due.tables.reading import read

MOST = 20_000  # rows of a file that are measured; more are drawn at random


def report_file(
    folder: Path,
    data: str | None,
    out: Path,
    *,
    reading: dict[str, Any] | None = None,
    device: str | None = None,
) -> None:
    """Write the page about the model in a folder: measured on a file, or as at the fit."""
    model = TableModel.load(folder, device=device)
    found = stored(model, folder) if data is None else measured(model, data, reading or {})
    page = render(about(model), found)
    out.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(out, lambda copy: copy.write_text(page, encoding="utf-8"))


def stored(model: TableModel, folder: Path) -> Evidence:
    """What was measured at the fit."""
    if not model.evidence:
        raise ValueError(
            f"{folder} has nothing measured: it was fitted without test rows. Give a table to "
            f"measure on: due report {folder} DATA"
        )
    try:
        return from_json(model.evidence)
    except ValueError as error:
        raise StorageError(f"{folder}: {error}; fit the model again, or give a table") from error


def measured(model: TableModel, data: str, reading: dict[str, Any]) -> Evidence:
    """What a file shows; of the table of the fit only its test rows."""
    table = model.encoder.check(read(data, **reading))
    name = "the standard input" if data == "-" else Path(data).name
    rows, where, tested = unseen(model, table, name)
    if len(rows) > MOST:
        rows, where = rows.iloc[sample(len(rows), MOST)], f"{MOST:,} of {where}"
    rivals = forest_beside(model.measured) if tested else {}
    return evidence(model, rows, where, rivals=rivals, show_cells=True)
