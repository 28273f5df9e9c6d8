"""Many models read as one: p(y | x) = mean_s p_s(y | x), whatever the models s are."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, get_tags
from sklearn.utils.validation import check_is_fitted

from due.estimators.effects import EffectEstimator, Posterior, UncertainEffects
from due.estimators.regressor import Moments
from due.metrics import entropy
from due.rows.checks import check_arguments
from due.rows.scale import Floats
from due.rows.study import Study
from due.storage.estimator import SavedEstimator, recall_columns

Ask = Callable[[Any], Any]  # a question to one model


@runtime_checkable
class KnowsMoments(Protocol):
    """A regressor, ours or a user's, that tells its own variance apart from the noise."""

    def moments(self, X: ArrayLike) -> Moments:
        """Mean, and the two parts of the variance."""


def knows_effects(model: Any) -> bool:
    """Whether an estimator of effects tells their variance, as `UncertainEffects` do."""
    return isinstance(model, UncertainEffects) and model.knows_variance


class Mixture(SavedEstimator):
    """Abstract: holds the models, fits them and asks them."""

    estimator: Any
    _fitted: str  # the attribute that holds them

    @abstractmethod
    def _learn(self, fit: Ask) -> None:
        """Call `fit` on each model, a fresh clone of `estimator`."""

    @abstractmethod
    def _each(self, ask: Ask) -> list[Any]:
        """The answer of each model."""

    @property
    @abstractmethod
    def _one(self) -> Any:
        """One of the fitted models."""

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, self._fitted)

    def _recall_columns(self, names: list[str]) -> None:
        """Know the columns of `fit` again, once the models are loaded, which may know them."""
        if isinstance(self, EffectEstimator):
            recall_columns(self, names, self._one.n_features_in_)


class Delegating(Mixture):
    """Abstract: leaves the checks of X and y to its models, and shows what they found."""

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on rows X with targets y; a weight counts as so many repetitions."""
        check_arguments(self)
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        self._learn(lambda model: model.fit(X, y, **weights))
        return self

    @property
    def n_features_in_(self) -> int:
        """Columns of X in `fit`."""
        return int(self._one.n_features_in_)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the columns of X in `fit`, where it had any."""
        return np.asarray(self._one.feature_names_in_)

    def __sklearn_tags__(self) -> Tags:
        return get_tags(self.estimator)


class MixtureClassifier(ClassifierMixin, Delegating):
    """Abstract: the mean of the models' class probabilities."""

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels, sorted."""
        return np.asarray(self._one.classes_)

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Mean of the models' probabilities, shape (N, T), in the order of `classes_`."""
        check_is_fitted(self)
        probs: Floats = np.mean(self._each(lambda model: model.predict_proba(X)), axis=0)
        return probs / probs.sum(-1, keepdims=True)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable label of each row."""
        codes = self.predict_proba(X).argmax(-1)
        return np.asarray(self.classes_[codes])

    def uncertainty(self, X: ArrayLike) -> Floats:
        """Entropy −Σ_c p_c log p_c of the mean probabilities, shape (N,)."""
        return entropy(self.predict_proba(X))


class MixtureRegressor(RegressorMixin, Delegating):
    """Abstract: the mean μ = mean_s μ_s and the variance mean_s σ_s² + Var_s[μ_s] of the models."""

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Mean of the models' means, with the standard deviation of the mixture.

        It includes the noise if the models know it (`moments`); otherwise it is how far the
        models differ.
        """
        check_is_fitted(self)
        if not return_std:
            return np.mean(self._each(lambda model: model.predict(X)), axis=0)
        mean, epistemic, aleatoric = self.moments(X)
        return mean, np.sqrt(epistemic + aleatoric)

    def moments(self, X: ArrayLike) -> Moments:
        """Mean, Var_s[μ_s] plus the mean of the models' own variance, and the mean noise."""
        check_is_fitted(self)
        means, own, noise = zip(*self._each(lambda model: _moments(model, X)), strict=True)
        epistemic = np.var(means, axis=0) + np.mean(own, axis=0)
        return Moments(np.mean(means, axis=0), epistemic, np.mean(noise, axis=0))

    def uncertainty(self, X: ArrayLike) -> Floats:
        """Variance of the latent function: Var_s[μ_s], plus the mean of the models' own."""
        return self.moments(X).epistemic


class MixtureEffects(UncertainEffects, Mixture):
    """Abstract: each model's effects are one draw, of variance Var_s[τ_s] + mean_s Var[τ | s].

    The last term is the uncertainty of the models themselves, where they know it.
    """

    def _fit(self, study: Study, validation: Study | None) -> None:
        held_out = None if validation is None else (validation.y, validation.t, validation.X)
        self._learn(lambda model: model.fit(study.y, study.t, study.X, validation=held_out))

    def _outcomes(self, X: Floats) -> Floats:
        return np.mean(self._each(lambda model: model.potential_outcomes(X)), axis=0)

    def sample_effect(self, X: ArrayLike) -> Floats:
        """The effect that each model gives each person, shape (N, S)."""
        rows = self._people(X)
        return np.stack(self._each(lambda model: model.effect(rows)), axis=1)

    def _posterior(self, X: Floats) -> Posterior:
        means, own = zip(*self._each(lambda model: _effects(model, X)), strict=True)
        return Posterior(np.mean(means, axis=0), np.var(means, axis=0) + np.mean(own, axis=0))

    def _average(self, X: Floats) -> tuple[float, float]:
        means, own = zip(*self._each(lambda model: _average_effect(model, X)), strict=True)
        return float(np.mean(means)), float(np.var(means) + np.mean(own))


def _moments(model: Any, X: ArrayLike) -> Moments:
    if isinstance(model, KnowsMoments):
        return Moments(*model.moments(X))
    mean = model.predict(X)
    return Moments(mean, np.zeros_like(mean), np.zeros_like(mean))


def _effects(model: Any, X: Floats) -> Posterior:
    if knows_effects(model):
        found = model.effect_inference(X)
        return Posterior(found.point_estimate, found.var)
    effects = model.effect(X)
    return Posterior(effects, np.zeros_like(effects))


def _average_effect(model: Any, X: Floats) -> tuple[float, float]:
    if knows_effects(model):
        found = model.ate_inference(X)
        return float(found.point_estimate[0]), float(found.var[0])
    return float(model.effect(X).mean()), 0.0
