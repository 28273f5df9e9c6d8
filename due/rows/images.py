"""Images as a source of rows: kept as uint8, normalised and augmented batch by batch."""

from collections.abc import Iterator
from copy import copy

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from due.rows.source import Data, Source, Table, Transform, draws, plan


class Images(Source):
    """uint8 images with their classes; a batch is normalised to mean 0 and std 1 per channel.

    Parameters
    ----------
    x, y
        Images and classes.
    mean, std
        Per channel, of pixels in [0, 1]; None takes those of x.
    augment
        (uint8 images, generator) → uint8 images, applied to training batches.
    channels_last
        Memory layout of the batches, which convolutions on a CPU or GPU may like better.

    Examples
    --------
    >>> x = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
    >>> source = Images(x, torch.zeros(6, dtype=torch.long), augment=crop_and_flip)
    >>> next(source.batches(4, seed=0, epoch=0))[0].shape
    torch.Size([4, 3, 8, 8])
    """

    def __init__(
        self,
        x: UInt8[Tensor, "N C H W"],
        y: Int[Tensor, " N"],
        mean: Tensor | None = None,
        std: Tensor | None = None,
        *,
        augment: Transform | None = None,
        channels_last: bool = True,
    ) -> None:
        if x.dtype != torch.uint8 or x.ndim != 4:
            raise ValueError(
                f"images are {x.dtype} of shape {tuple(x.shape)}; "
                "give uint8 pixels 0 … 255 of shape (N, channels, height, width)"
            )
        self.table, self.augment, self.channels_last = Table(x, y), augment, channels_last
        own_mean, own_std = pixel_moments(x) if mean is None or std is None else (mean, std)
        self.mean = own_mean if mean is None else mean
        self.std = own_std if std is None else std

    def __len__(self) -> int:
        return len(self.table)

    @property
    def labels(self) -> Tensor:
        """The class of each image."""
        return self.table.labels

    def take(self, rows: Tensor) -> Data:
        """The images of these numbers, normalised."""
        x, *rest = self.table.take(rows)
        return self.normalise(x), *rest

    def share(self, rank: int, ranks: int) -> "Images":
        """Every `ranks`-th image of each batch."""
        mine = copy(self)
        mine.table = self.table.share(rank, ranks)
        return mine

    def batches(
        self, batch_size: int | None, seed: int, epoch: int, start: int = 0
    ) -> Iterator[Data]:
        """Batches of an epoch, augmented, then normalised."""
        table = self.table
        for step, numbers in plan(len(self), batch_size, seed, epoch, start):
            x, *rest = table.take(numbers[table.rank :: table.ranks])
            if self.augment is not None:
                x = self.augment(x, draws(seed, epoch, step, table.rank))
            yield self.normalise(x), *rest

    def fingerprint(self) -> dict[str, str]:
        """That of the images, with the augmentation's name."""
        name = getattr(self.augment, "__name__", repr(self.augment))
        return {**self.table.fingerprint(), "augment": name}

    def part(self, rows: Tensor, augment: Transform | None = None) -> "Images":
        """Some of the images, with this source's mean and std."""
        x, y, *_ = self.table.take(rows)
        return Images(x, y, self.mean, self.std, augment=augment, channels_last=self.channels_last)

    def normalise(self, x: UInt8[Tensor, "N C H W"]) -> Float[Tensor, "N C H W"]:
        """(x / 255 − mean) / std per channel."""
        mean, std = (255 * moment[:, None, None] for moment in (self.mean, self.std))
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return ((x.float() - mean) / std).contiguous(memory_format=layout)


def pixel_moments(x: UInt8[Tensor, "N C H W"]) -> tuple[Tensor, Tensor]:
    """Mean and std per channel of x / 255, from counts of the 256 values."""
    values = torch.arange(256, dtype=torch.float64) / 255
    channels = (torch.bincount(x[:, i].reshape(-1), minlength=256) for i in range(x.shape[1]))
    shares = torch.stack([counts.double() / counts.sum() for counts in channels])  # (C, 256)
    mean = shares @ values
    std = (shares @ values.square() - mean.square()).sqrt().clamp_min(1 / 255)
    return mean.float(), std.float()


def crop_and_flip(
    x: UInt8[Tensor, "N C H W"], generator: torch.Generator, pad: int = 4, flip: bool = True
) -> UInt8[Tensor, "N C H W"]:
    """Each image moved by up to `pad` pixels over black, and mirrored with probability ½."""
    N, C, H, W = x.shape
    move = torch.randint(0, 2 * pad + 1, (2, N), generator=generator)
    mirrored = torch.rand(N, generator=generator) < (0.5 if flip else 0.0)
    columns = torch.arange(W).expand(N, W)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns) + move[1][:, None]
    rows = torch.arange(H) + move[0][:, None]  # (N, H)
    padded = F.pad(x, (pad, pad, pad, pad))
    places = rows[:, :, None] * (W + 2 * pad) + columns[:, None]  # (N, H, W)
    flat = places.reshape(N, 1, H * W).expand(N, C, H * W).to(x.device)
    return padded.flatten(2).gather(2, flat).view(x.shape)


def crop(x: UInt8[Tensor, "N C H W"], generator: torch.Generator) -> UInt8[Tensor, "N C H W"]:
    """Each image moved by up to two pixels: for clothes and digits."""
    return crop_and_flip(x, generator, pad=2, flip=False)
