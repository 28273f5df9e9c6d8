"""Hold each layer's Lipschitz constant at most c, so a block h + g(h) keeps distances:

(1 − c) ‖h − h'‖ ≤ ‖h + g(h) − h' − g(h')‖ ≤ (1 + c) ‖h − h'‖   when Lip(g) ≤ c < 1.
"""

import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, NotRequired, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from due.lipschitz.bounded import Bounded, Network
from due.lipschitz.operators import Operator, is_pointwise
from due.lipschitz.pairs import pairs
from due.lipschitz.report import obstacle, report
from due.lipschitz.spectral_batch_norm import SpectralBatchNorm, bound_batch_norm
from due.lipschitz.spectral_norm import SpectralNorm, bound_operator


class UnboundedLayerWarning(UserWarning):
    """Some layers of the network have no Lipschitz bound."""


class SilentNetworkWarning(UserWarning):
    """The bound on batch norm will keep a network from learning."""


class Constraint(TypedDict):
    """What it takes to bound a plain layer again; all of it can be written as JSON."""

    c: float
    in_shape: list[int] | None
    momentum: float | None
    partner: NotRequired[str | None]  # the layer that is bounded together with it, and by it
    own_unit: NotRequired[bool]


BATCH_NORM = ("alone", "paired")


def constrain(
    network: Network,
    c: float | int,
    example: Tensor | tuple[Any, ...],
    *,
    batch_norm: str = "alone",
    batch_norm_momentum: float = 0.01,
    recalibrate: Iterable[Any] | None = None,
) -> Network:
    """Bound every linear, convolution and batch-norm layer of a network by c, in place.

    At c ≥ 1 residual blocks have only an upper bound, because 1 − c ≤ 0: they may collapse
    distances.

    Parameters
    ----------
    network
        Any module. Its weights and batch-norm statistics are kept: W reads as W / max(1, σ/c).
        Call it again with another c, or an example of another size, to change the bound.
    c
        The bound, c > 0.
    example
        One small batch, or a tuple of all arguments. It sets the image size of each convolution,
        whose bound holds for images up to that size.
    batch_norm
        "alone" holds every batch norm at most c, as the paper does. "paired" holds the product of
        a batch norm and the layer before or behind it at most c; one at the very end may give the
        features a unit of its own. At c ≤ 1 a new network needs the latter: alone, batch norm may
        not enlarge what other layers have made small.
    batch_norm_momentum
        The new momentum of each batch-norm layer; the paper's 0.99 is 0.01 in PyTorch.
    recalibrate
        A loader of x or (x, ...): batch-norm statistics are computed again on these batches,
        because scaled weights change the inputs of batch norm.

    Returns
    -------
    The same network. Layers that cannot be bounded are unchanged, and an `UnboundedLayerWarning`
    lists them with the reason; `report` shows all layers.

    Examples
    --------
    >>> network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8))
    >>> constrain(network, c=0.95, example=torch.zeros(2, 3))[0]
    SpectralLinear(in_features=3, out_features=8, bias=True, c=0.95)
    """
    if not c > 0:
        raise ValueError(f"c is {c}; a Lipschitz bound must be a number above 0, such as 0.95")
    if not math.isfinite(batch_norm_momentum):
        raise ValueError(f"batch_norm_momentum is {batch_norm_momentum}; use a number in [0, 1]")
    if batch_norm not in BATCH_NORM:
        raise ValueError(f"batch_norm={batch_norm!r} is not one of {', '.join(BATCH_NORM)}")
    shapes = input_shapes(network, example)
    for layer in network.modules():
        if isinstance(layer, Bounded) or obstacle(layer) is None:
            _bound(layer, float(c), shapes, batch_norm_momentum)
    converge(network)
    _unite(network, example if batch_norm == "paired" else None)
    if recalibrate is not None:
        recalibrate_batch_norm(network, recalibrate)
    _warn(network)
    if c <= 1 and batch_norm == "alone":
        _warn_of_silence(network, c)
    return network


def _unite(network: nn.Module, example: Tensor | tuple[Any, ...] | None) -> None:
    """Let the second layer of each pair lead the first; without an example, none leads another."""
    for layer in network.modules():
        if isinstance(layer, Bounded):
            layer.partners, layer.led = (), False
        if isinstance(layer, SpectralBatchNorm):
            layer.own_unit = False
    if example is None:
        return
    with _evaluating(network):
        found, last = pairs(network, example)
    if isinstance(last, SpectralBatchNorm):
        last.own_unit = True
    for first, second in found:  # batch norm would undo a scale of the layer before it
        if isinstance(first, Bounded) and isinstance(second, Bounded):
            second.partners, first.led = (first,), True


def converge(network: Network) -> Network:
    """Make σ exact in every bounded layer: one power iteration per training step lags behind."""
    for layer in network.modules():
        if isinstance(layer, SpectralNorm):
            layer.converge()
    return network


@torch.no_grad()
def recalibrate_batch_norm(
    network: Network, loader: Iterable[Any], tol: float = 1e-3, passes: int = 20
) -> Network:
    """Set batch-norm statistics to their averages over a loader of x or (x, ...).

    A bounded layer scales by its own running variance, and so moves what later layers see: passes
    are repeated until no variance changes by more than a share of `tol`. Without bounded batch norm
    one pass is enough. The loader must give the same batches each time it is iterated.
    """
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    batches = list(loader) if isinstance(loader, Iterator) else loader
    for _ in range(passes if any(isinstance(norm, Bounded) for norm in norms) else 1):
        before = [cast(Tensor, norm.running_var).clone() for norm in norms]
        _average_statistics(network, norms, batches)
        if all(map(partial(_close, tol), before, norms)):
            break
    return network


def _close(tol: float, before: Tensor, norm: _BatchNorm) -> bool:
    after = cast(Tensor, norm.running_var)
    return bool(((after - before).abs() <= tol * (after + norm.eps)).all())


def _average_statistics(network: nn.Module, norms: list[_BatchNorm], loader: Iterable[Any]) -> None:
    """One pass, in which each layer's statistics become the plain average over batches."""
    momenta = [norm.momentum for norm in norms]
    device = next(network.parameters(), torch.empty(0)).device
    batches = (batch[0] if isinstance(batch, (tuple, list)) else batch for batch in loader)
    first = next(batches, None)
    if first is None:
        raise ValueError("recalibrate: the loader is empty; pass one over the training data")
    with _evaluating(network):
        for norm in norms:
            norm.train()
            norm.momentum = None  # the plain average, from the first batch on
            cast(Tensor, norm.num_batches_tracked).zero_()
        try:
            for x in chain([first], batches):
                network(x.to(device))
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum


def input_shapes(
    network: nn.Module, example: Tensor | tuple[Any, ...]
) -> dict[nn.Module, tuple[int, ...]]:
    """(channels, height, width) of each convolution's input; the largest if it is used twice.

    Found by one pass in eval mode; an example that is a tuple gives all arguments.
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
        with _evaluating(network), torch.no_grad():
            network(*example) if isinstance(example, tuple) else network(example)
    finally:
        for hook in hooks:
            hook.remove()
    return shapes


def constraints(network: nn.Module) -> dict[str, Constraint]:
    """The bounds of a network by layer name, for JSON; `apply_constraints` restores them."""
    names = {layer: name for name, layer in network.named_modules()}
    return {
        name: _constraint(layer, names)
        for layer, name in names.items()
        if isinstance(layer, Bounded)
    }


def apply_constraints(network: Network, bounds: dict[str, Constraint]) -> Network:
    """Bound a newly built network as another one was, without an example.

    v starts at random: load the other network's state next, or call `converge`.
    """
    for name, bound in bounds.items():
        layer = network.get_submodule(name)
        if isinstance(layer, _BatchNorm):
            norm = bound_batch_norm(layer, bound["c"], bound["momentum"])
            norm.own_unit = bound.get("own_unit", False)
        else:
            bound_operator(cast(Operator, layer), bound["c"], tuple(bound["in_shape"] or ()))
    for name, bound in bounds.items():
        if partner := bound.get("partner"):
            leader, led = (cast(Bounded, network.get_submodule(n)) for n in (name, partner))
            leader.partners, led.led = (led,), True
    return network


def _bound(
    layer: nn.Module, c: float, shapes: dict[nn.Module, tuple[int, ...]], momentum: float
) -> None:
    if isinstance(layer, _BatchNorm):
        bound_batch_norm(layer, c, momentum)
    elif isinstance(layer, nn.Linear):
        bound_operator(layer, c, (layer.in_features,))
    elif isinstance(layer, _ConvNd) and layer in shapes:
        bound_operator(layer, c, shapes[layer])
    elif isinstance(layer, _ConvNd) and is_pointwise(layer):
        bound_operator(layer, c, (layer.in_channels, *layer.kernel_size))
    elif isinstance(layer, SpectralNorm):
        layer.c = c


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Eval mode inside; each module's own mode is restored after."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _constraint(layer: Bounded, names: dict[nn.Module, str]) -> Constraint:
    partner = names[layer.partners[0]] if layer.partners else None
    found: Constraint = {"c": layer.c, "in_shape": None, "momentum": None, "partner": partner}
    if isinstance(layer, SpectralBatchNorm):
        found |= {"momentum": layer.momentum, "own_unit": layer.own_unit}
    else:
        found["in_shape"] = list(cast(Tensor, layer.v).shape[1:])
    return found


def _warn_of_silence(network: nn.Module, c: float) -> None:
    norms = [layer for layer in network.modules() if isinstance(layer, SpectralBatchNorm)]
    if len(norms) > 1 and all(norm.num_batches_tracked == 0 for norm in norms):
        warnings.warn(
            f"{len(norms)} batch norms of a network that is not trained are bounded by c = {c:g} "
            "each, so they cannot enlarge what other layers make small: its features are almost "
            "zero and it hardly learns. Use batch_norm='paired', or c > 1 (the paper has c = 3)",
            SilentNetworkWarning,
            stacklevel=3,
        )


def _warn(network: nn.Module) -> None:
    rows = [row for row in report(network) if not row.bounded]
    if rows:
        lines = "\n".join(f"  {row.name or '(root)'} ({row.kind}): {row.note}" for row in rows)
        warnings.warn(
            f"{len(rows)} layer(s) have no Lipschitz bound:\n{lines}",
            UnboundedLayerWarning,
            stacklevel=3,
        )
