"""A random forest on the same rows, for comparison: what a few seconds of another method get."""

from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from due.rows.scale import Floats
from due.tables.measure import LEVEL, Json, of_classes, of_values
from due.tables.target import CLASSIFICATION

TREES = 100
LEAF = 0.02  # of a tree's spread: the standard deviation is never quite 0


def forest(task: str, X: Floats, y: Any, X_test: Floats, y_test: Any, seed: int) -> Json:
    """Its metrics on the test rows, under the names of `measure`.

    Uncertain are classes by the entropy of the trees' votes, values by the trees' spread.
    """
    if task == CLASSIFICATION:
        trees = RandomForestClassifier(TREES, random_state=seed).fit(X, y)
        p = trees.predict_proba(X_test)
        place = {label: i for i, label in enumerate(trees.classes_.tolist())}
        codes = np.array([place.get(label, -1) for label in np.asarray(y_test).tolist()])
        entropy = -np.sum(p * np.log(np.maximum(p, 1e-300)), 1)
        return of_classes(p, codes, entropy)
    trees = RandomForestRegressor(TREES, random_state=seed).fit(X, y)
    votes = np.stack([tree.predict(X_test) for tree in trees.estimators_])
    std = np.sqrt(votes.var(0) + (LEAF * np.std(y)) ** 2)
    lower, upper = np.quantile(votes, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return of_values(y_test, votes.mean(0), std, lower, upper)
