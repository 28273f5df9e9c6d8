"""Seeds: from scikit-learn's `random_state`, and for torch's global draws; draws of normals."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray
from sklearn.utils import check_random_state

_alone = threading.RLock()  # torch draws weights and dropout from one generator per process


def _unlock_after_fork() -> None:
    global _alone
    _alone = threading.RLock()  # whoever held it is not in this process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_after_fork)


def joint_draws(
    mean: NDArray[np.float64], cov: NDArray[np.float64], n: int, generator: RandomState
) -> NDArray[np.float64]:
    """n draws of N(mean, cov), shape (N, n); cov may be singular."""
    values, vectors = np.linalg.eigh(cov)
    noise = generator.standard_normal((len(mean), n))
    drawn: NDArray[np.float64] = vectors @ (np.sqrt(values.clip(0))[:, None] * noise)
    return mean[:, None] + drawn


@contextmanager
def seeded(random_state: Any) -> Iterator[int]:
    """A seed from what scikit-learn takes as `random_state`; global draws come from it inside.

    Weights are made in float32, whatever torch's default dtype is.
    """
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    with own_randomness(seed), single_precision():
        yield seed


@contextmanager
def own_randomness(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Global draws (weights, dropout) come from `seed` inside, and are untouched outside.

    Threads take turns: what is inside runs in one thread at a time, because torch has one global
    generator. Processes do not wait for one another.
    """
    cuda = device is not None and device.type == "cuda"
    with _alone, torch.random.fork_rng(devices=[device] if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def single_precision() -> Iterator[None]:
    """New tensors are float32 inside, also under `torch.set_default_dtype(torch.float64)`."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def set_random_states(model: Any, generator: RandomState) -> Any:
    """The model, each of whose `random_state`s is a number from the generator."""
    names = [name for name in sorted(model.get_params()) if name.split("__")[-1] == "random_state"]
    return model.set_params(**{name: int(generator.randint(2**31 - 1)) for name in names})
