"""A method made ready to predict: no gradients, float64, and convolutions in float32."""

from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

Model = TypeVar("Model", bound=nn.Module)


class Convolutional(nn.Module):
    """A convolutional network with float64 around it.

    In float64 a CPU takes about ten times as long for convolutions. In float32 an image's features
    depend on its batch in the last digits.
    """

    def __init__(self, f: nn.Module) -> None:
        super().__init__()
        self.f = f.float()

    def forward(self, x: Float[Tensor, "N *D"]) -> Float[Tensor, "N J"]:
        """Features of each image."""
        return self.f(x.float()).double()


class Staged(Convolutional):
    """One that shows what it has on the way to its features."""

    def stages(self, x: Float[Tensor, "N *D"]) -> list[Tensor]:
        """What the network gives at each stage, then the features in float64."""
        *maps, h = self.f.stages(x.float())  # type: ignore[operator]
        return [*maps, h.double()]


def ready(model: Model) -> Model:
    """The model in eval mode and float64, its network `f` in float32 if it has convolutions."""
    f: Any = getattr(model, "f", None)
    small = isinstance(f, nn.Module) and _convolves(f)
    model = model.requires_grad_(False).double().eval()
    if small:
        model.f = (Staged(f) if hasattr(f, "stages") else Convolutional(f)).eval()
    return model


def _convolves(f: nn.Module) -> bool:
    """Whether it is a network in float32 with convolutions."""
    single = all(p.dtype == torch.float32 for p in f.parameters())
    return single and any(isinstance(layer, _ConvNd) for layer in f.modules())
