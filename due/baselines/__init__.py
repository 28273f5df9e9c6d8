"""What DUE is compared with, as scikit-learn estimators of the same shape."""

from due.baselines.arm_gp import ArmGP
from due.baselines.bart import BART
from due.baselines.cevae import CEVAE
from due.baselines.ddu import DDUClassifier
from due.baselines.dklite import DKLITE
from due.baselines.duq import DUQClassifier
from due.baselines.ensemble import (
    DeepEnsemble,
    EnsembleClassifier,
    EnsembleEffects,
    EnsembleRegressor,
)
from due.baselines.exact_gp import ExactGPRegressor
from due.baselines.gpdnn import GPDNN
from due.baselines.learners import SLearner, TLearner
from due.baselines.mc_dropout import (
    DropoutClassifier,
    DropoutEffects,
    DropoutRegressor,
    MCDropout,
)
from due.baselines.network_regressor import NetworkRegressor
from due.baselines.sngp import SNGPClassifier, SNGPRegressor
from due.baselines.softmax import SoftmaxClassifier
from due.baselines.svdkl import SVDKLClassifier, SVDKLRegressor
from due.baselines.tarnet import TARNet

__all__ = [
    "ArmGP",
    "BART",
    "CEVAE",
    "DDUClassifier",
    "DKLITE",
    "DUQClassifier",
    "DeepEnsemble",
    "DropoutClassifier",
    "DropoutEffects",
    "DropoutRegressor",
    "EnsembleClassifier",
    "EnsembleEffects",
    "EnsembleRegressor",
    "ExactGPRegressor",
    "GPDNN",
    "MCDropout",
    "NetworkRegressor",
    "SLearner",
    "SNGPClassifier",
    "SNGPRegressor",
    "SVDKLClassifier",
    "SVDKLRegressor",
    "SoftmaxClassifier",
    "TARNet",
    "TLearner",
]
