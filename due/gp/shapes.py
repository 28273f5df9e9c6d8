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
Noises: TypeAlias = Float[Tensor, " noises"]  # σ², one for all outputs or one for each
Scalar: TypeAlias = Float[Tensor, ""]
