"""UCI regression sets with their 20 standard splits.

Files are read from DUE_DATA/uci/<name>.npz: x (N, D), y (N,), test_idx (splits, N_test); the
training rows of a split are the rest.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from due.data.download import damaged, find

NAMES = ("bostonHousing", "concrete", "energy", "power-plant", "wine-quality-red", "yacht")


class UCI(NamedTuple):
    """One split, in the units of the file."""

    X_train: Float[ndarray, "N D"]
    y_train: Float[ndarray, "N"]
    X_test: Float[ndarray, "N_test D"]
    y_test: Float[ndarray, "N_test"]


def load(name: str, split: int = 0) -> UCI:
    """Split number `split` of the set `name`, one of `NAMES`."""
    if name not in NAMES:
        raise ValueError(f"unknown UCI set {name!r}; the names are {', '.join(NAMES)}")
    path = find(f"uci/{name}.npz")
    if path is None:
        raise FileNotFoundError(
            f"uci/{name}.npz was not found and cannot be downloaded: set the environment "
            f"variable DUE_DATA to a folder that contains it"
        )
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            x, y, test_idx = file["x"], file["y"], file["test_idx"]
    except Exception as error:  # numpy raises many kinds for a damaged file
        raise damaged(path, error) from error
    if not 0 <= split < len(test_idx):
        raise ValueError(f"{name} has splits 0 to {len(test_idx) - 1}, got {split}")
    test = test_idx[split]
    train = np.setdiff1d(np.arange(len(x)), test)
    return UCI(x[train], y[train], x[test], y[test])
