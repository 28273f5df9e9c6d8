"""x ↦ f(s ⊙ x) with a learned scale 0 ≤ s_d ≤ 1 per column, so that useless columns fade."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

PENALTY = 0.01  # nats per row and column; chosen on wine, cancer and 200 columns of which 4 matter


class ScaledInputs(nn.Module):
    """A network behind a learned scale per column, whose sum is penalised.

    A column that the network does not need loses its scale, so noise in it is neither fitted nor
    part of any distance. No scale exceeds 1, so the bound of the network behind it stays.
    """

    needs_no_bound = True

    def __init__(self, f: nn.Module, D: int) -> None:
        super().__init__()
        self.f = f
        self.raw = nn.Parameter(torch.ones(D))

    @property
    def scale(self) -> Float[Tensor, " D"]:
        """The scale of each column."""
        return self.raw.clamp(0, 1)

    def head_parameters(self) -> list[nn.Parameter]:
        """The scales: they learn at the rate of the GP, whose length scales they refine."""
        return [self.raw]

    def forward(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N J"]:
        """f(s ⊙ x)."""
        return self.f(x * self.scale)

    def penalty(self) -> Float[Tensor, ""]:
        """Their sum at its price, for the loss."""
        return PENALTY * self.raw.clamp_min(0).sum()
