"""Seeds: from scikit-learn's `random_state`, and for torch's global draws."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy.random import RandomState
from sklearn.utils import check_random_state


@contextmanager
def seeded(random_state: Any) -> Iterator[int]:
    """A seed from what scikit-learn takes as `random_state`; global draws come from it inside."""
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    with own_randomness(seed):
        yield seed


@contextmanager
def own_randomness(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Global draws (weights, dropout) come from `seed` inside, and are untouched outside."""
    cuda = device is not None and device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def set_random_states(model: Any, generator: RandomState) -> Any:
    """The model, each of whose `random_state`s is a number from the generator."""
    names = [name for name in sorted(model.get_params()) if name.split("__")[-1] == "random_state"]
    return model.set_params(**{name: int(generator.randint(2**31 - 1)) for name in names})
