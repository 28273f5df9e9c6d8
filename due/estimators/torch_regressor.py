"""Targets in standard units, (y − mean) / std, and back: what every regressor shares."""

from abc import abstractmethod
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import validate_data
from torch import Tensor

from due.estimators.checks import check_weight
from due.estimators.rows import Floats, Rows, Scale, canonical, fit_scale
from due.estimators.torch_estimator import TorchEstimator


class TorchRegressor(RegressorMixin, MultiOutputMixin, TorchEstimator):
    """Abstract: a `TorchEstimator` of one or several outputs, each with a normal distribution."""

    y_scale_: Scale
    _flat: bool  # y was (N,), not (N, 1)

    @abstractmethod
    def _predictive(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of a new observation at scaled rows, (N, T), in standard units."""

    @abstractmethod
    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Mean of y, with the standard deviation of a new observation."""

    @abstractmethod
    def uncertainty(self, X: ArrayLike) -> Floats:
        """How much the method doubts each row, of the shape of `predict(X)`."""

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Train on rows X with targets y, (N,) or (N, T); a weight counts as repetitions.

        `validation` is (X, y) of other rows to choose the best epoch on, in place of a fraction.
        """
        inputs, values = self._validate(X, y, multi_output=True, y_numeric=True)
        weight = check_weight(sample_weight, inputs)
        self._check_outputs(values)
        self._flat = values.ndim == 1
        rows = canonical(inputs, _columns(values), weight)
        others = None if validation is None else self._others(*validation, rows.y.shape[1])
        if others is not None:
            rows = Rows(*(np.concatenate(pair) for pair in zip(rows, others, strict=True)))
        if not self._continues:
            self.y_scale_ = fit_scale(rows.y, rows.weight)
        targets = torch.as_tensor(self.y_scale_(rows.y), dtype=torch.float32)
        self._fit(rows, targets, held_out=0 if others is None else len(others.X))
        return self

    def predict_interval(self, X: ArrayLike, alpha: float = 0.05) -> tuple[Floats, Floats]:
        """Lower and upper end of the central 1 − alpha interval of a new observation."""
        if not 0 < alpha < 1:
            raise ValueError(f"alpha={alpha} is not between 0 and 1; 0.05 gives 95 % intervals")
        mean, std = self.predict(X, return_std=True)
        half = norm.ppf(1 - alpha / 2) * std
        return mean - half, mean + half

    def _observed(self, X: ArrayLike) -> tuple[Floats, Floats]:
        """Mean and standard deviation of a new observation, in the units and the shape of y."""
        mean, var = self._map(self._predictive, X)
        centre = self._shape(self.y_scale_.inverse(mean))
        return centre, self._shape(np.sqrt(var) * self.y_scale_.std)

    def _others(self, X: ArrayLike, y: ArrayLike, T: int) -> Rows:
        """Rows to validate on, checked like those to train on."""
        inputs, values = validate_data(
            self, X, y, dtype=np.float64, allow_nd=True, multi_output=True, reset=False
        )
        others = canonical(inputs, _columns(values), None)
        if others.y.shape[1] != T:
            raise ValueError(f"y of validation has {others.y.shape[1]} outputs, y has {T}")
        return others

    def _check_outputs(self, values: NDArray[Any]) -> None:
        if self._continues and values.shape[1:] != (() if self._flat else self.y_scale_.std.shape):
            raise ValueError(
                f"y has shape {values.shape}, the last fit predicts {self.y_scale_.std.size} "
                f"output(s) as {'(N,)' if self._flat else '(N, T)'}; warm_start goes on with the "
                "same outputs, warm_start=False starts anew"
            )

    def _shape(self, values: Floats) -> Floats:
        return values[:, 0] if self._flat else values

    @property
    def _T(self) -> int:
        return self.y_scale_.std.size

    def _learned(self) -> dict[str, Any]:
        return {"y_scale": self.y_scale_.as_lists(), "flat": self._flat}

    def _relearn(self, learned: dict[str, Any]) -> None:
        self.y_scale_, self._flat = Scale.from_lists(learned["y_scale"]), learned["flat"]


def _columns(y: NDArray[Any]) -> Floats:
    return y.astype(np.float64).reshape(len(y), -1)
