"""What DUE is compared with, as scikit-learn estimators of the same shape."""

from due.baselines.arm_gp import ArmGP
from due.baselines.bart import BART
from due.baselines.cevae import CEVAE
from due.baselines.dklite import DKLITE
from due.baselines.ensemble import (
    DeepEnsemble,
    EnsembleClassifier,
    EnsembleEffects,
    EnsembleRegressor,
)
from due.baselines.learners import SLearner, TLearner
from due.baselines.mc_dropout import (
    DropoutClassifier,
    DropoutEffects,
    DropoutRegressor,
    MCDropout,
)
from due.baselines.network_regressor import NetworkRegressor
from due.baselines.softmax import SoftmaxClassifier
from due.baselines.tarnet import TARNet

__all__ = [
    "ArmGP",
    "BART",
    "CEVAE",
    "DKLITE",
    "DeepEnsemble",
    "DropoutClassifier",
    "DropoutEffects",
    "DropoutRegressor",
    "EnsembleClassifier",
    "EnsembleEffects",
    "EnsembleRegressor",
    "MCDropout",
    "NetworkRegressor",
    "SLearner",
    "SoftmaxClassifier",
    "TARNet",
    "TLearner",
]
