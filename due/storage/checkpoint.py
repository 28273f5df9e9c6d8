"""A training run on disk: written all or nothing, read without pickle's code, refused if other."""

import io
import zipfile
from pathlib import Path
from typing import Any

import torch

from due.storage.files import StorageError, atomic_write


def write(file: Path, settings: dict[str, Any], state: dict[str, Any]) -> None:
    """Put the run in place of what the file holds."""
    buffer = io.BytesIO()
    torch.save({"settings": settings, **state}, buffer)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, lambda temporary: temporary.write_bytes(buffer.getbuffer()))
    except OSError as error:
        raise StorageError(
            f"could not write the checkpoint {file}: {error}. The one before it is whole: "
            "free some space or check the permissions, then call fit again to go on."
        ) from error


def read(file: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The run in the file, which must have the same settings."""
    try:
        with zipfile.ZipFile(file) as archive:  # torch.load itself checks no checksum
            if archive.testzip() is not None:
                raise zipfile.BadZipFile("wrong checksum")
        saved = dict(torch.load(file, map_location="cpu", weights_only=True))
        was = saved.pop("settings")
    except Exception as error:  # torch.load raises many kinds
        raise StorageError(
            f"the checkpoint {file} cannot be read ({type(error).__name__}). It is damaged or "
            "not a checkpoint of due: delete it to train from the beginning."
        ) from error
    changes = [
        f"{name} was {was.get(name, 'absent')}, is {settings.get(name, 'absent')}"
        for name in {**was, **settings}
        if was.get(name, "absent") != settings.get(name, "absent")
    ]
    if changes:
        raise StorageError(
            f"the checkpoint {file} is of another run: {'; '.join(changes)}. "
            "Use the same settings to go on, or delete it to train from the beginning."
        )
    return saved
