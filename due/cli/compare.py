"""`due compare`: methods side by side on one data set."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from due.cli.shared import Debug, Smoke, command_line, number, one_line_errors, say, say_written
from due.compare import CLASS_DATA, CLASSIFIER_NAMES, REGRESSOR_NAMES, VALUE_DATA

HELP = f"""Compare methods on one data set: error, NLL, calibration, far rows, time.

\b
Give a table of your own, as in due compare data.csv --target y, or --data NAME of one below.

\b
DATA with classes: {", ".join(CLASS_DATA)}
  METHODS: {", ".join(CLASSIFIER_NAMES)}
DATA with values: {", ".join(VALUE_DATA)}
  METHODS: {", ".join(REGRESSOR_NAMES)}

Each finished fit is saved in a .jsonl file in DIR: the same command continues where it was
stopped, and computes nothing twice.
"""


def compare(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="A table: CSV or Parquet.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Of FILE: the column to predict.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="TASK", help="Of FILE: classification or regression.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DATA", show_default=False, help="A data set by name.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="A,B", help="Methods to run.", show_default="all")
    ] = None,
    seeds: Annotated[int, number("Seeds 0 to N − 1.")] = 5,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where compare-DATA.json, .txt and .png go.")
    ] = Path("results"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers as JSON, not as a table.")
    ] = False,
    jobs: Annotated[int, number("Fits at a time, one core each.")] = 1,
    smoke: Smoke = False,
    debug: Debug = False,
) -> None:
    """Compare methods on one data set."""
    with one_line_errors(debug):
        if (file is None) == (data is None) or (file is None) != (target is None):
            raise ValueError("give FILE and --target COLUMN, or --data NAME of a known data set")
        from due.compare.run import compare as run  # imports torch, which the help does without

        own = None
        if file is not None and target is not None:
            from due.compare.own_table import own_table

            own, data = own_table(file, target, task), Path(file).name.split(".")[0]
        given: dict[str, Any] = {
            "own": own,
            "methods": methods,
            "seeds": seeds,
            "jobs": jobs,
            "smoke": smoke,
        }
        comparison = run(data or "", out, **given, command=command_line(), say=say)
        if as_json:
            typer.echo(json.dumps(comparison.report, indent=2))
            return
        typer.echo(comparison.text)
        say_written(comparison.files)
