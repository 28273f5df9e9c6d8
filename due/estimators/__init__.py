"""scikit-learn estimators around DUE."""

from due.estimators.cate import DUECATE
from due.estimators.classifier import ClassUncertainty, DUEClassifier
from due.estimators.effects import EffectInference
from due.estimators.network import Trained
from due.estimators.regressor import DUERegressor, ValueUncertainty
from due.estimators.treatment_column import TreatmentColumn

__all__ = [
    "DUECATE",
    "ClassUncertainty",
    "DUEClassifier",
    "DUERegressor",
    "EffectInference",
    "Trained",
    "TreatmentColumn",
    "ValueUncertainty",
]
