"""Metrics of a model of a table on rows whose target is known, as plain JSON."""

from typing import Any

import numpy as np

from due import metrics
from due.rows.scale import Floats
from due.tables.answers import log_density
from due.tables.target import CLASSIFICATION, EFFECT

Json = dict[str, Any]
DEFERRED = (0, 10, 20, 50)  # percent
LEVEL = 0.95
SMALLEST = 1e-12  # floor of probabilities in the NLL, which is infinite at 0


def measure(model: Any, frame: Any) -> Json:
    """All that `due evaluate` prints; needs the target (and of effects the treatment) column."""
    target = model.target
    known = target.known(frame[target.name])
    rows = frame[known]
    if not len(rows):
        raise ValueError(f"no row has a value in the target {target.name!r}: nothing to measure")
    found = {"task": model.task, "rows": len(rows), "left_out": int((~known).sum())}
    if model.task == CLASSIFICATION:
        return found | _classes(model, rows)
    if model.task == EFFECT:
        return found | _effects(model, rows)
    return found | _values(model, rows)


def deferral(loss: Floats, uncertainty: Floats, root: bool) -> dict[str, float]:
    """Mean loss (its root for squares) of the rows kept when the most uncertain are deferred."""
    risk = metrics.risk_coverage(loss, uncertainty).risk
    kept = [max(1, len(loss) - len(loss) * percent // 100) for percent in DEFERRED]
    values = [float(risk[k - 1]) for k in kept]
    return {
        str(percent): value**0.5 if root else value
        for percent, value in zip(DEFERRED, values, strict=True)
    }


def of_classes(p: Floats, codes: Any, uncertainty: Floats) -> Json:
    """Accuracy, NLL, Brier score, calibration error and error under deferral.

    A code of −1 is a label that training did not have: always an error, and in no other number.
    """
    old = codes >= 0
    wrong = np.where(old, p.argmax(1) != codes, True).astype(float)
    floored = np.maximum(p[old], SMALLEST)
    floored /= floored.sum(1, keepdims=True)
    of_old: Json = {"nll": None, "brier": None, "ece": None}
    if old.any():
        of_old = {
            "nll": metrics.nll(floored, codes[old]),
            "brier": metrics.brier(floored, codes[old]),
            "ece": metrics.ece(floored, codes[old]),
        }
    return {
        "accuracy": float(1 - wrong.mean()),
        **of_old,
        "new_labels": int((~old).sum()),
        "error_after_deferral": deferral(wrong, uncertainty, root=False),
    }


def of_values(
    y: Floats,
    mean: Floats,
    std: Floats,
    lower: Floats,
    upper: Floats,
    density: Floats | None = None,
) -> Json:
    """RMSE, NLL, CRPS, coverage and width of intervals, and RMSE under deferral.

    Without log p(y), its `density`, a prediction is taken for normal; for the CRPS it always is.
    """
    nll = metrics.gaussian_nll(y, mean, std**2) if density is None else -float(density.mean())
    return {
        "rmse": metrics.rmse(y, mean),
        "mae": float(np.abs(y - mean).mean()),
        "r2": float(1 - np.mean((y - mean) ** 2) / max(float(np.var(y)), 1e-300)),
        "nll": nll,
        "crps": metrics.crps_gaussian(y, mean, std**2),
        "coverage": metrics.coverage(y, lower, upper),
        "level": LEVEL,
        "interval_width": float(np.mean(upper - lower)),
        "rmse_after_deferral": deferral((y - mean) ** 2, std, root=True),
    }


def _classes(model: Any, rows: Any) -> Json:
    found = model.answers(rows)
    labels = model.target.labels(rows[model.target.name])
    place = {label: i for i, label in enumerate(model.classes.tolist())}
    codes = np.array([place.get(label, -1) for label in labels.tolist()])
    return {
        **of_classes(found["probabilities"], codes, found["uncertainty"]),
        "majority": float(np.bincount(codes[codes >= 0]).max() / len(codes))
        if (codes >= 0).any()
        else 0.0,
        "foreign": _foreign(found),
    }


def _values(model: Any, rows: Any) -> Json:
    X, y = model.encode(rows), model.target.values(rows[model.target.name])
    found, density = model.answers_to(X), log_density(model.estimator, X, y)
    mean, std = found["prediction"], found["uncertainty"]
    half = model.calibration.width(1 - LEVEL) * std
    return {
        **of_values(y, mean, std, mean - half, mean + half, density),
        "foreign": _foreign(found),
    }


def _effects(model: Any, rows: Any) -> Json:
    """Of effects only the outcome of the arm a person was in is observed."""
    t = model.treatment.arms(rows[model.treatment.name])
    known = np.isfinite(t)
    rows, t = rows[known], t[known].astype(int)
    found = model.answers(rows)
    y = model.target.values(rows[model.target.name])
    factual = found["outcomes"][np.arange(len(y)), t]
    return {
        "rmse_of_outcomes": metrics.rmse(y, factual),
        "average_effect": float(found["prediction"].mean()),
        "treated": int(t.sum()),
        "foreign": _foreign(found),
    }


def _foreign(found: Any) -> float:
    return float(np.mean(found["ood_pvalue"] <= 0.05))
