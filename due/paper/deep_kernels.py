"""What the measurements of collapse share: networks, one optimiser, rows in standard units."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from due.data.download import find
from due.lipschitz import constrain
from due.networks import FCResNet, FeedForward, ReversibleNet
from due.rows.randomness import own_randomness
from due.rows.scale import Floats
from due.training import Recipe

NETWORKS = {
    "sound": "residual, c = 0.95",
    "residual": "residual, free",
    "collapsed": "feed-forward, free",
}
FREE = {"residual": FCResNet, "collapsed": FeedForward, "reversible": ReversibleNet}
COLOURS = {"sound": "tab:blue", "residual": "tab:orange", "collapsed": "tab:red"}


def at_hand() -> tuple[str, ...]:
    """UCI sets under DUE_DATA that are small enough for full batches."""
    names = ("bostonHousing", "concrete", "energy", "yacht")
    try:
        return tuple(name for name in names if find(f"uci/{name}.npz") is not None)
    except NotADirectoryError:
        return ()


@dataclass(frozen=True)
class Settings:
    """One network, optimiser and number of steps for the curves and for the UCI sets."""

    n: int = 200
    noise: float = 0.1  # of y before it is standardised
    J: int = 128
    depth: int = 4
    c: float = 0.95
    M: int = 50  # of the sparse GP; twice as many on UCI sets
    steps: int = 1500
    lr: float = 1e-3  # of Adam for the network
    gp_lr: float = 1e-2
    every: int = 25  # steps between two points of a curve
    uci: tuple[str, ...] = field(default_factory=at_hand)
    uci_steps: int = 600
    patience: int = 60
    far: tuple[float, ...] = (1.0, 2.0, 5.0)  # standard deviations a column, on average


def extractor(kind: str, x: Tensor, J: int, depth: int, c: float, seed: int) -> nn.Module:
    """A network of this size: "sound" (residual, bounded by c) or one of `FREE`."""
    size = (x.shape[1], J, depth)
    with own_randomness(seed):
        if kind == "sound":
            return constrain(FCResNet(*size), c, x[:2])
        return FREE[kind](*size)


def recipe(settings: Settings, epochs: int) -> Recipe:
    """All rows at once: the network at its rate, all else at the GP's."""
    return Recipe(lr=settings.lr, head_lr=settings.gp_lr, epochs=epochs, patience=settings.patience)


def standard(values: Floats, of: Floats) -> Tensor:
    """In units of the standard deviation of each column of `of`, from its mean."""
    spread = of.std(0)
    return torch.as_tensor((values - of.mean(0)) / np.where(spread > 0, spread, 1)).float()
