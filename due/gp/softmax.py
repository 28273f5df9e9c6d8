"""Expectations over the softmax of independent f_c ~ N(mean_c, var_c), without samples.

Two classes need only f_1 − f_0, and are integrated by quadrature. More need `due.gp.integral`,
which on a CPU, and where no gradient passes through it, is computed by numpy.
"""

from collections.abc import Callable
from math import pi
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from due.gp.arrays import NUMPY, TORCH, Array, by_numpy, in_a_graph
from due.gp.integral import integrate

KNOWN = torch.float32, torch.float64
QUADRATURE = 129  # nodes for two classes, over ±7 standard deviations


class Integrals(NamedTuple):
    """Per row: E[log Σ exp f], E[p] and E[p (1 − p)] / 2, for p = softmax(f)."""

    log_sum: Float[Tensor, " N"]
    p: Float[Tensor, "N T"]
    curvature: Float[Tensor, "N T"]


def probabilities(
    mean: Float[Tensor, "N T"], var: Float[Tensor, "N T"], single: bool = False
) -> Float[Tensor, "N T"]:
    """E[softmax(f)]; `single` integrates in float32, for three classes or more."""
    if mean.shape[-1] == 2:
        return torch.stack(
            [
                two_classes(torch.sigmoid, mean.flip(-1), var),
                two_classes(torch.sigmoid, mean, var),
            ],
            -1,
        )
    return _integrated(mean, var, curved=False, single=single)[0]


def expected_log_prob(
    mean: Float[Tensor, "N T"], var: Float[Tensor, "N T"], y: Int[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """E[log softmax(f)_y], with its exact gradient in mean and var."""
    if mean.shape[-1] == 2:
        of_others = torch.where(y[:, None] == 1, mean.flip(-1), mean)
        return -two_classes(softplus, of_others, var)
    return mean.gather(-1, y[:, None])[:, 0] - _LogSum.apply(mean, var)  # type: ignore[no-untyped-call]


def expected_entropy(mean: Float[Tensor, "N T"], var: Float[Tensor, "N T"]) -> Float[Tensor, " N"]:
    """E[−Σ_c p_c log p_c] = E[log Σ exp f] − Σ_c (mean_c E[p_c] + var_c E[p_c (1 − p_c)])."""
    if mean.shape[-1] == 2:
        return two_classes(lambda gap: softplus(gap) - gap * torch.sigmoid(gap), mean, var)
    mean = mean - mean.amax(-1, keepdim=True)
    log_sum, p, curvature = integrals(mean, var)
    return (log_sum - (mean * p + 2 * var * curvature).sum(-1)).clamp_min(0)


def integrals(mean: Float[Tensor, "N T"], var: Float[Tensor, "N T"]) -> Integrals:
    """All three, for three classes or more."""
    p, curvature, log_sum = _integrated(mean, var)
    return Integrals(log_sum[:, 0], p, curvature)


def _integrated(mean: Tensor, var: Tensor, **how: bool) -> list[Tensor]:
    """As `integrate`, but (N, T)."""
    dtype = mean.dtype
    if dtype not in KNOWN:  # half precision has no room for a distribution function
        mean, var = mean.float(), var.float()
    if by_numpy(mean, var):
        with np.errstate(all="ignore"):  # what overflows is not used
            arrays = integrate(NUMPY, _array(mean), _array(var), **how)
        return [torch.from_numpy(np.ascontiguousarray(part.T)).to(dtype) for part in arrays]
    found = integrate(TORCH, mean.mT, var.mT, alike=in_a_graph(), **how)
    return [part.mT.to(dtype) for part in found]


def _array(x: Tensor) -> Array:
    """(T, N)."""
    return np.ascontiguousarray(x.detach().numpy().T)


def monte_carlo(
    mean: Float[Tensor, "N T"], var: Float[Tensor, "N T"], epsilon: Float[Tensor, "S T"]
) -> Float[Tensor, "N T"]:
    """E[softmax(f)] from plain samples ε, the same for all rows: the paper's way, with S = 32."""
    points = epsilon.to(mean.dtype).unsqueeze(-1)  # (S, T, 1)
    f = torch.addcmul(mean.mT, var.mT.sqrt(), points)  # (S, T, N): the rows vectorise
    return torch.softmax(f, 1).mean(0).mT


def mean_field(mean: Float[Tensor, "N T"], var: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """softmax(mean / √(1 + π var / 8)): closed form, cheap and rough."""
    return torch.softmax(mean / (1 + pi / 8 * var).sqrt(), -1)


class _LogSum(torch.autograd.Function):
    """E[log Σ exp f]; its gradient is E[p] in the mean and E[p (1 − p)] / 2 in the variance."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor) -> Tensor:
        found = integrals(mean, var)
        ctx.save_for_backward(found.p, found.curvature)
        return found.log_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        p, curvature = ctx.saved_tensors
        return grad[:, None] * p, grad[:, None] * curvature


def two_classes(g: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor) -> Tensor:
    """E[g(f_1 − f_0)], (N,)."""
    z = torch.linspace(-7, 7, QUADRATURE, dtype=mean.dtype, device=mean.device)
    weight = torch.softmax(-z.square() / 2, 0)
    gap = (mean[:, 1] - mean[:, 0])[:, None] + var.sum(-1).sqrt()[:, None] * z
    return (g(gap) * weight).sum(-1)
