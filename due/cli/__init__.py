"""The command `due`, one file per subcommand. Each imports what it runs only when it runs."""

from typing import Annotated

import typer

import due
from due.cli import compare, evaluate, fit, predict, report, reproduce

app = typer.Typer(
    name="due",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"due {due.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Uncertainty from a deep network in one forward pass."""


app.command(
    "fit",
    no_args_is_help=True,
    help=fit.HELP,
    short_help="Fit a model to a table: CSV or Parquet.",
    epilog="Example: due fit data.csv --target price -o model",
)(fit.fit)
app.command(
    "predict",
    no_args_is_help=True,
    help=predict.HELP,
    short_help="Predict the rows of a table, with uncertainty.",
    epilog="Examples: due predict model new.csv -o out.csv; cat new.csv | due predict model -",
)(predict.predict)
app.command(
    "effect",
    no_args_is_help=True,
    help=predict.EFFECT_HELP,
    short_help="Effects of a treatment per row, with overlap.",
    epilog="Example: due effect model new.csv -o out.csv",
)(predict.effect)
app.command(
    "evaluate",
    no_args_is_help=True,
    help=evaluate.HELP,
    short_help="Measure a model on a table.",
    epilog="Example: due evaluate model data.csv --part test",
)(evaluate.evaluate)
app.command(
    "info",
    no_args_is_help=True,
    help=evaluate.INFO,
    short_help="What a model folder holds.",
    epilog="Example: due info model --json",
)(evaluate.info)
app.command(
    "report",
    no_args_is_help=True,
    help=report.HELP,
    short_help="One page about a model, to look at.",
    epilog="Examples: due report model; due report model new.csv -o new.html",
)(report.report)
app.command(
    "reproduce",
    no_args_is_help=True,
    help=reproduce.HELP,
    short_help="Reproduce one figure or table of the paper.",
    epilog="Examples: due reproduce fig3; due reproduce table3 --methods due,btarnet --jobs 2",
)(reproduce.reproduce)
app.command(
    "compare",
    no_args_is_help=True,
    help=compare.HELP,
    short_help="Compare methods on one data set.",
    epilog="Example: due compare --data digits --methods due,sngp,ensemble --seeds 3",
)(compare.compare)
