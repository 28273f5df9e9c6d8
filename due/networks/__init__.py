"""Feature extractors: plain modules x → h with `out_features` and `config`."""

from due.networks.append_treatment import AppendTreatment
from due.networks.arm_columns import ArmColumns
from due.networks.convolutional import VGG, ResNet18
from due.networks.fully_connected import FCResNet, FeedForward, PreactivationResNet
from due.networks.reversible import ReversibleConvNet, ReversibleNet
from due.networks.scaled_inputs import ScaledInputs
from due.networks.shape import check_precision, n_features
from due.networks.wide_resnet import WideResNet

__all__ = [
    "AppendTreatment",
    "ArmColumns",
    "FCResNet",
    "FeedForward",
    "PreactivationResNet",
    "ResNet18",
    "ReversibleConvNet",
    "ReversibleNet",
    "ScaledInputs",
    "VGG",
    "WideResNet",
    "check_precision",
    "n_features",
]
