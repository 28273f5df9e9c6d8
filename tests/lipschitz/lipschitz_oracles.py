"""The slow, obvious way: the whole matrix of a layer, and its SVD."""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

torch.set_num_threads(1)


class Case(NamedTuple):
    layer: Any  # a module, whose attributes torch's stubs do not know
    in_shape: tuple[int, ...]


def dense(layer: nn.Module, in_shape: tuple[int, ...]) -> Tensor:
    """The matrix of x ↦ A x, column by column, from the layer's own forward."""
    layer = copy.deepcopy(layer).double().eval()
    layer._parameters["bias"] = None
    n = torch.Size(in_shape).numel()
    with torch.no_grad():
        return layer(torch.eye(n, dtype=torch.float64).view(n, *in_shape)).flatten(1).T


def sigma(layer: nn.Module, in_shape: tuple[int, ...]) -> float:
    return torch.linalg.matrix_norm(dense(layer, in_shape), ord=2).item()


def raw_sigma(layer: nn.Module, in_shape: tuple[int, ...]) -> float:
    """σ of a bounded layer without its bound."""
    return sigma(without_bound(layer), in_shape)


def without_bound(layer: nn.Module) -> nn.Module:
    plain: Any = copy.deepcopy(layer)
    plain.c = float("inf")
    return plain


CASES: dict[str, Case] = {
    "linear-square": Case(nn.Linear(64, 64), (64,)),
    "linear-wide": Case(nn.Linear(100, 8, bias=False), (100,)),
    "linear-tall": Case(nn.Linear(2, 64), (2,)),
    "linear-scalar": Case(nn.Linear(1, 1), (1,)),
    "conv1d": Case(nn.Conv1d(4, 6, 3, padding=1), (4, 21)),
    "conv1d-stride3": Case(nn.Conv1d(4, 6, 5, stride=3, padding=2), (4, 23)),
    "conv1d-reflect": Case(nn.Conv1d(3, 4, 5, padding=2, padding_mode="reflect"), (3, 13)),
    "conv2d": Case(nn.Conv2d(3, 8, 3, padding=1), (3, 9, 9)),
    "conv2d-no-padding": Case(nn.Conv2d(3, 5, 3), (3, 8, 7)),
    "conv2d-valid": Case(nn.Conv2d(3, 5, (3, 2), padding="valid"), (3, 8, 7)),
    "conv2d-stride2-even": Case(nn.Conv2d(4, 6, 3, stride=2, padding=1), (4, 8, 8)),
    "conv2d-stride2-odd": Case(nn.Conv2d(4, 6, 3, stride=2, padding=1), (4, 9, 7)),
    "conv2d-stride3": Case(nn.Conv2d(4, 6, 3, stride=3, padding=1), (4, 10, 11)),
    "conv2d-stride-mixed": Case(nn.Conv2d(3, 4, (3, 5), (2, 3), (0, 2)), (3, 9, 10)),
    "conv2d-stride-over-kernel": Case(nn.Conv2d(3, 4, 2, stride=3), (3, 10, 10)),
    "conv2d-same": Case(nn.Conv2d(3, 4, 3, padding="same"), (3, 8, 8)),
    "conv2d-same-asymmetric": Case(nn.Conv2d(3, 4, (4, 2), padding="same"), (3, 8, 7)),
    "conv2d-same-dilated": Case(nn.Conv2d(3, 4, 4, padding="same", dilation=(1, 3)), (3, 9, 9)),
    "conv2d-dilation": Case(nn.Conv2d(3, 4, 3, dilation=2, padding=2), (3, 9, 8)),
    "conv2d-dilation-stride": Case(nn.Conv2d(3, 4, 3, 2, padding=3, dilation=3), (3, 9, 8)),
    "conv2d-groups": Case(nn.Conv2d(6, 9, 3, padding=1, groups=3), (6, 7, 7)),
    "conv2d-depthwise": Case(nn.Conv2d(6, 6, 3, stride=2, padding=1, groups=6), (6, 9, 9)),
    "conv2d-circular": Case(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (3, 8, 8)),
    "conv2d-reflect": Case(nn.Conv2d(3, 4, 3, 2, padding=1, padding_mode="reflect"), (3, 8, 7)),
    "conv2d-replicate": Case(nn.Conv2d(4, 4, 3, padding=1, padding_mode="replicate"), (4, 7, 6)),
    "conv2d-replicate-groups": Case(
        nn.Conv2d(4, 4, 3, 2, padding=(2, 1), groups=2, padding_mode="replicate"), (4, 7, 6)
    ),
    "conv2d-same-circular": Case(
        nn.Conv2d(3, 4, 4, padding="same", padding_mode="circular"), (3, 7, 7)
    ),
    "conv2d-1x1": Case(nn.Conv2d(6, 9, 1), (6, 5, 5)),
    "conv2d-1x1-stride": Case(nn.Conv2d(6, 9, 1, stride=2, padding=1), (6, 6, 6)),
    "conv2d-1x1-groups": Case(nn.Conv2d(6, 9, 1, stride=3, groups=3), (6, 7, 7)),
    "conv2d-1x1-replicate": Case(
        nn.Conv2d(3, 4, 1, padding=1, padding_mode="replicate"), (3, 5, 5)
    ),
    "conv3d": Case(nn.Conv3d(2, 3, 3, padding=1), (2, 5, 5, 5)),
    "conv3d-stride": Case(nn.Conv3d(2, 4, 3, stride=(1, 2, 3), padding=1), (2, 4, 5, 6)),
    "transpose1d": Case(nn.ConvTranspose1d(4, 3, 4, stride=2, padding=1), (4, 11)),
    "transpose2d": Case(nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1), (4, 6, 5)),
    "transpose2d-output-padding": Case(
        nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1), (4, 5, 6)
    ),
    "transpose2d-output-padding-over-stride": Case(
        nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=2, dilation=3), (4, 5, 4)
    ),
    "transpose2d-groups": Case(nn.ConvTranspose2d(4, 6, 3, stride=3, groups=2), (4, 5, 5)),
    "transpose2d-1x1": Case(nn.ConvTranspose2d(4, 6, 1, stride=2, output_padding=1), (4, 5, 5)),
    "transpose3d": Case(nn.ConvTranspose3d(3, 2, 3, stride=2, padding=1), (3, 3, 4, 3)),
}
