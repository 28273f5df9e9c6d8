"""[x, t] ↦ [√v ⊙ x, √w₁ ⊙ t x, √w₀ ⊙ (1 − t) x, a t]: length scales per column and per arm.

Under a kernel of distances, people of one arm are apart by Σ_d (v_d + w_td)(x_d − x'_d)². So the
outcome with treatment may vary with a column along which the outcome without it is flat. Across
arms distances depend on the origin, so columns are to be standardised, or 0 and 1.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

OWN = 0.1  # w to start from; v starts at 1
FADED = 1e-4  # of a column that has faded: without a remainder its root would have no gradient


class ArmColumns(nn.Module):
    """The covariates as features of a GP, each by the roots of its weights in [0, 1].

    Distances depend on the weights themselves. Where a column has faded, the likelihood still has
    a slope in its weight, while in the root it has none: a column that matters comes back.

    Parameters
    ----------
    D
        Number of covariates.
    own_scale
        Learn a, so that the treatment has a length scale of its own.
    """

    needs_no_bound = True

    def __init__(self, D: int, own_scale: bool = True) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.cat([torch.ones(D), torch.full((2 * D,), OWN)]))
        self.log_a = nn.Parameter(torch.zeros(()), requires_grad=own_scale)

    @property
    def scale(self) -> Float[Tensor, "3 D"]:
        """√v, √w₁ and √w₀."""
        held: Tensor = _Held.apply(self.weights)  # type: ignore[no-untyped-call]
        return (held + FADED).sqrt().reshape(3, -1)

    def head_parameters(self) -> list[nn.Parameter]:
        """All: they are part of the kernel, so they learn at the rate of the GP."""
        return [self.weights, self.log_a]

    def forward(self, xt: Float[Tensor, "N D1"]) -> Float[Tensor, "N J"]:
        """Features of rows [x, t]."""
        x, t = xt[:, :-1], xt[:, -1:]
        columns = torch.cat([x, t * x, (1 - t) * x], 1) * self.scale.flatten()
        return torch.cat([columns, self.log_a.exp() * t], 1)


class _Held(torch.autograd.Function):
    """Weights held in [0, 1]; at an end only a gradient that leads back inside is passed on."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        return weights.clamp(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        inward = torch.where(weights <= 0, grad.clamp_max(0), grad)
        return torch.where(weights >= 1, inward.clamp_min(0), inward)
