"""Fold the bound into plain weights: W ← W / max(1, σ/c), once, for prediction."""

import copy
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from due.lipschitz.bounded import Bounded

Network = TypeVar("Network", bound=nn.Module)


def fold(network: Network) -> Network:
    """A copy with plain layers that computes what the network computes in eval mode.

    σ is taken as it stands: call `converge` first after training.
    """
    folded = copy.deepcopy(network)
    for layer in list(folded.modules()):
        if isinstance(layer, Bounded):
            _unbind(layer, layer.bounded_weight().detach())
    return folded


def _unbind(layer: nn.Module, weight: Tensor) -> None:
    trained = layer._parameters["weight"]
    layer._parameters["weight"] = nn.Parameter(weight, trained is None or trained.requires_grad)
    if isinstance(layer, _BatchNorm) and not layer.affine:
        layer.affine = True
        layer._parameters["bias"] = nn.Parameter(torch.zeros_like(weight))
    layer._buffers.pop("v", None)
    del layer.c
    layer.__class__ = cast(type[Bounded], type(layer)).plain
