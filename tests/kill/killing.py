"""Run work in a forked child and kill it at a point of its progress, never by the clock."""

import os
import signal
import traceback
from collections.abc import Callable
from itertools import islice
from typing import Any

Report = Callable[[object], object]


def kill(
    work: Callable[[Report], None], *, reports: int | None = None, fsyncs: int | None = None
) -> tuple[bool, list[str]]:
    """Whether the child was killed before its end, and what it had reported.

    It is killed from here once so many reports have arrived, wherever it then is; or it kills
    itself in its fsync of that number, in the act of writing a file.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _live(work, writer, fsyncs)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        lines = list(islice(pipe, reports))  # waits for so many, or for the end of the child
        if len(lines) == reports:
            os.kill(child, signal.SIGKILL)
        lines += list(pipe)
    _, status = os.waitpid(child, 0)
    assert status == 0 or os.WIFSIGNALED(status), f"the child failed with status {status}"
    return os.WIFSIGNALED(status), [line.strip() for line in lines]


def _live(work: Callable[[Report], None], writer: int, fsyncs: int | None) -> None:
    """The child: never returns into the code of its parent."""
    if fsyncs is not None:
        _die_in_fsync(fsyncs)
    try:
        work(lambda line: os.write(writer, f"{line}\n".encode()))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _die_in_fsync(number: int) -> None:
    real, calls = os.fsync, iter(range(1, 10**9))

    def fsync(file: Any) -> None:
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        real(file)

    os.fsync = fsync  # type: ignore[assignment]
