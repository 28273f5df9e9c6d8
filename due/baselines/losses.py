"""What the rivals' losses share."""

from jaxtyping import Float
from torch import Tensor


def weighted_mean(
    losses: Float[Tensor, " N"], weights: Float[Tensor, " N"] | None
) -> Float[Tensor, ""]:
    """mean_i w_i l_i; without weights they are 1."""
    return losses.mean() if weights is None else (weights * losses).mean()
