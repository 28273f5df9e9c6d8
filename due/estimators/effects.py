"""Treatment effects τ(x) = E[y | x, t = 1] − E[y | x, t = 0], behind EconML's names."""

from abc import abstractmethod
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _num_samples, check_is_fitted, validate_data

from due.rows.checks import check_arguments, check_columns, check_size, is_number
from due.rows.scale import Floats
from due.rows.study import Study

ORDER = "the order is fit(Y, T, X=X): outcomes (N,), treatments 0 or 1 (N,), covariates (N, D)"


class Posterior(NamedTuple):
    """Mean and variance of independent effects."""

    mean: Floats
    var: Floats


class EffectInference:
    """Effects of people with their standard errors, read as normal distributions."""

    def __init__(self, point_estimate: Floats, stderr: Floats) -> None:
        self.point_estimate, self.stderr = point_estimate, stderr

    @property
    def var(self) -> Floats:
        """Variance of each effect."""
        return self.stderr**2

    def conf_int(self, alpha: float = 0.05) -> tuple[Floats, Floats]:
        """Lower and upper end of the central 1 − alpha credible interval of each effect."""
        half = quantile(alpha) * self.stderr
        return self.point_estimate - half, self.point_estimate + half

    def zstat(self, value: float = 0.0) -> Floats:
        """Standard errors between each effect and `value`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return (self.point_estimate - value) / self.stderr

    def pvalue(self, value: float = 0.0) -> Floats:
        """Mass of the normal as far from its mean as `value`, on both sides."""
        return np.asarray(2 * norm.sf(np.abs(self.zstat(value))))

    def summary_frame(self, alpha: float = 0.05, value: float = 0.0) -> Any:
        """One row per person, with EconML's columns; needs pandas."""
        import pandas as pd

        lower, upper = self.conf_int(alpha)
        columns = {
            "point_estimate": self.point_estimate,
            "stderr": self.stderr,
            "zstat": self.zstat(value),
            "pvalue": self.pvalue(value),
            "ci_lower": lower,
            "ci_upper": upper,
        }
        return pd.DataFrame(columns).rename_axis("X")


class EffectEstimator(BaseEstimator):
    """Abstract: learns from `fit(Y, T, X=X)` and predicts both outcomes of a person."""

    n_features_in_: int
    feature_names_in_: NDArray[Any]
    _fitted: str  # the attribute that only a fitted estimator has

    @abstractmethod
    def _fit(self, study: Study, validation: Study | None) -> None:
        """Learn from people that were checked; `validation` chooses the epoch where there is one.

        A method that does not need it learns from those people too.
        """

    @abstractmethod
    def _outcomes(self, X: Floats) -> Floats:
        """E[y | x, t] without and with treatment, shape (N, 2)."""

    def fit(
        self,
        Y: ArrayLike,
        T: ArrayLike,
        X: ArrayLike | None = None,
        *,
        validation: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Learn from outcomes Y, treatments T (0 or 1) and covariates X.

        `validation` is (Y, T, X) of people to choose the best epoch on; None holds some out.
        """
        check_arguments(self)
        y, t = _person_by_person(Y, T, X)
        for arm, word in enumerate(("untreated", "treated")):
            if not (t == arm).any():
                raise ValueError(
                    f"nobody in T is {word}: an effect compares both groups; without people of "
                    "one of them no data says what would have been"
                )
        if validation is not None:
            _check_three(validation)
        self.__dict__.pop(self._fitted, None)  # should this fit fail, the estimator is not fitted
        study = Study(self._rows(X, reset=True), t, y)
        held_out = None
        if validation is not None:
            try:
                y, t = _person_by_person(*validation)
            except ValueError as error:
                raise ValueError(f"validation: {error}") from error
            held_out = Study(self._rows(validation[2], reset=False), t, y)
        self._fit(study, held_out)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, self._fitted)

    def potential_outcomes(self, X: ArrayLike) -> Floats:
        """Expected outcome of each person without and with treatment, shape (N, 2)."""
        return self._outcomes(self._people(X))

    def effect(self, X: ArrayLike, T0: ArrayLike = 0, T1: ArrayLike = 1) -> Floats:
        """E[y | x, T1] − E[y | x, T0] of each person, shape (N,)."""
        outcomes = self.potential_outcomes(X)
        return _change(T0, T1, len(outcomes)) * (outcomes[:, 1] - outcomes[:, 0])

    def ate(self, X: ArrayLike, T0: ArrayLike = 0, T1: ArrayLike = 1) -> float:
        """Average effect over the people X."""
        return float(self.effect(X, T0, T1).mean())

    def _people(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        return self._rows(X, reset=False)

    def _rows(self, X: ArrayLike | None, reset: bool) -> Floats:
        check_columns(X)
        return validate_data(self, X, dtype=np.float64, reset=reset)


class UncertainEffects(EffectEstimator):
    """Abstract: an `EffectEstimator` that knows the variance of its effects.

    Where that depends on a part that the user gives, `knows_variance` says whether it does.
    """

    knows_variance: bool = True

    @abstractmethod
    def _posterior(self, X: Floats) -> Posterior:
        """Mean and variance of f1 − f0 of each person."""

    @abstractmethod
    def _average(self, X: Floats) -> tuple[float, float]:
        """Mean and variance of the average of f1 − f0 over the people."""

    def uncertainty(self, X: ArrayLike) -> Floats:
        """Var[f1 − f0] of each person, without observation noise, shape (N,)."""
        return self._posterior(self._people(X)).var

    def effect_std(self, X: ArrayLike, T0: ArrayLike = 0, T1: ArrayLike = 1) -> Floats:
        """Standard deviation of each effect."""
        return self.effect_inference(X, T0, T1).stderr

    def effect_interval(
        self, X: ArrayLike, T0: ArrayLike = 0, T1: ArrayLike = 1, alpha: float = 0.05
    ) -> tuple[Floats, Floats]:
        """Lower and upper end of the central 1 − alpha credible interval of each effect."""
        return self.effect_inference(X, T0, T1).conf_int(alpha)

    def effect_inference(
        self, X: ArrayLike, T0: ArrayLike = 0, T1: ArrayLike = 1
    ) -> EffectInference:
        """Effects and their standard errors."""
        mean, var = self._posterior(self._people(X))
        change = _change(T0, T1, len(mean))
        return EffectInference(change * mean, np.abs(change) * np.sqrt(var))

    def ate_inference(self, X: ArrayLike, T0: int = 0, T1: int = 1) -> EffectInference:
        """The average effect over the people X and its standard error; T0 and T1 are for all."""
        rows = self._people(X)
        if np.ndim(T0) or np.ndim(T1):
            raise ValueError("T0 and T1 of an average are those of all people: give 0 or 1")
        mean, var = self._average(rows)
        change = _change(T0, T1, 1)
        return EffectInference(change * mean, np.abs(change) * var**0.5)

    def ate_interval(
        self, X: ArrayLike, T0: int = 0, T1: int = 1, alpha: float = 0.05
    ) -> tuple[float, float]:
        """Credible interval of the average effect over the people X; T0 and T1 are for all."""
        lower, upper = self.ate_inference(X, T0, T1).conf_int(alpha)
        return float(lower[0]), float(upper[0])


class SampledEffects(UncertainEffects):
    """Abstract: an `UncertainEffects` whose posterior is a set of draws."""

    @abstractmethod
    def _draws(self, X: Floats) -> Floats:
        """Draws of the effect of each person, shape (S, N); one row belongs to one model."""

    def sample_effect(self, X: ArrayLike) -> Floats:
        """The draws of each person's effect, shape (N, S)."""
        return self._draws(self._people(X)).T

    def _posterior(self, X: Floats) -> Posterior:
        draws = self._draws(X)
        return Posterior(draws.mean(0), draws.var(0))

    def _average(self, X: Floats) -> tuple[float, float]:
        means = self._draws(X).mean(1)
        return float(means.mean()), float(means.var())


def quantile(alpha: float) -> float:
    """Standard deviations from the mean to the ends of the central 1 − alpha interval."""
    if not 0 < alpha < 1:
        raise ValueError(f"alpha={alpha} is not between 0 and 1; 0.05 gives 95 % intervals")
    return float(norm.isf(alpha / 2))


def _change(T0: ArrayLike, T1: ArrayLike, n: int) -> Floats:
    """T1 − T0 of each person, each 0 or 1."""
    for name, value in (("T0", T0), ("T1", T1)):
        values = np.asarray(value)
        if values.shape not in ((), (n,)) or not np.isin(values, (0, 1)).all():
            raise ValueError(
                f"{name}={value!r} is not a treatment: give 0, 1 or one of them for each of the "
                f"{n} people"
            )
    return np.broadcast_to(np.asarray(T1, dtype=float) - np.asarray(T0, dtype=float), n).copy()


def _person_by_person(Y: ArrayLike, T: ArrayLike, X: ArrayLike | None) -> tuple[Floats, Floats]:
    """Outcomes and treatments, as many as there are people in X."""
    y, t = _vector(Y, "Y", "outcomes"), _treatments(T)
    if X is None:
        raise ValueError(f"X is missing; {ORDER}")
    if not len(y) == len(t) == _num_samples(X):
        raise ValueError(
            f"Y, T and X have {len(y)}, {len(t)} and {_num_samples(X)} rows; each person has one "
            "in each of them"
        )
    return y, t


def _vector(values: ArrayLike, name: str, what: str) -> Floats:
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}, not one of the {what} a person; {ORDER}")
    if np.iscomplexobj(array):
        raise ValueError(f"{name} holds complex numbers, such as {array[0]}; give real ones")
    try:
        array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        row = next(i for i, value in enumerate(array) if not is_number(value))
        raise ValueError(
            f"{name} holds {str(array[row])!r} in row {row}, which is no number; code it as one, "
            f"such as ({name} == 'yes').astype(int) for a treatment; {ORDER}"
        ) from error
    missing = ~np.isfinite(array)
    if missing.any():
        raise ValueError(
            f"{name} has {missing.sum()} missing or infinite {what}, the first in row "
            f"{missing.argmax()}; leave those people out of Y, T and X"
        )
    if len(array):
        check_size(name, array)
    return array


def _treatments(T: ArrayLike) -> Floats:
    t = _vector(T, "T", "treatments")
    values = np.unique(t)
    if not np.isin(values, (0, 1)).all():
        other = values[~np.isin(values, (0, 1))][0]
        remedy = "of several treatments, compare two at a time"
        if len(values) == 2:
            remedy = f"(T == {values[1]:g}).astype(int) says so of {values[0]:g} and {values[1]:g}"
        raise ValueError(f"T holds {other:g}; a treatment is 0 or 1: {remedy}; {ORDER}")
    return t


def _check_three(validation: Any) -> None:
    if not isinstance(validation, tuple | list) or len(validation) != 3:
        what = f"{len(validation)} parts" if isinstance(validation, tuple | list) else "one part"
        raise ValueError(
            f"validation has {what}; it is (Y, T, X) of other people, and validation_fraction "
            "holds out a share of these ones"
        )
