"""Labels of any type as codes 0 … T − 1, and back: what every classifier shares."""

from abc import abstractmethod
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from due.estimators.checks import check_weight
from due.estimators.rows import Floats, canonical
from due.estimators.torch_estimator import TorchEstimator
from due.metrics import entropy


class TorchClassifier(ClassifierMixin, TorchEstimator):
    """Abstract: a `TorchEstimator` of class probabilities."""

    classes_: NDArray[Any]

    @abstractmethod
    def _probabilities(self, x: Tensor) -> Tensor:
        """What `frozen_` says of scaled rows: p(y = t | x), (N, T)."""

    @abstractmethod
    def uncertainty(self, X: ArrayLike) -> Floats:
        """How much the method doubts each row, shape (N,)."""

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on rows X with labels y of any type; a weight counts as so many repetitions."""
        inputs, labels = self._validate(X, y)
        check_classification_targets(labels)
        weight = check_weight(sample_weight, inputs)
        classes, codes = np.unique(labels, return_inverse=True)
        self._check_classes(classes)
        self.classes_ = classes
        rows = canonical(inputs, codes, weight)
        self._fit(rows, torch.as_tensor(rows.y), rows.y)
        return self

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Class probabilities, shape (N, T), in the order of `classes_`."""
        probs = self._map(self._probabilities, X)
        return probs / probs.sum(-1, keepdims=True)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable label of each row."""
        codes = self.predict_proba(X).argmax(-1)
        return self.classes_[codes]

    def _check_classes(self, classes: NDArray[Any]) -> None:
        if len(classes) < 2:
            raise ValueError(
                f"y has one class only, {classes.tolist()[0]!r}; "
                "a classifier needs rows of two classes"
            )
        if self._continues and not np.array_equal(classes, self.classes_):
            raise ValueError(
                f"y has the classes {classes.tolist()}, the last fit had {self.classes_.tolist()}; "
                "warm_start goes on with the same ones, warm_start=False starts anew"
            )

    @property
    def _T(self) -> int:
        return len(self.classes_)

    def _learned(self) -> dict[str, Any]:
        return {"classes": self.classes_.tolist(), "classes_dtype": self.classes_.dtype.str}

    def _relearn(self, learned: dict[str, Any]) -> None:
        dtype = learned["classes_dtype"]
        self.classes_ = np.array(learned["classes"], dtype=object if dtype == "|O" else dtype)


class EntropyClassifier(TorchClassifier):
    """Abstract: a `TorchClassifier` in doubt where its probabilities are spread."""

    def uncertainty(self, X: ArrayLike) -> Floats:
        """Entropy −Σ_c p_c log p_c of the predicted probabilities, shape (N,)."""
        return entropy(self.predict_proba(X))
