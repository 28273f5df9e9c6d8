"""What DUE is compared with, as scikit-learn estimators of the same shape."""

from due.baselines.softmax import SoftmaxClassifier

__all__ = ["SoftmaxClassifier"]
