"""[x, t] → [f(x), a t]: a treatment beside the features, so that no layer can wash it out."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn


class AppendTreatment(nn.Module):
    """Features of x with the treatment appended.

    Under a kernel of length scale l the treatment has the length scale l / a. With `own_scale`
    a is learned, so that treatment has a length scale of its own.
    """

    needs_no_bound = True  # a scales t alone

    def __init__(self, f: nn.Module, own_scale: bool = False, a: float = 1.0) -> None:
        super().__init__()
        self.f = f
        self.log_a = nn.Parameter(torch.tensor(math.log(a)), requires_grad=own_scale)

    def forward(self, xt: Float[Tensor, "N D1"]) -> Float[Tensor, "N J1"]:
        """[f(x), a t] of rows [x, t]."""
        t = self.log_a.exp() * xt[:, -1:]
        return torch.cat([self.f(xt[:, :-1]), t], -1)
