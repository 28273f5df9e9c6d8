"""`due report`: one page about a model, to look at."""

from pathlib import Path
from typing import Annotated

import typer

from due.cli.shared import Debug, one_line_errors, say
from due.cli.tables import Device, Encoding, Folder, Quiet, Separator, check_folder

HELP = """Write one HTML page about a model: calibration, deferral, foreign rows, columns, training.

The page is complete in itself and asks the network for nothing. Without DATA it shows what was
measured at the fit, on rows that had no part in training. With DATA it measures on that table; of
the very table that the model was fitted on it takes the test rows. The page then shows cells of
some rows: mind who may see them.
"""


def report(
    model: Folder,
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", show_default=False, help="A table to measure on."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="Where the page goes.")
    ] = Path("report.html"),
    device: Device = "cpu",
    separator: Separator = None,
    encoding: Encoding = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write one page about a model."""
    with one_line_errors(debug):
        check_folder(model)
        from due.tables.report import report_file

        reading = {"separator": separator, "encoding": encoding}
        report_file(model, data, out, reading=reading, device=device)
        if not quiet:
            say(f"wrote {out}")
