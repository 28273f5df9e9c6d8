"""What an estimator says of encoded rows, under one set of names for each task."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from due.rows.scale import Floats
from due.tables.target import CLASSIFICATION, EFFECT

Answers = dict[str, NDArray[Any]]


def ask(estimator: Any, task: str, X: Floats) -> Answers:
    """Named arrays, one value per row.

    Classes: `prediction`, `probabilities` (N, T), `uncertainty` (entropy in nats). Values:
    `prediction`, `uncertainty` (standard deviation of a new observation). Effects: `prediction`
    (the effect), `uncertainty` (its standard deviation), `outcomes` (N, 2), `overlap` (N, 2). All
    have `ood_score`.
    """
    if task == EFFECT:
        return _effects(estimator, X)
    score = estimator.ood_score if hasattr(estimator, "ood_score") else estimator.uncertainty
    if task == CLASSIFICATION:
        p = estimator.predict_proba(X)
        entropy = -np.sum(p * np.log(np.maximum(p, 1e-300)), 1)
        labels = estimator.classes_[p.argmax(1)]
        return _named(prediction=labels, probabilities=p, uncertainty=entropy, ood_score=score(X))
    mean, std = estimator.predict(X, return_std=True)
    return _named(prediction=mean, uncertainty=std, ood_score=score(X))


def log_density(estimator: Any, X: Floats, y: Floats) -> Floats | None:
    """log p(y | x) of each row, if the estimator knows its own distribution."""
    return np.asarray(estimator.log_density(X, y)) if hasattr(estimator, "log_density") else None


def ood_scores(estimator: Any, task: str, X: Floats) -> Floats:
    """How foreign each row is, and nothing else."""
    if task == EFFECT and not hasattr(estimator, "ood_score"):
        return 1 - _overlap(estimator, X).min(1)
    score = estimator.ood_score if hasattr(estimator, "ood_score") else estimator.uncertainty
    return np.asarray(score(X))


def _effects(estimator: Any, X: Floats) -> Answers:
    found = estimator.effect_inference(X)
    overlap = _overlap(estimator, X)
    return _named(
        prediction=found.point_estimate,
        uncertainty=found.stderr,
        outcomes=estimator.potential_outcomes(X),
        overlap=overlap,
        ood_score=estimator.ood_score(X) if hasattr(estimator, "ood_score") else 1 - overlap.min(1),
    )


def _overlap(estimator: Any, X: Floats) -> Floats:
    if not hasattr(estimator, "overlap"):
        return np.full((len(X), 2), np.nan)
    with warnings.catch_warnings():  # the rows it warns of have a low overlap in their own columns
        warnings.simplefilter("ignore", UserWarning)
        return np.asarray(estimator.overlap(X))


def _named(**arrays: Any) -> Answers:
    return {name: np.asarray(array) for name, array in arrays.items()}
