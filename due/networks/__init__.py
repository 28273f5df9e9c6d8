"""Feature extractors: plain modules x → h with `out_features` and `config`."""

from due.networks.append_treatment import AppendTreatment
from due.networks.fully_connected import FCResNet, FeedForward, PreactivationResNet
from due.networks.reversible import ReversibleConvNet, ReversibleNet
from due.networks.scaled_inputs import ScaledInputs
from due.networks.shape import n_features

__all__ = [
    "AppendTreatment",
    "FCResNet",
    "FeedForward",
    "PreactivationResNet",
    "ReversibleConvNet",
    "ReversibleNet",
    "ScaledInputs",
    "n_features",
]
