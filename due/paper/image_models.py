"""Networks trained on images, shared by the tables and figures about them.

A trained model is a file in OUT/models: what one artefact trained, the others take from there, and
a killed training goes on where it was.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from due.data.images import load
from due.gp import InducingGP, Softmax
from due.lipschitz import constrain
from due.methods import DUE
from due.methods.ddu import DDU
from due.methods.duq import DUQ
from due.methods.method import Method
from due.methods.sngp import RandomFeatureGP, SNGPSoftmax
from due.methods.softmax import SoftmaxNetwork
from due.methods.svdkl import GridGP, SVDKLSoftmax
from due.networks import VGG, WideResNet
from due.rows.images import Images, crop, crop_and_flip
from due.training import History, Recipe, fit

CLASSES = 10
PAIRS = {  # in distribution, foreign, and foreign images that no choice was made with
    "cifar10": ("cifar10", "svhn", "mnist"),
    "fashion": ("fashion-mnist", "mnist", "cifar10"),
    "digits": ("digits", "negatives", "negatives"),
}
AUGMENT = {"cifar10": crop_and_flip, "fashion": crop, "digits": None}


@dataclass(frozen=True)
class ImageSettings:
    """One way to train on one pair of sets; every method of a table shares it."""

    data: str
    preset: str
    depth: int = 28
    width: int = 10
    stride: int = 1
    dropout: float = 0.3
    vgg_width: float = 1.0
    c: float = 3.0
    M: int = 10
    momentum: float = 0.01  # of batch norm
    warm: bool = False  # start q(U) from labels
    held: int = 0  # training images kept for calibration
    recipe: Recipe = Recipe()


PAPER = ImageSettings(
    "cifar10",
    "paper",
    recipe=Recipe(
        optimizer="sgd",
        lr=0.1,
        momentum=0.9,
        weight_decay=5e-4,
        schedule="steps",
        milestones=(0.3, 0.6, 0.8),
        factor=0.2,
        batch_size=128,
        epochs=200,
    ),
)
QUICK: dict[str, Any] = dict(
    optimizer="sgd",
    lr=0.1,
    momentum=0.9,
    weight_decay=5e-4,
    schedule="one_cycle",
    batch_size=128,
    precision="bf16",
    refresh=8,
)
SMALL: dict[str, Any] = dict(depth=10, stride=2, dropout=0.0, momentum=0.1, warm=True, held=2000)
LAPTOP = {
    "cifar10": ImageSettings(
        "cifar10", "laptop", width=2, vgg_width=0.25, recipe=Recipe(epochs=16, **QUICK), **SMALL
    ),
    "fashion": ImageSettings(
        "fashion", "laptop", width=1, vgg_width=0.125, recipe=Recipe(epochs=10, **QUICK), **SMALL
    ),
}
SMOKE = ImageSettings(
    "digits",
    "smoke",
    width=1,
    vgg_width=0.0625,
    recipe=Recipe(epochs=2, **{**QUICK, "precision": "float32"}),
    **{**SMALL, "held": 200},
)
PRESETS: dict[str, dict[str, ImageSettings]] = {
    "laptop": LAPTOP,
    "paper": {"cifar10": PAPER, "fashion": replace(PAPER, data="fashion")},
    "smoke": {"digits": SMOKE},
}


def chosen(preset: str, data: str | None) -> ImageSettings:
    """The settings of a preset on the pair that was asked for, by default its first."""
    known = PRESETS[preset]
    pair = next(iter(known)) if data is None or preset == "smoke" else data
    if pair not in known:
        raise ValueError(f"--data {pair!r} is not known; give {' or '.join(known)}")
    return known[pair]


class Rows(NamedTuple):
    """The images of a pair: to train on, to calibrate with, to test on, and two foreign sets."""

    train: Images
    held: Images
    test: Images
    foreign: Images
    third: Images


def rows(settings: ImageSettings) -> Rows:
    """The images of these settings."""
    return _rows(settings.data, settings.held)


@cache
def _rows(pair: str, n_held: int) -> Rows:
    """Foreign images are normalised like those in distribution."""
    known, other, third = PAIRS[pair]
    whole = Images(*load(known, "train"))
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
    held, train = order[:n_held].sort().values, order[n_held:].sort().values
    moments = whole.mean, whole.std
    x, y = load(third, "test")
    return Rows(
        whole.part(train, augment=AUGMENT[pair]),
        whole.part(held),
        Images(*load(known, "test"), *moments),
        Images(*load(other, "test"), *moments),
        Images(as_if(x, whole.table.data[0]), y, *moments),
    )


def as_if(x: Tensor, like: Tensor) -> Tensor:
    """Images in the channels and size of others: grey or repeated, cropped or on black."""
    C, size = like.shape[1:3]
    if C == 1 and x.shape[1] == 3:
        x = x.float().mean(1, keepdim=True).round().to(torch.uint8)
    x = x.expand(-1, C, -1, -1)
    left = (size - x.shape[-1]) // 2
    right = size - x.shape[-1] - left
    return F.pad(x, (left, right, left, right)).contiguous()


def network(settings: ImageSettings, kind: str, channels: int) -> nn.Module:
    """Plain; "vgg" or "wrn"."""
    if kind == "vgg":
        return VGG(channels, settings.vgg_width)
    return WideResNet(settings.depth, settings.width, channels, settings.dropout, settings.stride)


def due(f: nn.Module, J: int, settings: ImageSettings) -> DUE:
    """Also GPDNN, on a network that is not bounded."""
    gp = InducingGP(torch.zeros(settings.M, J), CLASSES)
    return DUE(f, gp, Softmax(CLASSES), warm=settings.warm)


def sngp(f: nn.Module, J: int, settings: ImageSettings) -> SNGPSoftmax:
    """1,024 random features, ridge 1."""
    seed = int(torch.randint(2**31 - 1, ()))
    return SNGPSoftmax(f, RandomFeatureGP(J, CLASSES, layer_norm=False, seed=seed))


class Kind(NamedTuple):
    """How a method is put on a network."""

    title: str
    network: str
    bounded: bool
    head: Callable[[nn.Module, int, ImageSettings], Method]


KINDS = {
    "softmax": Kind("softmax", "wrn", False, lambda f, J, _: SoftmaxNetwork(f, J, CLASSES)),
    "due": Kind("DUE", "wrn", True, due),
    "sngp": Kind("SNGP", "wrn", True, sngp),
    "ddu": Kind("DDU", "wrn", True, lambda f, J, _: DDU(f, J, CLASSES)),
    "duq": Kind("DUQ", "wrn", False, lambda f, J, _: DUQ(f, J, CLASSES)),
    "svdkl": Kind("SV-DKL", "wrn", True, lambda f, J, _: SVDKLSoftmax(f, GridGP(J), CLASSES)),
    "svdkl-vgg": Kind(
        "SV-DKL, VGG", "vgg", False, lambda f, J, _: SVDKLSoftmax(f, GridGP(J), CLASSES)
    ),
    "svdkl-plain": Kind(
        "SV-DKL, no bound", "wrn", False, lambda f, J, _: SVDKLSoftmax(f, GridGP(J), CLASSES)
    ),
    "gpdnn": Kind("GPDNN (VGG)", "vgg", False, due),
    "gpdnn-plain": Kind("GPDNN, no bound", "wrn", False, due),
}


def build(kind: str, settings: ImageSettings, seed: int) -> Method:
    """The method, not yet trained."""
    how, source = KINDS[kind], rows(settings).train
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        f = network(settings, how.network, source.table.data[0].shape[1])
        f = f.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if how.bounded:
            example, *_ = source.take(torch.arange(2))
            constrain(f, settings.c, example, batch_norm_momentum=settings.momentum)
        else:
            set_momentum(f, settings.momentum)
        J: Any = f.out_features
        return how.head(f, J, settings)


def set_momentum(f: nn.Module, momentum: float) -> None:
    """Of every batch-norm layer."""
    for layer in f.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = momentum


class Trained(NamedTuple):
    """A method in eval mode, and what its training was like."""

    method: Method
    history: History


def trained(
    kind: str, settings: ImageSettings, seed: int, out: Path, progress: bool | None = None
) -> Trained:
    """The method, from its file if it was trained before; held-out images make its p-values.

    It is trained on a GPU if there is one, and stays there.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    method, source = build(kind, settings, seed).to(device), rows(settings).train
    M = f"-M{settings.M}" if kind == "due" and settings.M != PAPER.M else ""
    file = out / "models" / f"{settings.preset}-{settings.data}-{kind}{M}-{seed}.pt"
    history = fit(method, source, settings.recipe, seed=seed, checkpoint=file, progress=progress)
    if isinstance(method, DUE) and settings.held:
        method.calibrate(rows(settings).held, method.predictor())
    return Trained(method, history)
