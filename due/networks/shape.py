"""What a network takes and makes of it: one vector of J features per row."""

from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn


@torch.no_grad()
def n_features(f: nn.Module, x: Shaped[Tensor, "N ..."]) -> int:
    """J of f(x), (N, J)."""
    h: Any = f(x)
    if not isinstance(h, Tensor) or h.ndim != 2 or len(h) != len(x):
        shape = f"of shape {tuple(h.shape)}" if isinstance(h, Tensor) else f"{type(h).__name__}"
        raise ValueError(
            f"the extractor gives features {shape} for {len(x)} rows; "
            "it must return one vector for each row, shape (N, J)"
        )
    return h.shape[1]


@torch.no_grad()
def check_precision(f: nn.Module, x: Shaped[Tensor, "N ..."]) -> None:
    """Raise unless the network can predict in float64, as estimators do once it is trained."""
    try:
        deepcopy(f).eval().double()(x.double())
    except RuntimeError as error:
        raise ValueError(
            f"the extractor cannot predict in float64 ({error}): it casts to another dtype or has "
            "constants of one. Write x.to(self.layer.weight.dtype) in place of x.float(), and make "
            "constants buffers by register_buffer"
        ) from error


def check_images(x: Shaped[Tensor, "N ..."], channels: int) -> None:
    """Raise unless x are normalised images with that many channels."""
    if x.ndim != 4 or x.shape[1] != channels:
        raise ValueError(
            f"images have shape {tuple(x.shape)}; this network takes (N, {channels}, height, width)"
        )
    if not x.is_floating_point():
        raise ValueError(
            f"images are {x.dtype}; this network takes floating-point ones, normalised as in "
            "training: due.rows.Images does so by its `normalise`"
        )
