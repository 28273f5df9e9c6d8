"""How the estimators train: what is minimised, for how long, and on which rows."""

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

PREDICT_ROWS = 2048  # at once
MOST_HELD_OUT = 10_000
Data = tuple[Tensor, ...]  # x, y and, unless all are 1, weights
Built = TypeVar("Built")


class Objective(NamedTuple):
    """What is minimised, and how."""

    loss: nn.Module
    batch_size: int | None
    epochs: int
    lr: float  # of the network
    head_lr: float  # of all else, and of the network's scalars
    settle: Callable[[], object] = lambda: None  # puts the model in order before it predicts
    bound: str | None = None  # its name, for the history


def budget(n: int, batch_size: int | None) -> tuple[int, int]:
    """Batch size (unless given) and epochs for n rows: about 4,000 steps, but 5 to 80 epochs."""
    batch = batch_size or (64 if n <= 10_000 else 256 if n <= 100_000 else 1024)
    return batch, min(80, max(5, 4000 * batch // n))


def warm_up(optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Let the learning rates rise to their values over the first steps.

    Adam's first steps move every weight by its whole rate, and together they can carry the
    features so far from the inducing points that no gradient is left to bring them back.
    """
    groups, steps_taken, rates = optimizer.param_groups, count(1), list[float]()

    def lower(*_: Any) -> None:
        share = min(1.0, next(steps_taken) / steps)
        rates[:] = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] *= share

    def restore(*_: Any) -> None:
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate

    optimizer.register_step_pre_hook(lower)
    optimizer.register_step_post_hook(restore)


def split(n: int, fraction: float, strata: NDArray[Any] | None, seed: int) -> tuple[Tensor, Tensor]:
    """Row numbers to train on and to hold out, each class in both in its share."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(n)
    if strata is not None:
        place = np.empty(n)
        for value in np.unique(strata):
            rows = order[strata[order] == value]
            place[rows] = (np.arange(len(rows)) + generator.random()) / len(rows)
            place[rows[-1]] = 1.0  # the last row of a class stays to be learned from
        order = np.argsort(place, kind="stable")
    held = min(int(fraction * n), MOST_HELD_OUT)
    return torch.as_tensor(np.sort(order[held:])), torch.as_tensor(np.sort(order[:held]))


def mean_loss(losses: Callable[[Tensor, Tensor], Tensor], data: Data, device: str) -> float:
    """Weighted mean over rows of `losses(x, y)`, in batches."""
    total, weight = 0.0, 0.0
    for start in range(0, len(data[0]), PREDICT_ROWS):
        x, y, *w = (part[start : start + PREDICT_ROWS].to(device) for part in data)
        loss = losses(x, y)
        share = w[0] if w else torch.ones_like(loss)
        total += float((share * loss).sum())
        weight += float(share.sum())
    return total / weight


def seeded(build: Callable[[], Built], seed: int) -> Built:
    """What `build` makes with draws from the seed; the caller's generator stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()
