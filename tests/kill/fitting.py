"""Kill a training run 24 times and resume it after each: the end must not change.

Half of the kills come after a number of passes, the others in the act of writing a checkpoint.
Prints: kills, how many of the killed had moved the checkpoint on, and how many were writing it.
"""

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Self

import torch
from killing import Report, kill
from torch import Tensor, nn

from due.methods.method import Method, Train
from due.rows.source import Source, Table
from due.training import Recipe, fit

KILLS = 24
EVERY = 7  # steps between checkpoints
FSYNCS = 2  # per checkpoint
RECIPE = Recipe(
    lr=3e-3, schedule="cosine", per="step", warm_up=30, batch_size=20, epochs=10, patience=8
)


class Noisy(Method):
    """Dropout, batch norm and a buffer refined by each step: all that a resume could lose."""

    v: Tensor

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 64), nn.Linear(64, 1)
        self.rest = nn.Sequential(nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3))
        self.register_buffer("v", torch.ones(64) / 8)
        self.report = report

    def start(self, source: Source, seed: int) -> None:
        pass

    def forward(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            w = self.first.weight
            self.v = nn.functional.normalize(w @ (w.T @ self.v), dim=0)
        return self.losses(x, y).mean()

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        self.report("a pass")
        stretch = 0.01 * (self.v @ self.first.weight).norm()
        return (self.last(self.rest(self.first(x))).squeeze(-1) - y).square() + stretch

    def settle(self, source: Source) -> None:
        self.v += 0.01

    def finish(self, source: Source, held_out: Source | None, seed: int, train: Train) -> None:
        pass

    def predictor(self) -> Self:
        return self


def run(folder: Path, report: Report = lambda _: None) -> None:
    torch.manual_seed(3)
    x = torch.randn(1001, 8)
    y = x.sin().sum(-1)
    method = Noisy(report)
    history = fit(
        method,
        Table(x[:801], y[:801]),
        RECIPE,
        held_out=Table(x[801:], y[801:]),
        checkpoint=folder / "checkpoint.pt",
        checkpoint_every=EVERY,
    )
    plain = asdict(history)
    plain.pop("seconds")
    torch.save({"state": method.state_dict(), "history": plain}, folder / "result.pt")


def compare(whole: Path, cut: Path) -> None:
    want, got = torch.load(whole / "result.pt"), torch.load(cut / "result.pt")
    assert want["history"] == got["history"]
    for name, tensor in want["state"].items():
        assert torch.equal(tensor, got["state"][name]), name


def steps(cut: Path) -> int:
    """Steps that the checkpoint holds; it must load after any kill."""
    file = cut / "checkpoint.pt"
    return int(torch.load(file, weights_only=True)["steps"]) if file.exists() else 0


def where(kills: int) -> dict[str, int]:
    """The next kill: after 2 to 42 passes, or in the first to third write of a checkpoint."""
    if kills % 2:
        return {"reports": 1 + 11 * kills % (6 * EVERY)}
    return {"fsyncs": 1 + kills // 2 % (2 * FSYNCS + 1)}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    whole, cut = folder / "whole", folder / "cut 0"
    whole.mkdir()
    cut.mkdir()
    run(whole)  # in this process: a child then need not import what the first step imports
    kills = advances = hits = 0
    while kills < KILLS:
        before = steps(cut)
        killed, _ = kill(partial(run, cut), **where(kills))
        if killed:
            kills += 1
            advances += steps(cut) > before
            hits += any(cut.glob(".*.tmp"))
            continue
        compare(whole, cut)  # came to the end: once more from the beginning
        cut = folder / f"cut {kills}"
        cut.mkdir()
    run(cut)
    compare(whole, cut)
    print(kills, advances, hits)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
