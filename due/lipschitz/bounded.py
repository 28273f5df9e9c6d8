"""A layer whose weight W reads as W / max(1, σ/c), by a class put in front of its own.

`bound` swaps the class in place, so parameters, buffers, names and `isinstance` stay as they were,
and the layer's own `forward` computes with the bounded weight.
"""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Bounded(nn.Module):
    """Abstract: a layer with Lipschitz constant σ(W) held at most `c`."""

    plain: ClassVar[type[nn.Module]]
    c: float

    @property
    def raw_weight(self) -> Tensor:
        """W, the parameter as it is trained and stored."""
        raise NotImplementedError

    def sigma(self) -> Tensor:
        """σ(W), in float32 or better, with gradient to W."""
        raise NotImplementedError

    def bounded_weight(self) -> Tensor:
        """W / max(1, σ/c): exactly W where σ ≤ c."""
        W = self.raw_weight
        return (in_full(W) * torch.clamp(self.sigma() / self.c, min=1.0).reciprocal()).to(W.dtype)

    def extra_repr(self) -> str:
        """The layer's own text and c."""
        return ", ".join(filter(None, [super().extra_repr(), f"c={self.c:g}"]))

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., nn.Module], tuple[Any, ...], Any]:
        mixin = type(self).__mro__[1]
        return _empty, (mixin, self.plain), self.__getstate__()  # type: ignore[no-untyped-call]


def bound(layer: nn.Module, mixin: type[Bounded]) -> None:
    """Put `mixin` in front of the layer's class, in place."""
    layer.__class__ = _subclass(mixin, type(layer))  # type: ignore[arg-type]


def in_full(W: Tensor) -> Tensor:
    """W in float32 or better."""
    return W.to(torch.promote_types(W.dtype, torch.float32))


def value_now(buffer: Tensor) -> Tensor:
    """A copy that a compiled backward keeps.

    Without it the compiler may read the buffer again in backward, after it has changed
    (https://github.com/pytorch/pytorch/pull/197039).
    """
    return _snapshot(buffer) if torch.compiler.is_compiling() else buffer.clone()


@torch.library.custom_op("due::snapshot", mutates_args=())
def _snapshot(x: Tensor) -> Tensor:
    return x.clone()


@_snapshot.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@functools.cache
def _subclass(mixin: type[Bounded], plain: type[nn.Module]) -> type[Bounded]:
    name = "Spectral" + plain.__name__
    return type(name, (mixin, plain), {"plain": plain, "__module__": __name__})


def _empty(mixin: type[Bounded], plain: type[nn.Module]) -> nn.Module:
    cls = _subclass(mixin, plain)  # type: ignore[arg-type]
    return cls.__new__(cls)
