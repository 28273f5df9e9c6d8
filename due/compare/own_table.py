"""A table of the user's as a data set to compare methods on."""

import hashlib
from functools import partial
from pathlib import Path

import numpy as np

from due.compare.tasks import BY_MOVING, DataSet, Task, with_moved_rows
from due.tables.encoder import TableEncoder
from due.tables.fitting import look
from due.tables.reading import read
from due.tables.split import TEST, TRAIN, divide
from due.tables.target import CLASSIFICATION

SHARE = 0.3  # of the rows, to test on


def own_table(path: str, target: str, task: str | None = None) -> DataSet:
    """The table in a file, divided anew for each seed; its test rows moved are far."""
    found = look(read(path), target, None, task)
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    settings = {"file": digest, "target": target, "task": found.target.task}
    load = partial(_load, path, target, found.target.task)
    return DataSet(found.target.task == CLASSIFICATION, BY_MOVING, load, settings)


def _load(path: str, target: str, task: str, seed: int) -> Task:
    table = read(path)
    goal = look(table, target, None, task).target
    rows = table[goal.known(table[target])]
    by = target if task == CLASSIFICATION else None
    parts = divide(rows, {TEST: SHARE}, seed=seed, by=by).parts(rows)
    known, new = parts == TRAIN, parts == TEST
    inputs, y = rows.drop(columns=[target]), goal.read(rows[target])
    encoder = TableEncoder().fit(inputs[known])
    X = encoder.transform(inputs)
    if task == CLASSIFICATION:
        labels = np.unique(y[known])
        y, new = np.searchsorted(labels, y), new & np.isin(y, labels)
    return with_moved_rows(X[known], y[known], X[new], y[new], seed)
