"""Figure 3, two moons: predictive entropy of a softmax ResNet, GPDNN and DUE.

Two rows. The first takes `DUEClassifier` as it comes; GPDNN is the same estimator on an unbounded
feed-forward network, and it and the softmax network train for as many epochs as DUE did. The
second is what the paper prints: M = 4, q(U) = N(0, I), SGD 0.01, inputs as they are. The paper
gives no number of steps and no batch size; ours are below.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.spatial import KDTree
from torch import Tensor, nn

from due.baselines import SoftmaxClassifier
from due.data.toy import X_RANGE, Y_RANGE, grid_points, two_moons
from due.estimators import DUEClassifier
from due.experiments.artefact import Artefact, Result
from due.experiments.journal import Json
from due.gp import InducingGP, Softmax
from due.lipschitz import constrain
from due.methods import DUE
from due.methods.softmax import SoftmaxNetwork
from due.metrics import accuracy, entropy
from due.networks import FCResNet, FeedForward
from due.paper import CATALOGUE
from due.rows import Floats, Table
from due.rows.randomness import own_randomness
from due.training import Recipe, fit

MODELS = {"softmax": "ResNet + softmax", "gpdnn": "GPDNN", "due": "DUE"}
ROWS = {"default": "DUEClassifier() as it comes", "printed": "settings as the paper prints them"}


@dataclass(frozen=True)
class Printed:
    """The paper's appendix; the last two are ours."""

    M: int = 4
    J: int = 128
    depth: int = 4
    c: float = 0.95
    lr: float = 0.01  # of SGD
    batch_size: int = 64
    epochs: int = 500


@dataclass(frozen=True)
class Settings:
    """`estimator` holds the arguments of `DUEClassifier`, `printed` the paper's; None: no row."""

    estimator: dict[str, Any] | None = field(default_factory=lambda: DUEClassifier().get_params())
    printed: Printed | None = field(default_factory=Printed)
    n: int = 1500
    n_fresh: int = 1500
    noise: float = 0.1
    grid: int = 81  # points along each side of the picture
    far: float = 2.0  # from any training point
    off: float = 0.5  # the data; "certain" is an entropy below ½ ln 2


PRESETS = {
    "default": Settings(),
    "paper": Settings(estimator=None),
    "smoke": replace(
        Settings(printed=Printed(J=16, depth=1, epochs=3), n=200, n_fresh=200, grid=21),
        estimator=DUEClassifier(n_inducing=10, epochs=3).get_params(),
    ),
}


class Fitted(NamedTuple):
    """Class probabilities of rows, and how long it trained."""

    predict: Callable[[Floats], Floats]
    epochs: int


def run(settings: Settings, seed: int) -> Result:
    """Train three models for each row of the figure; measure and map their entropy in ln 2."""
    X, y = two_moons(settings.n, noise=settings.noise, seed=seed)
    fresh = two_moons(settings.n_fresh, noise=settings.noise, seed=10_000 + seed)
    grid = grid_points(settings.grid)
    distance = KDTree(X).query(grid)[0]

    rows: dict[str, dict[str, Fitted]] = {}
    if settings.estimator is not None:
        rows["default"] = fit_estimators(settings.estimator, X, y, seed)
    if settings.printed is not None:
        rows["printed"] = fit_printed(settings.printed, X, y, seed)
    numbers: Json = {row: {} for row in rows}
    maps: Json = {row: {} for row in rows}
    for row, name in product(rows, MODELS):
        model = rows[row][name]
        on_grid = entropy_in_ln2(model, grid)
        certain = on_grid < 0.5
        maps[row][name] = on_grid.round(3).tolist()
        numbers[row][name] = {
            "accuracy": accuracy(model.predict(fresh.X), fresh.y),
            "far_entropy": float(on_grid[distance > settings.far].mean()),
            "train_entropy": float(np.median(entropy_in_ln2(model, X))),
            "certain_off_data": float(certain[distance > settings.off].mean()),
            "farthest_certain": float(distance[certain].max(initial=0.0)),
            "epochs": model.epochs,
        }
    return Result(numbers, {"X": X.round(3).tolist(), "y": y.tolist(), "maps": maps})


def fit_estimators(
    arguments: dict[str, Any], X: Floats, y: NDArray[Any], seed: int
) -> dict[str, Fitted]:
    """`DUEClassifier`, and the other two trained for as many epochs."""
    due = DUEClassifier(**{**arguments, "random_state": seed}).fit(X, y)
    epochs = len(due.history_["loss"])
    same = {**arguments, "random_state": seed, "epochs": epochs, "recipe": Recipe(patience=epochs)}
    gpdnn = DUEClassifier(**{**same, "extractor": feed_forward, "c": None}).fit(X, y)
    own = {name: same[name] for name in ("epochs", "random_state", "validation_fraction")}
    softmax = SoftmaxClassifier(**own, recipe=Recipe(patience=epochs)).fit(X, y)
    models = {"softmax": softmax, "gpdnn": gpdnn, "due": due}
    return {name: Fitted(model.predict_proba, epochs) for name, model in models.items()}


def feed_forward(shape: torch.Size) -> nn.Module:
    """The layers of the default network without its skip connections."""
    return FeedForward(shape[0], 128, 4)


def fit_printed(printed: Printed, X: Floats, y: NDArray[Any], seed: int) -> dict[str, Fitted]:
    """The three models with q(U) = N(0, I), trained by plain SGD on all rows."""
    x, labels = torch.as_tensor(X).float(), torch.as_tensor(y)
    size = (2, printed.J, printed.depth)
    with own_randomness(seed):
        softmax = SoftmaxNetwork(FCResNet(*size), printed.J, 2)
        free = FeedForward(*size)
        bounded = constrain(FCResNet(*size), printed.c, x[:2])
    models: dict[str, DUE | SoftmaxNetwork] = {"softmax": softmax}
    for name, f in (("gpdnn", free), ("due", bounded)):
        gp = InducingGP(torch.zeros(printed.M, printed.J), 2)
        models[name] = DUE(f, gp, Softmax(2, samples=10), warm=False)
    shared = ("lr", "epochs", "batch_size")
    recipe = Recipe(optimizer="sgd", **{key: getattr(printed, key) for key in shared})
    for model in models.values():
        fit(model, Table(x, labels), recipe, seed=seed, progress=False)
    return {name: Fitted(partial(probabilities, m), printed.epochs) for name, m in models.items()}


@torch.no_grad()
def probabilities(model: DUE | SoftmaxNetwork, X: Floats) -> Floats:
    """The model's p(y | x) of rows."""
    probs = cast(Tensor, model.predict(torch.as_tensor(X).float())).double().numpy()
    return probs / probs.sum(-1, keepdims=True)


def entropy_in_ln2(model: Fitted, X: Floats) -> Floats:
    """Predictive entropy of each row, 1 where the two classes are equally likely."""
    return entropy(model.predict(X)) / np.log(2)


def draw(settings: Settings, results: Sequence[Result]) -> Figure:
    """The maps of the first seed, one scale of colour for all."""
    picture, rows = results[0].picture, results[0].picture["maps"]
    X, y = np.array(picture["X"]), np.array(picture["y"])
    figure = Figure(figsize=(9.4, 0.7 + 2.45 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), len(MODELS), sharex=True, sharey=True, squeeze=False)
    place: Json = {"extent": (*X_RANGE, *Y_RANGE), "origin": "lower", "interpolation": "bilinear"}
    for line, (row, maps) in zip(axes, rows.items(), strict=True):
        for ax, name in zip(line, MODELS, strict=True):
            values = np.array(maps[name]).reshape(settings.grid, settings.grid)
            image = ax.imshow(values, cmap="cividis_r", vmin=0, vmax=1, **place)
            for label, colour in ((0, "black"), (1, "tab:red")):
                a, b = X[y == label].T
                ax.scatter(a, b, s=1.5, c=colour, lw=0, label=f"class {label}")
        line[0].set_ylabel(f"{ROWS[row]}\n\n$x_2$", fontsize=9)
    for top, bottom, title in zip(axes[0], axes[-1], MODELS.values(), strict=True):
        top.set_title(title)
        bottom.set_xlabel("$x_1$", fontsize=9)
    bar = figure.colorbar(image, ax=axes, ticks=[0, 0.25, 0.5, 0.75, 1], aspect=30)
    bar.set_label("predictive entropy / ln 2\n(yellow: certain, blue: uncertain)")
    axes[0, 0].legend(loc="lower left", fontsize=7, markerscale=4, framealpha=0.9)
    return figure


ARTEFACT = Artefact(CATALOGUE["fig3"].title, PRESETS, run, draw)
