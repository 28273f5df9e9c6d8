"""S- and T-learner: treatment effects from any regressor g.

S: τ(x) = g(x, 1) − g(x, 0), one regressor for all.   T: τ(x) = g_1(x) − g_0(x), one an arm.
"""

from abc import abstractmethod
from dataclasses import field
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor
from sklearn.utils import check_random_state

from due.estimators.effects import Posterior, SampledEffects, UncertainEffects
from due.estimators.network import estimator
from due.rows.randomness import set_random_states
from due.rows.scale import Floats
from due.rows.study import Study

FORESTS = (RandomForestRegressor, ExtraTreesRegressor)  # whose prediction is the mean of its trees
TREES = 500


@estimator
class Learner(UncertainEffects):
    """Abstract: both outcomes of a person from any regressor.

    It needs no validation and learns from those people too.

    Parameters
    ----------
    estimator
        Any scikit-learn regressor; None is a random forest of 500 trees.
    random_state
        Seed of the regressors; None leaves them as they are.
    """

    estimator: Any = field(default=None, kw_only=False)
    random_state: Any = None

    @abstractmethod
    def _arms(self, X: Floats) -> list[tuple[Any, Floats]]:
        """The regressor of each arm, and the rows it is asked about."""

    def _fresh(self, n: int) -> list[Any]:
        """Unfitted regressors, each with a seed of its own if there is a `random_state`."""
        blank = RandomForestRegressor(TREES) if self.estimator is None else self.estimator
        regressors = [clone(blank) for _ in range(n)]
        if self.random_state is None:
            return regressors
        generator = check_random_state(self.random_state)
        return [set_random_states(regressor, generator) for regressor in regressors]

    @property
    def knows_variance(self) -> bool:  # type: ignore[override]
        """Whether the regressors are forests."""
        return self.estimator is None or isinstance(self.estimator, FORESTS)

    def _outcomes(self, X: Floats) -> Floats:
        return np.column_stack([regressor.predict(rows) for regressor, rows in self._arms(X)])


class SLearner(Learner, SampledEffects):
    """One regressor on [x, t], asked twice.

    The uncertainty is a rule of thumb: the variance between the trees of a forest of
    tree(x, 1) − tree(x, 0), which is no posterior. The arguments are those of `Learner`.

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

    def _fit(self, study: Study, validation: Study | None) -> None:
        X, t, y = study.join(validation)
        self.regressor_ = self._fresh(1)[0].fit(np.column_stack([X, t]), y)

    def _arms(self, X: Floats) -> list[tuple[Any, Floats]]:
        return [(self.regressor_, np.column_stack([X, np.full(len(X), t)])) for t in (0.0, 1.0)]

    def _draws(self, X: Floats) -> Floats:
        untreated, treated = (_by_tree(*arm) for arm in self._arms(X))
        return treated - untreated


class TLearner(Learner):
    """One regressor for untreated people, one for treated ones.

    The uncertainty is a rule of thumb: the variance between the trees of a forest, summed over
    the arms, which is no posterior. The arguments are those of `Learner`.

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

    def _fit(self, study: Study, validation: Study | None) -> None:
        X, t, y = study.join(validation)
        untreated, treated = self._fresh(2)
        self.regressors_ = untreated.fit(X[t == 0], y[t == 0]), treated.fit(X[t == 1], y[t == 1])

    def _arms(self, X: Floats) -> list[tuple[Any, Floats]]:
        return [(regressor, X) for regressor in self.regressors_]

    def _posterior(self, X: Floats) -> Posterior:
        untreated, treated = (_by_tree(*arm) for arm in self._arms(X))
        return Posterior(treated.mean(0) - untreated.mean(0), treated.var(0) + untreated.var(0))

    def _average(self, X: Floats) -> tuple[float, float]:
        untreated, treated = (_by_tree(*arm).mean(1) for arm in self._arms(X))
        return float(treated.mean() - untreated.mean()), float(treated.var() + untreated.var())


def _by_tree(regressor: Any, X: Floats) -> Floats:
    """What each tree predicts, (S, N)."""
    if not isinstance(regressor, FORESTS):
        raise TypeError(
            f"{type(regressor).__name__} is no forest whose trees could differ: for uncertainty "
            "give a RandomForestRegressor or ExtraTreesRegressor, or, if its fit depends on its "
            "random_state, use DeepEnsemble around the learner"
        )
    return np.stack([tree.predict(X) for tree in regressor.estimators_])
