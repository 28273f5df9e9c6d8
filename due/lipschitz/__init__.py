"""Lipschitz constraints on the layers of any network, which needs no change of its code."""

from due.lipschitz.bounded import fold
from due.lipschitz.constrain import (
    Constraint,
    UnboundedLayerWarning,
    apply_constraints,
    constrain,
    constraints,
    converge,
    recalibrate_batch_norm,
)
from due.lipschitz.gradient_penalty import gradient_penalty
from due.lipschitz.measure import (
    Ratios,
    batch_norm_constants,
    layers,
    lipschitz_ratios,
    singular_value,
)
from due.lipschitz.report import Report, Row, report
from due.lipschitz.spectral_batch_norm import SpectralBatchNorm
from due.lipschitz.spectral_norm import SpectralNorm

__all__ = [
    "Constraint",
    "Ratios",
    "Report",
    "Row",
    "SpectralBatchNorm",
    "SpectralNorm",
    "UnboundedLayerWarning",
    "apply_constraints",
    "batch_norm_constants",
    "constrain",
    "constraints",
    "converge",
    "fold",
    "gradient_penalty",
    "layers",
    "lipschitz_ratios",
    "recalibrate_batch_norm",
    "report",
    "singular_value",
]
