"""Building from a file takes no more memory than the file can account for."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from due.storage.atomic import StorageError

FREE = 4_000_000  # numbers that any model may create, 32 MB at most
TIMES = 16  # as many numbers as the file has, and
CALLS = 20_000  # tensors, beside
PER_TENSOR = 100  # for each of the file
SHAPES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(
        (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn),
        lambda *size, **more: more.get("size", size),
    ),
    **dict.fromkeys((torch.full,), lambda size, *_, **more: size),
    **dict.fromkeys((torch.eye,), lambda n, m=None, **more: (n, n if m is None else m)),
    **dict.fromkeys((torch.linspace,), lambda start, end, steps, **more: (steps,)),
    **dict.fromkeys((torch.arange,), lambda *ends, **more: (max(map(abs, ends), default=0),)),
    **dict.fromkeys((torch.randperm,), lambda n, **more: (n,)),
    **dict.fromkeys(
        (Tensor.new_zeros, Tensor.new_empty, Tensor.new_ones),
        lambda x, *size, **more: more.get("size", size),
    ),
    Tensor.expand: lambda x, *size: size,
    Tensor.repeat: lambda x, *times: (x.numel(), *times),
}


class Limit(TorchFunctionMode):
    """Counts the numbers in the tensors that constructors ask for within, before they get them."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        held = sum(tensor.numel() for tensor in tensors.values())
        self.numbers, self.calls = FREE + TIMES * held, CALLS + PER_TENSOR * len(tensors)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        shape = SHAPES.get(func)
        if shape is not None:
            self._take(shape(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))

    def _take(self, size: Any) -> None:
        self.calls -= 1
        self.numbers -= math.prod(_flat(size))
        if self.calls < 0 or self.numbers < 0:
            raise StorageError("its configuration describes a model far larger than its weights")


def _flat(size: Any) -> Iterator[int]:
    for part in size:
        yield from _flat(part) if isinstance(part, tuple | list) else (abs(int(part)),)


@contextmanager
def rebuilding(path: str | Path) -> Iterator[None]:
    """Within, whatever a file makes go wrong is an error about the file."""
    try:
        yield
    except StorageError as error:
        if str(path) in str(error):
            raise
        raise StorageError(f"{path} cannot be loaded: {error}") from error.__cause__
    except KeyError as error:
        raise StorageError(f"{path} cannot be loaded: its field {error} is missing") from error
    except Exception as error:  # constructors raise many kinds
        raise StorageError(
            f"{path} cannot be loaded: {type(error).__name__}: {error}. Its configuration does not "
            "fit its weights, or not the extractor that was given."
        ) from error


def check_row(shape: list[int], tensors: dict[str, Tensor]) -> None:
    """A row has no more numbers than the file can account for."""
    held = sum(tensor.numel() for tensor in tensors.values())
    if math.prod(shape) > max(FREE // 4, TIMES * held):
        raise StorageError(f"its field estimator.row_shape is {shape}, larger than all its weights")


def check_numbers(tensors: dict[str, Tensor]) -> None:
    """No weight is NaN or infinite."""
    for name, tensor in tensors.items():
        if name.endswith(("lower_bound", "upper_bound")):  # of GPyTorch's parameters: infinite
            continue
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise StorageError(f"its tensor {name} has values that are NaN or infinite")
