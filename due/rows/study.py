"""People with covariates, treatments and outcomes."""

from typing import NamedTuple

import numpy as np

from due.rows.scale import Floats
from due.rows.source import CANONICAL_ROWS, split


class Study(NamedTuple):
    """People: covariates X (N, D), treatments t (N,) of 0 and 1, outcomes y (N,)."""

    X: Floats
    t: Floats
    y: Floats

    def join(self, other: "Study | None") -> "Study":
        """These people, then the others."""
        if other is None:
            return self
        return Study(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))

    def in_order(self) -> "Study":
        """Sorted, so that nothing depends on the order in which people come."""
        if len(self.y) > CANONICAL_ROWS:  # where sorting costs more than it gives
            return self
        order = np.lexsort((self.y, self.t, *self.X.T[::-1]))
        return Study(*(part[order] for part in self))

    def hold_out(self, fraction: float, seed: int) -> "tuple[Study, Study]":
        """People to learn from and people to choose the epoch on, with equal shares of each arm."""
        kept, held = (rows.numpy() for rows in split(len(self.y), fraction, self.t, seed))
        return Study(*(part[kept] for part in self)), Study(*(part[held] for part in self))
