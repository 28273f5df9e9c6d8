"""due: uncertainty from a deep network in one forward pass."""

from due.archive import load, save
from due.estimators import DUECATE, DUEClassifier, DUERegressor
from due.frozen import freeze
from due.lipschitz import constrain
from due.model import DUE, CollapsedBound

__all__ = [
    "DUE",
    "DUECATE",
    "CollapsedBound",
    "DUEClassifier",
    "DUERegressor",
    "constrain",
    "freeze",
    "load",
    "save",
]
