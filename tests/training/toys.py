"""Toy methods, rows, and a run that can be interrupted at any pass."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from due.methods.method import Method, Plain, Train
from due.rows.source import Source, Table
from due.training import History, Recipe, fit


class Regression(Method):
    """(f(x) − y)², weighted; f has batch norm, dropout and a buffer that each step changes."""

    seen: Tensor

    def __init__(self, dropout: float = 0.3, width: int = 16) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            self.f = nn.Sequential(
                nn.Linear(3, width),
                nn.BatchNorm1d(width),
                nn.Tanh(),
                nn.Dropout(dropout),
                nn.Linear(width, 1),
            )
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def start(self, source: Source, seed: int) -> None:
        self.n_data = len(source)

    def forward(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        if self.training:
            self.seen += len(x)
        losses = self.losses(x, y)
        return losses.mean() if weights is None else (weights * losses).mean()

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.f(x).squeeze(-1) - y).square()

    def settle(self, source: Source) -> None:
        self.seen += 1

    def finish(self, source: Source, held_out: Source | None, seed: int, train: Train) -> None:
        pass

    def predictor(self) -> Self:
        return self


class Recorder(Plain):
    """Notes the rows of every batch; its loss is ½ θ², and its validation values are given."""

    def __init__(self, values: Iterable[float] = ()) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
        self.batches: list[list[float]] = []
        self.values = iter(values)

    def forward(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        self.batches.append(x.tolist())
        return self.theta.square() / 2

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.full((len(x),), next(self.values), dtype=torch.float64)


def wave(N: int = 41) -> tuple[Tensor, Tensor]:
    """x (N, 3) and y = Σ sin x."""
    x = torch.randn(N, 3, generator=torch.Generator().manual_seed(1))
    return x, x.sin().sum(-1)


def counted(N: int) -> Table:
    """Rows 0, 1, …, N − 1, with y = 2x."""
    return Table(torch.arange(N), 2 * torch.arange(N))


class Interrupt(Exception):
    """Stands for Ctrl-C."""


def interrupt(network: nn.Module, at: int | None) -> None:
    """Let pass number `at` of the network raise."""
    passes = iter(range(1, 10**6))

    def count(*_: object) -> None:
        if next(passes) == at:
            raise Interrupt

    network.register_forward_pre_hook(count)


RECIPE = Recipe(
    optimizer="adam", lr=0.05, schedule="cosine", epochs=8, batch_size=8, patience=4, warm_up=5
)
Run = tuple[Regression, History]


def run(
    checkpoint: Path | None = None,
    interrupt_at: int | None = None,
    recipe: Recipe | None = None,
    method: Regression | None = None,
    **arguments: Any,
) -> Run:
    """Dropout, batch norm, schedule, early stopping, a changing buffer; perhaps interrupted."""
    x, y = wave(60)
    method = method or Regression()
    interrupt(method.f, interrupt_at)
    rows = {"source": Table(x[:41], y[:41]), "held_out": Table(x[41:], y[41:])}
    history = fit(
        method,
        recipe=(recipe or Recipe()).over(RECIPE),
        checkpoint=checkpoint,
        **{"checkpoint_every": 3, **rows, **arguments},
    )
    return method, history


def assert_same_run(got: Run, want: Run) -> None:
    """The same bits, and the same history but for the seconds."""
    for name, tensor in want[0].state_dict().items():
        assert torch.equal(got[0].state_dict()[name], tensor), name
    plain, wanted = asdict(got[1]), asdict(want[1])
    assert len(plain.pop("seconds")) == len(wanted.pop("seconds"))
    assert plain == wanted
