"""The kernel of a deep GP of values, once its features are chosen.

Training ends where held-out rows are predicted best. Length scale and output scale are then still
on their way along a ridge, on which predictions hardly change near the data, but do far from it.
How smooth the function is decides that as well, and rows tell it best once features are fixed.
"""

import warnings
from typing import Any, NamedTuple

import torch
from numpy.linalg import LinAlgError
from torch import Tensor, nn

from due.gp.cholesky import JitterWarning
from due.gp.collapsed import collapsed_bound
from due.gp.minimise import minimise
from due.gp.noise import log_densities, mean_and_error
from due.methods.noise import Data, left_out, level_of

ITERATIONS = 30
MOST = 500  # inducing points: with more of them, as exact inference has, it takes minutes


class Settled(NamedTuple):
    """A kernel at the end of its ridge."""

    values: list[Tensor]  # of its parameters, and of the noise
    bound: float  # on log p of the known rows
    density: Tensor  # log p of each new row


def settle_kernel(model: Any, known: Data, new: Data) -> None:
    """Go to the end of the ridge, and there to the kernel of `model.kernels` with the best bound.

    The bound is that on log p of the known rows. No step is taken that makes new rows less probable
    by a standard error. The noise goes with the kernel; what new rows say of it follows.
    """
    if len(model.gp.Z) > MOST:
        return
    first = model.gp.kernel.kind
    as_trained, bound = _values(model), float(_bound(model, *known).detach())
    density, weights = _judge(model, known, new)
    best, settled = (first, as_trained), False
    for kind in dict.fromkeys((first, *model.kernels)):
        _become(model, kind, as_trained)
        found = _settled(model, known, new)
        if found is None or not found.bound > bound:
            continue
        bound = found.bound  # also if it is refused: the next kernel must be better
        gain, error = mean_and_error(found.density - density, weights)
        if gain >= -error:  # not so if they are NaN
            best, density, settled = (kind, found.values), found.density, True
    _become(model, *best)
    model.chosen["kernel"] = {"kind": best[0], "settled": settled}


def _settled(model: Any, known: Data, new: Data) -> Settled | None:
    """The model's kernel at the end of its ridge; None if there is none to be found."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JitterWarning)
            _maximise(model, *known)
            bound = float(_bound(model, *known).detach())
            values, density = _values(model), _judge(model, known, new)[0]
    except LinAlgError:
        return None
    return Settled(values, bound, density)


def _parameters(model: Any) -> list[nn.Parameter]:
    return [*model.gp.kernel.parameters(), model.additive.raw_sigma2]


def _values(model: Any) -> list[Tensor]:
    return [part.detach().clone() for part in _parameters(model)]


@torch.no_grad()
def _become(model: Any, kind: str, values: list[Tensor]) -> None:
    model.gp.kernel.kind = kind
    for part, value in zip(_parameters(model), values, strict=True):
        part.copy_(value)


def _maximise(model: Any, h: Tensor, y: Tensor, *weights: Tensor) -> None:
    """The bound over kernel and noise."""
    minimise(_parameters(model), lambda: -_bound(model, h, y, *weights) / len(y), ITERATIONS)


def _bound(model: Any, h: Tensor, y: Tensor, *weights: Tensor) -> Tensor:
    Z, w = model.gp.Z.detach(), weights[0] if weights else None
    return collapsed_bound(model.gp, h, y, model.noise_at(h), w, Z)


@torch.no_grad()
def _judge(model: Any, known: Data, new: Data) -> tuple[Tensor, Tensor]:
    """log p of new rows at the noise that suits them best, and their weights."""
    model.additive.set_sigma2(level_of(model, known, new))
    rows = left_out(model, known, new)[1]
    return log_densities(rows, torch.zeros_like(rows.square)), rows.weight
