"""What `fit` refuses before any work is done: rows, labels, images and recipes that do not fit."""

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from due.lipschitz import SpectralNorm, input_shapes
from due.methods.method import Method
from due.rows.source import Source
from due.training.recipe import Recipe


def check_source(source: Source, checkpoint_every: int | None) -> None:
    """There are rows, and checkpoints are not written all the time."""
    if not len(source):
        raise ValueError("the source has no rows; give at least one")
    if checkpoint_every is not None and checkpoint_every < 1:
        raise ValueError(f"checkpoint_every={checkpoint_every} is not at least 1")


def check_shares(last: int, ranks: int) -> None:
    """Every process has a row of the last batch, too."""
    if last < ranks:
        raise ValueError(
            f"the last batch has {last} rows for {ranks} processes; "
            "choose a batch size that leaves more, or fewer processes"
        )


def check_bound(method: Method, recipe: Recipe, steps: int) -> None:
    """A loss of all rows at once gets them."""
    pieces = recipe.accumulate or 1
    if method.needs_all_rows and (pieces > 1 or steps > 1):
        raise ValueError(
            f"the loss of {type(method).__name__} needs all rows in one piece (a collapsed bound "
            "does), but the recipe has "
            f"batch_size={recipe.batch_size!r} and accumulate={pieces}; "
            "use batch_size='all' and accumulate=1, or bound='elbo'"
        )


def check_labels(method: Method, source: Source) -> None:
    """Every label is one of the method's classes, where both are known."""
    T, y = method.n_classes, getattr(source, "labels", None)
    if T is None or not isinstance(y, Tensor):
        return
    if y.is_floating_point() or y.ndim != 1:
        raise ValueError(
            f"labels are {y.dtype} of shape {tuple(y.shape)}; give whole numbers 0 … {T - 1}, "
            "one per row"
        )
    outside = torch.nonzero((y < 0) | (y >= T))[:, 0]
    if len(outside):
        row = int(outside[0])
        raise ValueError(
            f"the label of row {row} is {int(y[row])}, but the classes are 0 … {T - 1} "
            f"({len(outside)} labels are outside of them): number them anew, or build the method "
            "for more classes"
        )


def check_sizes(method: Method, source: Source) -> None:
    """Images are not larger than those for which convolutions were bounded."""
    f = getattr(method, "f", None)
    layers = [m for m in method.modules() if isinstance(m, SpectralNorm) and isinstance(m, _ConvNd)]
    if not layers or not isinstance(f, nn.Module):
        return
    device = next(f.parameters()).device
    shapes = input_shapes(f, source.take(torch.arange(1))[0].to(device))
    for layer in layers:
        known, now = layer.v.shape[2:], shapes.get(layer, ())[1:]
        if any(n > 1 and m > n for m, n in zip(now, known, strict=False)):
            raise ValueError(
                f"a convolution is bounded for images up to {_size(known)} and now sees "
                f"{_size(now)}: call constrain with an example of the size of the training images"
            )


def _size(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))
