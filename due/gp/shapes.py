"""Tensors by what they hold, for N rows of J features, T outputs and M inducing inputs."""

from typing import TypeAlias

from jaxtyping import Float, Int, Shaped
from torch import Tensor

Inputs: TypeAlias = Shaped[Tensor, "N ..."]  # rows of any shape
Features: TypeAlias = Float[Tensor, "N J"]
Labels: TypeAlias = Int[Tensor, " N"]
Values: TypeAlias = Float[Tensor, "N T"]
PerRow: TypeAlias = Float[Tensor, " N"]
Weights: TypeAlias = Float[Tensor, " N"] | None  # None: all are 1
# σ²: one for all outputs, one for each, or one for each row and output
Noises: TypeAlias = Float[Tensor, " noises"] | Float[Tensor, "N noises"]
Scalar: TypeAlias = Float[Tensor, ""]


def by_row(sigma2: Noises) -> Float[Tensor, "noises rows"]:
    """σ² by output and row in float64, with one column if all rows share it."""
    return sigma2.double()[:, None] if sigma2.dim() == 1 else sigma2.double().mT
