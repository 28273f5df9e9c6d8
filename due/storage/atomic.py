"""Files that are replaced as a whole or not at all, in folders that others may write to."""

import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

LOCK_SECONDS = 30.0  # that another writer may take
NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class StorageError(ValueError):
    """A file of ours could not be written or read; the message has the path and the remedy."""


def atomic_write(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then put it in place of `path`: all of it or nothing."""
    with replaced(path.parent, path.name) as (temporary,):
        write(temporary)


@contextmanager
def replaced(folder: Path, *names: str) -> Iterator[tuple[Path, ...]]:
    """New files to fill within; then they take the place of those in `folder`, in this order.

    Their names cannot be guessed and no link is followed, so that nothing planted in the folder
    decides what is overwritten. Writers to a folder take turns, and each removes what a killed one
    left. All new files are on the disk before the first takes its place.
    """
    with _turn(folder) as alone:
        if alone:
            _remove_leftovers(folder, names)
        new: list[Path] = []
        try:
            for name in names:
                new.append(_new_file(folder, name))
            yield tuple(new)
            for file in new:
                _sync(file, os.O_RDWR | NO_LINK)
            for file, name in zip(new, names, strict=True):
                os.replace(file, folder / name)
        except BaseException:
            for file in new:
                file.unlink(missing_ok=True)
            raise
    if os.name != "nt":
        _sync(folder, os.O_RDONLY)


def _new_file(folder: Path, name: str) -> Path:
    path = folder / f".{name}.{secrets.token_hex(8)}.tmp"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK, 0o666))
    return path


def _remove_leftovers(folder: Path, names: tuple[str, ...]) -> None:
    ours = re.compile(rf"\.({'|'.join(map(re.escape, names))})\.([0-9a-f]{{16}}\.)?tmp")
    for entry in os.scandir(folder):
        if ours.fullmatch(entry.name):
            with suppress(OSError):  # a directory is not ours
                os.unlink(entry.path)  # of a link, the link itself


@contextmanager
def _turn(folder: Path) -> Iterator[bool]:
    """Hold the folder against other writers; whether that worked. It ends with the process."""
    if sys.platform == "win32":  # which lets nobody replace an open file
        yield False
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _lock(descriptor, folder)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> bool:
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                raise StorageError(
                    f"another process has held {folder} for {LOCK_SECONDS:g} seconds: wait for it "
                    "or end it, or save elsewhere"
                ) from None
            time.sleep(0.01)
        except OSError:  # some network file systems know no locks
            return False


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
