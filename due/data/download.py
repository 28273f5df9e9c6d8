"""A data file: under DUE_DATA if it is there, else downloaded once, checked and cached."""

import errno
import os
import sys
from pathlib import Path

import pooch


class DownloadError(OSError):
    """A file is neither under DUE_DATA nor in the cache, and could not be downloaded."""


class DataFileError(ValueError):
    """A data file is not what its name says."""


def damaged(path: Path, why: object) -> DataFileError:
    """The error that names a file which cannot be read."""
    reason = f"{type(why).__name__}: {why}" if isinstance(why, Exception) else why
    return DataFileError(f"{path} is damaged ({reason}): replace it, or delete it to fetch it anew")


def data_dir() -> Path | None:
    """The folder named by the environment variable DUE_DATA, None where it is not set."""
    value = os.environ.get("DUE_DATA")
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise NotADirectoryError(f"DUE_DATA is not a folder: {folder}. Create it or unset DUE_DATA")
    return folder


def find(name: str) -> Path | None:
    """DUE_DATA/`name` if that file exists. It is the user's own: no checksum is required."""
    folder = data_dir()
    if folder is None or not (folder / name).is_file():
        return None
    return folder / name


def fetch(name: str, url: str, checksum: str, *, cache: Path | None = None) -> Path:
    """The file `name` (a relative path such as "ihdp/ihdp.RData"), from the first that has it.

    DUE_DATA, then `cache` (the user's cache folder unless given), then `url`. What comes from
    `url` must have `checksum`: a SHA-256 in hex, or "md5:…", "sha1:…" where only that is published.
    """
    if (own := find(name)) is not None:
        return own
    folder = cache or pooch.os_cache("due")
    try:
        bar = sys.stderr.isatty()
        return Path(pooch.retrieve(url, checksum, fname=name, path=folder, progressbar=bar))
    except (OSError, ValueError) as error:  # requests' errors are OSErrors, a bad hash a ValueError
        if (response := getattr(error, "response", None)) is not None:
            response.close()  # pooch leaves a refused one open
        full = getattr(error, "errno", None) == errno.ENOSPC
        space = f"free space in {folder}, or " if full else ""
        raise DownloadError(
            f"could not download {name} from {url}: {error}\n"
            f"Remedy: {space}bring the file from elsewhere, put it at FOLDER/{name} "
            "and set the environment variable DUE_DATA=FOLDER"
        ) from error
