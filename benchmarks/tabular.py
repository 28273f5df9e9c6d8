"""DUE with its defaults on tables, against the methods one would try first.

1. scikit-learn's own sets, 5 folds: logistic or ridge regression on scaled inputs, random forest.
   DUE may trail the better of the two by 1 point of accuracy (2 under 500 rows) or 3 % of RMSE.
2. Digits with classes 5 to 9 held out, 5 seeds: AUROC of seen against unseen classes.
3. Six UCI sets (DUE_DATA must hold them), the first of their 20 standard splits: RMSE, NLL and
   coverage of 90 % intervals, against a random forest, an exact GP and a plain network.

Nothing is tuned on these sets. Each finished fit is a line of OUT/tabular.jsonl: the same command
continues where it was stopped, and says how many lines of DUE were computed by other sources than
the present ones. The table is printed, and written to OUT/tabular.txt.

    DUE_DATA=.data python benchmarks/tabular.py [--out results] [--quick | --smoke] [--splits 5]
"""

import argparse
import json
import os
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import due
from due import DUEClassifier, DUERegressor
from due.data import uci
from due.experiments.journal import read_lines
from due.gp import Gaussian
from due.methods.method import Plain, weighted_mean
from due.metrics import accuracy, auroc, coverage, ece, entropy, gaussian_nll, rmse
from due.networks import FCResNet
from due.rows import Floats, Table
from due.rows.scale import fit_scale
from due.rows.source import split
from due.training import Recipe, fit

Line = dict[str, Any]
CLASSES = {
    "breast cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "iris": datasets.load_iris,
    "digits": datasets.load_digits,
}
LINEAR = {"classes": "logistic", "values": "ridge"}
GP_ROWS = 2000


class Size(NamedTuple):
    """What is fitted, and how long; None leaves the epochs of DUE to its default."""

    classes: tuple[str, ...] = tuple(CLASSES)
    folds: int = 5
    uci: tuple[str, ...] = tuple(uci.NAMES)
    splits: int = 5
    epochs: int | None = None
    trees: int = 500
    steps: int = 4000
    gp_rows: int = GP_ROWS


QUICK = Size(("iris", "wine"), folds=1, uci=("yacht",), splits=1)
SMOKE = Size(("iris",), 1, ("yacht",), 1, epochs=1, trees=30, steps=4, gp_rows=20)


class Prediction(NamedTuple):
    """Mean and standard deviation of a new observation, noise included; normal if no more is given.

    `log_density` is a function of the observations, `interval` that of 90 %.
    """

    mean: Floats
    std: Floats
    log_density: Callable[[Floats], Floats] | None = None
    interval: tuple[Floats, Floats] | None = None

    def nll(self, y: Floats) -> float:
        """Mean of −log p(y)."""
        if self.log_density is None:
            return gaussian_nll(y, self.mean, self.std**2)
        return -float(self.log_density(y).mean())

    def ends(self) -> tuple[Floats, Floats]:
        """Of the 90 % interval."""
        half = norm.ppf(0.95) * self.std
        return self.interval or (self.mean - half, self.mean + half)


class Task(NamedTuple):
    """One fit; its numbers go under this name."""

    part: str
    set: str
    model: str
    fold: int
    run: Callable[[], dict[str, float]]

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from all others."""
        return self[:4]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--quick", action="store_true", help="small sets, 1 fold, split and seed")
    parser.add_argument(
        "--smoke", action="store_true", help="seconds: same code, tiny settings; nothing is written"
    )
    parser.add_argument(
        "--splits", type=int, default=5, help="how many of UCI's 20 standard splits"
    )
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.smoke:
        with TemporaryDirectory() as folder:
            make(SMOKE, Path(folder) / "tabular.jsonl")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if options.quick:
        make(QUICK, options.out / "tabular.quick.jsonl")
    else:
        make(Size(splits=options.splits), options.out / "tabular.jsonl")


def make(size: Size, journal: Path) -> None:
    """Fit what is missing in the journal; print the tables and write them beside it."""
    lines = run(list(all_tasks(size)), journal)
    parts = [benchmarks(lines), unseen(lines), uci_table(lines), *stale(lines)]
    text = "\n\n".join(parts) + "\n"
    journal.with_suffix(".txt").write_text(text, encoding="utf-8")
    print(text)


def run(tasks: list[Task], journal: Path) -> list[Line]:
    """The lines of all tasks; those missing in the journal are computed."""
    done = {key(line): line for line in read_lines(journal)}  # packed ones too
    for i, task in enumerate(tasks):
        if task.key in done:
            continue
        print(f"{i + 1} of {len(tasks)}: {' / '.join(map(str, task.key))}", flush=True)
        began = time.perf_counter()
        numbers = task.run()
        seconds = round(time.perf_counter() - began, 2)
        name = dict(zip(Task._fields[:4], task.key, strict=True))
        done[task.key] = {**name, **numbers, "seconds": seconds, "sources": SOURCES}
        with journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(done[task.key]) + "\n")
    return [done[task.key] for task in tasks]


def checksum_of_sources() -> str:
    files = sorted(Path(due.__file__).parent.glob("**/*.py"))
    return f"{zlib.crc32(b''.join(file.read_bytes() for file in files)):08x}"


def key(line: Line) -> tuple[Any, ...]:
    return tuple(line[name] for name in Task._fields[:4])


def all_tasks(size: Size) -> Iterator[Task]:
    for name in size.classes:
        X, y = CLASSES[name](return_X_y=True)
        for model in ("DUE", "logistic", "forest"):
            for fold in range(size.folds):
                yield Task("classes", name, model, fold, partial(classify, model, X, y, fold, size))
    X, y = datasets.load_diabetes(return_X_y=True)
    for model in ("DUE", "ridge", "forest"):
        for fold in range(size.folds):
            yield Task("values", "diabetes", model, fold, partial(regress, model, X, y, fold, size))
    for model in ("DUE", "forest"):
        for seed in range(size.folds):
            yield Task("unseen", "digits", model, seed, partial(detect, model, seed, size))
    if "DUE_DATA" not in os.environ:
        print("DUE_DATA is not set: the UCI sets are left out")
        return
    for model in REGRESSORS:
        for name in size.uci:
            for number in range(size.splits):
                yield Task(
                    "uci", name, model, number, partial(one_split, model, name, number, size)
                )


# 1. scikit-learn's own sets


def classify(
    model: str, X: Floats, y: NDArray[np.int64], fold: int, size: Size
) -> dict[str, float]:
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    train_rows, test = list(folds.split(X, y))[fold]
    estimator = classifier(model, fold, size).fit(X[train_rows], y[train_rows])
    probs = estimator.predict_proba(X[test])
    return {"rows": len(X), "accuracy": accuracy(probs, y[test]), "ece": ece(probs, y[test])}


def classifier(model: str, seed: int, size: Size) -> Any:
    if model == "DUE":
        return DUEClassifier(epochs=size.epochs, random_state=seed)
    if model == "forest":
        return RandomForestClassifier(size.trees, random_state=seed)
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=10_000))


def regress(model: str, X: Floats, y: Floats, fold: int, size: Size) -> dict[str, float]:
    train_rows, test = list(KFold(5, shuffle=True, random_state=0).split(X))[fold]
    estimator: Any = {
        "DUE": DUERegressor(epochs=size.epochs, random_state=fold),
        "forest": RandomForestRegressor(size.trees, random_state=fold),
        "ridge": make_pipeline(StandardScaler(), Ridge()),
    }[model].fit(X[train_rows], y[train_rows])
    return {"rows": len(X), "rmse": rmse(y[test], estimator.predict(X[test]))}


# 2. classes never seen


def detect(model: str, seed: int, size: Size) -> dict[str, float]:
    """Train on three quarters of digits 0 to 4; tell the rest of them from 5 to 9."""
    X, y = datasets.load_digits(return_X_y=True)
    known = y < 5
    rows, test = train_test_split(
        np.flatnonzero(known), test_size=0.25, random_state=seed, stratify=y[known]
    )
    estimator = classifier(model, seed, size).fit(X[rows], y[rows])
    inside, outside = estimator.predict_proba(X[test]), estimator.predict_proba(X[~known])
    numbers = {
        "accuracy": accuracy(inside, y[test]),
        "ece": ece(inside, y[test]),
        "auroc_entropy": auroc(entropy(inside), entropy(outside)),
    }
    if model == "DUE":
        scores = estimator.ood_score(X[test]), estimator.ood_score(X[~known])
        numbers["auroc_ood_score"] = auroc(*scores)
    return numbers


# 3. UCI


def one_split(model: str, name: str, number: int, size: Size) -> dict[str, float]:
    data = uci.load(name, number)
    found = REGRESSORS[model](data.X_train, data.y_train, data.X_test, number, size)
    return {
        "rows": len(data.X_train) + len(data.X_test),
        "rmse": rmse(data.y_test, found.mean),
        "nll": found.nll(data.y_test),
        "coverage": coverage(data.y_test, *found.ends()),
    }


def due_regressor(X: Floats, y: Floats, X_test: Floats, seed: int, size: Size) -> Prediction:
    return predicted(DUERegressor(epochs=size.epochs, random_state=seed).fit(X, y), X_test)


def predicted(model: DUERegressor, X: Floats) -> Prediction:
    """With the density and the interval of its own distribution."""
    density, interval = partial(model.log_density, X), model.predict_interval(X, alpha=0.1)
    mean, std = model.predict(X, return_std=True)
    return Prediction(mean, std, density, interval)


def forest(X: Floats, y: Floats, X_test: Floats, seed: int, size: Size) -> Prediction:
    """500 trees; variance = variance of the trees' predictions at x + noise, a constant.

    noise = max(0, mean squared out-of-bag error − mean out-of-bag variance), so that the two add up
    to the forest's squared error on rows that its trees have not seen, unless the variance alone
    is larger.
    """
    model = RandomForestRegressor(size.trees, random_state=seed).fit(X, y)
    votes = np.stack([tree.predict(X) for tree in model.estimators_])
    for vote, rows in zip(votes, model.estimators_samples_, strict=True):
        vote[rows] = np.nan
    error = np.mean((y - np.nanmean(votes, 0)) ** 2)
    noise = max(float(error - np.mean(np.nanvar(votes, 0))), 1e-6 * y.var())
    votes = np.stack([tree.predict(X_test) for tree in model.estimators_])
    return Prediction(votes.mean(0), np.sqrt(votes.var(0) + noise))


def exact_gp(X: Floats, y: Floats, X_test: Floats, seed: int, size: Size) -> Prediction:
    """Matérn-5/2 with a length scale for each column, white noise; at most 2,000 random rows."""
    kept = np.random.default_rng(seed).permutation(len(X))[: size.gp_rows]
    scaler = StandardScaler().fit(X)
    kernel = ConstantKernel() * Matern(np.ones(X.shape[1]), (1e-2, 1e3), nu=2.5)
    model = GaussianProcessRegressor(
        kernel + WhiteKernel(0.1, (1e-6, 1e1)), normalize_y=True, random_state=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # an irrelevant column: l at its bound
        model.fit(scaler.transform(X[kept]), y[kept])
    return Prediction(*model.predict(scaler.transform(X_test), return_std=True))


class PlainNetwork(Plain):
    """y ~ N(f(x), σ²), trained by its likelihood: DUE without bound and without GP."""

    def __init__(self, D: int) -> None:
        super().__init__()
        self.f, self.noise = nn.Sequential(FCResNet(D, 128, 4), nn.Linear(128, 1)), Gaussian()

    def forward(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """−mean_i w_i log N(y_i; f(x_i), σ²)."""
        return weighted_mean(self.losses(x, y), weights)

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """−log N(y_i; f(x_i), σ²) per row."""
        mean = self.f(x)
        return -self.noise.expected_log_prob(mean, torch.zeros_like(mean), y)


def plain_network(X: Floats, y: Floats, X_test: Floats, seed: int, size: Size) -> Prediction:
    """Adam 2e-3 (σ² 1e-2) in batches of 64, a fifth held out, patience 30, at most 4,000 steps.

    On a few hundred rows that is more steps than DUE takes; held-out rows decide when to stop.
    """
    one = np.ones(len(X))
    x_scale, y_scale = fit_scale(X, one), fit_scale(y[:, None], one)
    table = Table(x_scale.tensor(X), y_scale.tensor(y[:, None]))
    kept, held = split(len(X), 0.2, None, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = PlainNetwork(X.shape[1])
    epochs = -(-size.steps * 64 // len(kept))
    recipe = Recipe(lr=2e-3, head_lr=1e-2, batch_size=64, epochs=epochs, patience=30)
    fit(model, table.part(kept), recipe, held_out=table.part(held), seed=seed, progress=False)
    with torch.no_grad():
        mean = model.f(x_scale.tensor(X_test)).double().numpy()
        std = model.noise.sigma2.sqrt().expand(len(X_test)).numpy()
    return Prediction(y_scale.inverse(mean)[:, 0], std * y_scale.std)


REGRESSORS: dict[str, Callable[[Floats, Floats, Floats, int, Size], Prediction]] = {
    "DUE": due_regressor,
    "plain network": plain_network,
    "forest": forest,
    "exact GP": exact_gp,
}


# tables


def benchmarks(lines: list[Line]) -> str:
    folds = len({line["fold"] for line in lines if line["part"] == "classes"})
    text = [
        f"scikit-learn's sets, {folds} of 5 folds: accuracy in %, RMSE for diabetes",
        f"{'':<15}{'rows':>6}{'DUE':>9}{'linear':>9}{'forest':>9}{'allowed':>9}  ",
    ]
    for part, metric, scale in (("classes", "accuracy", 100.0), ("values", "rmse", 1.0)):
        for name in dict.fromkeys(line["set"] for line in lines if line["part"] == part):
            models = ("DUE", LINEAR[part], "forest")
            ours, *others = (
                scale * mean(lines, metric, part=part, set=name, model=m) for m in models
            )
            rows = int(mean(lines, "rows", part=part, set=name))
            slack = 2.0 if rows < 500 else 1.0
            bar = max(others) - slack if part == "classes" else 1.03 * min(others)
            passed = ours >= bar if part == "classes" else ours <= bar
            numbers = "".join(f"{value:9.2f}" for value in (ours, *others, bar))
            text.append(f"{name:<15}{rows:6d}{numbers}  {'pass' if passed else 'FAIL'}")
    return "\n".join(text)


def unseen(lines: list[Line]) -> str:
    seeds = len({line["fold"] for line in lines if line["part"] == "unseen"})
    text = [
        f"Digits, trained on 0 to 4: AUROC of 5 to 9 against new 0 to 4; {seeds} seeds, ± std",
        f"{'':<9}{'accuracy':>10}{'ECE':>8}{'entropy':>18}{'ood_score':>18}",
    ]
    for model in ("DUE", "forest"):
        where = {"part": "unseen", "model": model}
        row = f"{model:<9}{100 * mean(lines, 'accuracy', **where):9.2f} "
        row += f"{mean(lines, 'ece', **where):8.4f}"
        for metric in ("auroc_entropy", "auroc_ood_score"):
            values = select(lines, metric, **where)
            shown = f"{np.mean(values):.4f} ± {np.std(values):.4f}" if values else "–"
            row += f"{shown:>18}"
        text.append(row)
    return "\n".join(text)


def uci_table(lines: list[Line]) -> str:
    if not any(line["part"] == "uci" for line in lines):
        return "UCI: left out"
    splits = 1 + max(line["fold"] for line in lines if line["part"] == "uci")
    text = [f"UCI, first {splits} of the 20 standard splits: mean ± standard error"]
    if any(line["part"] == "uci" and line["rows"] > GP_ROWS / 0.9 for line in lines):
        text[0] += f"; the exact GP sees at most {GP_ROWS} rows"
    for metric, title in (("rmse", "RMSE"), ("nll", "NLL"), ("coverage", "coverage of 90 %")):
        text.append(f"{title:<17}" + "".join(f"{model:>20}" for model in REGRESSORS))
        for name in dict.fromkeys(line["set"] for line in lines if line["part"] == "uci"):
            row = f"{name:<17}"
            for model in REGRESSORS:
                values = select(lines, metric, part="uci", set=name, model=model)
                error = np.std(values) / max(1, len(values) - 1) ** 0.5
                row += f"{f'{np.mean(values):.3f} ± {error:.3f}':>20}"
            text.append(row)
    seconds = "".join(
        f"{sum(select(lines, 'seconds', part='uci', model=model)):20.0f}" for model in REGRESSORS
    )
    text.append(f"{'seconds in all':<17}{seconds}")
    return "\n".join(text)


def stale(lines: list[Line]) -> list[str]:
    ours = [line for line in lines if line["model"] == "DUE"]
    others = sum(line.get("sources") != SOURCES for line in ours)
    if not others:
        return []
    return [
        f"{others} of {len(ours)} DUE fits are by other sources; delete their lines to fit again"
    ]


def select(lines: list[Line], metric: str, **where: str) -> list[float]:
    return [
        line[metric]
        for line in lines
        if metric in line and all(line[name] == value for name, value in where.items())
    ]


def mean(lines: list[Line], metric: str, **where: str) -> float:
    return float(np.mean(select(lines, metric, **where)))


SOURCES = checksum_of_sources()

if __name__ == "__main__":
    main()
