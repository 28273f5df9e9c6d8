"""[x, t] → [f(x), a t]: the treatment bypasses the network, so no layer can suppress it."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn


class AppendTreatment(nn.Module):
    """Features of x with the treatment appended.

    Under a kernel of length scale l the treatment has the length scale l / a. With `own_scale`
    a is learned, so the treatment has its own length scale.
    """

    needs_no_bound = True  # a scales t alone

    def __init__(self, f: nn.Module, own_scale: bool = False, a: float = 1.0) -> None:
        super().__init__()
        self.f = f
        self.log_a = nn.Parameter(torch.tensor(math.log(a)), requires_grad=own_scale)

    def head_parameters(self) -> list[nn.Parameter]:
        """log a: part of the kernel, so it learns at the rate of the GP, not of the network."""
        return [self.log_a]

    def forward(self, xt: Float[Tensor, "N D1"]) -> Float[Tensor, "N J1"]:
        """[f(x), a t] of rows [x, t]."""
        t = self.log_a.exp() * xt[:, -1:]
        return torch.cat([self.f(xt[:, :-1]), t], -1)


def both_arms(predict: Callable[[Tensor], Tensor], x: Float[Tensor, "N D"]) -> Float[Tensor, "N 2"]:
    """What `predict` says of [x, 0] and [x, 1], from one pass over twice the rows.

    Under dropout each arm then has masks of its own.
    """
    t = torch.zeros_like(x[:, :1])
    rows = torch.cat([torch.cat([x, t], 1), torch.cat([x, t + 1], 1)])
    return predict(rows).reshape(2, -1).mT  # not len(x), which an export would fix
