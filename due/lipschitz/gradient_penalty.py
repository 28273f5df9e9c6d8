"""Two-sided gradient penalty, mean_i (‖∂ Σ_t output_it / ∂ x_i‖ − target)²: a soft constraint."""

import torch
from jaxtyping import Float
from torch import Tensor


def gradient_penalty(
    output: Float[Tensor, " N *T"], x: Float[Tensor, " N *D"], target: float | int = 1.0
) -> Float[Tensor, ""]:
    """Mean squared distance of the input gradient's norm from `target`, itself differentiable.

    Row i of the output must depend on row i of x only: no batch norm in training mode.
    """
    if not x.requires_grad:
        raise ValueError("x does not require gradients; call x.requires_grad_() before the model")
    (gradient,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    norms = torch.linalg.vector_norm(gradient.flatten(1), dim=1)  # (N,)
    return (norms - target).square().mean()
