"""Which columns make a row foreign.

A column's part is the mean of two changes of the OOD score: what is lost when its cell becomes an
ordinary one, and what an ordinary row gains by the cell. These are the first and the last term of
the column's Shapley value.
"""

from typing import Any

import numpy as np

from due.rows.scale import Floats

NAMED = 3  # columns at most
SHARE = 0.2  # of the largest part, for a column to be named


def reasons(model: Any, frame: Any, X: Floats) -> list[str]:
    """The columns that make each row foreign, the most important first."""
    if not len(X):
        return []
    columns = model.encoder.columns_
    parts = contributions(model, X)
    strange = np.column_stack([column.strange(frame[column.name]) for column in columns])
    texts = []
    for row, odd in zip(parts, strange, strict=True):
        order = np.argsort(-(row + odd), kind="stable")[:NAMED]  # an unknown word comes first
        most = max(row.max(), 1e-12)
        named = [j for j in order if odd[j] or row[j] >= max(SHARE * most, 1e-6)]
        words = [
            f"{columns[j].name} ({columns[j].strangeness})" if odd[j] else columns[j].name
            for j in named
        ]
        texts.append("; ".join(words) or "the combination of columns")
    return texts


def contributions(model: Any, X: Floats) -> Floats:
    """Each column's part in the OOD score of each row, (N, number of columns)."""
    typical, slices = model.encoder.typical(), model.encoder.slices()
    whole, ordinary = model.ood_scores(X), model.ood_scores(typical[None])[0]
    parts = np.zeros((len(X), len(slices)))
    for j, place in enumerate(slices):
        without, alone = X.copy(), np.repeat(typical[None], len(X), 0)
        without[:, place], alone[:, place] = typical[place], X[:, place]
        lost, gained = whole - model.ood_scores(without), model.ood_scores(alone) - ordinary
        parts[:, j] = (lost + gained) / 2
    return parts
