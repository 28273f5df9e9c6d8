"""Feature extractors: plain modules x → h with `out_features` and `config`."""

from due.networks.append_treatment import AppendTreatment
from due.networks.fc_resnet import FCResNet
from due.networks.feed_forward import FeedForward
from due.networks.preactivation_resnet import PreactivationResNet
from due.networks.reversible import ReversibleConvNet, ReversibleNet

__all__ = [
    "AppendTreatment",
    "FCResNet",
    "FeedForward",
    "PreactivationResNet",
    "ReversibleConvNet",
    "ReversibleNet",
]
