"""Several processes under torchrun train as one does."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("ddp_run.py")
CLEAN = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}


def run(kinds, out, *, ranks, **environment):
    together = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    command = [sys.executable, *(together if ranks > 1 else ()), str(SCRIPT), kinds, str(out)]
    return subprocess.run(
        command, env={**CLEAN, **environment}, capture_output=True, text=True, timeout=240
    )


def state(out, kind, rank=0):
    return torch.load(out / f"{kind}-{rank}.pt", weights_only=True)


def largest_difference(a, b):
    assert a.keys() == b.keys()
    tensors = [k for k in a if torch.is_tensor(a[k]) and a[k].numel()]
    vectors = {k: torch.Tensor.abs for k in tensors if k.endswith(".v")}  # of either sign
    pairs = ((vectors.get(k, torch.clone)(part[k].double()) for part in (a, b)) for k in tensors)
    return float(max((x - y).abs().max() for x, y in pairs))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone")
    done = run("vectors,tied", out, ranks=1)
    assert done.returncode == 0, done.stderr
    return out


def test_two_processes_give_the_parameters_of_one(tmp_path, alone):
    """Over 56 steps in float64, every eighth of 7 rows in one process and 6 in the other."""
    done = run("vectors,tied", tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr
    for kind in ("vectors", "tied"):
        first, second = (state(tmp_path, kind, rank) for rank in (0, 1))
        assert largest_difference(first, second) == 0
        assert largest_difference(first, state(alone, kind)) < 1e-5
    found, want = state(tmp_path, "vectors")["loss"], state(alone, "vectors")["loss"]
    assert found == pytest.approx(want, rel=1e-6)
    assert found[-1] < 0.9 * found[0]


def test_three_stay_equal_with_batch_norm_dropout_and_augmentation(tmp_path):
    done = run("images", tmp_path, ranks=3)
    assert done.returncode == 0, done.stderr
    first, *others = (state(tmp_path, "images", rank) for rank in range(3))
    assert [largest_difference(first, other) for other in others] == [0, 0]


def test_a_killed_process_is_named_within_seconds_and_the_run_goes_on(tmp_path, alone):
    """Without torchrun, which would end the other process before it says anything."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment |= {"CHECKPOINT": "1", "DIE_AFTER": "3", "ACCUMULATE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), "vectors", str(tmp_path)],
            env={**CLEAN, **environment, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [process.communicate(timeout=240)[1] for process in processes]
    seconds = time.time() - float((tmp_path / "killed").read_text())
    assert [process.returncode for process in processes] == [1, -9]
    assert "DistributedError: process 0 of 2 lost another one" in said[0]
    assert "training goes on from its checkpoint" in said[0]
    assert seconds < 20
    assert not (tmp_path / "vectors-0.pt").exists()

    done = run("vectors", tmp_path, ranks=2, CHECKPOINT="1", ACCUMULATE="2")
    assert done.returncode == 0, done.stderr
    assert largest_difference(state(tmp_path, "vectors"), state(alone, "vectors")) < 1e-5
    assert len(state(tmp_path, "vectors")["loss"]) == len(state(alone, "vectors")["loss"])
