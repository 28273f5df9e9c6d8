"""Can the uncertainty of a regression be trusted? DUE as it was, DUE as it is, and rivals.

1. Ranking: does `predict`'s std rank errors? Area under the curve of MSE over the share of rows
   kept, the most certain first, divided by the MSE of all: 1 is no ranking. The target is the
   forest's. Coverage of 90 % intervals within each third of rows by std: .87 to .93, beside its
   standard error over fits; splits of a UCI set share rows, so there it is at least
   √(.9 · .1 / n), with n the rows in a third of the whole set. Noise that grows with a column, a
   step function, and two stand-ins for sets that cannot be downloaded here: an arm of eight joints
   (for kin8nm), and noise of two modes (for protein); 2,000 new rows.
2. Gap: Figure 1's functions, 1,000 rows. Mean latent std on |x| < 2, and the share of |x| < 3 where
   the true function is within 2 latent std. The target is the exact GP's. The noise is .1.
3. Columns: 1,000 rows of 100 columns, of which 5 matter. RMSE ÷ std of y.
4. UCI (DUE_DATA must hold the sets): NLL over the first 10 splits; coverage in thirds over these
   and 40 random ones, because a third of one split can have ten rows; and of all six sets together
   over the first 5 splits.
5. Few rows: coverage of 90 % intervals of tables with 50 to 145 rows, of the four sets of 1.
6. Where the inducing points are: free as in the paper, on the data (the default: k-means, tied; or
   refreshed, or by greedy conditional variance), or all rows (exact), over the first 5 fits.
7. Effects: how often 95 % intervals contain the true effect, from the journal of coverage.py in the
   same folder; that command makes the fits.

Defaults were chosen on seeds 0 to 9, 100 to 123 and 600 to 603 of the made-up sets, on UCI's
splits 10 to 19 and on other random ones; what is printed has seeds from 10 on, and UCI's first
splits. Each finished fit is a line of OUT/trust.jsonl: the same command continues where it was
stopped. `--cost` measures time instead.

    DUE_DATA=.data python benchmarks/trust.py [--out results] [--seeds 10] [--cost] [--smoke]
"""

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import coverage as worlds
import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from tabular import Prediction, forest, predicted
from tabular import Size as TabularSize
from timing import interleave

from due import DUECATE, DUERegressor
from due.baselines import DeepEnsemble, ExactGPRegressor, NetworkRegressor
from due.data import uci
from due.data.toy import cosine_sum, random_cosines
from due.estimators.cate import FREE
from due.experiments.journal import Journal
from due.gp import JitterWarning
from due.metrics import aurc, coverage, rmse
from due.rows import Floats

BEFORE: dict[str, Any] = {"inducing": "free", "noise": "constant", "column_scales": False}
BEFORE |= {"kernel": "matern32"}
FIRST_SEED = 10  # those before it chose the defaults
STANDARD = 20  # splits of UCI; those from here on are random
FIRST_SPLITS = 5  # over which all its sets together are looked at
FEW_MODELS = "DUE before", "DUE", "exact GP"
OF_ROWS = ", "  # before their number, in the name of a set of few rows
Numbers = dict[str, float]


class Size(NamedTuple):
    """How much is fitted; None leaves the epochs of DUE to its default."""

    rows: int = 1000
    new_rows: int = 2000
    seeds: int = 10
    splits: int = 10
    random_splits: int = 40
    variants: int = 5
    few: tuple[int, ...] = (50, 75, 100, 145)
    uci: tuple[str, ...] = tuple(uci.NAMES)
    epochs: int | None = None
    trees: int = 500
    members: int = 5
    steps: tuple[int, ...] = (500, 1000, 2000)
    rounds: int = 5


SMOKE = Size(60, 50, 1, 1, 1, 1, (30,), ("yacht",), 1, trees=30, members=2, steps=(50,), rounds=1)


class Data(NamedTuple):
    """Rows to learn from, and new ones."""

    X: Floats
    y: Floats
    X_new: Floats
    y_new: Floats


# data


def growing_noise(n: int, seed: int) -> tuple[Floats, Floats]:
    """Noise that grows with a column that the mean does not depend on."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    std = 0.1 + 0.9 / (1 + np.exp(-3 * X[:, 2]))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + std * rng.normal(size=n)


def steps(n: int, seed: int) -> tuple[Floats, Floats]:
    """A piecewise constant function of two columns."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 2))
    f = np.floor(2 * X[:, 0] + 0.3) + 2 * (X[:, 1] > 0.2) * (X[:, 0] < 0.4)
    return X, f + 0.1 * rng.normal(size=n)


def arm(n: int, seed: int) -> tuple[Floats, Floats]:
    """Distance of the end of an arm of eight joints from a target."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-np.pi / 2, np.pi / 2, size=(n, 8))
    angle, length = np.cumsum(X, 1), np.array([1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3])
    end = np.stack([(length * np.cos(angle)).sum(1), (length * np.sin(angle)).sum(1)], 1)
    distance = np.linalg.norm(end - np.array([1.0, 0.5]), axis=1)
    return X, distance + 0.15 * rng.normal(size=n)


def two_modes(n: int, seed: int) -> tuple[Floats, Floats]:
    """Nine skewed columns; where a hidden quantity is large, y is one of two values."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).normal(size=(3, 9))
    z = rng.normal(size=(n, 3))
    X = np.exp(0.4 * (z @ mixing) + 0.3 * rng.normal(size=(n, 9)))
    hard = 1 / (1 + np.exp(-3 * np.sin(1.5 * z[:, 0]) - 2 * z[:, 1]))
    other = rng.random(n) < 0.4
    f = 3 + 2 * hard + np.tanh(z[:, 2]) + 5 * hard * other
    return X, f + (0.3 + hard) * rng.normal(size=n)


def few_columns_matter(n: int, seed: int) -> tuple[Floats, Floats]:
    """5 of 100."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 100))
    f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + np.abs(X[:, 3]) + 0.5 * X[:, 4]
    return X, f + 0.3 * rng.normal(size=n)


def cosines(n: int, seed: int) -> tuple[Floats, Floats]:
    """Figure 1's, a function per seed; new rows (seeds from 10,000 on) have the same function."""
    X, y, _ = random_cosines(n, seed=seed, function_seed=seed % 10_000)
    return X, y


MADE_UP: dict[str, tuple[str, Callable[[int, int], tuple[Floats, Floats]]]] = {
    "growing noise": ("ranking", growing_noise),
    "steps": ("ranking", steps),
    "arm": ("ranking", arm),
    "two modes": ("ranking", two_modes),
    "cosines": ("gap", cosines),
    "few columns": ("columns", few_columns_matter),
}


def load(name: str, seed: int, size: Size) -> Data:
    if name in uci.NAMES:
        return Data(*uci.load(name, seed)) if seed < STANDARD else random_split(name, seed)
    name, _, rows = name.partition(OF_ROWS)
    draw = MADE_UP[name][1]
    return Data(*draw(int(rows or size.rows), seed), *draw(size.new_rows, 10_000 + seed))


def random_split(name: str, seed: int) -> Data:
    """A tenth of the rows is new."""
    split = uci.load(name)
    X, y = np.concatenate([split.X_train, split.X_test]), np.concatenate(split[1::2])
    order = np.random.default_rng(seed).permutation(len(y))
    new, known = np.split(order, [round(0.1 * len(y))])
    return Data(X[known], y[known], X[new], y[new])


# models: what they predict at new rows, and of `gap` the function without noise


class Answer(NamedTuple):
    """Mean and std of a new observation; in the gap, of the function."""

    new: Prediction
    latent: Prediction | None = None
    noise: float | None = None  # std


def due(
    arguments: dict[str, Any], data: Data, grid: Floats | None, seed: int, size: Size
) -> Answer:
    with as_then(arguments):
        model = DUERegressor(epochs=size.epochs, random_state=seed, **arguments)
        return _answer(model.fit(data.X, data.y), data, grid)


@contextmanager
def as_then(arguments: dict[str, Any]) -> Iterator[None]:
    """No earlier version took the kernel to the end of its ridge, or q(U) to its optimum there."""
    if arguments.get("kernel") != BEFORE["kernel"]:
        yield
        return
    with patch("due.methods.due.settle_kernel"), patch("due.methods.due.DeepGP._condition"):
        yield


def deep_ensemble(data: Data, grid: Floats | None, seed: int, size: Size) -> Answer:
    member = NetworkRegressor(epochs=size.epochs)
    model = DeepEnsemble(member, size.members, random_state=seed).fit(data.X, data.y)
    return _answer(model, data, grid)


def gp_of_inputs(data: Data, grid: Floats | None, seed: int, size: Size) -> Answer:
    """On the inputs themselves, one length scale."""
    return _answer(ExactGPRegressor(kernel="rbf").fit(data.X, data.y), data, grid)


def trees(data: Data, grid: Floats | None, seed: int, size: Size) -> Answer:
    votes = TabularSize(trees=size.trees)
    new = forest(data.X, data.y, data.X_new, seed, votes)
    return Answer(new, None if grid is None else forest(data.X, data.y, grid, seed, votes))


def boosted(data: Data, grid: Floats | None, seed: int, size: Size) -> Answer:
    """No std: of use where only the mean is compared."""
    mean = HistGradientBoostingRegressor(random_state=seed).fit(data.X, data.y).predict(data.X_new)
    return Answer(Prediction(mean, np.full(len(mean), float(np.std(data.y)))))


def _answer(model: Any, data: Data, grid: Floats | None) -> Answer:
    if isinstance(model, DUERegressor):
        new = predicted(model, data.X_new)
    else:
        new = Prediction(*model.predict(data.X_new, return_std=True))
    if grid is None:
        return Answer(new)
    at = model.moments(grid)
    latent = Prediction(at.mean, np.sqrt(at.epistemic))
    return Answer(new, latent, float(np.sqrt(model.moments(data.X_new).aleatoric).mean()))


VARIANTS: dict[str, dict[str, Any]] = {
    "free": {"inducing": "free"},
    "refreshed": {"inducing": "refreshed"},
    "greedy": {"placement": "greedy"},
    "exact": {"bound": "exact"},
}
VARIED = {"growing noise": "nll", "cosines": "gap_std", "bostonHousing": "nll"}
VARIED |= {"energy": "nll", "yacht": "nll"}
Run = Callable[[Data, Floats | None, int, Size], Answer]
MODELS: dict[str, Run] = {
    "DUE before": partial(due, BEFORE),
    "DUE": partial(due, {}),
    "forest": trees,
    "ensemble of 5": deep_ensemble,
    "exact GP": gp_of_inputs,
}

RUNS: dict[str, Run] = {
    **MODELS,
    "boosted trees": boosted,
    **{name: partial(due, arguments) for name, arguments in VARIANTS.items()},
}


# measures


def measure(model: str, name: str, seed: int, size: Size) -> Numbers:
    data = load(name, seed, size)
    x = np.linspace(-3, 3, 121)
    grid = x[:, None] if name == "cosines" else None
    began = time.process_time()
    found = RUNS[model](data, grid, seed, size)
    numbers = {"seconds": time.process_time() - began, **quality(data.y_new, found.new)}
    if found.latent is not None:
        mean, std = found.latent[:2]
        truth = cosine_sum(x, function_seed=seed)
        numbers["gap_std"] = float(std[np.abs(x) < 2].mean())
        numbers["gap_inside"] = coverage(truth, mean - 2 * std, mean + 2 * std)
        numbers["noise"] = float("nan") if found.noise is None else found.noise
    return {name: value for name, value in numbers.items() if np.isfinite(value)}


def quality(y: Floats, found: Prediction) -> Numbers:
    """Error, likelihood, ranking of errors, and coverage of 90 %: all rows, and thirds by std."""
    mean, std = found.mean, found.std
    low, high = found.ends()
    inside = (low <= y) & (y <= high)
    thirds = np.array_split(np.argsort(std, kind="stable"), 3)
    square = (y - mean) ** 2
    return {
        "rmse": rmse(y, mean),
        "relative": rmse(y, mean) / float(np.std(y)),
        "nll": found.nll(y),
        "ranking": aurc(square, std) / float(square.mean()),
        "coverage": coverage(y, low, high),
        **{name: float(inside[third].mean()) for name, third in zip(THIRDS, thirds, strict=True)},
    }


THIRDS = ("quiet", "middle", "loud")


# the journal


def tasks(size: Size, only: str | None) -> Iterator[tuple[str, str, str, int]]:
    """Part, set, model and seed; tabular.py has rivals on UCI."""
    seeds = range(FIRST_SEED, FIRST_SEED + size.seeds)
    for name, (part, _) in MADE_UP.items():
        for model in [*MODELS, *(["boosted trees"] if part == "columns" else [])]:
            if only in (None, part, name):
                yield from ((part, name, model, seed) for seed in seeds)
    for n in size.few if only in (None, "few") else ():
        for name in (name for name, (part, _) in MADE_UP.items() if part == "ranking"):
            for model in FEW_MODELS:
                yield from (("few", f"{name}{OF_ROWS}{n}", model, seed) for seed in seeds)
    for name in (name for name in VARIED if name in MADE_UP or name in size.uci):
        first = FIRST_SEED if name in MADE_UP else 0
        if only in (None, "inducing", name) and (name in MADE_UP or "DUE_DATA" in os.environ):
            seeds = range(first, first + size.variants)
            for model in ("DUE", *VARIANTS):
                yield from (("inducing", name, model, seed) for seed in seeds)
    if "DUE_DATA" not in os.environ:
        print("DUE_DATA is not set: the UCI sets are left out")
        return
    for name in size.uci:
        if only in (None, "uci", name):
            for model in ("DUE before", "DUE"):
                yield from (("uci", name, model, split) for split in range(size.splits))
            splits = range(STANDARD, STANDARD + size.random_splits)
            yield from (("thirds", name, "DUE", split) for split in splits)


def run(
    size: Size, path: Path, only: str | None = None, fit: bool = True
) -> dict[tuple[str, ...], list[Numbers]]:
    """Numbers by part, set and model; fits that the journal lacks are made, or left out."""
    journal = Journal(path, ("set", "model", "seed"), ("numbers",))
    settings = {name: getattr(size, name) for name in SETTINGS}
    todo = list(tasks(size, only))
    own = {model: {**settings, "version": version} for model, version in VERSIONS.items()}
    for i, (_, name, model, seed) in enumerate(sorted(todo, key=_slowest_last)):
        key = {"set": name, "model": model, "seed": seed}
        how = own.get(model, settings)
        if fit and journal.find(how, **key) is None:
            print(f"{i + 1} of {len(todo)}: {name} / {model} / {seed}", flush=True)
            journal.add(how, {"numbers": measure(model, name, seed, size)}, **key)
    found: dict[tuple[str, ...], list[Numbers]] = {}
    for part, name, model, seed in todo:
        line = journal.find(own.get(model, settings), set=name, model=model, seed=seed)
        if line is not None:
            found.setdefault((part, name, model), []).append(line["numbers"])
    done = sum(map(len, found.values()))
    print(f"{done} of {len(todo)} fits are in the journal")
    return found


def _slowest_last(task: tuple[str, str, str, int]) -> tuple[bool, int]:
    return task[2] == "ensemble of 5", task[3]


# raised where a change of the code changes the numbers
VERSIONS = dict.fromkeys(("DUE", *VARIANTS), 11)
SETTINGS = ("rows", "new_rows", "epochs", "trees", "members")  # of a fit


# tables


def ranking_table(found: dict[tuple[str, ...], list[Numbers]], part: str) -> list[str]:
    return short_table(found, part, ("ranking", "nll", "rmse", "coverage", *THIRDS, "seconds"), 10)


def short_table(
    found: dict[tuple[str, ...], list[Numbers]], part: str, keys: tuple[str, ...], width: int = 12
) -> list[str]:
    head = "".join(f"{key:>{width}}" for key in keys)
    lines = [TITLES[part], f"{'':<20}{'':<16}{head}{'fits':>6}"]
    for (kind, name, model), numbers in found.items():
        if kind == part:
            cells = [[each[key] for each in numbers if key in each] for key in keys]
            shown = [f"{np.mean(cell):{width}.3f}" if cell else f"{'–':>{width}}" for cell in cells]
            lines.append(f"{name:<20}{model:<16}{''.join(shown)}{len(numbers):6d}")
    return lines


def inducing_table(found: dict[tuple[str, ...], list[Numbers]]) -> list[str]:
    names = ("DUE", *VARIANTS)
    head = "".join(f"{name:>12}" for name in ("tied", *VARIANTS))
    lines = [TITLES["inducing"], f"{'':<20}{'':<8}{head}{'fits':>6}"]
    for name, key in VARIED.items():
        fits = [found.get(("inducing", name, model), []) for model in names]
        n = min(map(len, fits))  # of the first seeds, which all have
        for what in (key, "seconds") if n else ():
            cells = [[each[what] for each in numbers[:n] if what in each] for numbers in fits]
            shown = "".join(f"{np.mean(cell):12.3f}" if cell else f"{'–':>12}" for cell in cells)
            lines.append(f"{name:<20}{what:<8}{shown}{n:6d}")
    return lines


def verdicts(found: dict[tuple[str, ...], list[Numbers]]) -> list[str]:
    """Each target, and whether the default meets it."""

    def mean(part: str, name: str, model: str, key: str) -> float:
        return float(np.mean([each[key] for each in found[part, name, model] if key in each]))

    lines: list[str] = ["Targets"]
    thirds: list[Third] = []
    for part, name in dict.fromkeys((part, name) for part, name, _ in found):
        rivals = {"ranking": "forest", "gap": "exact GP", "columns": "boosted trees"}
        needed = ("DUE before", "DUE", rivals.get(part, "DUE"))
        if not all((part, name, model) in found for model in needed):
            continue
        of = partial(mean, part, name)
        before, now = of("DUE before", "nll"), of("DUE", "nll")
        if part == "ranking":
            said = of("DUE", "ranking"), of("forest", "ranking")
            lines.append(_line(name, "ranking", *said, said[0] <= said[1], "the forest's, at most"))
        if part == "gap":
            said = of("DUE", "gap_std"), of("exact GP", "gap_std")
            word = ".8 of the exact GP's, at least"
            lines.append(_line(name, "gap std", *said, said[0] > 0.8 * said[1], word))
            said = of("DUE", "gap_inside"), of("exact GP", "gap_inside")
            word = "the exact GP's, at least"
            lines.append(_line(name, "truth inside", *said, said[0] >= said[1], word))
            noise = of("DUE", "noise")
            word = "the true one, within a fifth"
            lines.append(_line(name, "noise", noise, 0.1, 0.08 < noise < 0.12, word))
        if part == "columns":
            said = of("DUE", "relative"), of("boosted trees", "relative")
            lines.append(_line(name, "RMSE / std", *said, said[0] <= said[1], "boosted trees'"))
        if part == "uci":
            word = "before and .02, at most"
            lines.append(_line(name, "NLL", now, before, now <= before + 0.02, word))
        if part in ("ranking", "uci"):
            fits = [*found[part, name, "DUE"], *found.get(("thirds", name, "DUE"), [])]
            least = 0.0 if part == "ranking" else chance(name)
            for third in THIRDS:
                thirds.append(_third([each[third] for each in fits], least))
                lines.append(thirds[-1].line(name, third))
    better = [
        mean("uci", name, "DUE", "nll") < mean("uci", name, "DUE before", "nll")
        for part, name, model in found
        if part == "uci" and model == "DUE" and ("uci", name, "DUE before") in found
    ]
    lines.append(
        f"Thirds: {sum(third.met for third in thirds)} of {len(thirds)} within .87 to .93; "
        f"{sum(third.off for third in thirds)} differ from .90 by more than two standard errors"
    )
    lines.append(f"UCI: NLL better than before on {sum(better)} of {len(better)} (4 of 6)")
    return [*lines, *together(found), *of_few_rows(found)]


def together(found: dict[tuple[str, ...], list[Numbers]]) -> Iterator[str]:
    """Thirds of all UCI sets over the first standard splits: the mean over sets."""
    sets = [fits[:FIRST_SPLITS] for key, fits in found.items() if key[::2] == ("uci", "DUE")]
    for third in THIRDS if sets else ():
        shares = [float(np.mean([each[third] for each in fits])) for fits in sets]
        of = f"{len(sets)} sets, {min(map(len, sets))} splits"
        yield _third(shares, 0.0).line(of, third)


class Third(NamedTuple):
    """How often 90 % intervals cover there, with its standard error over fits."""

    share: float
    error: float

    @property
    def met(self) -> bool:
        """Whether it is near .90."""
        return 0.87 <= self.share <= 0.93

    @property
    def off(self) -> bool:
        """Whether chance does not explain its distance from .90."""
        return abs(self.share - 0.9) > 2 * self.error

    def line(self, name: str, third: str) -> str:
        """Of the targets."""
        word = f".87 to .93 covered; standard error {self.error:.3f}"
        return _line(name, f"{third} third", self.share, 0.9, self.met, word)


def of_few_rows(found: dict[tuple[str, ...], list[Numbers]]) -> Iterator[str]:
    """Coverage of 90 % intervals: the mean over all sets of as many rows."""
    covered: dict[str, dict[str, list[float]]] = {}
    for (part, name, model), fits in found.items():
        if part == "few":
            of_size = covered.setdefault(name.partition(OF_ROWS)[2], {})
            of_size.setdefault(model, []).extend(each["coverage"] for each in fits)
    for n, of in covered.items():
        if of.keys() >= set(FEW_MODELS):
            before, ours, rival = (float(np.mean(of[model])) for model in FEW_MODELS)
            word = f".87 to .93; before {before:.3f}, exact GP {rival:.3f}"
            yield _line(f"{n} rows", "covered", ours, 0.9, 0.87 <= ours <= 0.93, word)


def _third(shares: list[float], least: float) -> Third:
    error = float(np.std(shares, ddof=1)) / len(shares) ** 0.5 if len(shares) > 1 else np.inf
    return Third(float(np.mean(shares)), max(error, least))


def chance(name: str) -> float:
    """Standard deviation of the share of a third of a UCI set that lies in right 90 % intervals."""
    known, _, new, _ = uci.load(name)
    return float((0.9 * 0.1 / ((len(known) + len(new)) / len(THIRDS))) ** 0.5)


def _line(name: str, what: str, ours: float, target: float, met: bool, word: str) -> str:
    return f"{name:<20}{what:<14}{ours:9.3f}{target:9.3f}  {'met' if met else 'MISSED':<8}{word}"


TITLES = {
    "ranking": "1. Ranking of errors, and coverage of 90 % intervals",
    "gap": "2. Gap of Figure 1",
    "columns": "3. Columns that do not matter",
    "uci": "4. UCI",
    "few": "5. Few rows",
    "inducing": "6. Where the inducing points are",
}


def effects(folder: Path) -> list[str]:
    """Coverage in each world of effects, with that before and of a GP per arm."""
    journal, lines = worlds.open_journal(folder), []
    for world in worlds.WORLDS:
        for people in worlds.PEOPLE:
            shares = {name: _covered(journal, world, people, name) for name in worlds.METHODS}
            ours = shares.pop("DUECATE")
            if ours:
                now, target = float(np.mean(ours)), worlds.TARGET
                rivals = [f"{k} {np.mean(v):.2f} ({len(v)})" for k, v in shares.items() if v]
                word = ", ".join([f"{len(ours)} fits", *rivals])
                lines.append(
                    _line(f"{world} {people}", "covered", now, target, now >= target, word)
                )
    return ["7. Effects, targets; in brackets the fits of others", *lines] if lines else []


def _covered(journal: Journal, world: str, people: int, method: str) -> list[float]:
    cell = worlds.Cell(world, people, method)
    runs = [run for seed in range(5) if (run := worlds.find(journal, cell, seed))]
    return [run["covered"] for run in runs]


def tables(found: dict[tuple[str, ...], list[Numbers]], more: list[str]) -> str:
    parts = [
        ranking_table(found, "ranking"),
        short_table(found, "gap", ("gap_std", "gap_inside", "noise", "rmse", "nll", "seconds")),
        short_table(found, "columns", ("relative", "nll", "coverage", "seconds")),
    ]
    if any(part == "uci" for part, *_ in found):
        parts.append(ranking_table(found, "uci"))
    parts += [short_table(found, "few", ("coverage", "nll", "rmse")), inducing_table(found)]
    return "\n\n".join("\n".join(lines) for lines in [*parts, verdicts(found), more]) + "\n"


# cost


STEPS = 20
KINDS: dict[str, dict[str, Any]] = {
    "before": BEFORE,
    "tied": {**BEFORE, "inducing": "tied"},
    "exact": {**BEFORE, "bound": "exact"},
    "default": {},
}


def cost(size: Size) -> str:
    """Fits in turns: of a few steps, validation included; to the end; and of several candidates."""
    title = f"ms before, and each ÷ before; medians of {size.rounds} rounds"
    lines = [f"A fit of {STEPS} epochs: {title}", *_fits(size, STEPS)]
    lines += ["", f"A whole fit: {title}", *_fits(size, size.epochs)]
    lines += ["", "Choosing: seconds of the first candidate alone, and the whole ÷ these; 2 rounds"]
    for name, (alone, all_of_them) in _choices(size).items():
        times = interleave({"alone": alone, "all": all_of_them}, 2, burst=0.0, warm=1)
        lines.append(f"{name:<40}{times.of('alone'):10.1f}{times.ratio('all', 'alone'):10.2f}")
    return "\n".join(lines) + "\n"


def _fits(size: Size, epochs: int | None) -> Iterator[str]:
    yield f"{'rows':>6}" + "".join(f"{name:>15}" for name in KINDS)
    for n in size.steps:
        X, y = growing_noise(int(n / 0.8), 0)
        calls = {name: partial(_fit, kind, epochs, X, y) for name, kind in KINDS.items()}
        times = interleave(calls, size.rounds, burst=0.0, warm=1)
        ratios = [times.ratio(name, "before") for name in KINDS if name != "before"]
        shown = "".join(f"{ratio:15.2f}" for ratio in ratios)
        yield f"{n:>6}{1e3 * times.of('before'):15.0f}{shown}"


def _fit(arguments: dict[str, Any], epochs: int | None, X: Floats, y: Floats) -> None:
    with as_then(arguments):
        DUERegressor(epochs=epochs, random_state=0, **arguments).fit(X, y)


Pair = tuple[Callable[[], object], Callable[[], object]]


def _choices(size: Size) -> dict[str, Pair]:
    """One candidate, and all of them, of values and of effects."""
    X, y = few_columns_matter(size.rows, 0)
    kinds: tuple[dict[str, Any], ...] = ({"column_scales": True}, {})
    alone, both = (partial(_fit, kind, size.epochs, X, y) for kind in kinds)
    found: dict[str, Pair] = {f"{len(y)} rows of 100 columns, DUERegressor": (alone, both)}
    for people in (300, size.rows):
        study = worlds.simulate("plain", people, 0)
        one, four = (partial(_fit_effects, kind, size.epochs, *study) for kind in (FREE, {}))
        found[f"{people} people, DUECATE"] = (one, four)
    return found


def _fit_effects(
    arguments: dict[str, Any], epochs: int | None, X: Floats, T: Floats, Y: Floats
) -> None:
    DUECATE(epochs=epochs, random_state=0, **arguments).fit(Y, T, X=X)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--seeds", type=int, default=Size().seeds, help="of the made-up sets")
    known = [*TITLES, *MADE_UP, *uci.NAMES]
    parser.add_argument("--only", choices=known, help="one part or set; writes no table")
    parser.add_argument(
        "--splits", type=int, default=Size().splits, help="of UCI's 20 standard splits"
    )
    parser.add_argument("--present", action="store_true", help="fit nothing: what the journal has")
    parser.add_argument("--cost", action="store_true", help="measure time instead")
    parser.add_argument("--smoke", action="store_true", help="seconds: same code, tiny settings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", JitterWarning)
    if options.smoke:
        with TemporaryDirectory() as folder:
            print(tables(run(SMOKE, Path(folder) / "trust.jsonl"), effects(Path(folder))))
        print(cost(SMOKE))
        return
    if options.cost:
        text, name = cost(Size()), "trust-cost.txt"
    else:
        options.out.mkdir(parents=True, exist_ok=True)
        size = Size(seeds=options.seeds, splits=options.splits)
        path = options.out / "trust.jsonl"
        found = run(size, path, options.only, fit=not options.present)
        if options.only:
            return
        text, name = tables(found, effects(options.out)), "trust.txt"
    (options.out / name).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
