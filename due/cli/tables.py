"""What the commands on tables share: arguments, and a model from its folder."""

from pathlib import Path
from typing import Annotated, Any

import typer

Folder = Annotated[
    Path, typer.Argument(metavar="MODEL", show_default=False, help="A folder made by due fit.")
]
Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        show_default=False,
        help="CSV (also .gz .bz2 .xz .zip) or Parquet; - is stdin.",
    ),
]
Separator = Annotated[
    str | None, typer.Option(metavar="SIGN", help="Between cells of a CSV.", show_default="found")
]
Encoding = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of a CSV.", show_default="utf-8")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors and results.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="Where to compute: cpu, cuda, …")]


def tell(quiet: bool) -> Any:
    """Where sentences on the way go: stderr, or nowhere."""
    return (lambda text: None) if quiet else (lambda text: typer.echo(text, err=True))


def as_text(value: Any) -> str:
    """JSON for people and programs."""
    import json

    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


def check_folder(folder: Path) -> None:
    """A mistake in the name is found before anything slow is imported."""
    if not folder.exists():
        from due.tables.names import nearest

        around = folder.parent if folder.parent.is_dir() else Path()
        names = [p.name for p in around.iterdir() if (p / "model.safetensors").is_file()]
        hint = nearest(folder.name, names) if names else ""
        raise FileNotFoundError(f"no folder {folder}{hint}")
