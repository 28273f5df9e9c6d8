"""Kill a process that saves without pause, 40 times; after each kill the model must be whole.

Prints: kills, and how many of them met a save in the act (a temporary file was left).
"""

import os
import random
import sys
from functools import partial
from pathlib import Path

import torch
from killing import Report, kill

from due.storage import load, save

KILLS = 40
FSYNCS = 3  # per save


def save_forever(path: Path, version: int, report: Report) -> None:
    while True:
        version += 1
        # the size changes too: a mixture of two versions would not go unseen
        tensors = {"a": torch.full((300_000 + version,), version), "b": torch.tensor(version)}
        save(path, {"version": version}, tensors)
        report(version)


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
    for i in range(KILLS):
        fsyncs, reports = chance.randint(1, 2 * FSYNCS), chance.randint(1, 3)
        where = {"reports": reports} if i % 2 else {"fsyncs": fsyncs}
        _, reported = kill(partial(save_forever, path, version), **where)
        hits += any(path.glob(".*.tmp"))
        version = check(path, int(reported[-1]) if reported else version)
    save(path, {"version": -1}, {})
    assert sorted(os.listdir(path)) == ["config.json", "model.safetensors"]
    print(KILLS, hits)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
