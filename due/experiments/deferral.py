"""Deferral: leave some people to an expert, and take the RMSE of τ̂ over the others.

An *order* lists people from the first to be decided to the first to be deferred.
"""

import numpy as np
from numpy.typing import NDArray

from due.rows.scale import Floats

Order = NDArray[np.intp]
ONE_IN = {"ihdp": 10, "ihdp-cov": 2}  # Table 3 defers one person in so many
PERCENT = tuple(range(0, 100, 5))  # deferred along a curve


def certain_first(var: Floats) -> Order:
    """The smallest variance first; equal ones stay in their order."""
    return np.argsort(var, kind="stable")


def at_random(n: int, seed: int) -> Order:
    """A random order that depends on seed and n only: the same for all methods."""
    return np.random.default_rng((seed, n)).permutation(n)


def oracle(tau_hat: Floats, tau: Floats) -> Order:
    """The smallest error first: no order does better."""
    return np.argsort(np.abs(tau_hat - tau), kind="stable")


def keep(order: Order, one_in: int) -> Order:
    """All but ⌊n / one_in⌋ of the people."""
    return order[: len(order) - len(order) // one_in]


def rmse(tau_hat: Floats, tau: Floats) -> float:
    """√ mean (τ̂ − τ)²."""
    return float(np.sqrt(np.mean((tau_hat - tau) ** 2)))


def curve(tau_hat: Floats, tau: Floats, order: Order) -> Floats:
    """RMSE where p % of the people are deferred, for each p of `PERCENT`."""
    squares = np.cumsum((tau_hat - tau)[order] ** 2)
    kept = np.array([len(order) - len(order) * p // 100 for p in PERCENT])
    return np.asarray(np.sqrt(squares[kept - 1] / kept))


def covered(tau_hat: Floats, var: Floats, tau: Floats) -> NDArray[np.bool_]:
    """Whether each 95 % interval τ̂ ± 1.96 sd contains τ."""
    return np.abs(tau_hat - tau) <= 1.96 * np.sqrt(var)
