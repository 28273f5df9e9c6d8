"""Which layers of a network are bounded, at what σ and c, and why the others are not."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import ParametrizationList

from due.lipschitz.bounded import Bounded
from due.lipschitz.operators import is_pointwise
from due.lipschitz.spectral_norm import SpectralNorm

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_STEEP = {nn.GELU: 1.13, nn.SiLU: 1.10, nn.Mish: 1.09, nn.Hardswish: 1.5}  # largest slope
_SAMPLE_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm, _NormBase)


class Row(NamedTuple):
    """One layer: σ is that of its raw weight, before the bound; None if it is not known.

    Of two layers that are bounded together, the second has the product of both.
    """

    name: str
    kind: str
    sigma: float | None
    c: float | None
    bounded: bool
    note: str


class Report(list[Row]):
    """One row per layer; prints as an aligned table."""

    def __str__(self) -> str:
        head = ("layer", "kind", "sigma", "c", "bounded", "note")
        lines = [head, *map(_cells, self)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )


@torch.no_grad()
def report(network: nn.Module) -> Report:
    """Every layer that has parameters, normalises, or has slopes above 1, bounded or not.

    Functions that a `forward` calls without a module, such as `F.gelu`, are not seen. A module
    whose own parameters need no bound says so by `needs_no_bound = True`.
    """
    names = {layer: name for name, layer in network.named_modules()}
    bounded = [layer for layer in names if isinstance(layer, Bounded)]
    leaders = {led: names[layer] for layer in bounded for led in layer.partners}
    return Report(
        _row(name, layer, leaders.get(layer)) for layer, name in names.items() if _counts(layer)
    )


def obstacle(layer: nn.Module) -> str | None:
    """Why this layer cannot be bounded; None if it can."""
    if isinstance(layer, Bounded):
        return None
    kinds = (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED, *_BATCH_NORMS)
    plain = next((kind for kind in kinds if isinstance(layer, kind)), None)
    if plain is None:
        return _other_obstacle(layer)
    if isinstance(layer, LazyModuleMixin):
        return "not initialised: the example did not reach it"
    own = [f for f in ("forward", "_conv_forward") if _differs(f, type(layer), plain)]
    if own:
        return f"its class replaces {plain.__name__}.{own[0]}: its operator is not known"
    if isinstance(layer, _BatchNorm):
        untracked = "it keeps no running statistics: set track_running_stats=True"
        return untracked if layer.running_var is None else None
    return _weight_obstacle(layer._parameters.get("weight"))


def _weight_obstacle(weight: Tensor | None) -> str | None:
    if weight is None:
        return "its weight is parametrised already: remove the parametrisation first"
    if weight.is_complex() or weight.numel() == 0:
        return "its weight is complex" if weight.is_complex() else "its weight is empty"
    return None


def _other_obstacle(layer: nn.Module) -> str:
    if type(layer) in _STEEP:
        return f"its slope reaches {_STEEP[type(layer)]}: use ReLU or ELU"
    if isinstance(layer, _SAMPLE_NORMS):
        return "it divides by the statistics of each input: not Lipschitz near constant inputs"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return "a table of vectors: there is no distance between its inputs"
    if isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        return "recurrent weights act once per time step: no fixed operator"
    if isinstance(layer, nn.MultiheadAttention):
        return "in_proj_weight is left unbounded: attention is not Lipschitz"
    names = ", ".join(name for name, _ in layer.named_parameters(recurse=False))
    return f"own parameters ({names}): how its forward uses them is not known"


def _counts(layer: nn.Module) -> bool:
    if isinstance(layer, ParametrizationList):  # reported with the layer it belongs to
        return False
    if getattr(layer, "needs_no_bound", False):
        return False
    kinds = (nn.Linear, _ConvNd, *_SAMPLE_NORMS, *_STEEP)
    return isinstance(layer, kinds) or any(p is not None for p in layer._parameters.values())


def _row(name: str, layer: nn.Module, leader: str | None) -> Row:
    if isinstance(layer, Bounded):
        kind, sigma = layer.plain.__name__, layer.constant().item()
        note = _domain(layer) if leader is None else f"together with {leader}"
        return Row(name, kind, sigma, layer.c, True, note)
    note = obstacle(layer) or "plain: the example did not reach it, or constrain was not called"
    return Row(name, type(layer).__name__, None, None, False, note)


def _domain(layer: Bounded) -> str:
    """For which inputs the bound holds."""
    if not isinstance(layer, SpectralNorm):
        return (
            "in eval mode, in its own unit" if getattr(layer, "own_unit", False) else "in eval mode"
        )
    if isinstance(layer, _ConvNd) and not is_pointwise(layer):
        size = "×".join(map(str, layer.v.shape[2:]))
        if layer.padding_mode != "zeros":  # σ then need not grow with the image
            return f"for images of exactly {size}; at other sizes constrain again"
        return f"for images up to {size}; at larger ones constrain again"
    return "for images of any size" if isinstance(layer, _ConvNd) else ""


def _cells(row: Row) -> tuple[str, ...]:
    sigma, c = ("–" if x is None else f"{x:.4g}" for x in (row.sigma, row.c))
    return (row.name or "(root)", row.kind, sigma, c, "yes" if row.bounded else "no", row.note)


def _differs(method: str, cls: type, plain: type) -> bool:
    return getattr(cls, method, None) is not getattr(plain, method, None)
