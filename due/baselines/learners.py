"""S- and T-learner: treatment effects from any regressor g.

S: τ(x) = g(x, 1) − g(x, 0), one regressor for all.   T: τ(x) = g_1(x) − g_0(x), one an arm.
"""

from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor
from sklearn.utils import check_random_state

from due.baselines.mixture import set_random_states
from due.estimators.effects import Posterior, SampledEffects, UncertainEffects
from due.rows.scale import Floats
from due.rows.study import Study

FORESTS = (RandomForestRegressor, ExtraTreesRegressor)  # whose prediction is the mean of its trees
TREES = 500


class SLearner(SampledEffects):
    """One regressor on [x, t], asked twice.

    The uncertainty is a rule of thumb: the variance between the trees of a forest of
    tree(x, 1) − tree(x, 0), which is no posterior. It needs no validation and learns from those
    people too.

    Parameters
    ----------
    estimator
        Any scikit-learn regressor; None is a random forest of 500 trees.
    random_state
        Seed of the regressor; None leaves it as it is.

    Attributes
    ----------
    regressor_
        The fitted regressor, of [x, t].

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LinearRegression
    >>> rng = np.random.default_rng(0)
    >>> X, T = rng.normal(size=(100, 2)), rng.integers(2, size=100)
    >>> round(SLearner(LinearRegression()).fit(X[:, 0] + 3 * T, T, X).ate(X), 6)
    3.0
    """

    _fitted = "regressor_"
    regressor_: Any

    def __init__(self, estimator: Any = None, *, random_state: Any = None) -> None:
        self.estimator = estimator
        self.random_state = random_state

    def _fit(self, study: Study, validation: Study | None) -> None:
        X, t, y = study.join(validation)
        generator = check_random_state(self.random_state)
        regressor = _fresh(self.estimator, self.random_state, generator)
        self.regressor_ = regressor.fit(np.column_stack([X, t]), y)

    @property
    def knows_variance(self) -> bool:  # type: ignore[override]
        """Whether the regressor is a forest."""
        return isinstance(self.regressor_, FORESTS)

    def _outcomes(self, X: Floats) -> Floats:
        return np.column_stack([self.regressor_.predict(rows) for rows in _arms(X)])

    def _draws(self, X: Floats) -> Floats:
        untreated, treated = (_by_tree(self.regressor_, rows) for rows in _arms(X))
        return treated - untreated


class TLearner(UncertainEffects):
    """One regressor for untreated people, one for treated ones.

    The uncertainty is a rule of thumb: the variance between the trees of a forest, summed over
    the arms, which is no posterior. It needs no validation and learns from those people too.

    Parameters
    ----------
    estimator
        Any scikit-learn regressor; None is a random forest of 500 trees.
    random_state
        Seed of the regressors; None leaves them as they are.

    Attributes
    ----------
    regressors_
        The fitted regressors, without and with treatment.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LinearRegression
    >>> rng = np.random.default_rng(0)
    >>> X, T = rng.normal(size=(100, 2)), rng.integers(2, size=100)
    >>> round(TLearner(LinearRegression()).fit(X[:, 0] + 3 * T, T, X).ate(X), 6)
    3.0
    """

    _fitted = "regressors_"
    regressors_: tuple[Any, Any]

    def __init__(self, estimator: Any = None, *, random_state: Any = None) -> None:
        self.estimator = estimator
        self.random_state = random_state

    def _fit(self, study: Study, validation: Study | None) -> None:
        X, t, y = study.join(validation)
        generator = check_random_state(self.random_state)
        fresh = [_fresh(self.estimator, self.random_state, generator) for _ in range(2)]
        self.regressors_ = (
            fresh[0].fit(X[t == 0], y[t == 0]),
            fresh[1].fit(X[t == 1], y[t == 1]),
        )

    @property
    def knows_variance(self) -> bool:  # type: ignore[override]
        """Whether the regressors are forests."""
        return isinstance(self.regressors_[0], FORESTS)

    def _outcomes(self, X: Floats) -> Floats:
        return np.column_stack([regressor.predict(X) for regressor in self.regressors_])

    def _posterior(self, X: Floats) -> Posterior:
        untreated, treated = (_by_tree(regressor, X) for regressor in self.regressors_)
        return Posterior(treated.mean(0) - untreated.mean(0), treated.var(0) + untreated.var(0))

    def _average(self, X: Floats) -> tuple[float, float]:
        untreated, treated = (_by_tree(regressor, X).mean(1) for regressor in self.regressors_)
        return float(treated.mean() - untreated.mean()), float(treated.var() + untreated.var())


def _fresh(estimator: Any, random_state: Any, generator: np.random.RandomState) -> Any:
    regressor = RandomForestRegressor(TREES) if estimator is None else clone(estimator)
    return regressor if random_state is None else set_random_states(regressor, generator)


def _arms(X: Floats) -> list[Floats]:
    return [np.column_stack([X, np.full(len(X), float(t))]) for t in (0, 1)]


def _by_tree(regressor: Any, X: Floats) -> Floats:
    """What each tree predicts, (S, N)."""
    if not isinstance(regressor, FORESTS):
        raise TypeError(
            f"{type(regressor).__name__} is no forest whose trees could differ: for uncertainty "
            "give a RandomForestRegressor or ExtraTreesRegressor, or, if its fit depends on its "
            "random_state, use DeepEnsemble around the learner"
        )
    return np.stack([tree.predict(X) for tree in regressor.estimators_])
