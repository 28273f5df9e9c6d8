"""Small pages of each task, with names that try to break out."""

from dataclasses import replace

import numpy as np

from due.report.answers import ClassRows, EffectRows, ValueRows
from due.report.evidence import About, gather
from due.report.measure import Curve

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}</style>"
N = 120


COLUMNS = {HOSTILE: slice(0, 1), "b": slice(1, 2), "c": slice(2, 4)}
BEYOND = {HOSTILE: np.array([[-9.0], [9.0]])}


def table():
    """Of the columns the first decides, the second has the uncertainty, the third does nothing."""
    return np.random.default_rng(0).normal(size=(N, 4))


def far(X):
    return np.clip(np.abs(X[:, 0]) / 9, 0, 1)


def ask_classes(X):
    p = 1 / (1 + np.exp(-2 * X[:, 0]))
    both = np.column_stack([1 - p, p])
    entropy = -(both * np.log(both.clip(1e-300))).sum(1)
    place = np.arange(len(X)) + 1
    given = {"row": place, "uncertainty": entropy, "ood_score": far(X)}
    return ClassRows(**given, classes=(HOSTILE, "no"), probabilities=both, ood_pvalue=1 - far(X))


def ask_values(X):
    std = 0.5 + np.abs(X[:, 1])
    place, mean = np.arange(len(X)) + 1, 3 * X[:, 0]
    return ValueRows(row=place, uncertainty=std, ood_score=far(X), mean=mean, std=std)


def ask_effects(X):
    std = 0.2 + np.abs(X[:, 1]) / 4
    overlap = np.column_stack([1 - far(X), np.full(len(X), 0.9)])
    return EffectRows(
        row=np.arange(len(X)) + 1,
        uncertainty=std,
        ood_score=far(X),
        effect=X[:, 0],
        std=std,
        overlap=overlap,
        outcomes=np.column_stack([np.zeros(len(X)), X[:, 0]]),
    )


ASK = {"classification": ask_classes, "regression": ask_values, "effect": ask_effects}


def truth(rows):
    rng = np.random.default_rng(1)
    if isinstance(rows, ClassRows):
        p = rows.probabilities[:, 1]
        return replace(rows, truth=(rng.random(len(p)) < p).astype(np.int64))
    if isinstance(rows, ValueRows):
        return replace(rows, truth=rng.normal(rows.mean, rows.std))
    t = rng.integers(2, size=len(rows))
    return replace(rows, treatment=t, truth=rows.outcomes[np.arange(len(rows)), t])


def made(task):
    """Facts and evidence of a small model of a task."""
    X, rival = table(), {}
    rows = truth(ASK[task](X))
    if task != "effect":
        rival = {HOSTILE: Curve(np.array([0.5, 0.8, 1.0]), np.array([0.5, 0.6, 0.7]))}
    evidence = gather(
        *(ASK[task], X, rows, f"rows of {HOSTILE}"),
        columns=COLUMNS,
        beyond=BEYOND,
        rivals=rival,
        cells={name: [f"{HOSTILE}{value}" for value in X[:, 0]] for name in COLUMNS},
    )
    history = {"loss": [3.0, 2.0, 1.5], "validation": [3.1, 2.0, None], "best_epoch": 1}
    about = About(
        *(HOSTILE, task, HOSTILE if task == "effect" else None, f"{HOSTILE}.csv"),
        parts={"train": 500, "test": N},
        columns=list(COLUMNS),
        left_out={HOSTILE: HOSTILE},
        odd=[HOSTILE],
        settings={HOSTILE: HOSTILE, "recipe": {"lr": 0.01}, "epochs": None},
        history=history,
        version="0",
    )
    return about, evidence
