"""What a prediction costs: the head of each single-pass classifier, and the total over a softmax's.

All methods have the same network, 64 → 128 with 4 residual layers, bounded and folded, in float64
as all estimators predict. A head computes class probabilities from its 128 features (DDU also the
density, which is its uncertainty). Weights are those after one epoch on random rows, because only
shapes matter. Short bursts in turns, medians over rounds, one thread.

    python benchmarks/heads.py [--smoke]
"""

import argparse
import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from timing import interleave
from torch import Tensor, nn

from due.baselines import DDUClassifier, DUQClassifier, SNGPClassifier, SoftmaxClassifier
from due.baselines import SVDKLClassifier as SVDKL
from due.estimators import DUEClassifier

CLASSES = (2, 10, 100)
BATCHES = (1, 512)
D, ROWS_PER_CLASS = 64, 10
METHODS: dict[str, Callable[[], Any]] = {
    "softmax": lambda: SoftmaxClassifier(c=0.95, epochs=1, random_state=0),
    "DUE": lambda: DUEClassifier(epochs=1, random_state=0),
    "DUE, mean field": lambda: DUEClassifier(probabilities="mean_field", epochs=1, random_state=0),
    "DUE, 10 inducing points": lambda: DUEClassifier(n_inducing=10, epochs=1, random_state=0),
    "DUQ": lambda: DUQClassifier(c=0.95, epochs=1, random_state=0),
    "SNGP": lambda: SNGPClassifier(epochs=1, random_state=0),
    "SV-DKL": lambda: SVDKL(epochs=1, random_state=0),
    "DDU": lambda: DDUClassifier(epochs=1, random_state=0),
}
Call = Callable[[Tensor], object]
Parts = tuple[nn.Module, Call]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="seconds: same code, tiny settings")
    smoke = parser.parse_args().smoke
    classes, batches = (CLASSES[:1], BATCHES[:1]) if smoke else (CLASSES, BATCHES)
    rounds, burst = (1, 0.0) if smoke else (15, 0.05)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "the fit learned nothing")  # weights do not matter
    print(f"torch {torch.__version__}, 1 thread of {os.cpu_count()}, load {os.getloadavg()[0]:.1f}")
    print("head: µs per row; total: network and head over network and softmax\n")
    columns = [f"{what}, batch {n}" for n in batches for what in ("head", "total")]
    print(f"{'':26}{'classes':>8}" + "".join(f"{column:>18}" for column in columns))
    for T in classes:
        parts = {name: split(build(), T) for name, build in METHODS.items()}
        cells = {n: measure(parts, n, rounds, burst) for n in batches}
        for name in METHODS:
            print(f"{name:26}{T:>8}" + "".join(cells[n][name] for n in batches), flush=True)


def measure(parts: dict[str, Parts], n: int, rounds: int, burst: float) -> dict[str, str]:
    """Cells of each method: µs per row of its head, and its total over the softmax's."""
    x = torch.as_tensor(np.random.default_rng(1).normal(size=(n, D)))
    calls: dict[str, Callable[[], object]] = {}
    for name, (f, head) in parts.items():
        calls[f"head {name}"] = partial(head, f(x))
        calls[f"total {name}"] = partial(both, f, head, x)
    with torch.no_grad():
        times = interleave(calls, rounds, burst)
    return {
        name: f"{1e6 * times.of(f'head {name}') / n:18.1f}"
        f"{times.ratio(f'total {name}', 'total softmax'):17.1f}×"
        for name in METHODS
    }


def both(f: nn.Module, head: Call, x: Tensor) -> object:
    return head(f(x))


def split(estimator: Any, T: int) -> Parts:
    """The network of a fitted estimator of T classes, and what follows it."""
    X = np.random.default_rng(0).normal(size=(ROWS_PER_CLASS * T, D))
    estimator.fit(X, np.arange(len(X)) % T)
    model = estimator.predictor_.model
    if isinstance(estimator, DDUClassifier):
        return model.f, lambda h: (model.probabilities(h), model.foreign(h))
    return model.f, model.probabilities


if __name__ == "__main__":
    main()
