"""Fit and predict: all numbers of one method on one task."""

import time
from typing import Any

import numpy as np

from due import metrics
from due.compare.tasks import Task
from due.experiments.journal import Json
from due.rows.scale import Floats

SMALLEST = 1e-12  # floor of probabilities in the NLL, which is infinite at 0
COVERAGE_Z = 1.959964
REPEATS = 3  # of the timed prediction; the fastest counts


def measure(model: Any, task: Task, classes: bool) -> Json:
    """Fit the model and measure it; seconds are CPU time."""
    began = time.process_time()
    model.fit(task.X, task.y)
    fitted = time.process_time() - began
    inside, outside = model.uncertainty(task.X_test), model.uncertainty(task.X_far)
    numbers = of_classes(model, task) if classes else of_values(model, task)
    if hasattr(model, "ood_score"):
        scores = model.ood_score(task.X_test), model.ood_score(task.X_far)
        numbers["ood_auroc"] = metrics.auroc(*scores)
    return numbers | {
        "auroc": metrics.auroc(inside, outside),
        "aupr": metrics.aupr(inside, outside),
        "fpr95": metrics.fpr95(inside, outside),
        "fit_seconds": fitted,
        "predict_seconds": min(_seconds(model, task.X_test) for _ in range(REPEATS)),
    }


def of_classes(model: Any, task: Task) -> Json:
    """Accuracy, NLL and ECE of test rows."""
    probs = model.predict_proba(task.X_test)
    floored = np.maximum(probs, SMALLEST)
    return {
        "accuracy": metrics.accuracy(probs, task.y_test),
        "nll": metrics.nll(floored / floored.sum(1, keepdims=True), task.y_test),
        "ece": metrics.ece(probs, task.y_test),
    }


def of_values(model: Any, task: Task) -> Json:
    """RMSE, NLL and coverage of 95 % intervals of test rows."""
    mean, std = model.predict(task.X_test, return_std=True)
    ends = mean - COVERAGE_Z * std, mean + COVERAGE_Z * std
    nll = metrics.gaussian_nll(task.y_test, mean, std**2)
    if hasattr(model, "log_density"):  # it knows its own distribution
        nll = -float(model.log_density(task.X_test, task.y_test).mean())
        ends = model.predict_interval(task.X_test, alpha=0.05)
    return {
        "rmse": metrics.rmse(task.y_test, mean),
        "nll": nll,
        "coverage": metrics.coverage(task.y_test, *ends),
    }


def _seconds(model: Any, X: Floats) -> float:
    began = time.process_time()
    model.uncertainty(X)
    return max(time.process_time() - began, 1e-6)
