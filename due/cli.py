"""The command `due`."""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from due.compare import DATA, compare
from due.compare.methods import CLASSIFIERS, REGRESSORS
from due.paper import ARTEFACTS, Options
from due.paper.table3 import METHODS

app = typer.Typer(
    name="due",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
KNOWN = ", ".join(ARTEFACTS)
LIST = "\n".join(f"  {name:<11} {artefact.title}" for name, artefact in ARTEFACTS.items())
COUNTS = ("seeds", "threads", "trials", "jobs")
SOME_TAKE = ("seeds", "threads", "trials", "methods", "data", "jobs")  # others refuse them

HELP = f"""Reproduce one figure or table of the paper: its numbers and its picture.

\b
ARTEFACT is one of
{LIST}

Each finished seed or trial is kept in a .jsonl file in DIR: the same command goes on where it was
stopped, and computes nothing twice. table3 shows all trials in DIR, also those of earlier
commands; fig4 takes its trials from there.

\b
METHODS of table3: {", ".join(list(METHODS)[:5])},
  {", ".join(list(METHODS)[5:])}
"""

COMPARE_HELP = f"""Compare methods on one data set: error, NLL, calibration, far rows, time.

\b
DATA with classes: {", ".join(name for name, data in DATA.items() if data.classes)}
  METHODS: {", ".join(CLASSIFIERS)}
DATA with values: {", ".join(name for name, data in DATA.items() if not data.classes)}
  METHODS: {", ".join(REGRESSORS)}

Each finished fit is kept in a .jsonl file in DIR: the same command goes on where it was stopped,
and computes nothing twice.
"""


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"due {metadata.version('due')}")
        raise typer.Exit
    return wanted


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


@app.command(
    "reproduce",
    no_args_is_help=True,
    help=HELP,
    short_help="Reproduce one figure or table of the paper.",
    epilog="Examples: due reproduce fig3; due reproduce table3 --methods due,btarnet --jobs 2",
)
def reproduce_command(
    artefact: Annotated[str, typer.Argument(metavar="ARTEFACT", show_default=False, help=KNOWN)],
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where ARTEFACT.json, ARTEFACT.png and the like go."),
    ] = Path("results"),
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="Settings: default, paper or smoke.")
    ] = "default",
    smoke: Annotated[
        bool,
        typer.Option("--smoke", help="Seconds: same code, tiny settings (--preset smoke)."),
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Figures: seeds 0 to N − 1.",
            show_default="5, fig4 10; 1 for smoke",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Figures: CPU threads; one is best for toys.", show_default="1"
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="table3, choices: trials 0 to N − 1 of each method; the paper has 1000.",
            show_default="100; 2 for smoke",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="table3, choices: methods to run.", show_default="all"),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="table3, choices: ihdp, ihdp-cov or both.", show_default="both"
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="table3, choices, fig4: trials at a time, one core each.",
            show_default="1",
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Reproduce one figure or table of the paper."""
    with _one_line_errors(debug):
        options = Options(
            out=out,
            preset="smoke" if smoke else preset,
            seeds=seeds,
            threads=threads,
            trials=trials,
            methods=methods,
            data=data,
            jobs=jobs,
            command=shlex.join(["due", *sys.argv[1:]]),
            say=lambda text: typer.echo(text, err=True),
        )
        _check(artefact, options)
        report = ARTEFACTS[artefact].reproduce(artefact, options)
        typer.echo(report.text)
        _say_written(report.files)


@app.command(
    "compare",
    no_args_is_help=True,
    help=COMPARE_HELP,
    short_help="Compare methods on one data set.",
    epilog="Example: due compare --data digits --methods due,sngp,ensemble --seeds 3",
)
def compare_command(
    data: Annotated[str, typer.Option(metavar="DATA", show_default=False, help="The data set.")],
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Methods to run.", show_default="all"),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="Seeds 0 to N − 1.")] = 5,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where compare-DATA.json, .txt and .png go.")
    ] = Path("results"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers as JSON, not as a table.")
    ] = False,
    jobs: Annotated[int, typer.Option(metavar="N", help="Fits at a time, one core each.")] = 1,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Seconds: same code, tiny settings.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Compare methods on one data set."""
    with _one_line_errors(debug):
        comparison = compare(
            data,
            out,
            methods=methods,
            seeds=seeds,
            jobs=jobs,
            smoke=smoke,
            command=shlex.join(["due", *sys.argv[1:]]),
            say=lambda text: typer.echo(text, err=True),
        )
        if as_json:
            typer.echo(json.dumps(comparison.report, indent=2))
            return
        typer.echo(comparison.text)
        _say_written(comparison.files)


def _say_written(files: Sequence[Path]) -> None:
    *most, last = map(str, files)
    typer.echo(f"wrote {', '.join(most)} and {last}")


def _check(artefact: str, options: Options) -> None:
    if artefact not in ARTEFACTS:
        raise ValueError(f"unknown artefact {artefact!r}; the known ones are {KNOWN}")
    presets, takes = ARTEFACTS[artefact].presets, ARTEFACTS[artefact].takes
    if options.preset not in presets:
        raise ValueError(
            f"{artefact} has no preset {options.preset!r}; it has {', '.join(presets)}"
        )
    for name in SOME_TAKE:
        value = getattr(options, name)
        if value is None:
            continue
        if name not in takes:
            known = ", ".join(f"--{taken}" for taken in ("out", "preset", "smoke", *takes))
            raise ValueError(f"{artefact} takes no --{name}; it takes {known}")
        if name in COUNTS and value < 1:
            raise ValueError(f"--{name} {value} is too few; give at least 1")


@contextmanager
def _one_line_errors(debug: bool) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if debug or isinstance(error, typer.Exit):
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        ours = isinstance(error, ValueError | OSError) or type(error) is ImportError
        if not ours:  # it names no remedy
            text = f"{type(error).__name__}: {text}; --debug shows where it came from"
        typer.echo(f"error: {text}", err=True)
        raise typer.Exit(1) from None
