"""DUEClassifier with its defaults on ten sets: accuracy, NLL, ECE, time; before, and beside rivals.

"before" is the default of earlier versions: a kernel per class, 100 inducing points, 10 random
samples in the loss, no column scales, all rows trained on. "10 draws" is the present default with
such samples. Seeds 0 to 2 chose the defaults, so the seeds here begin at 10. Then what p-values do
on new rows and on unseen classes, and what DUE costs over a softmax. LightGBM comes with
`pip install 'due[benchmarks]'`.

    python benchmarks/classifiers.py [--seeds 3] [--smoke]

Each fit is written to results/classifiers.jsonl: the same command continues.
"""

import argparse
import gzip
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import util
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.ensemble import IsolationForest, RandomForestClassifier
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NearestNeighbors
from timing import interleave

from due import DUEClassifier, DUERegressor
from due.baselines import DDUClassifier, SNGPClassifier, SoftmaxClassifier
from due.data import uci
from due.data.download import find
from due.experiments.journal import Journal
from due.metrics import accuracy, ece, nll

FIRST = 10  # seed
LEVELS = (0.01, 0.05, 0.1)
COLUMNS = {"accuracy": 9, "nll": 8, "ece": 8, "said": 8}


class Split(NamedTuple):
    """Rows to learn from, and new ones."""

    X: NDArray[Any]
    y: NDArray[Any]
    X_new: NDArray[Any]
    y_new: NDArray[Any]


def blobs(seed: int) -> Split:
    X, y = datasets.make_blobs(
        6000, 5, centers=26, center_box=(-4, 4), cluster_std=1.25, random_state=seed
    )
    return Split(X[:2000], y[:2000], X[2000:], y[2000:])


def columns(seed: int) -> Split:
    X, y = datasets.make_classification(
        6000, 200, n_informative=4, n_redundant=0, n_clusters_per_class=2, random_state=seed
    )
    return Split(X[:1000], y[:1000], X[1000:], y[1000:])


def rings(seed: int) -> Split:
    X, y = datasets.make_gaussian_quantiles(
        n_samples=4000, n_features=4, n_classes=4, random_state=seed
    )
    return Split(X[:1000], y[:1000], X[1000:], y[1000:])


def moons(noise: float, n: int) -> Callable[[int], Split]:
    def make(seed: int) -> Split:
        X, y = datasets.make_moons(n + 2000, noise=noise, random_state=seed)
        return Split(X[:n], y[:n], X[n:], y[n:])

    return make


def bundled(load: Callable[..., Any]) -> Callable[[int], Split]:
    def make(seed: int) -> Split:
        X, y = load(return_X_y=True)
        a, b, c, d = train_test_split(X, y, test_size=0.4, random_state=seed, stratify=y)
        return Split(a, c, b, d)

    return make


def clothes(seed: int) -> Split:
    """Fashion-MNIST at 14 × 14, 2,000 images to learn from."""
    parts = []
    for name, header in (("images-idx3", 16), ("labels-idx1", 8)):
        path = find(f"fashion-mnist/train-{name}-ubyte.gz")
        assert path is not None
        parts.append(np.frombuffer(gzip.decompress(path.read_bytes())[header:], np.uint8))
    X = parts[0].reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196)
    rows = np.random.default_rng(seed).permutation(len(X))[:6000]
    X, y = X[rows], parts[1][rows]
    return Split(X[:2000], y[:2000], X[2000:], y[2000:])


SETS: dict[str, Callable[[int], Split]] = {
    "iris": bundled(datasets.load_iris),
    "wine": bundled(datasets.load_wine),
    "cancer": bundled(datasets.load_breast_cancer),
    "digits": bundled(datasets.load_digits),
    "moons": moons(0.1, 1000),
    "noisy moons": moons(0.3, 500),
    "rings": rings,
    "26 blobs": blobs,
    "200 columns": columns,
    "clothes 14 × 14": clothes,
}
BEFORE: dict[str, Any] = {
    "n_inducing": 100,
    "shared_kernel": False,
    "column_scales": False,
    "samples": 10,
    "calibration_fraction": 0.0,
}


def boosted(seed: int) -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(random_state=seed, n_jobs=1, verbose=-1)


METHODS: dict[str, Callable[[int], Any]] = {
    "DUE": lambda seed: DUEClassifier(random_state=seed),
    "10 draws": lambda seed: DUEClassifier(random_state=seed, samples=10),
    "before": lambda seed: DUEClassifier(random_state=seed, **BEFORE),
    "softmax": lambda seed: SoftmaxClassifier(random_state=seed),
    "SNGP": lambda seed: SNGPClassifier(random_state=seed),
    "DDU": lambda seed: DDUClassifier(random_state=seed),
    "forest": lambda seed: RandomForestClassifier(300, random_state=seed),
    "LightGBM": boosted,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--smoke", action="store_true", help="seconds: iris, one seed, no file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.smoke:
        with TemporaryDirectory() as folder:
            make(Path(folder), ["iris"], 1, rounds=1)
        return
    known = [name for name in SETS if name != "clothes 14 × 14" or has_clothes()]
    make(options.out, known, options.seeds, rounds=5)


def has_clothes() -> bool:
    return find("fashion-mnist/train-images-idx3-ubyte.gz") is not None


def make(out: Path, names: list[str], seeds: int, rounds: int) -> None:
    """Fit what is missing, print the tables, and write them."""
    journal = Journal(out / "classifiers.jsonl", ("set", "method", "seed"), ("numbers",))
    methods = [m for m in METHODS if m != "LightGBM" or util.find_spec("lightgbm")]
    lines = []
    for name in names:
        found = {m: [measured(journal, name, m, FIRST + i) for i in range(seeds)] for m in methods}
        lines += list(rows(name, found))
        print("\n".join(lines[-len(methods) :]), flush=True)
    head = f"{'':16}{'':10}{'accuracy':>9}{'NLL':>8}{'ECE':>8}{'said':>8}{'seconds':>9}"
    parts = [[head, *lines], list(p_values(seeds, quick=rounds == 1)), list(costs(rounds))]
    text = "\n\n".join("\n".join(part) for part in parts) + "\n"
    print("\n" + "\n\n".join("\n".join(part) for part in parts[1:]))
    (out / "classifiers.txt").write_text(text, encoding="utf-8")


def measured(journal: Journal, name: str, method: str, seed: int) -> dict[str, float]:
    settings = {"model": " ".join(repr(METHODS[method](0)).split())}
    line = journal.find(settings, set=name, method=method, seed=seed)
    if line is None:
        numbers = fit_and_measure(SETS[name](seed), METHODS[method](seed))
        line = journal.add(settings, {"numbers": numbers}, set=name, method=method, seed=seed)
    numbers = line["numbers"]
    return numbers


def fit_and_measure(data: Split, model: Any) -> dict[str, float]:
    began = time.perf_counter()
    model.fit(data.X, data.y)
    seconds = time.perf_counter() - began
    p, codes = model.predict_proba(data.X_new), np.searchsorted(model.classes_, data.y_new)
    p = p.clip(1e-12)
    return {
        "accuracy": accuracy(p, codes),
        "nll": nll(p, codes),
        "ece": ece(p, codes, n_bins=15),
        "said": float(p.max(1).mean()),
        "seconds": seconds,
    }


def rows(name: str, found: dict[str, list[dict[str, float]]]) -> Iterator[str]:
    for method, numbers in found.items():
        mean = {key: np.mean([each[key] for each in numbers]) for key in numbers[0]}
        cells = (
            f"{mean['accuracy']:>9.3f}{mean['nll']:>8.3f}{mean['ece']:>8.3f}{mean['said']:>8.3f}"
        )
        yield f"{name:16}{method:10}{cells}{mean['seconds']:>9.1f}"


def p_values(seeds: int, quick: bool) -> Iterator[str]:
    """Share of rows flagged at each level: new rows like those of training, and unseen classes."""
    yield f"{'flagged at p ≤':26}" + "".join(f"{level:>9g}" for level in LEVELS)
    X, y = datasets.load_digits(return_X_y=True)
    seen, unseen = np.flatnonzero(y < 5), np.flatnonzero(y >= 5)
    budget: dict[str, Any] = {"epochs": 2} if quick else {}
    alarms: dict[str, list[list[float]]] = {}
    for seed in range(FIRST, FIRST + (1 if quick else 2 * seeds)):
        known, new = train_test_split(seen, test_size=0.33, random_state=seed)
        model = DUEClassifier(random_state=seed, **budget).fit(X[known], y[known])
        for name, picked in (("digits 0–4, new", new), ("digits 5–9, unseen", unseen)):
            alarms.setdefault(name, []).append(flags(model.ood_pvalue(X[picked])))
        for name, found in rival_scores(X[known], X[new], X[unseen], seed).items():
            alarms.setdefault(name, []).append(found)
        data = moons(0.1, 1000)(seed)
        model = DUEClassifier(random_state=seed, **budget).fit(data.X, data.y)
        alarms.setdefault("moons, new", []).append(flags(model.ood_pvalue(data.X_new)))
        for name in ("concrete", "power-plant"):
            if find(f"uci/{name}.npz") is not None:
                rows = uci.load(name, seed - FIRST)
                values = DUERegressor(random_state=seed, **budget).fit(rows.X_train, rows.y_train)
                flagged = flags(values.ood_pvalue(rows.X_test))
                alarms.setdefault(f"{name} (values), new", []).append(flagged)
    for name, each in alarms.items():
        yield f"{name:26}" + "".join(f"{value:>9.3f}" for value in np.mean(each, 0))


def flags(p: NDArray[Any]) -> list[float]:
    return [float((p <= level).mean()) for level in LEVELS]


def rival_scores(
    X: NDArray[Any], new: NDArray[Any], unseen: NDArray[Any], seed: int
) -> dict[str, list[float]]:
    """Unseen classes found by other scores at thresholds that flag as many new rows."""
    near = NearestNeighbors(n_neighbors=5).fit(X)
    forest = IsolationForest(random_state=seed).fit(X)
    kinds: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
        "  nearest neighbours": lambda rows: near.kneighbors(rows)[0].mean(1),
        "  isolation forest": lambda rows: -forest.score_samples(rows),
    }
    return {
        name: [float((f(unseen) >= np.quantile(f(new), 1 - level)).mean()) for level in LEVELS]
        for name, f in kinds.items()
    }


def costs(rounds: int) -> Iterator[str]:
    """Fit and `uncertainty` over those of a softmax on the same network, without a bound."""
    X, y = datasets.load_digits(return_X_y=True)
    models = {
        "DUE": DUEClassifier(random_state=0, epochs=5),
        "softmax": SoftmaxClassifier(random_state=0, epochs=5),
        "DDU": DDUClassifier(random_state=0, epochs=5),
    }
    fits = {name: partial(model.fit, X, y) for name, model in models.items()}
    fitted = interleave(fits, rounds, burst=0.0, warm=1)
    asks = {name: partial(model.uncertainty, X) for name, model in models.items()}
    asked = interleave(asks, rounds)
    yield "digits, over the softmax      fit  uncertainty"
    for name in ("DUE", "DDU"):
        yield f"{name:26}{fitted.ratio(name, 'softmax'):>7.1f}{asked.ratio(name, 'softmax'):>13.1f}"


if __name__ == "__main__":
    main()
