"""A model folder: `config.json`, `model.safetensors`, `README.md`, and `SHA256SUMS` of the three.

`model.safetensors` alone is the model: its header has the config and its own checksum, and its
replacement is the moment at which a save takes effect. `SHA256SUMS` is written last; after a kill
in between it says that the card is of an earlier model.
"""

import hashlib
from pathlib import Path

from due.storage import StorageError, atomic_write

FILES = ("config.json", "model.safetensors", "README.md")
SUMS = "SHA256SUMS"


def write_card(folder: str | Path, text: str) -> None:
    """Write the card and the checksums beside a model that was just saved."""
    home = Path(folder)
    try:
        _write(home / "README.md", text)
        _write(home / SUMS, "".join(f"{sha256(home / name)}  {name}\n" for name in FILES))
    except OSError as error:
        raise StorageError(
            f"the model in {home} is saved, but its card is not: {error}. Free some space or check "
            "the permissions, and save again."
        ) from error


def differing(folder: str | Path) -> list[str]:
    """Names of files that are not as `SHA256SUMS` has them."""
    home = Path(folder)
    try:
        lines = (home / SUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return [SUMS]
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    return [n for n in FILES if not (home / n).is_file() or listed.get(n) != sha256(home / n)]


def sha256(file: Path) -> str:
    """Of a file, as `sha256sum` prints it."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _write(file: Path, text: str) -> None:
    atomic_write(file, lambda copy: copy.write_text(text, encoding="utf-8"))
