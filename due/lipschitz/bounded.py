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
    """Abstract: a layer with Lipschitz constant σ(W) held at most `c`, alone or with a partner.

    Never constructed: `bound` makes a class of a final mixin and the layer's class, `plain`.
    """

    plain: ClassVar[type[nn.Module]]
    c: float
    slack: bool = False  # whether σ is known to be below c
    partners: "tuple[Bounded, ...]" = ()  # bounded together with it: the product is at most c
    led: bool = False  # whether it is such a partner itself, and its weight is read as it is

    @property
    @abstractmethod
    def raw_weight(self) -> Tensor:
        """W, the parameter as it is trained and stored."""

    @abstractmethod
    def sigma(self) -> Tensor:
        """σ(W), in float32 or better, with gradient to W."""

    def bounded_weight(self) -> Tensor:
        """W / max(1, σ/c): exactly W where σ ≤ c."""
        return self.raw_weight if self.slack or self.led else self.scaled_weight()

    def bounded_bias(self) -> Tensor | None:
        """The bias as the layer reads it."""
        bias: Tensor | None = getattr(self, "bias", None)
        return bias

    @abstractmethod
    def scaled_weight(self) -> Tensor:
        """W times `scale`, however that is fastest; exactly W where the bound holds."""

    def _times_scale(self, W: Tensor) -> Tensor:
        return (in_full(W) * self.scale()).to(W.dtype)

    def scale(self) -> Tensor:
        """1 / max(1, σ/c), with its partner's σ if it has one."""
        return torch.clamp(self.constant() / self.c, min=1.0).reciprocal()

    def constant(self) -> Tensor:
        """σ(W), times that of its partner."""
        return self.sigma() * self.others()

    def others(self) -> Tensor | float:
        """σ of its partner; 1 if it has none."""
        return self.partners[0].sigma() if self.partners else 1.0

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
    layers = [layer for layer in folded.modules() if isinstance(layer, Bounded)]
    weights = [(layer.bounded_weight().detach(), layer.bounded_bias()) for layer in layers]
    for layer, (weight, bias) in zip(layers, weights, strict=True):
        _unbind(layer, layer.plain, weight)
        if bias is not None and bias is not layer._parameters["bias"]:
            layer._parameters["bias"] = nn.Parameter(bias.detach(), bias.requires_grad)
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
    for name in ("slack", "partners", "led", "own_unit"):
        layer.__dict__.pop(name, None)
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
