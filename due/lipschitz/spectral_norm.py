"""Spectral normalisation of a layer x ↦ A x + b: W reads as W / max(1, σ(A)/c)."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from due.lipschitz.bounded import Bounded, bound, in_full, value_now
from due.lipschitz.operators import Operator, adjoint, apply, is_pointwise
from due.lipschitz.singular import expand, leading_vector, normalise, norms

_backward_task = torch._C._current_graph_task_id  # −1 outside backward


class SpectralNorm(Bounded):
    """A linear or convolution layer whose largest singular value σ(A) is held at most `c`.

    The buffer `v` is the leading right singular vector, σ = ‖A v‖. Each use of the weight in
    training refines v by one power iteration, v ← AᵀA v / ‖AᵀA v‖; in eval mode v rests.
    For a convolution A acts on whole images, so v is (1, channels, height, width), and the bound
    holds for images of that size or smaller. Groups of channels do not mix: each has its own v.

    Read and write the parameter itself through `raw_weight`; `weight` is a result.
    """

    v: Tensor

    @property
    def weight(self) -> Tensor:
        """The bounded weight, W / max(1, σ/c)."""
        if self.training and not _in_backward():
            self.step()
        return self.bounded_weight()

    @property
    def raw_weight(self) -> Tensor:
        """W, the parameter as it is trained and stored."""
        return cast(Tensor, self._parameters["weight"])

    def sigma(self) -> Tensor:
        """σ = max_g ‖A_g v_g‖; the gradient is that of uᵀA v with u = A v / σ and v held."""
        W = in_full(self.raw_weight)
        with _no_autocast(W):
            v = self._v_now()
            if v.dtype != W.dtype:  # rounded to few bits, v is not quite a unit vector
                v = normalise(v.to(W.dtype), self._groups)
            return norms(apply(self._layer, W, v), self._groups).amax()

    @torch.no_grad()
    def step(self) -> None:
        """One power iteration; where AᵀA v is zero or not finite, v stays."""
        W, v = in_full(self.raw_weight), self.v
        with _no_autocast(W):
            u = apply(self._layer, W, v.to(W.dtype))
            w = adjoint(self._layer, W, u, v.shape[2:])
            size = expand(norms(w, self._groups), w)
            moves = (size > 0) & (size < torch.inf)
            v.copy_(torch.where(moves, w / size, v))

    @torch.no_grad()
    def converge(self) -> None:
        """Ascend until σ settles; see `due.lipschitz.singular`."""
        W = in_full(self.raw_weight)
        if W.is_meta:
            return
        V = _random(self.v.shape, rows=3).to(W)
        if torch.isfinite(self.v).all() and norms(self.v, self._groups).min() > 0:
            V[0] = self.v[0]
        A = partial(apply, self._layer, W)
        At = partial(adjoint, self._layer, W, size=self.v.shape[2:])
        with _no_autocast(W):
            self.v.copy_(leading_vector(A, At, V, self._groups))

    def _v_now(self) -> Tensor:
        """A copy: v may move before backward."""
        return value_now(self.v) if self.training else self.v.clone()

    @property
    def _layer(self) -> Operator:
        return cast(Operator, self)

    @property
    def _groups(self) -> int:
        return int(getattr(self, "groups", 1))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Take v in the stored shape; without one (a plain layer was stored), find it again."""
        stored = state_dict.get(prefix + "v")
        if stored is None:
            state_dict[prefix + "v"] = self.v
        elif stored.shape != self.v.shape:
            self.v = self.v.new_empty(stored.shape)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if stored is None:
            self.converge()


def bound_operator(layer: Operator, c: float, in_shape: tuple[int, ...]) -> SpectralNorm:
    """Bound a layer in place for inputs (channels, height, width); v starts at random.

    Call `converge` next, or load a state that holds v.
    """
    if not isinstance(layer, SpectralNorm):
        bound(layer, SpectralNorm)
    spectral = cast(SpectralNorm, layer)
    spectral.c = c
    channels, *size = in_shape
    shape = (1, channels, *([1] * len(size) if is_pointwise(layer) else size))
    if "v" not in spectral._buffers or spectral.v.shape != shape:
        v = normalise(_random(torch.Size(shape), rows=1), spectral._groups)
        spectral.register_buffer("v", v.to(spectral.raw_weight))
    return spectral


def _random(shape: torch.Size, rows: int) -> Tensor:
    """A fixed draw, which leaves the global generator alone."""
    return torch.randn(rows, *shape[1:], generator=torch.Generator().manual_seed(0))


def _in_backward() -> bool:
    """Activation checkpointing runs a forward again inside backward: v must not move there."""
    return not torch.compiler.is_compiling() and _backward_task() != -1


def _no_autocast(W: Tensor) -> AbstractContextManager[Any]:
    kind = W.device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)
