"""`due compare`: methods side by side on one data set."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from due.cli.shared import Debug, Smoke, command_line, number, one_line_errors, say, say_written
from due.compare import CLASS_DATA, CLASSIFIER_NAMES, REGRESSOR_NAMES, VALUE_DATA

HELP = f"""Compare methods on one data set: error, NLL, calibration, far rows, time.

\b
DATA with classes: {", ".join(CLASS_DATA)}
  METHODS: {", ".join(CLASSIFIER_NAMES)}
DATA with values: {", ".join(VALUE_DATA)}
  METHODS: {", ".join(REGRESSOR_NAMES)}

Each finished fit is saved in a .jsonl file in DIR: the same command continues where it was
stopped, and computes nothing twice.
"""


def compare(
    data: Annotated[str, typer.Option(metavar="DATA", show_default=False, help="The data set.")],
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
        from due.compare.run import compare as run  # imports torch, which the help does without

        given: dict[str, Any] = {"methods": methods, "seeds": seeds, "jobs": jobs, "smoke": smoke}
        comparison = run(data, out, **given, command=command_line(), say=say)
        if as_json:
            typer.echo(json.dumps(comparison.report, indent=2))
            return
        typer.echo(comparison.text)
        say_written(comparison.files)
