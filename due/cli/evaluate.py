"""`due evaluate` and `due info`: how good a model is on a table, and what a folder holds."""

from typing import Annotated

import typer

from due.cli.shared import Debug, one_line_errors
from due.cli.tables import (
    Data,
    Device,
    Encoding,
    Folder,
    Json,
    Separator,
    as_text,
    check_folder,
)

HELP = """Measure a model on a table whose target is known.

All rows are measured. If the model was fitted on this table, give --part test, which takes the
rows that it has not seen.
"""
INFO = "What a model folder holds: task, columns, settings, what was measured, changed files."


def evaluate(
    model: Folder,
    data: Data,
    part: Annotated[
        str, typer.Option(metavar="PART", help="all, train, validation, calibration or test.")
    ] = "all",
    device: Device = "cpu",
    separator: Separator = None,
    encoding: Encoding = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure a model on a table."""
    with one_line_errors(debug):
        check_folder(model)
        from due.tables.command import evaluate_file
        from due.tables.summary import evaluation

        reading = {"separator": separator, "encoding": encoding}
        found = evaluate_file(model, data, part, reading=reading, device=device)
        typer.echo(as_text(found) if as_json else evaluation(found))


def info(model: Folder, as_json: Json = False, debug: Debug = False) -> None:
    """What a model folder holds."""
    with one_line_errors(debug):
        check_folder(model)
        from due.tables.command import describe
        from due.tables.summary import information

        found, loaded = describe(model)
        typer.echo(as_text(found) if as_json else information(loaded, found["altered"]))
