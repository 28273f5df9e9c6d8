"""The input size each convolution meets, learnt from one pass of an example."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd


def input_shapes(
    network: nn.Module, example: Tensor | tuple[Any, ...]
) -> dict[nn.Module, tuple[int, ...]]:
    """(channels, height, width) of each convolution's input; the largest if it is used twice.

    The pass runs in eval mode without gradients; an example that is a tuple gives all arguments.
    """
    shapes: dict[nn.Module, tuple[int, ...]] = {}

    def note(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert isinstance(layer, _ConvNd)
        x = args[0] if args else kwargs["input"]
        shape = tuple(x.shape[-len(layer.kernel_size) - 1 :])
        shapes[layer] = tuple(map(max, shape, shapes.get(layer, shape)))

    hooks = [
        layer.register_forward_pre_hook(note, with_kwargs=True)
        for layer in network.modules()
        if isinstance(layer, _ConvNd)
    ]
    try:
        with evaluating(network), torch.no_grad():
            network(*example) if isinstance(example, tuple) else network(example)
    finally:
        for hook in hooks:
            hook.remove()
    return shapes


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Eval mode inside, each module's own mode restored after."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
