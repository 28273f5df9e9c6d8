"""Spectral normalisation of a layer x ↦ A x + b: W reads as W / max(1, σ(A)/c)."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from due.lipschitz.bounded import Bounded, bound, in_full
from due.lipschitz.operators import (
    Operator,
    is_pointwise,
    leading_vector,
    n_groups,
    normalise,
    power_iteration,
    product,
    singular_pair,
    stretch,
    weight_gradient,
)

CHANNELS_LAST = torch.channels_last
SLACK = 0.9  # of c: a weight with a smaller σ is not scaled until the next `refresh`
_backward_task = torch._C._current_graph_task_id  # −1 outside backward


class SpectralNorm(Bounded):
    """A linear or convolution layer whose largest singular value σ(A) is held at most `c`.

    The buffer `v` is the leading right singular vector, σ = ‖A v‖. Each use of the weight in
    training refines v by one power iteration, v ← AᵀA v / ‖AᵀA v‖; in eval mode v does not change.
    For a convolution A acts on whole images, so v is (1, channels, height, width), and the bound
    holds for images of that size or smaller. Groups of channels do not mix: each has its own v.

    σ = uᵀA(W)v is linear in W, so σ = ⟨G, W⟩ with G = ∂(uᵀA v)/∂W. `refresh` takes one power
    iteration and keeps G in a buffer; from then on σ is that product, at almost no cost, until the
    next `refresh`. `due.training.fit` does so if its recipe asks for it; `release` ends it.

    Read and write the parameter itself through `raw_weight`; `weight` is computed from it.
    """

    v: Tensor
    G: Tensor | None

    @property
    def weight(self) -> Tensor:
        """The bounded weight, W / max(1, σ/c)."""
        stepping = self.G is None and self.training and not _in_backward()
        if stepping and self._is_plain_matrix:
            W = self.raw_weight
            with _no_autocast(W):
                bounded: Tensor = _Stepped.apply(W, self.v, self.c)  # type: ignore[no-untyped-call]
            return bounded
        if stepping:
            self.step()
        return self.bounded_weight()

    @property
    def raw_weight(self) -> Tensor:
        """W, the parameter as it is trained and stored."""
        return cast(Tensor, self._parameters["weight"])

    @torch.no_grad()
    def step(self) -> None:
        """One power iteration; where AᵀA v is zero or not finite, v stays."""
        W = in_full(self.raw_weight)
        with _no_autocast(W):
            self.v.copy_(power_iteration(self._layer, W, self.v.to(W.dtype)))

    def scaled_weight(self) -> Tensor:
        """W / max(1, σ/c); between refreshes of a single group by a function of its own."""
        W = self.raw_weight
        if self.partners or n_groups(self._layer) > 1 or torch.compiler.is_compiling():
            return self._times_scale(W)
        if self.G is None or not _alike(self.G, W):
            return self._times_scale(W)
        with torch.no_grad():
            k = (_dot(self.G, W) / self.c).clamp_min(1.0).reciprocal()
        if W.device.type == "cpu" and k >= 1:  # elsewhere to ask would be to wait
            return W
        return _Held.apply(W, self.G, k, self.c)  # type: ignore[no-untyped-call]

    @property
    def _is_plain_matrix(self) -> bool:
        """Whether `_Stepped` does: a matrix in full precision, bounded by itself."""
        W = self.raw_weight
        full = W.dtype == self.v.dtype and W.dtype in (torch.float32, torch.float64)
        alone = not (self.partners or self.led or self.slack or torch.compiler.is_compiling())
        return isinstance(self, nn.Linear) and full and alone

    def sigma(self) -> Tensor:
        """σ = max_g ‖A_g v_g‖; the gradient is that of uᵀA v with u = A v / σ and v fixed."""
        W = in_full(self.raw_weight)
        if self.G is not None:
            return product(self._layer, self.G, W)
        with _no_autocast(W):
            v = self._copy_of(self.v)
            if v.dtype != W.dtype:  # in half precision v is only roughly a unit vector
                v = normalise(self._layer, v.to(W.dtype))
            return stretch(self._layer, W, v)

    @torch.no_grad()
    def refresh(self) -> None:
        """One power iteration, then G; zero where σ is well below c, so that W is used as it is."""
        W = in_full(self.raw_weight)
        with _no_autocast(W):
            u, v, sigmas = singular_pair(self._layer, W, self.v.to(W.dtype))
            self.v.copy_(v)
            self.slack = not self.led and bool(sigmas.amax() * self.others() < SLACK * self.c)
            self.G = torch.zeros_like(W) if self.slack else weight_gradient(self._layer, W, v, u)

    def release(self) -> None:
        """Forget G: power iteration at each use again."""
        self.G, self.slack = None, False

    @torch.no_grad()
    def converge(self) -> None:
        """Replace v by the leading right singular vector of W as it is now."""
        self.release()
        W = in_full(self.raw_weight)
        if W.is_meta:
            return
        V = _random(self.v.shape, rows=3).to(W)
        if normalise(self._layer, self.v).isfinite().all():
            V[0] = self.v[0]
        with _no_autocast(W):
            self.v.copy_(leading_vector(self._layer, W, V))

    @property
    def _layer(self) -> Operator:
        return cast(Operator, self)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Take v in the stored shape, and G if there is one; a plain layer has no v: compute it."""
        stored = state_dict.get(prefix + "v")
        if stored is None:
            state_dict[prefix + "v"] = self.v
        elif stored.shape != self.v.shape:
            self.v = self.v.new_empty(stored.shape)
        G = state_dict.get(prefix + "G")
        self.G = None if G is None else torch.empty_like(G)
        self.slack = G is not None and not bool(G.any())
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if stored is None:
            self.converge()


class _Held(torch.autograd.Function):
    """k W with k = 1 / max(1, ⟨G, W⟩/c); its gradient is k ∂ − k²/c ⟨∂, W⟩ G where k < 1."""

    @staticmethod
    def forward(ctx: Any, W: Tensor, G: Tensor, k: Tensor, c: float) -> Tensor:
        ctx.save_for_backward(W, G, k)
        ctx.c = c
        return W * k

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        W, G, k = ctx.saved_tensors
        grad = grad if grad.stride() == W.stride() else torch.empty_like(W).copy_(grad)
        along = torch.where(k < 1, k.square() * _dot(grad, W) / -ctx.c, 0.0)
        return (grad * k).addcmul_(G, along), None, None, None


class _Stepped(torch.autograd.Function):
    """One power iteration of v, then k W with k = 1 / max(1, ‖W v‖/c), of a matrix W.

    The gradient is that of `_Held` with G = u vᵀ, u = W v / ‖W v‖. What takes a layer twenty
    small steps one by one is half of the time of a small network.
    """

    @staticmethod
    def forward(ctx: Any, W: Tensor, v: Tensor, c: float) -> Tensor:
        w = torch.mv(W, v[0]) @ W
        size = torch.linalg.vector_norm(w)
        new = torch.where((size > 0) & (size < torch.inf), w / size, v[0])
        v.copy_(new)
        u = torch.mv(W, new)
        sigma = torch.linalg.vector_norm(u)
        k = (sigma / c).clamp_min_(1.0).reciprocal_()
        ctx.save_for_backward(W, u, new, sigma, k)
        ctx.c = c
        return W * k

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        W, u, v, sigma, k = ctx.saved_tensors
        along = torch.where(k < 1, (grad * W).sum() * k.square() / (-ctx.c * sigma), 0.0)
        return torch.addr(grad * k, along * u, v), None, None


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether both lie in memory without gaps and in the same order."""
    dense = b.is_contiguous() or (b.dim() == 4 and b.is_contiguous(memory_format=CHANNELS_LAST))
    return dense and a.stride() == b.stride() and a.dtype == b.dtype


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """⟨a, b⟩ of two tensors with the same dense layout."""
    return torch.dot(*(x.as_strided((x.numel(),), (1,)) for x in (a, b)))


def bound_operator(layer: Operator, c: float, in_shape: tuple[int, ...]) -> SpectralNorm:
    """Bound a layer in place for inputs (channels, height, width); v starts at random.

    Call `converge` next, or load a state that contains v.
    """
    if not isinstance(layer, SpectralNorm):
        bound(layer, SpectralNorm)
        layer.register_buffer("G", None)
    spectral = cast(SpectralNorm, layer)
    spectral.c = c
    channels, *size = in_shape
    shape = (1, channels, *([1] * len(size) if is_pointwise(layer) else size))
    if "v" not in spectral._buffers or spectral.v.shape != shape:
        v = normalise(layer, _random(torch.Size(shape), rows=1))
        spectral.register_buffer("v", v.to(spectral.raw_weight))
    return spectral


def _random(shape: torch.Size, rows: int) -> Tensor:
    """Always the same draw, without use of the global generator."""
    return torch.randn(rows, *shape[1:], generator=torch.Generator().manual_seed(0))


def _in_backward() -> bool:
    """Activation checkpointing repeats the forward pass in backward: v must not change there."""
    return not torch.compiler.is_compiling() and _backward_task() != -1


def _no_autocast(W: Tensor) -> AbstractContextManager[Any]:
    kind = W.device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)
