"""What `make demo` shows: digits with unseen classes, a regression with a gap, two moons.

All data come with scikit-learn or are drawn here. The estimators are used as they come.

    python examples/demo.py --out results/demo [--smoke]
"""

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from due.baselines import SoftmaxClassifier
from due.data.toy import Moons, cosine_sum, random_cosines, two_moons
from due.estimators import DUEClassifier, DUERegressor
from due.experiments.journal import Json, versions
from due.metrics import accuracy, auroc, coverage, ece, entropy, rmse
from due.storage import atomic_write

Floats = NDArray[np.float64]
Classifier = DUEClassifier | SoftmaxClassifier
SEEN, UNSEEN = "#0072B2", "#D55E00"  # Okabe and Ito: told apart by the colour-blind too
X_RANGE, Y_RANGE = (-3.0, 4.0), (-2.5, 3.0)
LN2 = float(np.log(2))


@dataclass(frozen=True)
class Settings:
    """`estimator` holds arguments of every estimator; empty means the defaults."""

    estimator: dict[str, Any] = field(default_factory=dict)
    n_gap: int = 200
    n_moons: int = 1000
    grid: int = 151
    rounds: int = 15  # of timing


FULL = Settings()
SMOKE = Settings({"epochs": 2}, n_gap=60, n_moons=200, grid=21, rounds=2)


def run(out: Path, smoke: bool = False) -> Json:
    """Fit, print a table, and write three pictures and `demo.json` into `out`."""
    settings = SMOKE if smoke else FULL
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    numbers: Json = {}
    for name, part in {"digits": digits, "gap": gap, "moons": moons}.items():
        print(f"{name} …", flush=True)
        numbers[name], figure = part(settings)
        atomic_write(out / f"{name}.png", partial(figure.savefig, format="png"))
    numbers["seconds"] = round(time.perf_counter() - began, 1)
    numbers["threads"] = torch.get_num_threads()
    numbers["settings"] = asdict(settings)
    numbers["versions"] = {**versions(), "machine": platform.machine()}
    text = json.dumps(numbers, indent=2) + "\n"
    atomic_write(out / "demo.json", lambda file: file.write_text(text, encoding="utf-8"))
    print(table(numbers))
    print(f"\n{numbers['seconds']:.0f} s on {numbers['threads']} thread(s); wrote {out}/")
    print("  digits.png  gap.png  moons.png  demo.json")
    return numbers


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(
        prog="python examples/demo.py", description="Show what due does."
    )
    parser.add_argument("--out", type=Path, default=Path("results/demo"), metavar="DIR")
    parser.add_argument("--smoke", action="store_true", help="seconds: same code, tiny settings")
    parser.add_argument("--threads", type=int, default=1, help="one is fastest for nets this small")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    run(options.out, options.smoke)


# digits whose classes 5 to 9 were never seen


class Digits(NamedTuple):
    """Training and test rows of the classes 0 to 4, and all rows of 5 to 9."""

    X: Floats
    y: NDArray[np.int64]
    X_seen: Floats
    y_seen: NDArray[np.int64]
    X_unseen: Floats
    y_unseen: NDArray[np.int64]


def digits(settings: Settings) -> tuple[Json, Figure]:
    """DUE and a softmax on the same network: are classes that were never seen noticed?"""
    data = held_out_digits()
    due = DUEClassifier(random_state=0, **settings.estimator)
    softmax = SoftmaxClassifier(random_state=0, **settings.estimator)
    trained = {"due": seconds(lambda: due.fit(data.X, data.y))}
    trained["softmax"] = seconds(lambda: softmax.fit(data.X, data.y))
    predicted = in_turns(
        {
            "due": lambda: due.predict_proba(data.X_unseen),
            "softmax": lambda: softmax.predict_proba(data.X_unseen),
        },
        settings.rounds,
    )
    numbers: Json = {"rows": len(data.X), "seen": len(data.X_seen), "unseen": len(data.X_unseen)}
    models: dict[str, Classifier] = {"due": due, "softmax": softmax}
    for name, model in models.items():
        probs = model.predict_proba(data.X_seen)
        numbers[name] = {
            "accuracy": accuracy(probs, data.y_seen),
            "ece": ece(probs, data.y_seen, n_bins=15),
            "auroc_entropy": auroc(entropy(probs), model.uncertainty(data.X_unseen)),
            "fit_seconds": trained[name],
            "predict_microseconds_per_row": 1e6 * predicted[name] / len(data.X_unseen),
        }
    scores = due.ood_score(data.X_seen), due.ood_score(data.X_unseen)
    numbers["due"]["auroc_ood_score"] = auroc(*scores)
    numbers["fit_ratio"] = trained["due"] / trained["softmax"]
    numbers["predict_ratio"] = predicted["due"] / predicted["softmax"]
    return numbers, draw_digits(data, due, numbers["due"])


def held_out_digits() -> Digits:
    """A quarter of the rows of 0 to 4 is for testing."""
    X, y = load_digits(return_X_y=True)
    seen = y < 5
    X_train, X_test, y_train, y_test = train_test_split(
        X[seen], y[seen], test_size=0.25, random_state=0, stratify=y[seen]
    )
    return Digits(X_train, y_train, X_test, y_test, X[~seen], y[~seen])


def draw_digits(data: Digits, due: DUEClassifier, numbers: Json) -> Figure:
    """Histograms of both scores, and the digits at both ends of one of them."""
    figure = Figure(figsize=(10, 7.6), dpi=150, layout="constrained")
    figure.suptitle("Trained on digits 0–4 only. Does it notice 5–9?", fontsize=15)
    parts = figure.subfigures(2, 1, height_ratios=[1, 1.15], squeeze=False)
    left, right = parts[0, 0].subplots(1, 2)
    scores = due.ood_score(data.X_seen), due.ood_score(data.X_unseen)
    top = float(max(map(np.max, scores)))
    histogram(left, scores, top, f"OOD score (from 0 to 1; the axis ends at {top:.2f})")
    left.set_title(f"OOD score: AUROC {numbers['auroc_ood_score']:.3f}")
    entropies = due.uncertainty(data.X_seen), due.uncertainty(data.X_unseen)
    most = float(np.log(5))
    histogram(right, entropies, most, "predictive entropy in nats (no idea: ln 5 = 1.61)")
    right.set_title(f"Predictive entropy: AUROC {numbers['auroc_entropy']:.3f}")
    left.legend(frameon=False, loc="upper center")
    draw_strips(parts[1, 0], data, due, scores)
    return figure


def histogram(axes: Axes, scores: tuple[Floats, Floats], top: float, label: str) -> None:
    """Share of the test rows in each of 30 bins, for classes that were seen and that were not."""
    bins = np.linspace(0, top, 31).tolist()
    names = ("0–4, new images of seen classes", "5–9, classes never seen")
    for score, name, colour in zip(scores, names, (SEEN, UNSEEN), strict=True):
        weights = np.full(len(score), 1 / len(score))
        axes.hist(score.clip(0, top), bins, weights=weights, color=colour, alpha=0.25)
        axes.hist(score, bins, weights=weights, color=colour, histtype="step", lw=1.8, label=name)
    axes.set(xlabel=label, ylabel="share of images", xlim=(0, top))
    axes.spines[["top", "right"]].set_visible(False)


def draw_strips(
    place: SubFigure, data: Digits, due: DUEClassifier, scores: tuple[Floats, Floats]
) -> None:
    """Four rows of ten images: least and most OOD, of seen and of unseen classes."""
    place.suptitle("Ten test images at each end of the OOD score", fontsize=12)
    n = 10
    axes = place.subplots(4, n)
    kinds = (("seen", data.X_seen, SEEN), ("never seen", data.X_unseen, UNSEEN))
    for kind, (name, X, colour) in enumerate(kinds):
        order = np.argsort(scores[kind], kind="stable")
        for end, (which, rows) in enumerate((("least", order[:n]), ("most", order[::-1][:n]))):
            line = axes[2 * kind + end]
            label = f"{name},\n{which} OOD"
            line[0].set_ylabel(label, rotation=0, ha="right", va="center", color=colour)
            for ax, row, predicted in zip(line, rows, due.predict(X[rows]), strict=True):
                ax.imshow(X[row].reshape(8, 8), cmap="gray_r", vmin=0, vmax=16)
                ax.set_title(f"{scores[kind][row]:.3f} → {predicted}", fontsize=8, pad=2)
                ax.set(xticks=[], yticks=[])
                for spine in ax.spines.values():
                    spine.set(color=colour, lw=1.5)
    place.supxlabel("above each image: its OOD score → the predicted class", fontsize=9)


# a regression with a gap


def gap(settings: Settings) -> tuple[Json, Figure]:
    """Two clusters of x with nothing between: the error bars must open there."""
    X, y, _ = random_cosines(settings.n_gap, seed=0)
    model = DUERegressor(random_state=0, **settings.estimator).fit(X, y)
    new = random_cosines(1000, seed=1)
    mean, std = model.predict(new.X, return_std=True)
    middle = np.linspace(-3, 3, 121)
    between, empty = model.predict(middle[:, None], return_std=True)
    truth = cosine_sum(middle)
    outside = np.array([[-30.0], [30.0]])
    numbers = {
        "rows": len(X),
        "rmse": rmse(new.y, mean),
        "coverage_1std": coverage(new.y, mean - std, mean + std),
        "coverage_2std": coverage(new.y, mean - 2 * std, mean + 2 * std),
        "std_on_data": float(np.median(std)),
        "std_in_gap": float(empty.max()),
        "truth_in_gap_2std": coverage(truth, between - 2 * empty, between + 2 * empty),
        "std_far_away": float(model.predict(outside, return_std=True)[1].mean()),
        "std_of_y": float(y.std()),
    }
    return numbers, draw_gap(X, y, model, numbers)


def draw_gap(X: Floats, y: Floats, model: DUERegressor, numbers: Json) -> Figure:
    """Mean with one and two standard deviations, beside the points and the function."""
    x = np.linspace(-12, 12, 481)
    mean, std = model.predict(x[:, None], return_std=True)
    figure = Figure(figsize=(10, 4.8), dpi=150, layout="constrained")
    axes = figure.subplots()
    for k, alpha in ((2, 0.18), (1, 0.3)):
        band = mean - k * std, mean + k * std
        label = f"mean ± {k} standard deviation{'s' if k > 1 else ''}"
        axes.fill_between(x, *band, color=SEEN, alpha=alpha, lw=0, label=label)
    axes.plot(x, mean, color=SEEN, lw=2, label="mean")
    axes.plot(x, cosine_sum(x), color="black", lw=1.2, ls="--", label="true function")
    axes.plot(X[:, 0], y, "o", ms=3.5, color=UNSEEN, alpha=0.7, label=f"{len(X)} training points")
    axes.set(xlabel="x", ylabel="y", xlim=(x[0], x[-1]))
    axes.set_title(
        "Where there are no points, the error bars open\n"
        f"(within 2 standard deviations: {100 * numbers['coverage_2std']:.0f} % of new points, "
        f"{100 * numbers['truth_in_gap_2std']:.0f} % of the true function across the gap)"
    )
    axes.legend(frameon=False, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.12), fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


# two moons


def moons(settings: Settings) -> tuple[Json, Figure]:
    """Entropy over the plane, of DUE and of a softmax on the same network."""
    data = two_moons(settings.n_moons, seed=0)
    new = two_moons(1000, seed=1)
    grid = np.column_stack([part.ravel() for part in plane(settings.grid)])
    far = np.min(((grid[:, None] - data.X[None, ::5]) ** 2).sum(-1), 1) > 1.0
    numbers: Json = {"rows": len(data.X)}
    maps = {}
    models: dict[str, Classifier] = {
        "due": DUEClassifier(random_state=0, **settings.estimator),
        "softmax": SoftmaxClassifier(random_state=0, **settings.estimator),
    }
    for name, model in models.items():
        model.fit(data.X, data.y)
        maps[name] = model.uncertainty(grid) / LN2
        numbers[name] = {
            "accuracy": accuracy(model.predict_proba(new.X), new.y),
            "entropy_on_data": float(np.median(model.uncertainty(new.X)) / LN2),
            "entropy_far_away": float(maps[name][far].mean()),
        }
    return numbers, draw_moons(data, maps, settings.grid)


def plane(n: int) -> tuple[Floats, Floats]:
    """Coordinates of n × n points of the picture."""
    x, y = np.meshgrid(np.linspace(*X_RANGE, n), np.linspace(*Y_RANGE, n))
    return x, y


def draw_moons(data: Moons, maps: dict[str, Floats], n: int) -> Figure:
    """Two maps of the entropy with one scale of colours, and the points."""
    figure = Figure(figsize=(10, 4.2), dpi=150, layout="constrained")
    figure.suptitle("Two moons: where is the class uncertain?", fontsize=14)
    panels = figure.subplots(1, 2, sharey=True)
    titles = {
        "due": "DUE: certain only near the data",
        "softmax": "softmax, same network: certain almost everywhere",
    }
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        image = axes.pcolormesh(
            *plane(n), maps[name].reshape(n, n), cmap="cividis_r", vmin=0, vmax=1, rasterized=True
        )
        for label, marker, colour in ((0, "o", "white"), (1, "^", "#E69F00")):
            points = data.X[data.y == label][::3]
            axes.plot(
                *points.T, marker, ms=3, mfc=colour, mec="black", mew=0.4, label=f"class {label}"
            )
        axes.set(title=title, xlabel="$x_1$", xlim=X_RANGE, ylim=Y_RANGE, aspect="equal")
    panels[0].set_ylabel("$x_2$")
    panels[0].legend(loc="lower left", framealpha=0.9)
    figure.colorbar(image, ax=panels, label="predictive entropy / ln 2 (blue, 1: no idea)")
    return figure


# time and text


def seconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def in_turns(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each call; they take turns, so that a busy machine slows all alike."""
    for call in calls.values():
        call()
    times = [{name: seconds(call) for name, call in calls.items()} for _ in range(rounds)]
    return {name: median(turn[name] for turn in times) for name in calls}


def table(numbers: Json) -> str:
    """The main numbers, in about twenty lines."""
    return "\n".join([*digits_lines(numbers["digits"]), "", *toy_lines(numbers)])


def digits_lines(n: Json) -> Iterator[str]:
    """DUE beside the softmax, a line for each number."""
    due, softmax = n["due"], n["softmax"]

    def line(label: str, key: str, form: str, ratio: str = "") -> str:
        cells = [f"{m[key]:{form}}" if key in m else "–" for m in (due, softmax)]
        return f"  {label:<46}{cells[0]:>9}{cells[1]:>9}{ratio:>9}"

    yield f"\nDigits, trained on {n['rows']} images of 0–4; 5–9 never seen"
    yield f"  {'':<46}{'DUE':>9}{'softmax':>9}{'ratio':>9}"
    yield line(f"accuracy on {n['seen']} new images of 0–4", "accuracy", ".1%")
    yield line("calibration error (ECE, 15 bins)", "ece", ".4f")
    yield line("AUROC of 5–9, by ood_score", "auroc_ood_score", ".3f")
    yield line("AUROC of 5–9, by predictive entropy", "auroc_entropy", ".3f")
    yield line("training, s", "fit_seconds", ".1f", f"{n['fit_ratio']:.1f}")
    micro = "predict_microseconds_per_row"
    yield line("prediction, µs per row", micro, ".1f", f"{n['predict_ratio']:.1f}")


def toy_lines(numbers: Json) -> Iterator[str]:
    """The gap and the moons."""
    gap, due, softmax = numbers["gap"], numbers["moons"]["due"], numbers["moons"]["softmax"]
    yield f"Regression with a gap, {gap['rows']} points (DUE)"
    for label, key, form in (
        ("new points within 1 std (normal: 68 %)", "coverage_1std", ".1%"),
        ("new points within 2 std (normal: 95 %)", "coverage_2std", ".1%"),
        ("std on the data (the noise is 0.10)", "std_on_data", ".2f"),
        ("std in the gap, at most", "std_in_gap", ".2f"),
        ("true function within 2 std in the gap", "truth_in_gap_2std", ".1%"),
        ("std far away", "std_far_away", ".2f"),
    ):
        yield f"  {label:<46}{gap[key]:>9{form}}"
    yield ""
    yield f"Two moons, {numbers['moons']['rows']} points"
    yield f"  {'':<46}{'DUE':>9}{'softmax':>9}"
    for label, key, form in (
        ("accuracy on new points", "accuracy", ".1%"),
        ("entropy / ln 2 on the data (median)", "entropy_on_data", ".3f"),
        ("entropy / ln 2 more than 1 away (mean)", "entropy_far_away", ".3f"),
    ):
        yield f"  {label:<46}{due[key]:>9{form}}{softmax[key]:>9{form}}"


if __name__ == "__main__":
    main()
