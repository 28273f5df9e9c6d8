"""Wide ResNet (Zagoruyko & Komodakis, 2016) for images, pre-activation:
h ← shortcut(h) + conv(dropout(relu(bn(conv(relu(bn(h))))))), then the mean over pixels of relu(bn).
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import relu

from due.networks.shape import check_images


class WideResNet(nn.Module):
    """Features (N, 64 · width) of images; no linear layer at the end.

    Parameters
    ----------
    depth
        10, 16, 22, 28, …: 6 n + 4, with n blocks in each of three groups.
    width
        Times 16, 32 and 64 channels.
    channels
        Of the images.
    dropout
        Between the two convolutions of a block.
    stride
        Of the first group: 2 makes a small network twice as fast. The paper has 1.

    Examples
    --------
    >>> import torch
    >>> WideResNet(10, 1)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64])
    """

    def __init__(
        self,
        depth: int = 28,
        width: int = 10,
        channels: int = 3,
        dropout: float = 0.0,
        stride: int = 1,
    ):
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"depth is {depth}; a Wide ResNet has 10, 16, 22, 28, … layers")
        self.config: dict[str, Any] = dict(
            depth=depth, width=width, channels=channels, dropout=dropout, stride=stride
        )
        n, sizes = (depth - 4) // 6, (16 * width, 32 * width, 64 * width)
        self.first = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.groups = nn.ModuleList()
        C = 16
        for size, step in zip(sizes, (stride, 2, 2), strict=True):
            steps = [step] + [1] * (n - 1)
            blocks = [
                WideBlock(C if s == 0 else size, size, k, dropout) for s, k in enumerate(steps)
            ]
            self.groups.append(nn.Sequential(*blocks))
            C = size
        self.norm = nn.BatchNorm2d(C)
        self.out_features = C
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N J"]:
        """Features h of each image."""
        return self.stages(x)[-1]

    def stages(self, x: Float[Tensor, "N C H W"]) -> list[Tensor]:
        """What the first convolution and each group give, then h."""
        check_images(x, self.config["channels"])
        maps = [self.first(x)]
        for group in self.groups:
            maps.append(group(maps[-1]))
        return [*maps, relu(self.norm(maps[-1])).mean((2, 3))]


class WideBlock(nn.Module):
    """Two 3 × 3 convolutions, each after batch norm and ReLU; a 1 × 1 one where shapes change."""

    def __init__(self, C: int, size: int, stride: int, dropout: float):
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(C), nn.BatchNorm2d(size)
        self.conv1 = nn.Conv2d(C, size, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(size, size, 3, 1, 1, bias=False)
        self.dropout = nn.Dropout(dropout)
        same = stride == 1 and size == C
        self.shortcut = nn.Identity() if same else nn.Conv2d(C, size, 1, stride, bias=False)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N K h w"]:
        """shortcut(x) + g(x)."""
        h = self.conv1(relu(self.norm1(x)))
        return self.shortcut(x) + self.conv2(self.dropout(relu(self.norm2(h))))
