"""The command `due`."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from due.paper import ARTEFACTS, reproduce

app = typer.Typer(
    name="due",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
KNOWN = ", ".join(ARTEFACTS)
LIST = "\n".join(f"  {name}   {artefact.title}" for name, artefact in ARTEFACTS.items())

HELP = f"""Reproduce one figure or table of the paper: its numbers and its picture.

\b
ARTEFACT is one of
{LIST}

Each finished seed is kept in DIR/ARTEFACT.jsonl: the same command goes on where it was stopped,
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
    epilog="Example: due reproduce fig3 --out results",
)
def reproduce_command(
    artefact: Annotated[str, typer.Argument(metavar="ARTEFACT", show_default=False, help=KNOWN)],
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where ARTEFACT.json and ARTEFACT.png go."),
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
        typer.Option(metavar="N", help="Seeds 0 to N − 1.", show_default="5; 1 for smoke"),
    ] = None,
    threads: Annotated[
        int, typer.Option(metavar="N", min=1, help="CPU threads; one is best for toys.")
    ] = 1,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Reproduce one figure or table of the paper."""
    with _one_line_errors(debug):
        preset = "smoke" if smoke else preset
        _check(artefact, preset, seeds)
        torch.set_num_threads(threads)
        outcome = reproduce(
            artefact,
            ARTEFACTS[artefact],
            out,
            preset=preset,
            seeds=seeds,
            command=shlex.join(["due", *sys.argv[1:]]),
            say=lambda text: typer.echo(text, err=True),
        )
        for label, value in _flat(outcome.mean):
            typer.echo(f"{label:<56} {value:.4g}")
        typer.echo(f"wrote {outcome.json} and {outcome.png}")


def _check(artefact: str, preset: str, seeds: int | None) -> None:
    if artefact not in ARTEFACTS:
        raise ValueError(f"unknown artefact {artefact!r}; the known ones are {KNOWN}")
    presets = ARTEFACTS[artefact].presets
    if preset not in presets:
        raise ValueError(f"{artefact} has no preset {preset!r}; it has {', '.join(presets)}")
    if seeds is not None and seeds < 1:
        raise ValueError(f"--seeds {seeds} is too few; give at least 1")


def _flat(value: Any, label: str = "") -> Iterator[tuple[str, float]]:
    """The leaves of nested dicts, each with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{label}.{key}" if label else key)
    elif isinstance(value, float):
        yield label, value


@contextmanager
def _one_line_errors(debug: bool) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if debug or isinstance(error, typer.Exit):
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, ValueError | OSError):  # not one of ours: it names no remedy
            text = f"{type(error).__name__}: {text}; --debug shows where it came from"
        typer.echo(f"error: {text}", err=True)
        raise typer.Exit(1) from None
