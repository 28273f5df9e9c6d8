"""Seeds: from scikit-learn's `random_state`, and for torch's global draws."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
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
