"""The same few operations of numpy and of torch, for mathematics that is written once.

An operation on a few numbers takes numpy a third of the time that torch takes. Torch has gradients,
other devices and `torch.compile`. Arrays have their rows last, and are contiguous.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.autograd import forward_ad

Array: TypeAlias = Any  # a numpy array or a tensor
FAR = -64.0  # exp(−64) is as good as 0, and exp of lower numbers is slow to compute
FEW = 300  # numbers up to which an operation of numpy costs the same


class Library(NamedTuple):
    """Operations; sums and maxima are over one axis, `take` and `put` along the first."""

    exp: Callable[[Array], Array]
    log: Callable[[Array], Array]
    sqrt: Callable[[Array], Array]
    log1p: Callable[[Array], Array]
    erf: Callable[[Array], Array]
    maximum: Callable[[Array, Array], Array]
    bell: Callable[[Array], Array]
    at_least: Callable[[Array, float], Array]
    at_most: Callable[[Array, float], Array]
    where: Callable[[Array, Array, Array], Array]
    join: Callable[..., Array]
    largest: Callable[[Array, int], Array]
    total: Callable[[Array, int], Array]
    product: Callable[[Array, int], Array]
    order: Callable[..., Array]
    take: Callable[[Array, Array], Array]
    put: Callable[[Array, Array], Array]
    columns: Callable[[Array, Array], Array]
    fixed: Callable[[Array], Array]
    single: Callable[[Array], Array]
    block: int  # numbers of an array that are computed with together
    few: int  # numbers up to which an operation costs the same


def by_numpy(*tensors: torch.Tensor) -> bool:
    """Whether numpy may compute with them: on a CPU, with no derivative, in no graph."""
    if in_a_graph() or any(x.device.type != "cpu" for x in tensors):
        return False
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))


def in_a_graph() -> bool:
    """Whether operations are recorded, for other rows than these."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def logsumexp(lib: Library, x: Array) -> Array:
    """log Σ exp x over the first axis."""
    top = lib.largest(x, 0)
    return top + lib.log(lib.total(lib.exp(x - top), 0))


def softplus(lib: Library, x: Array) -> Array:
    """log(1 + eˣ)."""
    return lib.at_least(x, 0.0) + lib.log1p(lib.exp(-abs(x)))


def _erf(x: Array) -> Array:
    return torch.erf(torch.from_numpy(x)).numpy()


def _bell(x: Array) -> Array:
    found = x * -x
    np.maximum(found, FAR, out=found)
    return np.exp(found, out=found)


def _total(x: Array, axis: int) -> Array:
    """From the first to the last, also of one row, which numpy would add up in another order."""
    if prod(x.shape[axis + 1 :]) != 1:
        return np.add.reduce(x, axis)
    return np.add.accumulate(x, axis)[(slice(None),) * axis + (-1,)]


def _take(x: Array, order: Array) -> Array:
    return np.ascontiguousarray(x[order, np.arange(x.shape[1])])


def _put(x: Array, order: Array) -> Array:
    """`x` where `_take` took it from."""
    found = np.empty_like(x)
    found[order, np.arange(x.shape[1])] = x
    return found


def _columns(x: Array, which: Array) -> Array:
    return np.ascontiguousarray(x[:, which])


def _columns_of_tensor(x: Array, which: Array) -> Array:
    return x[:, which if isinstance(which, slice) else torch.as_tensor(which)]


def _order(*keys: Array) -> Array:
    """As `np.lexsort`, which takes long, and is needed where the last key does not tell."""
    if keys[-1].size <= FEW:
        return np.lexsort(keys, 0)
    key = np.ascontiguousarray(keys[-1].T)
    order = key.argsort(-1)
    ranked = key[np.arange(len(key))[:, None], order]
    tied = (ranked[:, 1:] == ranked[:, :-1]).any(1)
    if tied.any():
        order[tied] = np.lexsort([key[:, tied] for key in keys], 0).T
    return order.T


def _stable_order(*keys: Array) -> Array:
    """As `np.lexsort`."""
    order = keys[0].argsort(dim=0, stable=True)
    for key in keys[1:]:
        order = order.gather(0, key.gather(0, order).argsort(dim=0, stable=True))
    return order


NUMPY = Library(
    np.exp,
    np.log,
    np.sqrt,
    np.log1p,
    _erf,
    np.maximum,
    bell=_bell,
    at_least=np.maximum,
    at_most=np.minimum,
    where=np.where,
    join=np.concatenate,
    largest=np.maximum.reduce,
    total=_total,
    product=np.multiply.reduce,
    order=_order,
    take=_take,
    put=_put,
    columns=_columns,
    fixed=lambda x: x,
    single=lambda x: x.astype(np.float32, copy=False),
    block=4000,  # so that a few dozen such arrays stay in the processor's cache
    few=FEW,
)
TORCH = Library(
    torch.exp,
    torch.log,
    torch.sqrt,
    torch.log1p,
    torch.erf,
    torch.maximum,
    bell=lambda x: torch.exp((x * -x).clamp_min(FAR)),
    at_least=torch.clamp_min,
    at_most=torch.clamp_max,
    where=torch.where,
    join=torch.cat,
    largest=torch.amax,
    total=torch.sum,
    product=torch.prod,
    order=_stable_order,
    take=lambda x, order: x.gather(0, order),
    put=lambda x, order: torch.empty_like(x).scatter(0, order, x),
    columns=_columns_of_tensor,
    fixed=torch.Tensor.detach,
    single=torch.Tensor.float,
    block=2**16,
    few=0,
)
