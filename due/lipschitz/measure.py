"""Measured Lipschitz constants: exact σ of each layer as it computes, and ratios on pairs."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from due.lipschitz.bounded import Bounded
from due.lipschitz.constrain import input_shapes
from due.lipschitz.operators import is_pointwise, leading_vector, stretch
from due.lipschitz.report import obstacle
from due.lipschitz.spectral_batch_norm import channel_constants
from due.lipschitz.spectral_norm import SpectralNorm


class Ratios(NamedTuple):
    """‖f(a) − f(b)‖ / ‖a − b‖ of each pair, the smallest and the largest."""

    ratios: Float[Tensor, " N"]
    lower: float
    upper: float


@torch.no_grad()
def lipschitz_ratios(
    f: Callable[[Tensor], Tensor], a: Float[Tensor, " N *D"], b: Float[Tensor, " N *D"]
) -> Ratios:
    """Ratios on pairs (a_i, b_i): Lipschitz constants of f are ≤ lower and ≥ upper."""
    before = torch.linalg.vector_norm((a - b).flatten(1), dim=1)
    if not before.all():
        raise ValueError(f"pair {before.argmin().item()} has a = b, so no ratio: remove it")
    after = torch.linalg.vector_norm((f(a) - f(b)).flatten(1), dim=1)
    ratios = after / before
    return Ratios(ratios, ratios.min().item(), ratios.max().item())


@torch.no_grad()
def singular_value(layer: nn.Module, in_shape: tuple[int, ...] | None = None) -> float:
    """The largest singular value of a layer as it computes, bounded or not, in float64.

    A matrix takes an SVD; a convolution takes `leading_vector` at a small tolerance, on images of
    `in_shape` (channels, height, width). A bounded convolution knows that shape.
    """
    if not isinstance(layer, nn.Linear | _ConvNd):
        raise ValueError(f"{type(layer).__name__} is not a linear or convolution layer")
    weight = cast(Tensor, _effective_weight(layer)).double()
    if isinstance(layer, nn.Linear):
        return torch.linalg.matrix_norm(weight, ord=2).item()
    if is_pointwise(layer):
        in_shape = (layer.in_channels, *layer.kernel_size)
    elif in_shape is None and isinstance(layer, SpectralNorm):
        in_shape = tuple(layer.v.shape[1:])
    if in_shape is None:
        raise ValueError("σ of a convolution depends on the image size: pass in_shape=(C, H, W)")
    V = torch.randn(4, *in_shape, generator=torch.Generator().manual_seed(1)).to(weight)
    v = leading_vector(layer, weight, V, tol=1e-6, steps=(20, 1000))
    return stretch(layer, weight, v).item()


@torch.no_grad()
def batch_norm_constants(network: nn.Module) -> dict[str, Tensor]:
    """|γ_i| / √(running_var_i + ε) of each channel of each batch-norm layer, as it computes."""
    return {
        name: _channel_constants(layer)
        for name, layer in network.named_modules()
        if isinstance(layer, _BatchNorm) and layer.running_var is not None
    }


def layers(network: nn.Module, example: Tensor | tuple[Any, ...]) -> dict[str, float]:
    """Exact Lipschitz constant of each linear, convolution and batch-norm layer of a network."""
    shapes = input_shapes(network, example)
    constants = {}
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Linear | _ConvNd) and _measurable(layer, shapes):
            constants[name] = singular_value(layer, shapes.get(layer))
        if isinstance(layer, _BatchNorm) and layer.running_var is not None:
            constants[name] = _channel_constants(layer).max().item()
    return constants


def _measurable(layer: nn.Module, shapes: dict[nn.Module, tuple[int, ...]]) -> bool:
    return obstacle(layer) is None and (isinstance(layer, nn.Linear) or layer in shapes)


def _effective_weight(layer: nn.Module) -> Tensor | None:
    return layer.bounded_weight() if isinstance(layer, Bounded) else layer._parameters["weight"]


def _channel_constants(layer: _BatchNorm) -> Tensor:
    var = cast(Tensor, layer.running_var)
    gamma = _effective_weight(layer)
    return channel_constants(torch.ones_like(var) if gamma is None else gamma, var, layer.eps)
