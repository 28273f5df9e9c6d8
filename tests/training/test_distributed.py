"""Two processes under torchrun train as one does."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("ddp_run.py")
TOGETHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def run(kind, out, *, ranks, **environment):
    how = TOGETHER if ranks == 2 else ()
    command = [sys.executable, *how, str(SCRIPT), kind, str(out)]
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    return subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, timeout=150
    )


def state(out, kind, rank=0):
    return torch.load(out / f"{kind}-{rank}.pt", weights_only=True)


def largest_difference(a, b):
    gaps = [
        (a[k].double() - b[k].double()).abs().max()
        for k in a
        if torch.is_tensor(a[k]) and a[k].numel()
    ]
    return float(max(gaps))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone")
    done = run("vectors", out, ranks=1)
    assert done.returncode == 0, done.stderr
    return state(out, "vectors")


def test_two_processes_give_the_parameters_of_one(tmp_path, alone):
    done = run("vectors", tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr
    first, second = (state(tmp_path, "vectors", rank) for rank in (0, 1))
    assert largest_difference(first, second) == 0
    assert largest_difference(first, alone) < 1e-5
    assert first["loss"] == pytest.approx(alone["loss"], rel=1e-6)
    assert first["loss"][-1] < 0.9 * first["loss"][0]


def test_ranks_stay_equal_with_batch_norm_dropout_and_augmentation(tmp_path):
    done = run("images", tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr
    first, second = (state(tmp_path, "images", rank) for rank in (0, 1))
    assert largest_difference(first, second) == 0


def test_a_killed_process_is_named_and_the_run_goes_on(tmp_path, alone):
    began = time.monotonic()
    killed = run("vectors", tmp_path, ranks=2, CHECKPOINT="1", DIE_AFTER="3")
    assert killed.returncode != 0
    assert time.monotonic() - began < 120
    assert "DistributedError" in killed.stderr or "Signal 9" in killed.stderr
    assert not (tmp_path / "vectors-0.pt").exists()

    done = run("vectors", tmp_path, ranks=2, CHECKPOINT="1")
    assert done.returncode == 0, done.stderr
    assert largest_difference(state(tmp_path, "vectors"), alone) < 1e-5
