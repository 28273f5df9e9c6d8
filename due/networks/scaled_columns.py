"""x ↦ √v ⊙ x with a learned 0 ≤ v_d ≤ 1 per column: a GP on it has a length scale per column."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

FADED = 1e-4  # v of a column that has faded: without a remainder √v would have no gradient


class ScaledColumns(nn.Module):
    """The columns themselves as features, each by the root of its weight v.

    A kernel depends on distances, and so on v. Where a column has faded, the likelihood still has a
    slope in v, while in the scale √v it has none: a column that matters comes back.
    """

    needs_no_bound = True

    def __init__(self, D: int) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.ones(D))

    @property
    def scale(self) -> Float[Tensor, " D"]:
        """The scale of each column."""
        held: Tensor = _Held.apply(self.v)  # type: ignore[no-untyped-call]
        return (held + FADED).sqrt()

    def head_parameters(self) -> list[nn.Parameter]:
        """The weights: they learn at the rate of the GP, whose length scales they are."""
        return [self.v]

    def forward(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """√v ⊙ x."""
        return x * self.scale


class _Held(torch.autograd.Function):
    """v held in [0, 1]; at an end only a gradient that leads back inside is passed on."""

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        ctx.save_for_backward(v)
        return v.clamp(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (v,) = ctx.saved_tensors
        inward = torch.where(v <= 0, grad.clamp_max(0), grad)
        return torch.where(v >= 1, inward.clamp_min(0), inward)
