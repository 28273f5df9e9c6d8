"""A layer whose weight W reads as W / max(1, σ/c): `bound` it, and `fold` the bound in again.

`bound` replaces the layer's class by a subclass of it, in place. So parameters, buffers, names and
`isinstance` stay as they were, and the layer's own `forward` computes with the bounded weight.
"""

import copy
import functools
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Network = TypeVar("Network", bound=nn.Module)


class Bounded(nn.Module):
    """Abstract: a layer with Lipschitz constant σ(W) held at most `c`.

    Never constructed: `bound` makes a class of a final mixin and the layer's class, `plain`.
    """

    plain: ClassVar[type[nn.Module]]
    c: float
    slack: bool = False  # whether σ is known to be below c

    @property
    @abstractmethod
    def raw_weight(self) -> Tensor:
        """W, the parameter as it is trained and stored."""

    @abstractmethod
    def sigma(self) -> Tensor:
        """σ(W), in float32 or better, with gradient to W."""

    def bounded_weight(self) -> Tensor:
        """W / max(1, σ/c): exactly W where σ ≤ c."""
        W = self.raw_weight
        if self.slack:
            return W
        return (in_full(W) * torch.clamp(self.sigma() / self.c, min=1.0).reciprocal()).to(W.dtype)

    def extra_repr(self) -> str:
        """The layer's own text and c."""
        return ", ".join(filter(None, [super().extra_repr(), f"c={self.c:g}"]))

    def _copy_of(self, buffer: Tensor) -> Tensor:
        """The buffer's value now, because it may change before backward reads it.

        The compiler may drop a plain clone and read the buffer again in backward
        (https://github.com/pytorch/pytorch/pull/197039).
        """
        if self.training and torch.compiler.is_compiling():
            return _snapshot(buffer)
        return buffer.clone()

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., nn.Module], tuple[Any, ...], Any]:
        mixin = type(self).__mro__[1]
        return _empty, (mixin, self.plain), self.__getstate__()  # type: ignore[no-untyped-call]


def bound(layer: nn.Module, mixin: type[Bounded]) -> None:
    """Put `mixin` in front of the layer's class, in place."""
    layer.__class__ = _subclass(mixin, type(layer))  # type: ignore[arg-type]


def fold(network: Network) -> Network:
    """A copy with plain layers, W ← W / max(1, σ/c), that computes the same in eval mode.

    σ is used as it stands: call `converge` first after training.
    """
    folded = copy.deepcopy(network)
    for layer in list(folded.modules()):
        if isinstance(layer, Bounded):
            _unbind(layer, layer.plain, layer.bounded_weight().detach())
    return folded


def in_full(W: Tensor) -> Tensor:
    """W in float32 or better."""
    return W.to(torch.promote_types(W.dtype, torch.float32))


def _unbind(layer: nn.Module, plain: type[nn.Module], weight: Tensor) -> None:
    trained = layer._parameters["weight"]
    layer._parameters["weight"] = nn.Parameter(weight, trained is None or trained.requires_grad)
    if isinstance(layer, _BatchNorm) and not layer.affine:
        layer.affine = True
        layer._parameters["bias"] = nn.Parameter(torch.zeros_like(weight))
    for buffer in ("v", "G"):
        layer._buffers.pop(buffer, None)
    layer.__dict__.pop("slack", None)
    del layer.c
    layer.__class__ = plain


@functools.cache
def _subclass(mixin: type[Bounded], plain: type[nn.Module]) -> type[Bounded]:
    name = "Spectral" + plain.__name__
    return type(name, (mixin, plain), {"plain": plain, "__module__": __name__})


def _empty(mixin: type[Bounded], plain: type[nn.Module]) -> nn.Module:
    cls = _subclass(mixin, plain)  # type: ignore[arg-type]
    return cls.__new__(cls)


@torch.library.custom_op("due::snapshot", mutates_args=())
def _snapshot(x: Tensor) -> Tensor:
    return x.clone()


@_snapshot.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)
