"""Checkpoints for whatever is trained within, however deep in an estimator that is."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from pathlib import Path

_FILES: ContextVar[Iterator[Path] | None] = ContextVar("checkpoints", default=None)


@contextmanager
def checkpointing(file: str | Path) -> Iterator[None]:
    """Let the `fit` of an estimator within write its state to `file` after each epoch.

    An estimator that trains several networks, one after the other, has a file for each: numbers
    0, 1, … are appended to the name. Where a file exists, the training goes on from it; the data,
    the settings and the seed must be the same. Nobody deletes them.
    """
    token = _FILES.set(Path(f"{file}.{number}") for number in count())
    try:
        yield
    finally:
        _FILES.reset(token)


def next_checkpoint() -> Path | None:
    """The file for the next training within a `checkpointing`; None outside of one."""
    files = _FILES.get()
    return None if files is None else next(files)
