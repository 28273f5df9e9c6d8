"""Which batch norm and which linear layer follow one another, so that they can be bounded together.

Bounded by itself, batch norm may not enlarge what the layers before it have made small, and at
c ≤ 1 a new network falls silent. Of a pair only the product of both constants is held at most c,
and a batch norm at the very end may give the features a unit of its own.
"""

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

GENTLE = {  # of slope at most 1, and one input
    f"{name}Backward0"
    for name in ("Relu", "Elu", "Hardtanh", "Tanh", "Sigmoid", "Softplus", "ConstantPadNd")
}
Pair = tuple[nn.Module, nn.Module]  # in the order of the data


class Pairs(NamedTuple):
    """Layers to be bounded together, and the batch norm that comes last if it is in none."""

    found: list[Pair]
    last: nn.Module | None


def pairs(network: nn.Module, example: Tensor | tuple[Any, ...]) -> Pairs:
    """Batch norm and a layer before or behind it, which alone sees its output.

    Activations of slope at most 1 may lie between. Each layer is in one pair at most. Found in the
    autograd graph of one pass in the mode the network is in.
    """
    seen: list[tuple[nn.Module, Any, Any]] = []  # layer, and what made its input and its output

    def note(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        seen.append((layer, args[0].grad_fn if args else None, output.grad_fn))

    kinds = (nn.Linear, _ConvNd, _BatchNorm)
    hooks = [m.register_forward_hook(note) for m in network.modules() if isinstance(m, kinds)]
    arguments = example if isinstance(example, tuple) else (example,)
    try:
        with torch.enable_grad():
            output = network(*map(_with_gradient, arguments))
    finally:
        for hook in hooks:
            hook.remove()
    found = _match(seen, _uses(output))
    last = seen[-1][0] if seen else None
    paired = any(last in pair for pair in found)
    return Pairs(found, last if isinstance(last, _BatchNorm) and not paired else None)


def _match(seen: list[tuple[nn.Module, Any, Any]], uses: "Counter[Any]") -> list[Pair]:
    times = Counter(layer for layer, *_ in seen)
    made_by = {node: layer for layer, _, node in seen if times[layer] == 1 and uses[node] == 1}
    before = {layer: made_by.get(_origin(node, uses)) for layer, node, _ in seen}
    after = {source: layer for layer, source in before.items() if source is not None}
    found, taken = [], set[nn.Module]()
    for norm in (layer for layer, *_ in seen if isinstance(layer, _BatchNorm)):
        for pair in ((before[norm], norm), (norm, after.get(norm))):
            other = pair[0] if pair[1] is norm else pair[1]
            if other is None or isinstance(other, _BatchNorm) or taken & {norm, other}:
                continue
            if times[norm] == times[other] == 1:
                found.append((pair[0], pair[1]))
                taken |= {norm, other}
    return found  # type: ignore[return-value]


def _origin(node: Any, uses: "Counter[Any]") -> Any:
    """The node behind activations that nothing else sees."""
    while node is not None and node.name() in GENTLE and uses[node] == 1:
        node = node.next_functions[0][0]
    return node


def _uses(output: Any) -> "Counter[Any]":
    """How often each node of the graph is an input of another."""
    tensors = output if isinstance(output, tuple | list) else (output,)
    todo = [t.grad_fn for t in tensors if isinstance(t, Tensor) and t.grad_fn is not None]
    uses: Counter[Any] = Counter(todo)
    known = set(todo)
    while todo:
        for node, _ in todo.pop().next_functions:
            uses[node] += 1
            if node is not None and node not in known:
                known.add(node)
                todo.append(node)
    return uses


def _with_gradient(value: Any) -> Any:
    """A copy that is no leaf of the graph, because a network may work in place on its input."""
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.detach().requires_grad_().clone() if floating else value
