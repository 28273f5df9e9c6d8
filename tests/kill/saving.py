"""Kill a process that saves without pause, 40 times; after each kill the model must be whole.

Children are forked from here, so that torch is imported once. Prints: kills, and how many of
them met a save in the act (a temporary file was left).
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from due.storage import load, save

KILLS = 40


def save_forever(path: Path, version: int, report: int) -> None:
    while True:
        version += 1
        # the size changes too: a mixture of two versions would not go unseen
        tensors = {"a": torch.full((300_000 + version,), version), "b": torch.tensor(version)}
        save(path, {"version": version}, tensors)
        os.write(report, f"{version}\n".encode())


def kill_once(path: Path, version: int, seconds: float) -> int:
    """The last version that the killed child reported as saved."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        save_forever(path, version, writer)
    os.close(writer)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reader) as lines:
        reported = lines.read().split()
    return int(reported[-1]) if reported else version


def check(path: Path, saved: int) -> int:
    config, tensors = load(path)
    version = config["version"]
    assert version in (saved, saved + 1), (version, saved)  # what was reported is durable
    assert tensors["a"].shape == (300_000 + version,) and (tensors["a"] == version).all()
    assert tensors["b"] == version
    return int(version)


def main(path: Path) -> None:
    torch.set_num_threads(1)
    chance = random.Random(0)
    save(path, {"version": 0}, {"a": torch.full((300_000,), 0), "b": torch.tensor(0)})
    version = hits = 0
    for _ in range(KILLS):
        saved = kill_once(path, version, chance.uniform(0.005, 0.1))
        hits += any(path.glob(".*.tmp"))
        version = check(path, saved)
    save(path, {"version": -1}, {})
    assert sorted(os.listdir(path)) == ["config.json", "model.safetensors"]
    print(KILLS, hits)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
