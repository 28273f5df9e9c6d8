"""Ways to a bi-Lipschitz extractor (Section 3.2), which the paper discusses in words, as one table.

DUE five times, on networks of one size that differ in their constraint alone. Data: two moons,
where far points of the plane are out of distribution, and the digits 0–4, where 5–9 are. Each
trains by the ELBO from the same warm start of q(U). The OOD score is that of `DUEClassifier`, which
no label enters; the share of the prior variance that q(f) has is beside it.

The penalty is λ mean_i (‖∂ Σ_j v_j h_j(x_i) / ∂x_i‖ − √(D/J))² for one direction v, ‖v‖ = 1, drawn
anew each batch: if the Jacobian has orthonormal columns, the squared norm is D/J on average.

Time is the CPU time of training. Memory is what one batch keeps for its backward pass; the
reversible network keeps its activations as any other: nothing is recomputed from its inverse.
Ratios are ‖f(a) − f(b)‖ / ‖a − b‖ on pairs of test rows and rows out of distribution, mixed.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray
from scipy.spatial import KDTree
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from due.data.toy import grid_points, two_moons
from due.experiments.artefact import Artefact, Result, average
from due.experiments.journal import Json
from due.experiments.layout import Table
from due.gp import InducingGP, Reference, Softmax, features
from due.lipschitz import gradient_penalty, lipschitz_ratios
from due.methods import DUE, Method
from due.methods.method import Plain
from due.metrics import accuracy, auroc, entropy
from due.paper import CATALOGUE
from due.paper.deep_kernels import extractor, standard
from due.rows.scale import Floats
from due.rows.source import Table as Rows
from due.training import Recipe, fit

WAYS = {
    "spectral": "spectral norm, residual",
    "penalty": "gradient penalty, residual",
    "reversible": "reversible",
    "residual": "none, residual",
    "feed_forward": "none, feed-forward",
}
NETWORKS = {"spectral": "sound", "reversible": "reversible", "feed_forward": "collapsed"}
AUROCS = ("auroc_ood_score", "auroc_variance", "auroc_entropy")
RATIOS = ("lipschitz_lower", "lipschitz_median", "lipschitz_upper")
BASE = "residual"  # what time and memory are relative to
COLOURS = ("tab:blue", "tab:purple", "tab:green", "tab:orange", "tab:red")


@dataclass(frozen=True)
class Settings:
    """The same for every way; the rates are those of `DUEClassifier`, but constant."""

    J: int = 128
    depth: int = 4
    c: float = 0.95
    penalty: float = 1.0  # λ
    M: int = 50
    lr: float = 5e-4  # of Adam for the network
    gp_lr: float = 5e-3
    batch_size: int = 64
    epochs: int = 60
    n_moons: int = 1000
    noise: float = 0.1
    far: float = 0.5  # of the plane's points from any training point
    pairs: int = 2000


PRESETS = {
    "default": Settings(),
    "paper": Settings(),  # the paper prints no settings for this
    "smoke": Settings(J=64, depth=1, M=10, epochs=1, n_moons=100, pairs=50),
}


class Task(NamedTuple):
    """Rows to learn, to test, and out of distribution."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: NDArray[np.int64]
    x_out: Tensor


class Penalised(Plain):
    """−ELBO/N + λ · gradient penalty on a random direction of the features."""

    def __init__(self, model: DUE, penalty: float) -> None:
        super().__init__()
        self.model, self.penalty = model, penalty
        self.head = DUE(nn.Identity(), model.gp, model.likelihood)  # from features

    def forward(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """The loss of a batch."""
        x = x.detach().requires_grad_()
        h = self.f(x)
        v = torch.randn(h.shape[1])
        target = (x.shape[1] / h.shape[1]) ** 0.5
        bend = gradient_penalty(h @ (v / v.norm()), x, target)
        self.head.n_data = self.model.n_data
        return self.head(h, y, weights) + self.penalty * bend

    @property
    def f(self) -> nn.Module:
        """The network of the model."""
        return self.model.f

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Those of the model, without penalty."""
        return self.model.losses(x, y)


def run(settings: Settings, seed: int) -> Result:
    """Every way on every task."""
    measure(replace(settings, epochs=1), moons(settings, seed), BASE, seed)  # torch loads lazily
    numbers: Json = {}
    for name, task in (("moons", moons(settings, seed)), ("digits", digits(seed))):
        found = {way: measure(settings, task, way, seed) for way in WAYS}
        for row in found.values():
            for key in ("seconds", "megabytes"):
                row[f"{key}_relative"] = row[key] / found[BASE][key]
        numbers[name] = found
    return Result(numbers, {})


def moons(settings: Settings, seed: int) -> Task:
    """Two moons, standardised; out of distribution are points of a grid off the data."""
    data = two_moons(settings.n_moons, noise=settings.noise, seed=seed)
    test = two_moons(settings.n_moons, noise=settings.noise, seed=10_000 + seed)
    plane = grid_points(41)
    out = plane[KDTree(data.X).query(plane)[0] > settings.far]
    x, x_test, x_out = (standard(rows, data.X) for rows in (data.X, test.X, out))
    return Task(x, torch.as_tensor(data.y), x_test, test.y.astype(np.int64), x_out)


def digits(seed: int) -> Task:
    """8 × 8 digits in [0, 1]: four fifths of 0–4 to learn, one to test; 5–9 out of distribution."""
    X, y = load_digits(return_X_y=True)
    known = np.random.default_rng(seed).permutation(np.flatnonzero(y < 5))
    test, rows = np.split(known, [len(known) // 5])
    x, x_test, x_out = (torch.as_tensor(X[part] / 16).float() for part in (rows, test, y >= 5))
    return Task(x, torch.as_tensor(y[rows]), x_test, y[test].astype(np.int64), x_out)


def measure(settings: Settings, task: Task, way: str, seed: int) -> Json:
    """Train one way; its accuracy, OOD detection, cost and distance ratios."""
    model, loss = build(settings, task, way, seed)
    megabytes = kept_for_backward(loss, task.x[: settings.batch_size], task.y) / 1e6
    began = time.process_time()
    optimise(loss, settings, task, seed)
    seconds = time.process_time() - began
    known = Reference(features(model.f, task.x, 1000, seed)[0], model.gp.kernel)
    probs, inside = scores(model, known, task.x_test)
    _, outside = scores(model, known, task.x_out)
    ratios = lipschitz_ratios(model.f, *pairs(settings, task, seed)).ratios.double()
    lower, upper = ratios.min().item(), ratios.max().item()
    return {
        "accuracy": accuracy(probs, task.y_test),
        **{f"auroc_{name}": auroc(inside[name], outside[name]) for name in inside},
        "seconds": seconds,
        "megabytes": megabytes,
        "lipschitz_lower": lower,
        "lipschitz_median": ratios.median().item(),
        "lipschitz_upper": upper,
        "distortion": upper / max(lower, 1e-12),
    }


def build(settings: Settings, task: Task, way: str, seed: int) -> tuple[DUE, Method]:
    """DUE at its warm start, and its loss."""
    kind = NETWORKS.get(way, "residual")
    f = extractor(kind, task.x, settings.J, settings.depth, settings.c, seed)
    T = int(task.y.max()) + 1
    model = DUE(f, InducingGP(torch.zeros(settings.M, settings.J), T), Softmax(T, samples=10))
    model.start(Rows(task.x, task.y), seed)
    return model, Penalised(model, settings.penalty) if way == "penalty" else model


def optimise(loss: Method, settings: Settings, task: Task, seed: int) -> None:
    """Adam, the network at its rate and the GP at its own."""
    s = settings
    recipe = Recipe(lr=s.lr, head_lr=s.gp_lr, epochs=s.epochs, batch_size=s.batch_size)
    fit(loss, Rows(task.x, task.y), recipe, start=False, seed=seed, progress=False)


def kept_for_backward(loss: nn.Module, x: Tensor, y: Tensor) -> int:
    """Bytes of all tensors, parameters aside, that one batch keeps until its backward pass."""
    own = {p.untyped_storage().data_ptr() for p in loss.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.random.fork_rng(devices=[]), saved_tensors_hooks(pack, lambda tensor: tensor):
        alive = loss(x, y[: len(x)])
    del alive
    return sum(kept.values())


@torch.no_grad()
def scores(model: DUE, known: Reference, x: Tensor) -> tuple[Floats, dict[str, Floats]]:
    """Class probabilities (N, T), and three scores per row."""
    probs, h = cast(Tensor, model.predict(x)).double().numpy(), model.f(x)
    probs /= probs.sum(1, keepdims=True)
    explained = model.gp.explained(h).double().numpy()
    return probs, {
        "ood_score": 1 - known(h).double().numpy(),  # as `DUEClassifier.ood_score`
        "variance": 1 - explained.mean(1),  # that q(f) has, mean over classes
        "entropy": entropy(probs),
    }


def pairs(settings: Settings, task: Task, seed: int) -> tuple[Tensor, Tensor]:
    """Distinct random rows, in and out of distribution mixed."""
    rows = torch.cat([task.x_test, task.x_out])
    generator = torch.Generator().manual_seed(seed)
    i, j = torch.randint(len(rows), (2, settings.pairs), generator=generator)
    differ = (rows[i] != rows[j]).any(1)
    return rows[i][differ], rows[j][differ]


def text(settings: Settings, mean: Json) -> str:
    """One table per task."""
    header = ["", "AUROC: ood score", "variance", "entropy", "accuracy", "time", "memory"]
    header += ["ratio: min", "median", "max", "max/min"]
    title = f"time and memory relative to {WAYS[BASE]}; penalty λ = {settings.penalty:g}"
    texts = []
    for name, found in mean.items():
        rows = []
        for way, row in found.items():
            values = [f"{row[key]:.3f}" for key in (*AUROCS, "accuracy")]
            values += [f"{row[f'{key}_relative']:.2f}x" for key in ("seconds", "megabytes")]
            values += [f"{row[key]:.3g}" for key in (*RATIOS, "distortion")]
            rows.append([WAYS[way], *values])
        texts.append(Table(f"{name}: {title}", header, rows).text())
    return "\n\n".join(texts)


def draw(settings: Settings, results: Sequence[Result]) -> Figure:
    """AUROCs, time and ratios of each way: a small dot per seed, a large one for their mean."""
    tasks = list(results[0].numbers)
    panels = {
        "auroc_ood_score": "AUROC of the OOD score",
        "auroc_entropy": "AUROC of the entropy",
        "seconds_relative": "CPU time of training, relative",
    }
    figure = Figure(figsize=(12.5, 2.2 * len(tasks) + 0.3), layout="constrained")
    axes = figure.subplots(len(tasks), len(panels) + 1, squeeze=False, sharey=True)
    places = np.arange(len(WAYS))
    for line, task in zip(axes, tasks, strict=True):
        rows = {way: [result.numbers[task][way] for result in results] for way in WAYS}
        for ax, (key, title) in zip(line, panels.items(), strict=False):
            values = np.array([[row[key] for row in rows[way]] for way in WAYS])
            ax.scatter(values.mean(1), places, s=60, c=COLOURS)
            ax.plot(values, places, ".", color="0.2", ms=3)
            ax.grid(axis="y", color="0.9")
            if title.startswith("AUROC"):
                ax.set_xlim(min(0.5, values.min() - 0.03), 1.03)
            ax.set_title(f"{task}: {title}", fontsize=9)
        _draw_ratios(line[-1], {way: average(rows[way]) for way in WAYS})
        line[-1].set_title(f"{task}: ‖f(a) − f(b)‖ / ‖a − b‖", fontsize=9)
        line[0].set_yticks(places, list(WAYS.values()), fontsize=8)
    axes[0, 0].invert_yaxis()
    return figure


def _draw_ratios(ax: Axes, means: Json) -> None:
    for (place, row), colour in zip(enumerate(means.values()), COLOURS, strict=True):
        lower, median, upper = (row[key] for key in RATIOS)
        ax.plot([lower, upper], [place, place], "|-", color=colour, lw=2, ms=10)
        ax.plot(median, place, "o", color=colour, ms=6)
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter("")
    ax.axvline(1, color="0.6", lw=0.8, ls=":")


ARTEFACT = Artefact(CATALOGUE["constraints"].title, PRESETS, run, draw, text=text)
