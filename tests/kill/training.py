"""Kill a training run at random times, at least 20 times, and resume it: the end must not change.

Children are forked from here, so that torch is imported once. Prints: kills, and
how many of the killed had moved the checkpoint on.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from due.train import train

KILLS = 25


class Noisy(nn.Module):
    """Dropout, batch norm and a buffer refined by each step: all that a resume could lose."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3))
        self.last = nn.Linear(64, 1)
        self.register_buffer("v", torch.ones(64) / 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                w = self.f[0].weight
                self.v = nn.functional.normalize(w @ (w.T @ self.v), dim=0)
        return (self.predict(x) - y).square().mean() + 0.01 * (self.v @ self.f[0].weight).norm()

    def predict(self, x: Tensor) -> Tensor:
        return self.last(self.f(x)).squeeze(-1)


def run(folder: Path) -> None:
    torch.manual_seed(3)
    x = torch.randn(1001, 8)
    y = x.sin().sum(-1)
    model = Noisy()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    history = train(
        model,
        (x[:801], y[:801]),
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40),
        epochs=40,
        batch_size=20,
        validation=lambda: model(x[801:], y[801:]).item(),
        patience=35,
        before_validation=lambda: model.v.add_(0.01),
        checkpoint=folder / "checkpoint.pt",
        checkpoint_every=7,
    )
    plain = history.as_dict()
    plain.pop("seconds")
    torch.save({"state": model.state_dict(), "history": plain}, folder / "result.pt")


def run_in_child(folder: Path, seconds: float | None) -> bool:
    """Whether the child was killed, after `seconds`, before it came to its end."""
    child = os.fork()
    if child == 0:
        run(folder)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert status == 0
    return False


def compare(whole: Path, cut: Path) -> None:
    want, got = torch.load(whole / "result.pt"), torch.load(cut / "result.pt")
    assert want["history"] == got["history"]
    for name, tensor in want["state"].items():
        assert torch.equal(tensor, got["state"][name]), name


def steps(cut: Path) -> int:
    """Steps that the checkpoint holds; it must load after any kill."""
    file = cut / "checkpoint.pt"
    return int(torch.load(file, weights_only=True)["steps"]) if file.exists() else 0


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    chance = random.Random(0)
    whole, cut = folder / "whole", folder / "cut 0"
    whole.mkdir()
    cut.mkdir()
    # the first step of the first optimiser imports for a second: once here, not in each child
    torch.optim.Adam([nn.Parameter(torch.zeros(1))]).step()
    run_in_child(whole, None)
    kills = advances = 0
    while kills < KILLS:
        before = steps(cut)
        if run_in_child(cut, chance.uniform(0.03, 0.3)):
            kills += 1
            advances += steps(cut) > before
            continue
        compare(whole, cut)  # a fast machine came to the end: once more from the beginning
        cut = folder / f"cut {kills}"
        cut.mkdir()
    run_in_child(cut, None)
    compare(whole, cut)
    print(kills, advances)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
