"""The ELBO of a classifier integrated exactly, or by the paper's 10 samples: does it matter?

`DUEClassifier` with its defaults and with `samples=None` on four sets: accuracy, NLL, ECE and CPU
seconds of a fit, means over seeds with the standard error of the paired difference, and the loss of
every epoch as a figure. The seeds begin at 10.

    python benchmarks/sampling.py [--seeds 5] [--smoke]

Each fit is written to results/sampling.jsonl: the same command continues. It writes sampling.txt
and sampling.png beside it.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from class_sets import SETS, Split, has_clothes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from due import DUEClassifier
from due.experiments.journal import Journal
from due.metrics import accuracy, ece, nll

FIRST = 10  # seed
NAMES = ("digits", "moons", "26 blobs", "clothes 14 × 14")
WAYS: dict[str, int | None] = {"exact": None, "10 samples": 10}
STYLES: dict[str, dict[str, Any]] = {  # one line on top of the other
    "exact": {"color": "C0", "lw": 3, "alpha": 0.4},
    "10 samples": {"color": "C1", "lw": 0.8, "ls": "--"},
}
Numbers = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--smoke", action="store_true", help="seconds: moons, one seed, no file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.smoke:
        with TemporaryDirectory() as folder:
            make(Path(folder), ("moons",), 2, epochs=2)
        return
    make(options.out, tuple(n for n in NAMES if n[:7] != "clothes" or has_clothes()), options.seeds)


def make(out: Path, names: tuple[str, ...], seeds: int, epochs: int | None = None) -> None:
    """Fit what is missing, print the table, and write it with the figure."""
    journal = Journal(out / "sampling.jsonl", ("set", "way", "seed"), ("numbers",))
    found: dict[str, dict[str, list[Numbers]]] = {}
    for name in names:
        found[name] = {way: [] for way in WAYS}
        for seed in range(FIRST, FIRST + seeds):
            for way in WAYS:
                found[name][way].append(measured(journal, name, way, seed, epochs))
    text = "\n".join(table(found)) + "\n"
    print(text)
    (out / "sampling.txt").write_text(text, encoding="utf-8")
    draw(found).savefig(out / "sampling.png", dpi=150)


def measured(journal: Journal, name: str, way: str, seed: int, epochs: int | None) -> Numbers:
    model = DUEClassifier(samples=WAYS[way], epochs=epochs, random_state=seed)
    recipe = f"{model._recipe}"
    settings = {"model": f"{model.get_params()} {recipe}"}
    line = journal.find(settings, set=name, way=way, seed=seed)
    if line is None:
        numbers = fit_and_measure(SETS[name](seed), model)
        line = journal.add(settings, {"numbers": numbers}, set=name, way=way, seed=seed)
    numbers = line["numbers"]
    return numbers


def fit_and_measure(data: Split, model: DUEClassifier) -> Numbers:
    began = time.process_time()
    model.fit(data.X, data.y)
    seconds = time.process_time() - began
    p, codes = model.predict_proba(data.X_new), np.searchsorted(model.classes_, data.y_new)
    return {
        "accuracy": accuracy(p, codes),
        "NLL": nll(p.clip(1e-12), codes),
        "ECE": ece(p, codes, n_bins=15),
        "seconds": seconds,
        "loss": model.history_["loss"],
    }


def table(found: dict[str, dict[str, list[Numbers]]]) -> Iterator[str]:
    columns = ("accuracy", "NLL", "ECE", "seconds", "loss")
    yield f"{'':18}{'':12}" + "".join(f"{c:>18}" for c in columns[:-1]) + f"{'last loss':>18}"
    for name, ways in found.items():
        values = {way: np.array([row(each, columns) for each in ways[way]]) for way in ways}
        for way in ways:
            yield f"{name:18}{way:12}" + "".join(f"{v:>18.4f}" for v in values[way].mean(0))
        gap = values["exact"] - values["10 samples"]
        error = gap.std(0, ddof=1) / len(gap) ** 0.5
        cells = (f"{g:+.4f} ± {e:.4f}" for g, e in zip(gap.mean(0), error, strict=True))
        yield f"{name:18}{'difference':12}" + "".join(f"{cell:>18}" for cell in cells)


def row(numbers: Numbers, columns: tuple[str, ...]) -> list[float]:
    return [numbers[c][-1] if c == "loss" else numbers[c] for c in columns]


def draw(found: dict[str, dict[str, list[Numbers]]]) -> Figure:
    """Loss of every epoch, one panel per set, one line per seed."""
    figure = Figure(figsize=(3.2 * len(found), 3), layout="constrained")
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, (name, ways) in zip(panels, found.items(), strict=True):
        for way, each in ways.items():
            for i, numbers in enumerate(each):
                epochs = np.arange(1, 1 + len(numbers["loss"]))
                axes.plot(epochs, numbers["loss"], **STYLES[way], label=way if i == 0 else None)
        axes.set(title=name, xlabel="epoch", yscale="log")
        axes.yaxis.set_major_formatter(FuncFormatter(tick))
        axes.yaxis.set_minor_formatter(FuncFormatter(tick))
    panels[0].set_ylabel("−ELBO / N")
    panels[0].legend(frameon=False)
    return figure


def tick(value: float, _: int) -> str:
    """Few numbers, and none of them as a power of ten."""
    return f"{value:g}" if f"{value:e}"[0] in "1235" else ""


if __name__ == "__main__":
    main()
