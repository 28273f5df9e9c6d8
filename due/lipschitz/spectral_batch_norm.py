"""Spectral batch norm: γ reads as γ / max(1, L/c), L = max_i |γ_i| / √(running_var_i + ε)."""

from typing import cast

import torch
from torch import Tensor, nn

from due.lipschitz.bounded import Bounded, bound, in_full


class SpectralBatchNorm(Bounded):
    """A batch-norm layer whose Lipschitz constant in eval mode is held at most `c`.

    One factor scales all channels and β is unchanged. In training too, the bound is that of the
    running variance.
    """

    running_var: Tensor
    eps: float
    momentum: float | None

    @property
    def weight(self) -> Tensor:
        """The bounded γ / max(1, L/c)."""
        return self.bounded_weight()

    @property
    def raw_weight(self) -> Tensor:
        """γ as it is trained and stored; ones if the layer has none."""
        gamma = self._parameters["weight"]
        return torch.ones_like(self.running_var) if gamma is None else gamma

    def sigma(self) -> Tensor:
        """L = max_i |γ_i| / √(running_var_i + ε)."""
        var = self._copy_of(self.running_var)
        return channel_constants(self.raw_weight, var, self.eps).amax()


def channel_constants(gamma: Tensor, var: Tensor, eps: float) -> Tensor:
    """|γ_i| / √(var_i + ε) of each channel."""
    return in_full(gamma).abs() / (in_full(var) + eps).sqrt()


def bound_batch_norm(layer: nn.Module, c: float, momentum: float | None) -> SpectralBatchNorm:
    """Bound a batch-norm layer in place; its statistics are kept."""
    if not isinstance(layer, SpectralBatchNorm):
        bound(layer, SpectralBatchNorm)
    spectral = cast(SpectralBatchNorm, layer)
    spectral.c, spectral.momentum = c, momentum
    return spectral
