"""One model trained by several processes, as `torchrun` starts them: each takes its share of every
batch, and gradients are averaged by `DistributedDataParallel`.
"""

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")
LOST = ("gloo", "nccl", "connection", "peer", "socket", "timed out", "timeout")


class DistributedError(RuntimeError):
    """Another process of this training ended or cannot be reached."""


@dataclass(frozen=True)
class Team:
    """The processes that train one model; alone, nothing is sent."""

    rank: int = 0
    ranks: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def wrap(self, method: nn.Module) -> Callable[..., Tensor]:
        """The method's loss, whose gradients are then averaged over processes."""
        if self.ranks == 1:
            return method
        self.align(method)
        return cast(Callable[..., Tensor], DistributedDataParallel(method))

    def quietly(self, loss_of: Any) -> AbstractContextManager[Any]:
        """Within, gradients are summed up here and not sent."""
        return loss_of.no_sync() if self.ranks > 1 else nullcontext()

    def agree(self, value: T) -> T:
        """The first process's value."""
        if self.ranks == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def total(self, value: float) -> float:
        """The sum over processes."""
        if self.ranks == 1:
            return value
        box = torch.tensor(value, dtype=torch.float64)
        if dist.get_backend() == "nccl":
            box = box.cuda()
        dist.all_reduce(box)
        return float(box)

    def align(self, method: nn.Module) -> None:
        """Parameters and buffers become the first process's, also in shape."""
        if self.ranks == 1:
            return
        tensors = [*method.parameters(), *method.buffers()]
        shapes = self.agree([(tensor.shape, tensor.dtype) for tensor in tensors])
        for tensor, (shape, dtype) in zip(tensors, shapes, strict=True):
            if tensor.shape != shape:  # `start` fills buffers, in the first process only
                tensor.data = torch.empty(shape, dtype=dtype, device=tensor.device)
            dist.broadcast(tensor.detach(), src=0)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """A lost process is named as such."""
        try:
            yield
        except RuntimeError as error:
            if self.ranks == 1 or not any(word in str(error).lower() for word in LOST):
                raise
            raise DistributedError(
                f"process {self.rank} of {self.ranks} lost another one: {error}. Start all of them "
                "again by the same command: training goes on from its checkpoint, if it has one"
            ) from error


def team(device: torch.device) -> Team:
    """All processes that `torchrun` started; this one alone without it."""
    if not dist.is_available():
        return Team()
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "RANK" not in os.environ:
            return Team()
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(dist.destroy_process_group)
    return Team(dist.get_rank(), dist.get_world_size())
