"""Two more networks for images, without a linear layer at the end: VGG with batch norm
(Simonyan & Zisserman, 2015) and ResNet-18 (He et al., 2016) in its form for small images.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import relu

from due.networks.shape import check_images

POOL = 0
VGG19 = (
    *(64, 64, POOL, 128, 128, POOL, 256, 256, 256, 256, POOL),
    *(512, 512, 512, 512, POOL, 512, 512, 512, 512, POOL),
)


class VGG(nn.Module):
    """Features (N, 512) of VGG-19: no skip connections, so nothing keeps distances.

    Parameters
    ----------
    channels
        Of the images.
    width
        Times the channels of VGG-19; 1 is the published network.
    """

    def __init__(self, channels: int = 3, width: float = 1.0):
        super().__init__()
        self.config: dict[str, Any] = dict(channels=channels, width=width)
        layers: list[nn.Module] = []
        C = channels
        for size in VGG19:
            if size == POOL:
                layers.append(nn.MaxPool2d(2, ceil_mode=True))
                continue
            out = int(size * width)
            layers += [nn.Conv2d(C, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
            C = out
        self.layers = nn.Sequential(*layers)
        self.out_features = C

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N J"]:
        """Features h of each image."""
        return self.stages(x)[-1]

    def stages(self, x: Float[Tensor, "N C H W"]) -> list[Tensor]:
        """What comes out of each pooling layer, then h."""
        check_images(x, self.config["channels"])
        maps = []
        for layer in self.layers:
            x = layer(x)
            if isinstance(layer, nn.MaxPool2d):
                maps.append(x)
        return [*maps, x.mean((2, 3))]


class ResNet18(nn.Module):
    """Features (N, 512) of ResNet-18 with a 3 × 3 first convolution and no pooling after it.

    Parameters
    ----------
    channels
        Of the images.
    """

    def __init__(self, channels: int = 3):
        super().__init__()
        self.config: dict[str, Any] = dict(channels=channels)
        self.first, self.norm = _conv(channels, 64, 3, 1), nn.BatchNorm2d(64)
        pairs = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.groups = nn.ModuleList(
            nn.Sequential(BasicBlock(C, size, stride), BasicBlock(size, size, 1))
            for C, size, stride in pairs
        )
        self.out_features = 512

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N J"]:
        """Features h of each image."""
        return self.stages(x)[-1]

    def stages(self, x: Float[Tensor, "N C H W"]) -> list[Tensor]:
        """What the first convolution and each group give, then h."""
        check_images(x, self.config["channels"])
        maps = [relu(self.norm(self.first(x)))]
        for group in self.groups:
            maps.append(group(maps[-1]))
        return [*maps, maps[-1].mean((2, 3))]


class BasicBlock(nn.Module):
    """relu(shortcut(x) + bn(conv(relu(bn(conv(x))))))."""

    def __init__(self, C: int, size: int, stride: int):
        super().__init__()
        self.conv1, self.norm1 = _conv(C, size, 3, stride), nn.BatchNorm2d(size)
        self.conv2, self.norm2 = _conv(size, size, 3, 1), nn.BatchNorm2d(size)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or size != C:
            self.shortcut = nn.Sequential(_conv(C, size, 1, stride), nn.BatchNorm2d(size))

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N K h w"]:
        """The block's output."""
        h = self.norm2(self.conv2(relu(self.norm1(self.conv1(x)))))
        return relu(self.shortcut(x) + h)


def _conv(C: int, size: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(C, size, kernel, stride, kernel // 2, bias=False)
