"""A file ten times as large as the memory that may be taken, and fits that are killed."""

import os
import subprocess
import sys
from functools import partial
from unittest import mock

import pandas as pd
import pytest

from due.tables import TableModel
from tests.kill.killing import kill
from tests.tables import frames

CAP = 24  # megabytes beside what the process has once it has predicted a little
PREDICT = """
import resource, sys
from pathlib import Path
from due.tables.command import predict_file

def run(data):
    return predict_file(Path(sys.argv[1]), data, sys.argv[4], reading={}, predicting={})

run(sys.argv[2])
taken = next(line for line in open("/proc/self/status") if line.startswith("VmData"))
limit = int(taken.split()[1]) * 1024 + int(sys.argv[5]) * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    hog = bytearray(2 * int(sys.argv[5]) * 2**20)
except MemoryError:
    print("the cap holds")
print(run(sys.argv[3])["rows"])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="caps memory as Linux does")
def test_a_file_ten_times_the_memory_is_predicted_under_a_cap(classifier, people, tmp_path):
    classifier.save(tmp_path / "model")
    rows = people.drop(columns="z")
    rows.head(5).to_csv(tmp_path / "few.csv", index=False)
    note = "z" * 20_000
    lines = frames.text(rows).splitlines()
    data, out, n = tmp_path / "large.csv", tmp_path / "out.csv", 0
    with data.open("w") as file:
        file.write(f"{lines[0]},note\n")
        while file.tell() < 10 * CAP * 2**20:
            file.writelines(f"{line},{note}\n" for line in lines[1:])
            n += len(lines) - 1
    given = [tmp_path / "model", tmp_path / "few.csv", data, out, CAP]
    command = [sys.executable, "-c", PREDICT, *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["the cap holds", str(n)]
    assert out.stat().st_size > data.stat().st_size
    end = pd.read_csv(out, skiprows=range(1, n - 100), usecols=["id", "prediction"])
    assert end["id"].tolist() == (rows["id"].tolist() * 2)[-len(end) :]


def fitting(folder, data, report):
    """Fit to a file, and report each epoch."""
    from due.tables.command import fit_file
    from due.training import loop

    close = loop._Run.close_epoch

    def close_and_report(run, n):
        close(run, n)
        report("epoch")

    loop._Run.close_epoch = close_and_report  # of this process, which ends with the fit
    given = {"epochs": 6, "n_inducing": 10, "batch_size": 32}
    with mock.patch.object(os, "fsync", wraps=os.fsync) as fsync:
        fit_file(str(data), folder, "y", reading={}, estimator=given, beside=False)
    report(fsync.call_count)


@pytest.mark.slow
def test_a_killed_fit_goes_on_and_a_killed_save_leaves_the_model_that_was_there(people, tmp_path):
    """Killed after an epoch, or in the fsync of a file: of a checkpoint, or of the model."""
    data, folder = tmp_path / "people.csv", tmp_path / "model"
    people.drop(columns="z").to_csv(data, index=False)
    work = partial(fitting, folder, data)
    *epochs, fsyncs = kill(work)[1]
    assert epochs == ["epoch"] * 6
    wanted = TableModel.load(folder).predict(people)

    moments = (1, int(fsyncs) // 2, int(fsyncs) - 3, int(fsyncs) - 1)
    for where in ({"reports": 3}, *({"fsyncs": moment} for moment in moments)):
        before = (folder / "model.safetensors").read_bytes()
        killed, done = kill(work, **where)
        assert killed, where
        now = (folder / "model.safetensors").read_bytes()
        assert now == before or len(done) == 6  # the model is replaced at the end, not before
        pd.testing.assert_frame_equal(TableModel.load(folder).predict(people), wanted)
        *again, _ = kill(work)[1]
        assert 6 - len(done) <= len(again) <= 6 - len(done) + 1  # the current epoch is lost
        pd.testing.assert_frame_equal(TableModel.load(folder).predict(people), wanted)
        assert not list(folder.glob(".fit-*"))
