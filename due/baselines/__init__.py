"""What DUE is compared with, as scikit-learn estimators of the same shape."""

from due.baselines.bart import BART
from due.baselines.classifiers import (
    GPDNN,
    DDUClassifier,
    DUQClassifier,
    SNGPClassifier,
    SoftmaxClassifier,
    SVDKLClassifier,
)
from due.baselines.effect_networks import CEVAE, DKLITE, TARNet
from due.baselines.ensemble import (
    DeepEnsemble,
    EnsembleClassifier,
    EnsembleEffects,
    EnsembleRegressor,
)
from due.baselines.exact_gps import ArmGP, ExactGPRegressor
from due.baselines.learners import SLearner, TLearner
from due.baselines.mc_dropout import DropoutClassifier, DropoutEffects, DropoutRegressor, MCDropout
from due.baselines.regressors import NetworkRegressor, SNGPRegressor, SVDKLRegressor

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
