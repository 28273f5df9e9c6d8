"""A checkpoint for whatever is trained within, however deep in an estimator that is."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_FILE: ContextVar[Path | None] = ContextVar("checkpoint", default=None)


@contextmanager
def checkpointing(file: str | Path) -> Iterator[None]:
    """Let the `fit` of an estimator within write its state to `file` after each epoch.

    If the file exists, the fit goes on from it. It is for one fit of one network: the data, the
    settings and the seed must be the same. Nobody deletes it.
    """
    token = _FILE.set(Path(file))
    try:
        yield
    finally:
        _FILE.reset(token)


def checkpoint_file() -> Path | None:
    """The file of the `checkpointing` around us, if there is one."""
    return _FILE.get()
