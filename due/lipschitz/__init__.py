"""Lipschitz constraints on the layers of any network, which needs no change of its code."""

from due.lipschitz.bounded import fold
from due.lipschitz.constrain import (
    Constraint,
    SilentNetworkWarning,
    UnboundedLayerWarning,
    apply_constraints,
    constrain,
    constraints,
    converge,
    input_shapes,
    recalibrate_batch_norm,
)
from due.lipschitz.gradient_penalty import gradient_penalty
from due.lipschitz.measure import batch_norm_constants, layers, lipschitz_ratios, singular_value
from due.lipschitz.report import report
from due.lipschitz.spectral_norm import SpectralNorm

__all__ = [
    "Constraint",
    "SilentNetworkWarning",
    "SpectralNorm",
    "UnboundedLayerWarning",
    "apply_constraints",
    "batch_norm_constants",
    "constrain",
    "constraints",
    "converge",
    "fold",
    "gradient_penalty",
    "input_shapes",
    "layers",
    "lipschitz_ratios",
    "recalibrate_batch_norm",
    "report",
    "singular_value",
]
