"""What every trained method is: an `nn.Module` that knows its whole life.

start → method(x, y, w), the loss, step by step → losses per row, on held-out rows → finish →
predictor. `due.training.fit` calls them in this order.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from due.gp.shapes import PerRow, Scalar, Weights
from due.lipschitz import fold
from due.methods.ready import ready
from due.rows.source import Source

Me = TypeVar("Me", bound=nn.Module)
Train = Callable[..., None]  # (method, source, **fields of a Recipe): goes on training


class Method(nn.Module, ABC):
    """Abstract: a network `f` with what stands on it, trained by the gradient of its loss."""

    n_data: int = 1  # rows of the training set, whatever their weights
    needs_all_rows: bool = False  # whether a loss is of all rows at once, not of a batch
    n_classes: int | None = None  # of labels 0, 1, …; None for values

    @abstractmethod
    def start(self, source: Source, seed: int) -> None:
        """Set what depends on the rows before training, such as inducing points."""

    @abstractmethod
    def forward(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """The loss of a batch, a mean over its rows."""

    @abstractmethod
    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss per row, (N,), whose mean over held-out rows chooses the epoch."""

    @abstractmethod
    def settle(self, source: Source) -> None:
        """Put in order what follows from weights and rows in closed form, before a validation."""

    @abstractmethod
    def finish(self, source: Source, held_out: Source | None, seed: int, train: Train) -> None:
        """What follows training: statistics of the rows, also of those held out."""

    @abstractmethod
    def predictor(self) -> nn.Module:
        """The method made `ready` to predict; in float64 a row does not depend on its batch."""


class Folded(Method):
    """Abstract: predicts as it is, once spectral norms are folded into plain weights."""

    def predictor(self: Me) -> Me:
        """Norms folded."""
        return ready(fold(self))


class MeanLoss(Method):
    """Abstract: the loss of a batch is the mean of the losses of its rows."""

    def forward(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """mean_i w_i l_i."""
        return weighted_mean(self.losses(x, y), weights)


@runtime_checkable
class GoesOn(Protocol):
    """A method with something to do before training goes on from an earlier fit."""

    def go_on(self) -> None:
        """In place of `start`."""


class Plain(Folded):
    """Abstract: weights start at random, and nothing follows training."""

    def start(self, source: Source, seed: int) -> None:
        """Weights start at random, whatever the rows."""

    def settle(self, source: Source) -> None:
        """Nothing follows from the weights in closed form."""

    def finish(self, source: Source, held_out: Source | None, seed: int, train: Train) -> None:
        """Nothing follows training."""


def weighted_mean(losses: PerRow, weights: Weights) -> Scalar:
    """mean_i w_i l_i; without weights they are 1."""
    return losses.mean() if weights is None else (weights * losses).mean()


def device_of(module: nn.Module) -> torch.device:
    """Where its parameters are."""
    return next(module.parameters()).device
