"""A file ten times as large as the memory that may be taken, and fits that are killed."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from . import frames

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


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_fit_goes_on_and_a_killed_save_leaves_the_model_that_was_there(people, tmp_path):
    people.drop(columns="z").to_csv(tmp_path / "people.csv", index=False)
    script = Path(__file__).parent.parent / "kill" / "table_fit.py"
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kills, repeated = map(int, done.stdout.split())
    assert kills == 5 and repeated <= kills  # epochs: at most one per kill
