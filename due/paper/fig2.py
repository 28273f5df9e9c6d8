"""Figure 2, feature collapse: two classes and unrelated points, in input and in feature space.

The paper names neither network nor training. Ours: both networks have 4 layers of 128, a linear
softmax output and the optimiser of the paper's image runs; one is feed-forward without a bound,
the other residual with c = 0.95. Features are drawn on the first two principal components of
the features of class data and grid together.

The star is the worst collapse of the free network: of the grid points at least 3 standard
deviations of a blob from every class point, the one that this network's features put nearest to
class data. It is chosen to be on class data without the constraint; what was not chosen is beside
it: the shares of the grid, the nearest such far point of each network by its own features, and a
star fixed beforehand at (2, 3).

A point lies "within the median" if its nearest class point, in features, is no farther than half
the class points are from their own nearest one, and "on class data" if no farther than 95 % are.
After a perfect collapse onto a line a point is within the median only half of the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.spatial import KDTree
from torch import Tensor, nn

from due.data.toy import BLOB_STD, Blobs, two_blobs
from due.experiments.artefact import Artefact, Result
from due.experiments.journal import Json
from due.lipschitz import constrain, lipschitz_ratios
from due.methods.softmax import SoftmaxNetwork
from due.networks import FCResNet, FeedForward
from due.paper import CATALOGUE
from due.rows import Floats, Table
from due.rows.randomness import own_randomness
from due.training import Recipe, fit

FREE, BOUNDED = "without_constraint", "with_constraint"
STAR = "star: of the far grid points, the one that (b) puts nearest to class data"
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class Settings:
    """The data are those of `due.data.toy.two_blobs`."""

    n: int = 1000
    grid: int = 40  # points along each side
    J: int = 128
    depth: int = 4
    c: float = 0.95
    lr: float = 0.1  # of SGD, as is the momentum
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch_size: int = 128
    epochs: int = 200
    pairs: int = 5000
    unrelated: float = -12.0  # log-density below which a grid point is far from both classes
    away: float = 3.0  # of the star from all class points, in standard deviations of a blob


PRESETS = {"default": Settings(), "smoke": Settings(n=100, grid=10, J=16, epochs=3, pairs=100)}


def run(settings: Settings, seed: int) -> Result:
    """Train both networks on one set of blobs; measure and project their features."""
    blobs = two_blobs(settings.n, n_grid=settings.grid, seed=seed)
    networks = {name: train(settings, blobs, name, seed) for name in (FREE, BOUNDED)}
    away = KDTree(blobs.X).query(blobs.grid)[0]  # of each grid point from class data, in inputs
    far = away >= settings.away * BLOB_STD
    star = worst_collapse(networks[FREE], blobs, far)
    pictures: Json = {name: project(f, blobs, star) for name, f in networks.items()}
    inputs = {"class": blobs.X, "grid": blobs.grid, "star": blobs.grid[star]}
    pictures["input"] = {name: points.round(3).tolist() for name, points in inputs.items()}
    pictures["y"], pictures["log_density"] = blobs.y.tolist(), blobs.log_density.round(2).tolist()
    x1, x2 = blobs.grid[star].tolist()
    place = {"x1": x1, "x2": x2, "input_distance": float(away[star])}
    numbers: Json = {"star": {**place, "chosen_among": int(far.sum())}}
    for name, f in networks.items():
        numbers[name] = measure(f, blobs, star, far, settings, seed)
    return Result(numbers, pictures)


def worst_collapse(f: nn.Module, blobs: Blobs, far: NDArray[np.bool_]) -> int:
    """Which of the `far` grid points has its features nearest to those of class data."""
    distance = KDTree(_features(f, blobs.X)).query(_features(f, blobs.grid))[0]
    return int(np.where(far, distance, np.inf).argmin())


def train(settings: Settings, blobs: Blobs, name: str, seed: int) -> nn.Module:
    """The trained network: feed-forward and free, or residual with each layer bounded by c."""
    x, size = _tensor(blobs.X), (2, settings.J, settings.depth)
    with own_randomness(seed):
        free = name == FREE
        f = FeedForward(*size) if free else constrain(FCResNet(*size), settings.c, x[:2])
        model = SoftmaxNetwork(f, settings.J, 2)
    shared = ("lr", "momentum", "weight_decay", "epochs", "batch_size")
    recipe = Recipe(optimizer="sgd", **{key: getattr(settings, key) for key in shared})
    fit(model, Table(x, torch.as_tensor(blobs.y)), recipe, seed=seed, progress=False)
    return model.f


def measure(
    f: nn.Module, blobs: Blobs, star: int, far: NDArray[np.bool_], settings: Settings, seed: int
) -> Json:
    """How f treats distances between grid points, and what it puts on top of the class data."""
    classes = KDTree(_features(f, blobs.X))
    own = classes.query(classes.data, k=2)[0][:, 1]  # of each class point to its nearest other
    typical, reach = np.quantile(own, [0.5, 0.95])
    grid = classes.query(_features(f, blobs.grid))[0]
    fixed = classes.query(_features(f, blobs.star[None]))[0][0]
    unrelated = blobs.log_density < settings.unrelated

    rng = np.random.default_rng(seed)
    first = rng.integers(len(blobs.grid), size=settings.pairs)
    second = (first + rng.integers(1, len(blobs.grid), size=settings.pairs)) % len(blobs.grid)
    ratios = lipschitz_ratios(f, _tensor(blobs.grid[first]), _tensor(blobs.grid[second])).ratios
    quantiles = np.quantile(ratios.double().numpy(), QUANTILES)
    return {
        **_nearness("star", grid[star], typical, reach),
        **_nearness("fixed_star", fixed, typical, reach),
        **_nearness("nearest_far_grid_point", grid[far].min(), typical, reach),
        "far_grid_on_class_data": float((grid[far] <= reach).mean()),
        "far_grid_within_median": float((grid[far] <= typical).mean()),
        "grid_on_class_data": float((grid <= reach).mean()),
        "grid_within_median": float((grid <= typical).mean()),
        "unrelated_grid_on_class_data": float((grid[unrelated] <= reach).mean()),
        "distance_ratio_quantiles": {
            f"{q:.0%}": float(value) for q, value in zip(QUANTILES, quantiles, strict=True)
        },
    }


def _nearness(name: str, distance: float, typical: float, reach: float) -> Json:
    return {
        f"{name}_on_class_data": bool(distance <= reach),
        f"{name}_within_median": bool(distance <= typical),
        f"{name}_distance_in_medians": float(distance / typical),
        f"{name}_distance_in_95_quantiles": float(distance / reach),
    }


def project(f: nn.Module, blobs: Blobs, star: int) -> Json:
    """Features on two principal components, turned the way x₁ and x₂ point."""
    h = {"class": _features(f, blobs.X), "grid": _features(f, blobs.grid)}
    together = np.concatenate([h["class"], h["grid"]])
    centre = together.mean(0)
    _, singular, axes = np.linalg.svd(together - centre, full_matrices=False)
    inputs = np.concatenate([blobs.X, blobs.grid])
    axes = axes[:2] * np.sign(((together - centre) @ axes[:2].T * inputs).sum(0))[:, None]
    flat = {name: ((points - centre) @ axes.T).round(4).tolist() for name, points in h.items()}
    explained = (singular[:2] ** 2 / (singular**2).sum()).tolist()
    return {**flat, "star": flat["grid"][star], "explained": explained}


@torch.no_grad()
def _features(f: nn.Module, points: Floats) -> Floats:
    return f(_tensor(points)).double().numpy()


def _tensor(points: Floats) -> Tensor:
    return torch.as_tensor(points, dtype=torch.float32)


def draw(settings: Settings, results: Sequence[Result]) -> Figure:
    """Input and both feature spaces of the first seed."""
    picture = results[0].picture
    figure = Figure(figsize=(11.5, 3.9), layout="constrained")
    axes = figure.subplots(1, 3)
    titles = {
        "input": "(a) input",
        FREE: "(b) features, trained without constraint",
        BOUNDED: "(c) features, trained with constraint",
    }
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        dots = _panel(ax, picture[name], picture["log_density"])
        ax.set_title(title, fontsize=10)
        explained = picture[name].get("explained")
        labels = ["$x_1$", "$x_2$"]
        if explained is not None:
            labels = [f"PC {i} ({100 * e:.1f} % of variance)" for i, e in enumerate(explained, 1)]
        ax.set(xlabel=labels[0], ylabel=labels[1])
    figure.colorbar(dots, ax=axes, aspect=30, label="log-density of the data at the grid point")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return figure


def _panel(ax: Axes, picture: Json, log_density: list[float]) -> PathCollection:
    (a, b), (u, v) = np.array(picture["grid"]).T, np.array(picture["class"]).T
    label = "grid of unrelated points"
    dots = ax.scatter(a, b, s=7, c=log_density, cmap="plasma", lw=0, label=label)
    ax.scatter(u, v, s=3, c="tab:green", lw=0, label="class data (two blobs)")
    x, y = picture["star"]
    ax.scatter(x, y, s=180, marker="*", c="tab:red", edgecolors="black", label=STAR, zorder=3)
    points = np.array([*picture["grid"], *picture["class"]])
    low, high = points.min(0), points.max(0)
    middle, half = (low + high) / 2, 0.54 * (high - low).max()
    limits = np.stack([middle - half, middle + half], axis=1)
    ax.set(xlim=limits[0], ylim=limits[1], aspect="equal")
    return dots


ARTEFACT = Artefact(CATALOGUE["fig2"].title, PRESETS, run, draw)
