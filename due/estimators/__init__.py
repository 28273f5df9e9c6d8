"""scikit-learn estimators around DUE."""

from due.estimators.classifier import ClassUncertainty, DUEClassifier
from due.estimators.regressor import DUERegressor, ValueUncertainty

__all__ = ["ClassUncertainty", "DUEClassifier", "DUERegressor", "ValueUncertainty"]
