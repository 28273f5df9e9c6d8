"""Treatment effects behind scikit-learn's `fit(X, y)`: one column of X is the treatment."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.utils.validation import check_is_fitted, validate_data

from due.estimators.effects import EffectEstimator
from due.rows.checks import check_columns
from due.rows.scale import Floats


class TreatmentColumn(RegressorMixin, BaseEstimator):
    """Serves `GridSearchCV` and its kin: `predict` is the outcome under the treatment received.

    Its score is the R² of outcomes that were observed; effects never are.

    Parameters
    ----------
    estimator
        An effect estimator such as `DUECATE`.
    column
        Which column of X holds the treatment, 0 or 1: its number, or its name in a DataFrame.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import GridSearchCV
    >>> from due import DUECATE
    >>> rng = np.random.default_rng(0)
    >>> X = np.column_stack([rng.normal(size=(80, 2)), rng.integers(2, size=80)])
    >>> y = X[:, 0] + X[:, 2]
    >>> adapter = TreatmentColumn(DUECATE(epochs=5, random_state=0))
    >>> search = GridSearchCV(adapter, {"estimator__n_inducing": [10, 20]}, cv=2).fit(X, y)
    >>> search.best_estimator_.estimator_.effect(X[:3, :2]).shape
    (3,)
    """

    estimator_: EffectEstimator
    n_features_in_: int

    def __init__(self, estimator: EffectEstimator, column: int | str = -1) -> None:
        self.estimator = estimator
        self.column = column

    def fit(self, X: ArrayLike, y: ArrayLike) -> "TreatmentColumn":
        """Learn from rows that hold covariates and, in one column, the treatment."""
        check_columns(X)
        rows, outcomes = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        people, t = self._apart(rows)
        self.estimator_ = clone(self.estimator).fit(outcomes, t, people)
        return self

    def predict(self, X: ArrayLike) -> Floats:
        """Expected outcome of each row under its own treatment."""
        check_is_fitted(self)
        check_columns(X)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        people, t = self._apart(rows)
        outcomes = self.estimator_.potential_outcomes(people)
        return np.where(t == 1, outcomes[:, 1], outcomes[:, 0])

    def _apart(self, rows: Any) -> tuple[Floats, Floats]:
        width, names = rows.shape[1], list(getattr(self, "feature_names_in_", ()))
        column = names.index(self.column) if self.column in names else self.column
        if width < 2 or not (isinstance(column, int | np.integer) and -width <= column < width):
            raise ValueError(
                f"column={self.column!r} of {names or f'{width} columns'} cannot be the "
                "treatment; X holds the covariates and one column of 0 and 1"
            )
        t = rows[:, column]
        if not np.isin(t, (0, 1)).all():
            raise ValueError(
                f"column {self.column} of X holds {t[~np.isin(t, (0, 1))][0]:g}; the treatment "
                "is 0 or 1: say which column it is with column="
            )
        return np.delete(rows, column, axis=1), t
