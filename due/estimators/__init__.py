"""scikit-learn estimators around DUE."""

from due.estimators.cate import DUECATE
from due.estimators.classifier import Classifier, ClassUncertainty, DUEClassifier
from due.estimators.effects import (
    EffectEstimator,
    EffectInference,
    SampledEffects,
    UncertainEffects,
)
from due.estimators.network import NetworkEstimator, Trained
from due.estimators.regressor import DUERegressor, Moments, Regressor, ValueUncertainty
from due.estimators.treatment_column import TreatmentColumn
from due.rows.study import Study

__all__ = [
    "DUECATE",
    "ClassUncertainty",
    "Classifier",
    "DUEClassifier",
    "DUERegressor",
    "EffectEstimator",
    "EffectInference",
    "Moments",
    "NetworkEstimator",
    "Regressor",
    "SampledEffects",
    "Study",
    "Trained",
    "TreatmentColumn",
    "UncertainEffects",
    "ValueUncertainty",
]
