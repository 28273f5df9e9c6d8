"""The command `due`, one file per subcommand. Each imports what it runs only when it runs."""

from typing import Annotated

import typer

import due
from due.cli import compare, reproduce

app = typer.Typer(
    name="due",
    no_args_is_help=True,
    add_completion=False,
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
