"""Rows unlike those of training: does `ood_pvalue` keep its promise, and what does it find?

1. False alarms: of new rows like those of training, the share with a p-value of at most .01, .05
   and .1, averaged over fits, beside the range that holds 99 % of such averages if p-values are
   right. Digits, two moons and two UCI sets.
2. Uniformity: 200 fits to new draws, one new row each; the Kolmogorov–Smirnov p-value.
3. Power: classes that training never saw, digits 5 to 9, beside the distance to the 5 nearest
   neighbours and an isolation forest, each with p-values from as many rows kept aside.
4. What ranks unseen digits first: AUROC of the entropy, the OOD score, the latent variance, and the
   prior variance that inducing points on the data leave.

    python benchmarks/foreign.py [--smoke]

Only the methods of estimators are used, so it holds for any OOD score. Seeds begin at 10. Each part
is written to results/foreign.jsonl when it is finished: the same command continues.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from class_sets import SETS
from numpy.typing import NDArray
from scipy.stats import betabinom, kstest
from sklearn import datasets
from sklearn.ensemble import IsolationForest
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NearestNeighbors

from due import DUEClassifier, DUERegressor
from due.data import uci
from due.data.download import find
from due.experiments.journal import Journal
from due.metrics import auroc

FIRST = 10  # seed
LEVELS = (0.01, 0.05, 0.1)
UCI = ("concrete", "power-plant")
QUICK: dict[str, Any] = {"epochs": 2, "n_inducing": 10}
Array = NDArray[Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument(
        "--smoke", action="store_true", help="seconds: one seed, few draws, no file"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.smoke:
        with TemporaryDirectory() as folder:
            make(Path(folder), 1, 3, QUICK)
        return
    make(options.out, options.seeds, options.draws, {})


def make(out: Path, seeds: int, draws: int, budget: dict[str, Any]) -> None:
    """Compute what is missing, print the tables, and write them."""
    journal = Journal(out / "foreign.jsonl", ("part", "seed"), ("numbers",))
    known = partial(measured, journal, budget)
    lines = [
        *alarms(known, seeds),
        "",
        *uniformity(known, draws),
        "",
        *power(known, seeds),
        "",
        *ranks(known, seeds),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    (out / "foreign.txt").write_text(text, encoding="utf-8")


def measured(
    journal: Journal, budget: dict[str, Any], part: str, run: Callable[..., Any], seed: int
) -> Any:
    models = (DUEClassifier(**budget), DUERegressor())
    recipes = (getattr(m, "_recipe", None) or m._default_recipe(1000) for m in models)
    texts = [f"{m.get_params()} {r}" for m, r in zip(models, recipes, strict=True)]
    settings = {"models": " ".join(texts)}
    line = journal.find(settings, part=part, seed=seed)
    if line is None:
        line = journal.add(settings, {"numbers": run(seed, budget)}, part=part, seed=seed)
    return line["numbers"]


# 1. False alarms


def alarms(known: Callable[..., Any], seeds: int) -> Iterator[str]:
    sets = {"digits": on_digits, "moons": on_moons}
    values = UCI if seeds > 1 else UCI[:1]
    sets |= {name: partial(on_values, name) for name in values if find(f"uci/{name}.npz")}
    yield "1. False alarms: share of new rows with p ≤ α, and where 99 % of such means lie"
    yield f"{'':14}{'kept aside':>11}{'new':>7}" + "".join(f"{a:>9g}{'':17}" for a in LEVELS)
    for name, run in sets.items():
        found = [known(f"alarms {name}", run, seed) for seed in range(FIRST, FIRST + seeds)]
        cells = (level_cell(found, i) for i in range(len(LEVELS)))
        kept, new = found[0]["kept"], found[0]["new"]
        yield f"{name:14}{kept:>11}{new:>7}" + "".join(cells)


def level_cell(found: list[dict[str, Any]], i: int) -> str:
    """Mean rate over the fits, and the central 99 % of such means under exchangeability."""
    rng = np.random.default_rng(0)
    totals = np.zeros(20_000)
    for each in found:
        k = int(LEVELS[i] * (each["kept"] + 1))  # of the scores kept aside that a flagged row beats
        if k:
            drawn = betabinom.rvs(
                each["new"], k, each["kept"] + 1 - k, size=20_000, random_state=rng
            )
            totals += drawn / each["new"] / len(found)
    low, high = np.quantile(totals, [0.005, 0.995])
    rate = np.mean([each["flagged"][i] for each in found])
    verdict = "" if rate <= high else " !"
    return f"{rate:>9.3f} [{low:.3f}, {high:.3f}]{verdict:2}"


def on_digits(seed: int, budget: dict[str, Any]) -> dict[str, Any]:
    X, y = datasets.load_digits(return_X_y=True)
    a, b, c, _ = train_test_split(X, y, test_size=0.33, random_state=seed, stratify=y)
    return rates(DUEClassifier(random_state=seed, **budget).fit(a, c), b)


def on_moons(seed: int, budget: dict[str, Any]) -> dict[str, Any]:
    data = SETS["moons"](seed)
    return rates(DUEClassifier(random_state=seed, **budget).fit(data.X, data.y), data.X_new)


def on_values(name: str, seed: int, budget: dict[str, Any]) -> dict[str, Any]:
    rows = uci.load(name, seed - FIRST)
    epochs = budget.get("epochs")
    model = DUERegressor(random_state=seed, epochs=epochs).fit(rows.X_train, rows.y_train)
    return rates(model, rows.X_test)


def rates(model: Any, new: Array) -> dict[str, Any]:
    p = model.ood_pvalue(new)
    return {"kept": kept_aside(model), "new": len(new), "flagged": flags(p)}


def kept_aside(model: Any) -> int:
    """Rows that p-values compare with."""
    return len(model.model_.calibration)


def flags(p: Array) -> list[float]:
    return [float((p <= level).mean()) for level in LEVELS]


# 2. Uniformity


def uniformity(known: Callable[..., Any], draws: int) -> Iterator[str]:
    """One new row per fit: the promise is over the draw of training, calibration and new rows."""
    p = np.array([known("draw", one_draw, seed) for seed in range(FIRST, FIRST + draws)])
    rng = np.random.default_rng(0)
    spread = p[:, 0] - rng.random(draws) * p[:, 1]  # uniform within each step of the p-value
    test = kstest(spread, "uniform")
    yield f"2. p-values of one new row after each of {draws} fits to moons"
    yield f"Kolmogorov–Smirnov against uniform: D = {test.statistic:.3f}, p = {test.pvalue:.2f}"


def one_draw(seed: int, budget: dict[str, Any]) -> list[float]:
    """A p-value and its step."""
    X, y = datasets.make_moons(501, noise=0.2, random_state=seed)
    model = DUEClassifier(random_state=seed, **QUICK).fit(X[:500], y[:500])
    return [float(model.ood_pvalue(X[500:])[0]), 1 / (kept_aside(model) + 1)]


# 3. Power


def power(known: Callable[..., Any], seeds: int) -> Iterator[str]:
    yield "3. Unseen digits 5 to 9 with p ≤ α; trained on two thirds of digits 0 to 4"
    yield f"{'':26}" + "".join(f"{level:>9g}" for level in LEVELS) + f"{'new, .05':>11}"
    found = [known("power", on_unseen, seed) for seed in range(FIRST, FIRST + seeds)]
    for name in found[0]:
        mean = np.mean([each[name] for each in found], 0)
        yield f"{name:26}" + "".join(f"{v:>9.3f}" for v in mean[:-1]) + f"{mean[-1]:>11.3f}"


def on_unseen(seed: int, budget: dict[str, Any]) -> dict[str, list[float]]:
    """Share of unseen digits flagged at each level, and of new seen ones at .05."""
    X, y, known, new, unseen = unseen_digits(seed)
    model = DUEClassifier(random_state=seed, **budget).fit(X[known], y[known])
    found = {"DUE, ood_pvalue": judged(model.ood_pvalue, X[unseen], X[new])}
    rows, kept = train_test_split(known, test_size=0.1, random_state=seed, stratify=y[known])
    near = NearestNeighbors(n_neighbors=5).fit(X[rows])
    forest = IsolationForest(random_state=seed).fit(X[rows])
    scores: dict[str, Callable[[Array], Array]] = {
        "5 nearest neighbours": lambda x: near.kneighbors(x)[0].mean(1),
        "isolation forest": lambda x: -forest.score_samples(x),
    }
    for name, score in scores.items():
        p = partial(conformal, np.sort(score(X[kept])), score)
        found[name] = judged(p, X[unseen], X[new])
    return found


def conformal(kept: Array, score: Callable[[Array], Array], x: Array) -> Array:
    return np.asarray((1 + len(kept) - np.searchsorted(kept, score(x))) / (1 + len(kept)))


def judged(p: Callable[[Array], Array], unseen: Array, new: Array) -> list[float]:
    return [*flags(p(unseen)), float((p(new) <= 0.05).mean())]


def unseen_digits(seed: int) -> tuple[Array, ...]:
    X, y = datasets.load_digits(return_X_y=True)
    known, new = train_test_split(np.flatnonzero(y < 5), test_size=0.33, random_state=seed)
    return X, y, known, new, np.flatnonzero(y >= 5)


# 4. Ranks


def ranks(known: Callable[..., Any], seeds: int) -> Iterator[str]:
    yield "4. AUROC of unseen digits 5 to 9 against new digits 0 to 4"
    for inducing in ("free", "tied"):
        run = partial(ranked, inducing)
        each = [known(f"ranks {inducing}", run, seed) for seed in range(FIRST, FIRST + seeds)]
        for name in each[0]:
            values = [one[name] for one in each]
            yield f"inducing={inducing!r:8}{name:26}{np.mean(values):>7.3f} ± {np.std(values):.3f}"


def ranked(inducing: str, seed: int, budget: dict[str, Any]) -> dict[str, float]:
    X, y, known, new, unseen = unseen_digits(seed)
    model = DUEClassifier(inducing=inducing, random_state=seed, **budget).fit(X[known], y[known])
    inside, outside = model.uncertainty_details(X[new]), model.uncertainty_details(X[unseen])
    found = {name: auroc(getattr(inside, name), getattr(outside, name)) for name in inside._fields}
    found["left by inducing points"] = auroc(left(model, X[new]), left(model, X[unseen]))
    return found


@torch.no_grad()
def left(model: DUEClassifier, X: Array) -> Array:
    """Share of the prior variance that the values at the inducing points would leave."""
    predictor, gp = model.predictor_, model.model_.gp
    h = predictor.model.f(predictor.scale(torch.as_tensor(X)))
    return (1 - gp.project(h).square().sum(-2).mean(0)).numpy()


if __name__ == "__main__":
    main()
