"""`due fit`: a model from a table, in a folder."""

from pathlib import Path
from typing import Annotated

import typer

from due.cli.shared import Debug, command_line, number, one_line_errors
from due.cli.tables import Data, Device, Encoding, Json, Quiet, Separator, as_text, tell

HELP = """Fit a model to a table, measure it on rows that it has not seen, and save it.

Numbers, categories, truth values, dates and missing cells are handled; identifiers and constant
columns are left out with a word. The task follows from the target, or from --treatment.

\b
A fit that was stopped goes on from its last epoch when the same command runs again. MODEL is
replaced once the new model is whole. Measured are rows held out by a checksum of their cells.
"""
Columns = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="COLUMN", help="A column not to use.")
]
Keep = Annotated[
    list[str] | None,
    typer.Option("--keep", metavar="COLUMN", help="A column to use, though it looks like an id."),
]


def fit(
    data: Data,
    target: Annotated[
        str, typer.Option(metavar="COLUMN", show_default=False, help="The column to predict.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="MODEL", help="The folder for the model.")
    ] = Path("model"),
    treatment: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Two values: predict the effect of the second."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="TASK", help="classification or regression.", show_default="found"),
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Rows with the same value stay together.")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Train on the earliest, test on the latest."),
    ] = None,
    ignore: Columns = None,
    keep: Keep = None,
    test: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Of the rows, to measure on.", show_default="0.2"),
    ] = None,
    epochs: Annotated[int | None, number("At most.", "by the rows")] = None,
    seed: Annotated[int, number("Of everything random.")] = 0,
    device: Device = "cpu",
    separator: Separator = None,
    encoding: Encoding = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit a model to a table."""
    with one_line_errors(debug):
        from due.tables.command import fit_file
        from due.tables.summary import summary

        say = tell(quiet)
        model = fit_file(
            data,
            out,
            target,
            reading={"separator": separator, "encoding": encoding},
            estimator={"epochs": epochs, "device": device, "verbose": not quiet},
            command=command_line(),
            treatment=treatment,
            task=task,
            group=group,
            time=time,
            ignore=ignore or (),
            keep=keep or (),
            test=test,
            seed=seed,
            say=say,
        )
        if as_json:
            found = {"model": str(out), "task": model.task, "measured": model.measured}
            typer.echo(as_text(found | {"data": model.data, "settings": model.settings}))
        elif not quiet:
            typer.echo(summary(model))
            asks = "predict" if treatment is None else "effect"
            typer.echo(f"\nsaved in {out}; next: due {asks} {out} NEW.csv -o OUT.csv")
