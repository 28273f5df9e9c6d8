"""DUEClassifier with its defaults on ten sets, before and beside rivals, and against its targets.

1. Ten sets: accuracy, NLL, ECE, the mean of the largest probability ("said") and seconds of a fit.
   "before" is the default of 0.1: a kernel per class, 100 inducing points, 10 random samples in the
   loss, no column scales, all rows trained on. For the present one without samples see sampling.py.
2. 100 and 1,000 classes: the same, and milliseconds per row of `predict_proba`.
3. The targets of classification, each with what was measured when it was set and with what is
   measured now: 26 classes, columns that do not matter, the class integral beside the quasi-Monte
   Carlo that it replaced, and the cost of DUE over a softmax on the same network.

Seeds 0 to 2 chose the defaults, so the seeds here begin at 10. LightGBM comes with
`pip install 'due[benchmarks]'`. For rows unlike those of training see foreign.py.

    python benchmarks/classifiers.py [--seeds 3] [--smoke]

Each fit is written to results/classifiers.jsonl: the same command continues. Costs are measured
anew each time, in short bursts in turns; they want an idle machine.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import util
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from class_sets import MANY, SETS, Split, has_clothes
from probabilities import costs as integral_costs
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier
from timing import Times, interleave

from due import DUEClassifier
from due.baselines import DDUClassifier, SNGPClassifier, SoftmaxClassifier
from due.experiments.journal import Journal
from due.metrics import accuracy, ece, nll

FIRST = 10  # seed
BEFORE: dict[str, Any] = {
    "n_inducing": 100,
    "shared_kernel": False,
    "column_scales": False,
    "samples": 10,
    "calibration_fraction": 0.0,
    "epochs": 80,
}


def boosted(seed: int) -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(random_state=seed, n_jobs=1, verbose=-1)


METHODS: dict[str, Callable[[int], Any]] = {
    "DUE": lambda seed: DUEClassifier(random_state=seed),
    "before": lambda seed: DUEClassifier(random_state=seed, **BEFORE),
    "softmax": lambda seed: SoftmaxClassifier(random_state=seed),
    "SNGP": lambda seed: SNGPClassifier(random_state=seed),
    "DDU": lambda seed: DDUClassifier(random_state=seed),
    "forest": lambda seed: RandomForestClassifier(300, random_state=seed),
    "LightGBM": boosted,
}
WITH_MANY = ("DUE", "softmax", "SNGP")  # a forest of 1,000 classes takes 20 GB
KINDS: dict[str, Any] = {
    "DUE": DUEClassifier,
    "softmax": SoftmaxClassifier,
    "DDU": DDUClassifier,
    "SNGP": SNGPClassifier,
}
HEAD = f"{'':16}{'':10}{'accuracy':>9}{'NLL':>8}{'ECE':>8}{'said':>8}{'seconds':>9}"
FASTER = {10: 3, 100: 6, 1000: 7}  # than quasi-Monte Carlo, by classes, is the integral to be
Numbers = dict[str, float]
Found = dict[tuple[str, str], Numbers]  # means over seeds, of each set and method


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--smoke", action="store_true", help="seconds: iris, one seed, no file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.smoke:
        with TemporaryDirectory() as folder:
            make(Path(folder), ["iris"], [], 1, rounds=1)
        return
    known = [name for name in SETS if name != "clothes 14 × 14" or has_clothes()]
    make(options.out, known, list(MANY), options.seeds, rounds=5)


def make(out: Path, names: list[str], many: list[str], seeds: int, rounds: int) -> None:
    """Fit what is missing, print the tables, and write them."""
    journal = Journal(out / "classifiers.jsonl", ("set", "method", "seed"), ("numbers",))
    methods = [m for m in METHODS if m != "LightGBM" or util.find_spec("lightgbm")]
    found: Found = {}
    lines = [HEAD]
    for name in names:
        lines += list(rows(journal, name, methods, seeds, found))
        print("\n".join(lines[-len(methods) :]), flush=True)
    lines += ["", f"{HEAD}{'ms/row':>9}"] if many else []
    for name in many:
        lines += list(rows(journal, name, WITH_MANY, 1, found))
    lines += ["", *targets(journal, found, rounds)]
    text = "\n".join(lines) + "\n"
    print(text)
    (out / "classifiers.txt").write_text(text, encoding="utf-8")


def rows(journal: Journal, name: str, methods: Any, seeds: int, found: Found) -> Iterator[str]:
    for method in methods:
        each = [measured(journal, name, method, FIRST + i) for i in range(seeds)]
        mean = {key: float(np.mean([one[key] for one in each])) for key in each[0]}
        found[name, method] = mean
        cells = "".join(f"{mean[key]:>8.3f}" for key in ("nll", "ece", "said"))
        last = f"{mean['milliseconds']:>9.2f}" if name in MANY else ""
        yield f"{name:16}{method:10}{mean['accuracy']:>9.3f}{cells}{mean['seconds']:>9.1f}{last}"


def measured(journal: Journal, name: str, method: str, seed: int) -> Numbers:
    settings = {"model": " ".join(repr(METHODS[method](0)).split())}
    if method == "DUE":  # whose defaults are what is measured
        settings["defaults"] = defaults()
    line = journal.find(settings, set=name, method=method, seed=seed)
    if line is None:
        numbers = fit_and_measure((SETS | MANY)[name](seed), METHODS[method](seed))
        line = journal.add(settings, {"numbers": numbers}, set=name, method=method, seed=seed)
    numbers = line["numbers"]
    return numbers


def defaults() -> str:
    """The arguments of a `DUEClassifier` and how it trains."""
    model = DUEClassifier()
    return " ".join(f"{model.get_params()} {model._recipe} {model._wide}".split())


def fit_and_measure(data: Split, model: Any) -> Numbers:
    began = time.perf_counter()
    model.fit(data.X, data.y)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    p, codes = model.predict_proba(data.X_new), np.searchsorted(model.classes_, data.y_new)
    milliseconds = 1e3 * (time.perf_counter() - began) / len(p)
    p = p.clip(1e-12)
    return {
        "accuracy": accuracy(p, codes),
        "nll": nll(p, codes),
        "ece": ece(p, codes, n_bins=15),
        "said": float(p.max(1).mean()),
        "seconds": seconds,
        "milliseconds": milliseconds,
    }


# 3. Targets


def targets(journal: Journal, found: Found, rounds: int) -> Iterator[str]:
    """What was measured once, what is wanted, what is measured now, and rivals."""
    yield f"{'target':44}{'was':>9}{'wanted':>9}{'now':>9}   rivals"
    yield from of_sets(found)
    for T, factor in FASTER.items():
        each = integral_costs(T, ("exact", "mean_field", "quasi"), 0.5 if rounds > 1 else 0.01)
        what, was = f"class integral, {T:,} classes, µs per row", each["quasi"]
        beside = f"mean field {each['mean_field']:.1f}"
        yield line(what, was, was / factor, each["exact"], beside, 1)
    yield from costs(journal, rounds)


def of_sets(found: Found) -> Iterator[str]:
    """Targets that tables 1 and 2 hold."""
    if ("26 blobs", "DUE") in found:
        due, rival = found["26 blobs", "DUE"], found.get(("26 blobs", "LightGBM"))
        beside = "" if rival is None else f"LightGBM {rival['ece']:.3f}, {rival['seconds']:.1f} s"
        yield line("26 classes: ECE", 0.19, 0.05, due["ece"], beside)
        yield line("26 classes: seconds of a fit", 82, 20, due["seconds"], beside, 1)
    if ("200 columns", "DUE") in found:
        due, forest = found["200 columns", "DUE"], found["200 columns", "forest"]
        error = {m: 1 - found[k, m]["accuracy"] for k, m in found if k == "200 columns"}
        trees = min(error[m] for m in ("forest", "LightGBM") if m in error)
        yield line("200 columns: ECE", 0.22, 0.1, due["ece"], f"forest {forest['ece']:.3f}")
        beside = ", ".join(f"{m} {error[m]:.3f}" for m in ("forest", "LightGBM") if m in error)
        yield line("200 columns: error", 0.32, trees, error["DUE"], beside)
    worse = [
        f"{name} {found[name, 'DUE']['nll'] - found[name, 'before']['nll']:+.3f}"
        for name, method in found
        if method == "before" and found[name, "DUE"]["nll"] > found[name, "before"]["nll"]
    ]
    yield f"NLL above that before, at most +0.010 wanted: {', '.join(worse) or 'nowhere'}"


def line(
    what: str, was: float, wanted: float, now: float, beside: str = "", digits: int = 3
) -> str:
    verdict = " " if now <= wanted else "!"
    cells = "".join(f"{value:>9.{digits}f}" for value in (was, wanted, now))
    return f"{what:44}{cells} {verdict} {beside}".rstrip()


def costs(journal: Journal, rounds: int) -> Iterator[str]:
    """Fit and `uncertainty` over those of a softmax on the same network, without a bound."""
    X, y = datasets.load_digits(return_X_y=True)
    each = [fit_round(journal, X, y, i, None if rounds > 1 else 1) for i in range(min(rounds, 3))]
    whole = Times({name: [one[name] for one in each] for name in KINDS})
    yield line(
        "digits: fit ÷ softmax, default", 6.6, 4, whole.ratio("DUE", "softmax"), beside(whole), 1
    )
    models = {name: kind(random_state=0, epochs=5) for name, kind in KINDS.items()}
    fits = {name: partial(model.fit, X, y) for name, model in models.items()}
    fitted = interleave(fits, rounds, burst=0.0, warm=1)
    yield line(
        "digits: fit ÷ softmax, 5 epochs", 6.6, 4, fitted.ratio("DUE", "softmax"), beside(fitted), 1
    )
    asks = {name: partial(model.uncertainty, X) for name, model in models.items()}
    asked = interleave(asks, rounds)
    yield line(
        "digits: uncertainty ÷ softmax", 7.5, 4, asked.ratio("DUE", "softmax"), beside(asked), 1
    )


def fit_round(journal: Journal, X: Any, y: Any, i: int, epochs: int | None) -> Numbers:
    """Seconds of one fit of each kind, one after the other; a round is a line of the journal."""
    settings = {"model": defaults(), "epochs": epochs}
    found = journal.find(settings, set="digits, costs", method="all", seed=i)
    if found is None:
        seconds = {}
        for name in list(KINDS)[i:] + list(KINDS)[:i]:
            KINDS[name](random_state=0, epochs=1).fit(X, y)
            began = time.perf_counter()
            KINDS[name](random_state=0, epochs=epochs).fit(X, y)
            seconds[name] = time.perf_counter() - began
        key = {"set": "digits, costs", "method": "all", "seed": i}
        found = journal.add(settings, {"numbers": seconds}, **key)
    numbers = found["numbers"]
    return numbers


def beside(times: Any) -> str:
    return ", ".join(f"{name} {times.ratio(name, 'softmax'):.1f}" for name in ("DDU", "SNGP"))


if __name__ == "__main__":
    main()
