"""`due reproduce`: one figure or table of the paper."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from due.cli.shared import Debug, Smoke, command_line, number, one_line_errors, say, say_written
from due.paper import CATALOGUE, TABLE3_METHODS

ALL = "all"
KNOWN = ", ".join(CATALOGUE)
LIST = "\n".join(f"  {name:<11} {entry.title}" for name, entry in CATALOGUE.items())
HELP = f"""Reproduce one figure or table of the paper: its numbers and its picture.

\b
ARTEFACT is one of
{LIST}
  {ALL:<11} Each of these, by PRESET if it has that one, else by its first

Each finished seed or trial is saved in a .jsonl file in DIR: the same command continues where it
was stopped, and computes nothing twice. table3 and the tables of images show all that DIR holds,
including what earlier commands left; fig4 takes its trials from there. What is about images shares
the trained models in DIR/models.

\b
METHODS of table3: {", ".join(TABLE3_METHODS[:5])},
  {", ".join(TABLE3_METHODS[5:])}
"""


def reproduce(
    artefact: Annotated[str, typer.Argument(metavar="ARTEFACT", show_default=False, help=KNOWN)],
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where ARTEFACT.json, ARTEFACT.png and the like go."),
    ] = Path("results"),
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Settings: default or laptop (images), paper, smoke.",
            show_default="default or laptop",
        ),
    ] = None,
    smoke: Smoke = False,
    seeds: Annotated[
        int | None, number("Figures: seeds 0 to N − 1.", "3 or 5, fig4 10; 1 for smoke")
    ] = None,
    threads: Annotated[
        int | None, number("Figures: CPU threads; one is fastest for toy data.", "1")
    ] = None,
    trials: Annotated[
        int | None,
        number(
            "table3, choices: trials 0 to N − 1 of each method; the paper has 1000.",
            "100; 2 for smoke",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Tables, choices: methods to run.", show_default="all"),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="table3, choices: ihdp, ihdp-cov or both; images: cifar10 or fashion.",
            show_default="both; cifar10",
        ),
    ] = None,
    jobs: Annotated[
        int | None, number("table3, choices, fig4: trials at a time, one core each.", "1")
    ] = None,
    debug: Debug = False,
) -> None:
    """Reproduce one figure or table of the paper."""
    preset = "smoke" if smoke else preset
    names = list(CATALOGUE) if artefact == ALL else [artefact]
    given: dict[str, Any] = {"seeds": seeds, "threads": threads, "trials": trials}
    given |= {"methods": methods, "data": data, "jobs": jobs}
    with one_line_errors(debug):
        if artefact == ALL:
            check_all(preset, given)
        else:
            check(artefact, preset, given)
        from due.experiments.artefact import Options  # imports torch, which the help does without

        for name in names:
            known = CATALOGUE[name].presets
            chosen = known[0] if preset is None or preset not in known else preset
            options = Options(out, chosen, command=command_line(), say=say, **given)
            report = import_module(f"due.paper.{name}").ARTEFACT.reproduce(name, options)
            typer.echo(report.text)
            say_written(report.files)


def check_all(preset: str | None, given: dict[str, Any]) -> None:
    """Refuse what none of the artefacts has."""
    if any(value is not None for value in given.values()):
        raise ValueError("all takes no option but --out, --preset and --smoke")
    known = sorted({name for entry in CATALOGUE.values() for name in entry.presets})
    if preset is not None and preset not in known:
        raise ValueError(f"nothing has the preset {preset!r}; known ones are {', '.join(known)}")


def check(artefact: str, preset: str | None, given: dict[str, Any]) -> None:
    """Refuse what the artefact does not have, before anything slow is imported."""
    if artefact not in CATALOGUE:
        raise ValueError(f"unknown artefact {artefact!r}; the known ones are {KNOWN} and {ALL}")
    entry = CATALOGUE[artefact]
    if preset is not None and preset not in entry.presets:
        raise ValueError(f"{artefact} has no preset {preset!r}; it has {', '.join(entry.presets)}")
    for name, value in given.items():
        if value is None:
            continue
        if name not in entry.takes:
            known = ", ".join(f"--{taken}" for taken in ("out", "preset", "smoke", *entry.takes))
            raise ValueError(f"{artefact} takes no --{name}; it takes {known}")
        if isinstance(value, int) and value < 1:
            raise ValueError(f"--{name} {value} is too few; give at least 1")
