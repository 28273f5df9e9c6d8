"""Spectral batch norm: γ reads as γ / max(1, L/c), L = max_i |γ_i| / √(running_var_i + ε)."""

from typing import cast

import torch
from torch import Tensor, nn

from due.lipschitz.bounded import Bounded, bound, in_full


class SpectralBatchNorm(Bounded):
    """A batch-norm layer whose Lipschitz constant in eval mode is held at most `c`.

    One factor scales all channels and β is unchanged. In training too, the bound is that of the
    running variance. With `own_unit` it may standardise its input, whatever factor that takes, and
    only γ is held: for the end of a network, behind which the length scale takes up any factor.
    """

    own_unit: bool = False

    running_var: Tensor
    num_batches_tracked: Tensor
    eps: float
    momentum: float | None

    @property
    def weight(self) -> Tensor:
        """The bounded γ / max(1, L/c)."""
        return self.bounded_weight()

    @property
    def bias(self) -> Tensor | None:
        """β; scaled like γ if the layer has a partner, so that ReLU sees the same signs."""
        beta = self._parameters["bias"]
        if beta is None or not self.partners:
            return beta
        return self._times_scale(beta)

    @property
    def raw_weight(self) -> Tensor:
        """γ as it is trained and stored; ones if the layer has none."""
        gamma = self._parameters["weight"]
        return torch.ones_like(self.running_var) if gamma is None else gamma

    def scaled_weight(self) -> Tensor:
        """γ / max(1, L/c); on a CPU without more ado where L ≤ c."""
        gamma = self.raw_weight
        if gamma.device.type == "cpu" and not torch.compiler.is_compiling():
            with torch.no_grad():
                if self.constant() <= self.c:
                    return gamma
        return self._times_scale(gamma)

    def sigma(self) -> Tensor:
        """L = max_i |γ_i| / √(running_var_i + ε), in its own unit over that for γ = 1."""
        var = self._copy_of(self.running_var)
        L = channel_constants(self.raw_weight, var, self.eps).amax()
        return L * (in_full(var).amin() + self.eps).sqrt() if self.own_unit else L


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
