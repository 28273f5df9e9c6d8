"""Where rows come from: `len`, rows as they are, and the batches of an epoch.

A row is (x, y) or (x, y, weight). A transform, such as augmentation, acts on the x of training
batches only.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from due.rows.checks import at_once, check_fraction
from due.rows.scale import Floats

Data = tuple[Tensor, ...]  # x, y and, unless all are 1, weights
Transform = Callable[[Tensor, torch.Generator], Tensor]
CANONICAL_ROWS = 10_000
MOST_HELD_OUT = 10_000


class Source(ABC):
    """Abstract: rows to train on, or to hold out."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows, over all processes."""

    @abstractmethod
    def take(self, rows: Tensor) -> Data:
        """The rows of these numbers, without the transform."""

    @abstractmethod
    def share(self, rank: int, ranks: int) -> "Source":
        """The same source for one of several processes, whose batches together are its batches."""

    @abstractmethod
    def batches(
        self, batch_size: int | None, seed: int, epoch: int, start: int = 0
    ) -> Iterator[Data]:
        """Batches `start`, `start` + 1, … of an epoch, with the transform, as `plan` has them."""

    @abstractmethod
    def fingerprint(self) -> dict[str, str]:
        """What tells these rows from others, for checkpoints."""

    def some(self, p: int, seed: int) -> Data:
        """p random rows (all of them if fewer), without the transform."""
        return self.take(self.sample(p, seed))

    def sample(self, p: int, seed: int) -> Tensor:
        """The numbers of those rows."""
        return torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))[:p]

    def chunks(self, rows: int | None = None) -> Iterator[Data]:
        """All rows in their order, without the transform; None takes as many as fit at once."""
        size = rows or at_once(self.take(torch.arange(min(1, len(self))))[0].shape[1:])
        for numbers in torch.arange(len(self)).split(size):
            yield self.take(numbers)

    def whole(self) -> Data:
        """All rows at once, in their order, without the transform."""
        return self.take(torch.arange(len(self)))


class Table(Source):
    """Rows in memory.

    Parameters
    ----------
    x, y
        Inputs and targets, one row per datum.
    weights
        How often each row counts; None is once.
    transform
        (x of a batch, generator) → x, applied to training batches.

    Examples
    --------
    >>> rows = Table(torch.arange(6.0)[:, None], torch.zeros(6))
    >>> [len(x) for x, y in rows.batches(4, seed=0, epoch=0)]
    [4, 2]
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None = None,
        *,
        transform: Transform | None = None,
    ) -> None:
        self.data: Data = (x, y) if weights is None else (x, y, weights)
        lengths = [len(part) for part in self.data]
        if len(set(lengths)) > 1:
            raise ValueError(f"x, y and weights have {lengths} rows; give as many of each")
        self.transform = transform
        self.rank, self.ranks = 0, 1

    def __len__(self) -> int:
        return len(self.data[0])

    @property
    def labels(self) -> Tensor:
        """y of all rows."""
        return self.data[1]

    def take(self, rows: Tensor) -> Data:
        """The rows of these numbers, without the transform."""
        return tuple(part[rows.to(part.device)] for part in self.data)

    def share(self, rank: int, ranks: int) -> "Table":
        """Every `ranks`-th row of each batch."""
        mine = copy(self)
        mine.rank, mine.ranks = rank, ranks
        return mine

    def batches(
        self, batch_size: int | None, seed: int, epoch: int, start: int = 0
    ) -> Iterator[Data]:
        """Batches of an epoch, by its `plan`; None takes all rows at once.

        A batch is a copy: a network may work on it in place.
        """
        for step, numbers in plan(len(self), batch_size, seed, epoch, start):
            whole = batch_size is None and self.ranks == 1
            rows = numbers[self.rank :: self.ranks]
            x, *rest = (self.data[0].clone(), *self.data[1:]) if whole else self.take(rows)
            if self.transform is not None:
                x = self.transform(x, draws(seed, epoch, step, self.rank))
            yield x, *rest

    def fingerprint(self) -> dict[str, str]:
        """Shape, dtype and a checksum over a thousand rows or more."""
        return {f"data[{i}]": _describe(part) for i, part in enumerate(self.data)}

    def part(self, rows: Tensor) -> "Table":
        """Some of the rows."""
        return Table(*self.take(rows), transform=self.transform)

    def join(self, other: "Table | None") -> "Table":
        """These rows, then the others."""
        if other is None or not len(other):
            return self
        pairs = zip(self.data, other.data, strict=True)
        return Table(*(torch.cat(pair) for pair in pairs), transform=self.transform)


def plan(
    N: int, batch_size: int | None, seed: int, epoch: int, start: int = 0
) -> Iterator[tuple[int, Tensor]]:
    """(step, row numbers) of the batches of an epoch, which every source of N rows follows.

    None takes all rows at once, in their order. A last batch of a single row joins the one before
    it, because batch norm needs two.
    """
    size, steps = batch_size or N, n_steps(N, batch_size)
    order = torch.arange(N)
    if batch_size is not None:
        order = torch.randperm(N, generator=_generator(seed, epoch))
    for step in range(start, steps):
        yield step, order[step * size : N if step == steps - 1 else (step + 1) * size]


def draws(seed: int, epoch: int, step: int, rank: int = 0) -> torch.Generator:
    """Random numbers of a training batch, such as those of its augmentation."""
    return _generator(seed, epoch, step + 1, rank)  # a key that ends in zeros is that of `plan`


def n_steps(N: int, batch_size: int | None) -> int:
    """Batches in an epoch; one row left over makes none of its own."""
    return 1 if batch_size is None else max(1, N // batch_size + (N % batch_size > 1))


def n_rows(N: int, batch_size: int | None, step: int) -> int:
    """Rows of a batch of an epoch, over all processes."""
    size, last = batch_size or N, n_steps(N, batch_size) - 1
    return N - last * size if step == last else size


class Rows(NamedTuple):
    """Training rows as arrays, each with its weight."""

    X: NDArray[Any]
    y: NDArray[Any]
    weight: Floats


def canonical(X: NDArray[Any], y: NDArray[Any], weight: Floats | None) -> Rows:
    """Sorted rows in which equal (x, y) are one row with the sum of their weights.

    A fit then depends neither on the order of the rows nor on whether a repetition is written
    out or given as a weight. Beyond 10,000 rows sorting costs more than it gives, and they are
    taken as they come. Rows of weight 0 are dropped.
    """
    weight = np.ones(len(X)) if weight is None else weight
    keep = weight > 0
    if not keep.all():
        X, y, weight = X[keep], y[keep], weight[keep]
    if len(X) > CANONICAL_ROWS:
        return Rows(X, y, weight)
    keys = np.column_stack([X.reshape(len(X), -1), y.reshape(len(y), -1)])
    order = np.lexsort(keys.T[::-1]) if X.ndim == 2 else _order_by_bytes(keys)
    sorted_keys = keys[order]
    first = np.ones(len(keys), dtype=bool)
    first[1:] = (sorted_keys[1:] != sorted_keys[:-1]).any(1)
    starts = np.flatnonzero(first)
    rows = order[starts]
    return Rows(X[rows], y[rows], np.add.reduceat(weight[order], starts))


def _order_by_bytes(keys: NDArray[Any]) -> NDArray[Any]:
    """Some order of rows, in which equal ones are neighbours; of images thousands of keys long."""
    whole = np.ascontiguousarray(keys + 0)  # no −0
    return np.argsort(whole.view(np.dtype((np.void, whole[0].nbytes)))[:, 0], kind="stable")


def split(n: int, fraction: float, strata: NDArray[Any] | None, seed: int) -> tuple[Tensor, Tensor]:
    """Row numbers to train on and to hold out, with the same share of each class in both."""
    check_fraction("validation_fraction", fraction)
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


def _generator(*key: int) -> torch.Generator:
    mixed = np.random.SeedSequence(key).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(mixed[0]))


def _describe(tensor: Tensor) -> str:
    rows = tensor[:: max(1, len(tensor) // 1000)].detach().cpu().reshape(-1).contiguous()
    crc = zlib.crc32(rows.view(torch.uint8).numpy().data)
    return f"{list(tensor.shape)} {tensor.dtype} crc32 {crc:08x}"
