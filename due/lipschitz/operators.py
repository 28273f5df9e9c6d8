"""The linear part A of a layer x ↦ A x + b, and its exact adjoint: ⟨A v, u⟩ = ⟨v, Aᵀ u⟩.

A convolution is A = C P, a padding P and then a convolution C without padding, so Aᵀ = Pᵀ Cᵀ.
A convolution with a 1×1 kernel is its matrix, whatever the image, its stride or its zeros.
"""

from typing import TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

Operator: TypeAlias = nn.Linear | _ConvNd


def apply(layer: Operator, W: Tensor, v: Tensor) -> Tensor:
    """A v for each row of v, where the layer's weight is W."""
    if isinstance(layer, nn.Linear):
        return F.linear(v, W)
    one, zero = [1] * (v.dim() - 2), [0] * (v.dim() - 2)
    if is_pointwise(layer):
        return torch.convolution(v, W, None, one, zero, one, layer.transposed, zero, layer.groups)
    stride, dilation = list(layer.stride), list(layer.dilation)
    if layer.transposed:
        padding, extra = cast("tuple[int, ...]", layer.padding), list(layer.output_padding)
        return torch.convolution(
            v, W, None, stride, list(padding), dilation, True, extra, layer.groups
        )
    padded = F.pad(v, _pads(layer), mode=_mode(layer))
    return torch.convolution(padded, W, None, stride, zero, dilation, False, zero, layer.groups)


def adjoint(layer: Operator, W: Tensor, u: Tensor, size: torch.Size) -> Tensor:
    """Aᵀ u for each row of u; `size` is the spatial size of the input of A."""
    if isinstance(layer, nn.Linear):
        return F.linear(u, W.mT)
    one, zero = [1] * (u.dim() - 2), [0] * (u.dim() - 2)
    if is_pointwise(layer):
        flipped = not layer.transposed
        return torch.convolution(u, W, None, one, zero, one, flipped, zero, layer.groups)
    stride, dilation = list(layer.stride), list(layer.dilation)
    if layer.transposed:
        padding = cast("tuple[int, ...]", layer.padding)
        x = torch.convolution(
            u, W, None, stride, list(padding), dilation, False, zero, layer.groups
        )
        return _crop(x, size)  # output_padding ≥ stride lets the convolution read past the input
    padded = _padded_size(layer, size)
    reach = [
        (n - 1) * s + d * (k - 1) + 1
        for n, s, d, k in zip(u.shape[2:], stride, dilation, layer.kernel_size, strict=True)
    ]
    unread = [n - r for n, r in zip(padded, reach, strict=True)]  # fewer than the stride
    x = torch.convolution(u, W, None, stride, zero, dilation, True, unread, layer.groups)
    return _unpad(layer, x, size)


def is_pointwise(layer: Operator) -> bool:
    """Whether a convolution is a matrix at each pixel, so that σ does not depend on image size."""
    if isinstance(layer, nn.Linear) or any(k != 1 for k in layer.kernel_size):
        return False
    return layer.padding_mode == "zeros" or not any(_pads(layer))


def _pads(layer: _ConvNd) -> list[int]:
    """Padding in the order of `F.pad`: last axis first, before and after."""
    if layer.padding == "valid":
        return [0] * (2 * len(layer.kernel_size))
    if layer.padding == "same":
        total = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        return [p for t in reversed(total) for p in (t // 2, t - t // 2)]
    return [p for p in reversed(cast("tuple[int, ...]", layer.padding)) for _ in range(2)]


def _mode(layer: _ConvNd) -> str:
    return "constant" if layer.padding_mode == "zeros" else layer.padding_mode


def _padded_size(layer: _ConvNd, size: torch.Size) -> list[int]:
    pads = _pads(layer)
    return [n + a + b for n, a, b in zip(size, pads[-2::-2], pads[::-2], strict=True)]


def _unpad(layer: _ConvNd, x: Tensor, size: torch.Size) -> Tensor:
    """Pᵀ x: cut off the zeros, or add each copied pixel back to the one it was copied from."""
    pads = _pads(layer)
    if layer.padding_mode == "zeros" or not any(pads):
        return F.pad(x, [-p for p in pads])
    pixels = torch.arange(size.numel(), dtype=torch.float64, device=x.device).view(1, 1, *size)
    source = F.pad(pixels, pads, mode=_mode(layer)).long().flatten()
    summed = x.new_zeros(*x.shape[:2], size.numel()).index_add(2, source, x.flatten(2))
    return summed.unflatten(2, size)


def _crop(x: Tensor, size: torch.Size) -> Tensor:
    for axis, n in enumerate(size, start=2):
        x = x.narrow(axis, 0, n)
    return x
