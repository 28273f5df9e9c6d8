"""What the subcommands share: options, errors in one line, and the last line of the output."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.")]
EXTRAS = {  # packages that not every command needs, and the extra that brings each
    "matplotlib": "paper",
    "rdata": "paper",
    "pandas": "tables",
    "pyarrow": "tables",
    "jinja2": "report",
    "vl_convert": "report",
}
Smoke = Annotated[bool, typer.Option("--smoke", help="Seconds: same code, tiny settings.")]


def number(help: str, default: str | bool = True) -> Any:
    """An option that takes a number; `default` is what the help shows."""
    return typer.Option(metavar="N", help=help, show_default=default)


def command_line() -> str:
    """The command as the user typed it, for the record."""
    return shlex.join(["due", *sys.argv[1:]])


def say(text: str) -> None:
    """Print progress to stderr: stdout is for results."""
    typer.echo(text, err=True)


def say_written(files: Sequence[Path]) -> None:
    """Name the files that were written."""
    *most, last = map(str, files)
    typer.echo(f"wrote {', '.join(most)} and {last}")


@contextmanager
def one_line_errors(debug: bool) -> Iterator[None]:
    """Turn an exception into one line on stderr and exit code 1; `debug` lets it through."""
    try:
        yield
    except BrokenPipeError:  # the reader, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except Exception as error:
        if debug or isinstance(error, typer.Exit):
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        ours = isinstance(error, ValueError | OSError) or type(error) is ImportError
        if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
            text = f"{error.name} is not installed: pip install 'due[{EXTRAS[error.name]}]'"
        elif not ours:  # it names no remedy
            text = f"{type(error).__name__}: {text}; --debug shows where it came from"
        typer.echo(f"error: {text}", err=True)
        raise typer.Exit(1) from None
