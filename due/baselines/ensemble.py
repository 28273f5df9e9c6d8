"""Deep ensemble (Lakshminarayanan et al., 2017): n models that differ by their seed alone."""

from dataclasses import field
from typing import Any

from joblib import Parallel, delayed
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.utils import check_random_state

from due.baselines.mixture import Ask, Mixture, MixtureClassifier, MixtureEffects, MixtureRegressor
from due.estimators.effects import EffectEstimator
from due.estimators.network import estimator
from due.rows.checks import argument, check_whole
from due.rows.randomness import set_random_states
from due.storage.estimator import Found, Memory, Tensors, part, prefixed, restore


@estimator
class Ensemble(Mixture):
    """Abstract: n clones of `estimator`, each with its own seed."""

    estimator: Any = field(kw_only=False)
    n: int = argument(5, check_whole, kw_only=False)
    n_jobs: int | None = None
    random_state: Any = None
    _fitted = "estimators_"

    def _learn(self, fit: Ask) -> None:
        generator = check_random_state(self.random_state)
        members = [set_random_states(clone(self.estimator), generator) for _ in range(self.n)]
        self.estimators_ = list(Parallel(self.n_jobs)(delayed(fit)(member) for member in members))

    def _each(self, ask: Ask) -> list[Any]:
        return [ask(member) for member in self.estimators_]

    def _memory(self) -> Memory:
        configs, tensors = list[dict[str, Any]](), Tensors()
        for i, member in enumerate(self.estimators_):
            config, state = member._state()
            configs.append(config)
            tensors |= prefixed(str(i), state)
        return Memory({}, {"members": configs}, tensors)

    def _recall(self, found: Found) -> None:
        self.estimators_ = [
            restore(found._replace(config=config, tensors=part(str(i), found.tensors)))
            for i, config in enumerate(found.config["members"])
        ]
        self._recall_columns(found.config["estimator"]["feature_names"])

    @property
    def _one(self) -> Any:
        return self.estimators_[0]


class EnsembleClassifier(Ensemble, MixtureClassifier):
    """`DeepEnsemble` of a classifier."""


class EnsembleRegressor(Ensemble, MixtureRegressor):
    """`DeepEnsemble` of a regressor."""


class EnsembleEffects(Ensemble, MixtureEffects):
    """`DeepEnsemble` of an estimator of treatment effects."""


def DeepEnsemble(
    estimator: Any, n: int = 5, *, n_jobs: int | None = None, random_state: Any = None
) -> EnsembleClassifier | EnsembleRegressor | EnsembleEffects:
    """n clones of any of our estimators, which answer together.

    A classifier's `predict_proba` is the mean of its members', and `uncertainty` the entropy of
    that mean. A regressor's `predict(X, return_std=True)` gives mean and standard deviation of
    the mixture, and `uncertainty` the part of the variance that is not noise. Treatment effects
    are draws, one per member: their mean is the effect, their variance its uncertainty, plus the
    mean of what members are themselves unsure of, if they say so.

    Parameters
    ----------
    estimator
        A classifier, a regressor or an estimator of treatment effects; it stays as it is.
    n
        Number of members.
    n_jobs
        Members fitted at the same time, as in scikit-learn; the result does not depend on it.
    random_state
        Where the members' seeds come from, whatever `random_state` the estimator has.

    Returns
    -------
    An `EnsembleClassifier`, `EnsembleRegressor` or `EnsembleEffects`, not yet fitted; once it is,
    its members are in `estimators_`. It has `save`, if its members have, and the class has `load`.

    Examples
    --------
    >>> from due.baselines import SoftmaxClassifier
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = DeepEnsemble(SoftmaxClassifier(epochs=10), n=2, random_state=0).fit(X, y)
    >>> model.predict_proba(X).shape, len(model.estimators_)
    ((200, 2), 2)
    """
    kind = kind_of(estimator, EnsembleClassifier, EnsembleRegressor, EnsembleEffects)
    return kind(estimator, n, n_jobs=n_jobs, random_state=random_state)


def kind_of(estimator: Any, classifier: Any, regressor: Any, effects: Any) -> Any:
    """The one of three classes that wraps such an estimator."""
    if isinstance(estimator, EffectEstimator):
        return effects
    if is_classifier(estimator):
        return classifier
    if is_regressor(estimator):
        return regressor
    raise TypeError(
        f"{estimator!r} is no classifier, no regressor and no estimator of treatment effects: "
        "give one of them, such as DUEClassifier()"
    )
