"""Reversible networks: `depth` times b ← b + g(a), a ← a + k(b) on the halves of h = [a, b].

For any g and k the inverse is a ← a − k(b), b ← b − g(a) and the Jacobian's determinant is 1, so
no two inputs share features. Zeros, not a learned layer, widen the input: this is an isometry.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad, pixel_shuffle, pixel_unshuffle

from due.networks.fully_connected import make_activation


class ReversibleNet(nn.Module):
    """Reversible network for vectors, with as many weights as an `FCResNet` of that size.

    h starts as [x, 0]. A branch is W₂ dropout(act(W₁ · + b₁)) + b₂. Constrained with c, a branch
    has Lip ≤ c² and a coupling stretches and shrinks distances by bounded factors, for any c.

    Parameters
    ----------
    D, J
        Inputs and features; J ≥ D because no input may be lost, J ≥ 2 because h has two halves.
    depth
        Number of couplings, each of which changes both halves.
    """

    def __init__(
        self, D: int, J: int = 128, depth: int = 4, activation: str = "relu", dropout: float = 0.0
    ):
        super().__init__()
        if max(D, 2) > J:
            raise ValueError(f"J={J} features cannot hold D={D} inputs: take J ≥ {max(D, 2)}")
        self.config: dict[str, Any] = dict(
            D=D, J=J, depth=depth, activation=activation, dropout=dropout
        )
        self.D, self.out_features = D, J
        a, b = J - J // 2, J // 2
        self.blocks = nn.ModuleList(
            Coupling(
                _dense(a, b, activation, dropout), _dense(b, a, activation, dropout), (a, b), -1
            )
            for _ in range(depth)
        )

    def forward(self, x: Float[Tensor, "*N D"]) -> Float[Tensor, "*N J"]:
        """Features h of each row."""
        h = pad(x, (0, self.out_features - self.D))
        for block in self.blocks:
            h = block(h)
        return h

    def inverse(self, h: Float[Tensor, "*N J"]) -> Float[Tensor, "*N D"]:
        """The x with these features, in eval mode."""
        return _backwards(self.blocks, h)[..., : self.D]


class ReversibleConvNet(nn.Module):
    """Reversible network for images (C, H, W), after i-RevNet: space to depth instead of stride.

    The image gets zero channels; then each stage moves 2 × 2 pixels into 4 channels and applies
    `depth` couplings of 3 × 3 convolutions. There are J = channels · H · W features.

    Parameters
    ----------
    shape
        (C, H, W) of an image; H and W are multiples of 2 ** stages.
    channels
        Number of channels before the first stage, at least C.
    stages
        Number of stages.
    depth
        Couplings per stage.
    """

    def __init__(
        self,
        shape: Sequence[int],
        channels: int = 4,
        stages: int = 2,
        depth: int = 2,
        activation: str = "relu",
        dropout: float = 0.0,
    ):
        super().__init__()
        C, H, W = map(int, shape)
        if channels < C:
            raise ValueError(f"channels={channels} cannot hold C={C} channels: take at least {C}")
        if stages < 1 or H % 2**stages or W % 2**stages:
            raise ValueError(
                f"images of {H} × {W} cannot be halved {stages} times: take stages ≥ 1 and sides "
                f"that are multiples of {2 ** max(stages, 1)}"
            )
        self.config: dict[str, Any] = dict(shape=[C, H, W], channels=channels, stages=stages)
        self.config |= dict(depth=depth, activation=activation, dropout=dropout)
        self.C, self.squeezed = C, (channels * 4**stages, H // 2**stages, W // 2**stages)
        self.channels, self.out_features = channels, channels * H * W
        widths = [channels * 4**stage // 2 for stage in range(1, stages + 1)]  # of a half
        self.stages = nn.ModuleList(
            nn.ModuleList(
                Coupling(_conv(n, activation, dropout), _conv(n, activation, dropout), (n, n), -3)
                for _ in range(depth)
            )
            for n in widths
        )

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N J"]:
        """Features h of each image."""
        h = pad(x, (0, 0, 0, 0, 0, self.channels - self.C))
        for blocks in self.stages:
            h = pixel_unshuffle(h, 2)
            for block in cast(nn.ModuleList, blocks):
                h = block(h)
        return h.flatten(1)

    def inverse(self, h: Float[Tensor, "N J"]) -> Float[Tensor, "N C H W"]:
        """The image with these features, in eval mode."""
        x = h.unflatten(1, self.squeezed)
        for blocks in reversed(self.stages):
            x = pixel_shuffle(_backwards(cast(nn.ModuleList, blocks), x), 2)
        return x[:, : self.C]


class Coupling(nn.Module):
    """[a, b] ↦ [a + k(b'), b'], b' = b + g(a), for halves of the given sizes along `dim`."""

    def __init__(self, g: nn.Module, k: nn.Module, sizes: tuple[int, int], dim: int) -> None:
        super().__init__()
        self.g, self.k, self.sizes, self.dim = g, k, sizes, dim

    def forward(self, h: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The next h."""
        a, b = h.split(self.sizes, self.dim)
        b = b + self.g(a)
        return torch.cat([a + self.k(b), b], self.dim)

    def inverse(self, h: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The h before."""
        a, b = h.split(self.sizes, self.dim)
        a = a - self.k(b)
        return torch.cat([a, b - self.g(a)], self.dim)


def _backwards(blocks: nn.ModuleList, h: Tensor) -> Tensor:
    for block in reversed(blocks):
        h = cast(Coupling, block).inverse(h)
    return h


def _dense(n: int, m: int, activation: str, dropout: float) -> nn.Module:
    first, last = nn.Linear(n, min(n, m)), nn.Linear(min(n, m), m)
    return nn.Sequential(first, make_activation(activation), nn.Dropout(dropout), last)


def _conv(n: int, activation: str, dropout: float) -> nn.Module:
    first, last = nn.Conv2d(n, n, 3, padding=1), nn.Conv2d(n, n, 3, padding=1)
    return nn.Sequential(first, make_activation(activation), nn.Dropout(dropout), last)
