"""`due predict` and `due effect`: a table with predictions, by chunks."""

from collections.abc import Callable
from typing import Annotated

import typer

from due.cli.shared import Debug, number, one_line_errors
from due.cli.tables import (
    Data,
    Device,
    Encoding,
    Folder,
    Json,
    Quiet,
    Separator,
    as_text,
    check_folder,
    tell,
)

HELP = """Predict the rows of a table: its columns in their order, then what the model says.

\b
Added are prediction, probability or the ends of an interval, uncertainty, ood_score (0 on the
training data, 1 far from all of it), ood_pvalue, and foreign_because: the columns that make a row
foreign whose p-value is at most 0.05.

The table is read and written by chunks and may be larger than memory.
"""
EFFECT_HELP = """Effects of the treatment per row, with intervals and overlap.

\b
Added are effect, lower, upper, the outcome untreated and treated, the overlap with either arm (0:
nobody like this row was in it), uncertainty, ood_score, ood_pvalue and foreign_because.
"""
Out = Annotated[
    str, typer.Option("--out", "-o", metavar="FILE", help="CSV or Parquet; - is stdout.")
]
Level = Annotated[float, typer.Option(metavar="LEVEL", help="Of the intervals.")]
Escape = Annotated[
    bool, typer.Option("--escape", help="Put ' before formulas in cells of the input too.")
]
Explain = Annotated[
    bool, typer.Option("--explain/--no-explain", help="Name the columns of foreign rows.")
]
Rows = Annotated[int | None, number("Rows per chunk.", "up to 10000")]


def _command(effects: bool) -> Callable[..., None]:
    """The command that writes predictions, or effects: both take the same options."""

    def run(
        model: Folder,
        data: Data,
        out: Out = "-",
        level: Level = 0.95,
        explain: Explain = True,
        escape: Escape = False,
        chunk: Rows = None,
        device: Device = "cpu",
        separator: Separator = None,
        encoding: Encoding = None,
        as_json: Json = False,
        quiet: Quiet = False,
        debug: Debug = False,
    ) -> None:
        with one_line_errors(debug):
            check_folder(model)
            if not 0 < level < 1:
                raise ValueError(f"--level {level} is not between 0 and 1; 0.95 is usual")
            if as_json and out == "-":
                raise ValueError("--json prints a summary: give the table a file by --out")
            from due.tables.command import predict_file

            found = predict_file(
                model,
                data,
                out,
                reading={"separator": separator, "encoding": encoding, "rows": chunk},
                predicting={"alpha": 1 - level, "explain": explain},
                escape=escape,
                device=device,
                effects=effects,
            )
            if as_json:
                typer.echo(as_text(found))
                return
            say = tell(quiet)
            for sentence, n in found["odd"].items():
                say(f"odd: {sentence} in {n:,} rows")
            what = f"average effect {found['average_effect']:.4g}; " if effects else ""
            n, foreign = found["rows"], found["foreign"]
            known = "unknown how foreign" if foreign is None else f"{foreign:,} of them foreign"
            say(f"{n:,} rows, {known}; {what}in {out}")

    return run


predict, effect = _command(effects=False), _command(effects=True)
