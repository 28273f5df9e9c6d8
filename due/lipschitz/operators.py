"""The linear part A of a layer x ↦ A x + b, its exact adjoint, ⟨A v, u⟩ = ⟨v, Aᵀ u⟩, and its
leading right singular vector v, for which ‖A v‖ = σ(A).

A convolution is A = C P, a padding P and then a convolution C without padding, so Aᵀ = Pᵀ Cᵀ.
A convolution with a 1×1 kernel is treated as its matrix: neither the size of the image nor stride
nor zero padding changes σ. Groups of channels do not mix, so each group has its own unit v.
"""

from typing import TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

Operator: TypeAlias = nn.Linear | _ConvNd


def stretch(layer: Operator, W: Tensor, v: Tensor) -> Tensor:
    """max_g ‖A_g v_g‖ over groups g: σ(A) if v is the leading right singular vector."""
    return _norms(apply(layer, W, v), n_groups(layer)).amax()


def product(layer: Operator, G: Tensor, W: Tensor) -> Tensor:
    """max_g ⟨G_g, W_g⟩ over groups g, whose channels lie one after another in W."""
    per_channel = (G * W).sum(tuple(range(1, W.dim())))
    return per_channel.reshape(n_groups(layer), -1).sum(1).amax()


def power_iteration(layer: Operator, W: Tensor, v: Tensor) -> Tensor:
    """AᵀA v / ‖AᵀA v‖ of each group; v itself where AᵀA v is zero or not finite."""
    w = adjoint(layer, W, apply(layer, W, v), v.shape[2:])
    return _unit(layer, w, v)


def singular_pair(layer: Operator, W: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One power iteration, u = A v / ‖A v‖ and v ← Aᵀu / ‖Aᵀu‖, and σ = ‖Aᵀu‖ = uᵀA v per group."""
    u = apply(layer, W, v)
    u = _unit(layer, u, torch.zeros_like(u))
    w = adjoint(layer, W, u, v.shape[2:])
    return u, _unit(layer, w, v), _norms(w, n_groups(layer))


def _unit(layer: Operator, x: Tensor, otherwise: Tensor) -> Tensor:
    """x_g / ‖x_g‖ of each group g, and something else where that is not a number."""
    size = _expand(_norms(x, n_groups(layer)), x)
    return torch.where((size > 0) & (size < torch.inf), x / size, otherwise)


def leading_vector(
    layer: Operator, W: Tensor, V: Tensor, tol: float = 5e-3, steps: tuple[int, int] = (8, 200)
) -> Tensor:
    """The v, (1, C, ...), for which ‖AᵀA v − λ v‖ ≤ tol λ, from starts V (k, C, ...).

    Then some singular value lies within a relative tol/2 of ‖A v‖. `steps` are the fewest and the
    most steps. Each step maximises ‖A v‖ / ‖v‖ over span{V, AᵀA V, the previous V} and keeps the
    k best directions: locally optimal block conjugate gradients (Knyazev, 2001). It is never
    behind power iteration, and takes tens of steps instead of thousands when the leading singular
    values are close together, as for convolutions. The block, k > 1, keeps it from stopping at
    the second singular vector.
    """
    least, most = steps
    k, groups, size = len(V), n_groups(layer), V.shape[2:]
    V, before = _orthonormal(V, groups), V[:0]
    U = apply(layer, W, V)
    for step in range(most):
        AtU = adjoint(layer, W, U, size)
        rates = _norms(U[:1], groups).square()  # λ, (1, groups)
        residual = _norms(AtU[:1] - _expand(rates, AtU[:1]) * V[:1], groups).max()
        top = rates.max()
        if not 0 < U.abs().max() < torch.inf or (step >= least and residual <= tol * top):
            break
        basis = _orthonormal(torch.cat([V, AtU, before]), groups)  # (3k, C, ...)
        image = apply(layer, W, basis)
        y = _best(image, groups, k)  # (k, 3k, groups)
        before, V, U = V, _combine(y, basis), _combine(y, image)
    return V[:1]


def normalise(layer: Operator, v: Tensor) -> Tensor:
    """v_g / ‖v_g‖ of each group g."""
    return v / _expand(_norms(v, n_groups(layer)), v)


def apply(layer: Operator, W: Tensor, v: Tensor) -> Tensor:
    """A v for each row of v, where the layer's weight is W."""
    if isinstance(layer, nn.Linear):
        return F.linear(v, W)
    x, how = _convolution(layer, v)
    return torch.convolution(x, W, None, *how, layer.groups)


def weight_gradient(layer: Operator, W: Tensor, v: Tensor, u: Tensor) -> Tensor:
    """∂⟨u, A v⟩ / ∂W, laid out in memory like W."""
    if isinstance(layer, nn.Linear):
        return u.mT @ v
    x, how = _convolution(layer, v)
    only_weight = [False, True, False]
    backward = torch.ops.aten.convolution_backward
    G = backward(u, x, W, None, *how, layer.groups, only_weight)[1]
    return torch.empty_like(W).copy_(G)


How = tuple[list[int], list[int], list[int], bool, list[int]]


def _convolution(layer: _ConvNd, v: Tensor) -> tuple[Tensor, How]:
    """The input of C, and its stride, padding, dilation, transposition and output padding."""
    one, zero = [1] * (v.dim() - 2), [0] * (v.dim() - 2)
    if is_pointwise(layer):
        return v, (one, zero, one, layer.transposed, zero)
    stride, dilation = list(layer.stride), list(layer.dilation)
    if layer.transposed:
        padding, extra = cast("tuple[int, ...]", layer.padding), list(layer.output_padding)
        return v, (stride, list(padding), dilation, True, extra)
    padded = F.pad(v, _pads(layer), mode=_mode(layer))
    return padded, (stride, zero, dilation, False, zero)


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


def n_groups(layer: Operator) -> int:
    """Groups of channels that do not mix."""
    return 1 if isinstance(layer, nn.Linear) else layer.groups


def is_pointwise(layer: Operator) -> bool:
    """Whether a convolution is a matrix at each pixel, so that σ does not depend on image size."""
    if isinstance(layer, nn.Linear) or any(k != 1 for k in layer.kernel_size):
        return False
    return layer.padding_mode == "zeros" or not any(_pads(layer))


def _norms(x: Tensor, groups: int) -> Tensor:
    """‖x_g‖ of each row and each group of channels, (rows, groups)."""
    return torch.linalg.vector_norm(x.reshape(len(x), groups, -1), dim=-1)


def _expand(scale: Tensor, x: Tensor) -> Tensor:
    """One number per row and group, (rows, groups), in a shape that multiplies x."""
    if scale.shape[1] > 1:
        scale = scale.repeat_interleave(x.shape[1] // scale.shape[1], dim=1)
    return scale.reshape(*scale.shape, *[1] * (x.dim() - 2))


def _orthonormal(x: Tensor, groups: int) -> Tensor:
    """Rows that span the same space, orthonormal within each group; surplus rows are zero."""
    Q = torch.linalg.qr(x.reshape(len(x), groups, -1).permute(1, 2, 0)).Q  # (groups, n, rows)
    Q = F.pad(Q, (0, len(x) - Q.shape[-1]))
    return Q.permute(2, 0, 1).reshape(x.shape)


def _best(image: Tensor, groups: int, k: int) -> Tensor:
    """The k unit vectors y with the largest ‖Σ_i y_i A b_i‖, largest first, (k, rows, groups)."""
    rows = image.reshape(len(image), groups, -1).transpose(0, 1)  # (groups, rows, n)
    largest = rows.abs().amax((1, 2), keepdim=True)
    rows = rows / torch.where(largest > 0, largest, 1.0)  # eigh fails on squares of 1e-20
    return torch.linalg.eigh(rows @ rows.mT).eigenvectors.flip(-1)[..., :k].permute(2, 1, 0)


def _combine(y: Tensor, rows: Tensor) -> Tensor:
    grouped = rows.reshape(len(rows), y.shape[-1], -1)
    return torch.einsum("krg,rgn->kgn", y, grouped).reshape(len(y), *rows.shape[1:])


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
