"""Kill a fit to the table in a folder, and then the save of its model; after each kill go on.

Prints: kills, and epochs that were trained twice.
"""

import os
import sys
from functools import partial
from pathlib import Path
from unittest import mock

import pandas as pd
import torch
from killing import Report, kill

from due.tables import TableModel
from due.tables.command import fit_file
from due.training import loop

EPOCHS = 6


def fitting(folder: Path, data: Path, report: Report) -> None:
    """Fit to a file, and report each epoch and how many files were synchronised."""
    close = loop.Run.close_epoch

    def close_and_report(run: loop.Run, n: int) -> None:
        close(run, n)
        report("epoch")

    setattr(loop.Run, "close_epoch", close_and_report)  # noqa: B010
    given = {"epochs": EPOCHS, "n_inducing": 10, "batch_size": 32}
    with mock.patch.object(os, "fsync", wraps=os.fsync) as fsync:
        fit_file(str(data), folder, "y", reading={}, estimator=given, beside=False)
    report(fsync.call_count)


def main(home: Path) -> None:
    torch.set_num_threads(1)
    data, folder = home / "people.csv", home / "model"
    rows = pd.read_csv(data)
    work = partial(fitting, folder, data)
    *epochs, count = kill(work)[1]
    assert len(epochs) == EPOCHS
    wanted, fsyncs, kills, repeated = TableModel.load(folder).predict(rows), int(count), 0, 0

    moments = ({"fsyncs": n} for n in (1, fsyncs // 2, fsyncs - 3, fsyncs - 1))
    for where in ({"reports": 3}, *moments):
        before = (folder / "model.safetensors").read_bytes()
        killed, done = kill(work, **where)
        assert killed, where
        after = (folder / "model.safetensors").read_bytes()
        assert after == before or len(done) == EPOCHS  # it is replaced at the end, not before
        pd.testing.assert_frame_equal(TableModel.load(folder).predict(rows), wanted)
        *again, _ = kill(work)[1]
        assert len(done) + len(again) >= EPOCHS
        kills, repeated = kills + 1, repeated + len(done) + len(again) - EPOCHS
        pd.testing.assert_frame_equal(TableModel.load(folder).predict(rows), wanted)
        assert not list(folder.glob(".fit-*"))
    print(kills, repeated)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
