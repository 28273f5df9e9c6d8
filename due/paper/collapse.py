"""Why deep kernel learning collapses (Section 3.1, Proposition 1), measured along training.

With K = s κ + σ² I, r = y − μ and σ̂² = σ²/s, the log marginal likelihood is

    −½ rᵀ (s κ + σ² I)⁻¹ r − N/2 log s − ½ log|κ + σ̂² I| − N/2 log 2π.

At the best s, s* = rᵀ (κ + σ̂² I)⁻¹ r / N, the first term is −N/2 whatever the features (the
lemma), so only the two logarithms can still grow. In Titsias's bound κ becomes
κ_Q = κ(h, Z) κ(Z, Z)⁻¹ κ(Z, h), and −tr(κ − κ_Q) / 2σ̂², which s does not enter, is added: the
lemma holds there too.

The curves are those of cosines on x and y standardised, trained on all rows at once. Distances are
those of features of distinct inputs over the length scale, for the kernel sees no other; their
ratios are to the distance of the inputs. Then, on UCI sets under
DUE_DATA (skipped without), the test log-likelihood of a collapsed model (feed-forward, free) and of
a sound one (residual, bounded), each at the step that a fifth of the training rows liked best,
beside what each says of test rows moved away from the data: √Var[f] over the prior's, and the AUROC
of Var[f].
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray
from torch import Tensor, nn

from due.data import uci
from due.data.download import find
from due.data.toy import random_cosines
from due.gp import (
    Gaussian,
    InducingGP,
    Kernel,
    collapsed_bound,
    features,
    initialise,
    log_marginal_likelihood,
)
from due.lipschitz import constrain, converge
from due.metrics import auroc, gaussian_nll, rmse
from due.model import DUE, CollapsedBound
from due.networks import FCResNet, FeedForward
from due.paper.artefact import Artefact, Json, Result
from due.paper.layout import Table
from due.paper.tabled import Tabled
from due.train import train

Floats = NDArray[np.float64]
NETWORKS = {
    "sound": "residual, c = 0.95",
    "residual": "residual, free",
    "collapsed": "feed-forward, free",
}
COLOURS = {"sound": "tab:blue", "residual": "tab:orange", "collapsed": "tab:red"}
GPS = {"exact": "-", "sparse": "--"}
PANELS = {
    "data_fit": "data fit ½ rᵀ(K + σ²I)⁻¹r, over N",
    "log_det_unit": "log|κ + σ̂²I|, over N",
    "noise_std": "noise σ",
    "smallest_ratio": "least ‖h − h′‖ / l‖x − x′‖; thin: median ‖h − h′‖/l",
}


def at_hand() -> tuple[str, ...]:
    """UCI sets under DUE_DATA that are small enough for full batches."""
    names = ("bostonHousing", "concrete", "energy", "yacht")
    try:
        return tuple(name for name in names if find(f"uci/{name}.npz") is not None)
    except NotADirectoryError:
        return ()


@dataclass(frozen=True)
class Settings:
    """One network, optimiser and number of steps for the curves and for the UCI sets."""

    n: int = 200
    noise: float = 0.1  # of y before it is standardised
    J: int = 128
    depth: int = 4
    c: float = 0.95
    M: int = 50  # of the sparse GP; twice as many on UCI sets
    steps: int = 1500
    lr: float = 1e-3  # of Adam for the network
    gp_lr: float = 1e-2
    every: int = 25  # steps between two points of a curve
    uci: tuple[str, ...] = field(default_factory=at_hand)
    uci_steps: int = 600
    patience: int = 60
    far: tuple[float, ...] = (1.0, 2.0, 5.0)  # standard deviations a column, on average


PRESETS = {
    "default": Settings(),
    "paper": Settings(),  # the paper measures nothing of this
    "smoke": Settings(n=30, J=8, depth=1, M=5, steps=6, every=3, uci=at_hand()[-1:], uci_steps=3),
}


class Terms(NamedTuple):
    """log p(y), or its bound, is −data_fit − complexity − slack − N/2 log 2π."""

    data_fit: Float[Tensor, ""]  # ½ rᵀ (K + σ² I)⁻¹ r
    complexity: Float[Tensor, ""]  # ½ log|K + σ² I|
    log_det_unit: Float[Tensor, ""]  # log|κ + σ̂² I|
    slack: Float[Tensor, ""]  # tr(K − Q) / 2σ², 0 if exact


class ExactDKL(nn.Module):
    """Deep kernel and exact GP: loss −log p(y)/N."""

    def __init__(self, f: nn.Module, kernel: Kernel, likelihood: Gaussian) -> None:
        super().__init__()
        self.f, self.kernel, self.likelihood = f, kernel, likelihood
        self.mu = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """−log N(y | μ, K + σ² I) / N."""
        noise = self.likelihood.sigma2
        found = log_marginal_likelihood(self.kernel, self.f(x), y, noise, self.mu)
        return -found.total.sum() / len(y)

    def terms(self, x: Tensor, y: Tensor) -> Terms:
        """Its terms."""
        return exact_terms(self.kernel, self.f(x), y, self.likelihood.sigma2, self.mu)


class SparseDKL(nn.Module):
    """Deep kernel and M inducing points: loss −bound/N, q(U) optimal."""

    def __init__(self, f: nn.Module, gp: InducingGP, likelihood: Gaussian) -> None:
        super().__init__()
        self.f, self.gp, self.likelihood = f, gp, likelihood

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """−(Titsias's bound) / N."""
        return -collapsed_bound(self.gp, self.f(x), y, self.likelihood.sigma2) / len(y)

    def terms(self, x: Tensor, y: Tensor) -> Terms:
        """Its terms."""
        return sparse_terms(self.gp, self.f(x), y, self.likelihood.sigma2)

    @property
    def kernel(self) -> Kernel:
        """Of the features."""
        return self.gp.kernel


@torch.no_grad()
def exact_terms(kernel: Kernel, h: Tensor, y: Tensor, sigma2: Tensor, mu: Tensor) -> Terms:
    """Of log N(y | μ, K + σ² I), one output."""
    found = log_marginal_likelihood(kernel, h, y, sigma2, mu)
    s = kernel.outputscale[0]
    log_det_unit = 2 * found.complexity[0] - len(y) * s.log()
    return Terms(-found.data_fit[0], found.complexity[0], log_det_unit, torch.zeros_like(s))


@torch.no_grad()
def sparse_terms(gp: InducingGP, h: Tensor, y: Tensor, sigma2: Tensor) -> Terms:
    """Of log N(y | μ, Q + σ² I) − tr(K − Q) / 2σ², Q = s AᵀA, one output, by dense algebra."""
    s, A = gp.kernel.outputscale[0], gp.project(h)[0]  # (M, N)
    eye = torch.eye(len(y), dtype=A.dtype)
    L = torch.linalg.cholesky(s * A.mT @ A + sigma2.double() * eye)
    white = torch.linalg.solve_triangular(L, y.double() - gp.mu.double(), upper=False)
    log_det = 2 * L.diagonal().log().sum()
    slack = s * (len(y) - A.square().sum()) / (2 * sigma2[0])
    return Terms(white.square().sum() / 2, log_det / 2, log_det - len(y) * s.log(), slack)


def run(settings: Settings, seed: int) -> Result:
    """The curves of each network under each GP, then the UCI sets."""
    x, y = cosine_rows(settings, seed)
    curves: Json = {}
    for network in NETWORKS:
        curves[network] = {
            gp: follow(build(settings, network, gp, x, seed), settings, x, y) for gp in GPS
        }
    numbers: Json = {
        "cosines": {
            network: {gp: last(curve) for gp, curve in found.items()}
            for network, found in curves.items()
        },
        "uci_sets": len(settings.uci),
    }
    if settings.uci:
        numbers["uci"] = {name: compare(settings, name, seed) for name in settings.uci}
    return Result(numbers, {"curves": curves})


def cosine_rows(settings: Settings, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of the random cosines, standardised."""
    data = random_cosines(settings.n, noise=settings.noise, seed=seed, function_seed=seed)
    return _standard(data.X, data.X), _standard(data.y[:, None], data.y[:, None])


def build(settings: Settings, network: str, gp: str, x: Tensor, seed: int) -> ExactDKL | SparseDKL:
    """A model at its start: length scale and inducing points as in Algorithm 1."""
    f = extractor(settings, network, x, seed)
    Z, lengthscale = initialise(features(f, x, 1000, seed)[0], settings.M, seed)
    if gp == "exact":
        return ExactDKL(f, Kernel("rbf", 1, lengthscale), Gaussian())
    return SparseDKL(f, InducingGP(Z, 1, lengthscale), Gaussian())


def extractor(settings: Settings, network: str, x: Tensor, seed: int) -> nn.Module:
    """One of `NETWORKS`, all of one size."""
    size = (x.shape[1], settings.J, settings.depth)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if network == "sound":
            return constrain(FCResNet(*size), settings.c, x[:2])
        return FCResNet(*size) if network == "residual" else FeedForward(*size)


def follow(model: ExactDKL | SparseDKL, settings: Settings, x: Tensor, y: Tensor) -> Json:
    """Train on all rows, and note where the terms are every so many steps."""
    optimizer = adam(model, settings)
    curve: dict[str, list[float]] = {}
    for step in range(settings.steps + 1):
        if step % settings.every == 0:
            for key, value in {"step": float(step), **state(model, x, y)}.items():
                curve.setdefault(key, []).append(value)
        take_step(model, optimizer, x, y)
    return curve


def adam(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The network at its rate, all else at the GP's."""
    network = [p for name, p in model.named_parameters() if "f." in name]
    rest = [p for name, p in model.named_parameters() if "f." not in name]
    groups: list[Json] = [{"params": network}, {"params": rest, "lr": settings.gp_lr}]
    return torch.optim.Adam(groups, lr=settings.lr)


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    """One step on all rows."""
    optimizer.zero_grad()
    model(x, y).backward()
    optimizer.step()


@torch.no_grad()
def state(model: ExactDKL | SparseDKL, x: Tensor, y: Tensor) -> dict[str, float]:
    """Terms over N, scales and distances, as the model stands."""
    model.eval()
    N, terms, kernel = len(y), model.terms(x, y), model.kernel
    apart = torch.pdist(x.double())
    distance = (torch.pdist(model.f(x).double()) / kernel.lengthscale)[apart > 0]
    found = {
        "data_fit": terms.data_fit / N,
        "complexity": terms.complexity / N,
        "log_det_unit": terms.log_det_unit / N,
        "slack": terms.slack / N,
        "log_likelihood": -model(x, y).double(),
        "outputscale": kernel.outputscale[0],
        "outputscale_over_best": N / (2 * terms.data_fit),
        "lengthscale": kernel.lengthscale[0],
        "noise_std": model.likelihood.sigma2.sqrt()[0],
        "smallest_distance": distance.min(),
        "median_distance": distance.median(),
        "smallest_ratio": (distance / apart[apart > 0]).min(),
    }
    model.train()
    return {name: value.item() for name, value in found.items()}


def last(curve: Json) -> Json:
    """Where training ended."""
    return {name: values[-1] for name, values in curve.items() if name != "step"}


def compare(settings: Settings, name: str, seed: int) -> Json:
    """Collapsed against sound on one split: what the likelihood sees, and what it does not."""
    data = uci.load(name, seed % 20)
    x, y = _standard(data.X_train, data.X_train), _standard(data.y_train, data.y_train)[:, None]
    x_test = _standard(data.X_test, data.X_train)
    y_test = _standard(data.y_test, data.y_train).double().numpy()
    return {
        network: judge(fit(settings, network, x, y, seed), settings, x_test, y_test, seed)
        for network in ("collapsed", "sound")
    }


def fit(settings: Settings, network: str, x: Tensor, y: Tensor, seed: int) -> DUE:
    """DUE by the collapsed bound, all rows at once, stopped by the held-out ones."""
    f = extractor(settings, network, x, seed)
    Z, lengthscale = initialise(features(f, x, 1000, seed)[0], 2 * settings.M, seed)
    likelihood = Gaussian()
    model = DUE(f, InducingGP(Z, 1, lengthscale), likelihood, len(x))
    bound = CollapsedBound(model)
    generator = torch.Generator().manual_seed(seed)
    held, known = torch.randperm(len(x), generator=generator).tensor_split([len(x) // 5])

    def held_out_nll() -> float:
        mean, var = likelihood.predictive(*model.latent(x[held]))
        return (0.5 * (var.log() + (y[held] - mean).square() / var)).mean().item()

    train(
        bound,
        (x[known], y[known]),
        optimizer=adam(bound, settings),
        epochs=settings.uci_steps,
        validation=held_out_nll,
        patience=settings.patience,
        before_validation=lambda: bound.set_q(x[known], y[known]),
        seed=seed,
        progress=False,
    )
    converge(model)
    bound.set_q(x[known], y[known])
    return model


@torch.no_grad()
def judge(model: DUE, settings: Settings, x: Tensor, y: Floats, seed: int) -> Json:
    """Test log-likelihood and error, then the same rows moved away from the data."""
    assert isinstance(model.likelihood, Gaussian)
    latent = model.latent(x)
    mean, inside = latent.mean[:, 0].double().numpy(), latent.var[:, 0].double().numpy()
    noise, prior = model.likelihood.sigma2.item(), model.gp.kernel.outputscale.item()
    found: Json = {
        "test_log_likelihood": -gaussian_nll(y, mean, inside + noise),
        "rmse": rmse(y, mean),
        "noise_std": noise**0.5,
        "test_std_over_prior": float(np.sqrt(inside / prior).mean()),
    }
    for far in settings.far:
        outside = model.latent(x + far * directions(x, seed)).var[:, 0].double().numpy()
        found[f"far_{far:g}"] = {
            "std_over_prior": float(np.sqrt(outside / prior).mean()),
            "auroc": auroc(inside, outside),
        }
    return found


def directions(x: Tensor, seed: int) -> Tensor:
    """A random direction of length √D for each row."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(x.shape, generator=generator)
    return u / u.norm(dim=1, keepdim=True) * x.shape[1] ** 0.5


def text(settings: Settings, mean: Json) -> str:
    """Where training ended, and the UCI sets or why there are none."""
    keys = ["log_likelihood", "data_fit", "complexity", "log_det_unit", "noise_std"]
    keys += ["smallest_distance", "median_distance", "smallest_ratio"]
    rows = [
        [f"{NETWORKS[network]}, {gp}", *(f"{found[key]:.4g}" for key in keys)]
        for network, gps in mean["cosines"].items()
        for gp, found in gps.items()
    ]
    header = ["", "log p(y)/N", "data fit/N", "½ log|K + σ²I|/N", "log|κ + σ̂²I|/N", "σ"]
    header += ["min distance/l", "median/l", "min ratio"]
    title = f"{settings.n} cosines after {settings.steps} steps"
    tables = [Table(title, header, rows).text()]
    if "uci" not in mean:
        return f"{tables[0]}\n\nUCI sets: skipped, for DUE_DATA names no folder with uci/*.npz."
    for name, found in mean["uci"].items():
        header = ["", "test log-likelihood", "RMSE"]
        header += [f"{what} at {far:g}" for far in settings.far for what in ("std/prior", "AUROC")]
        rows = [[NETWORKS[network], *_uci_cells(settings, row)] for network, row in found.items()]
        tables.append(Table(name, header, rows).text())
    return "\n\n".join(tables)


def _uci_cells(settings: Settings, row: Json) -> list[str]:
    far = [row[f"far_{far:g}"] for far in settings.far]
    values = [row["test_log_likelihood"], row["rmse"]]
    values += [value for found in far for value in (found["std_over_prior"], found["auroc"])]
    return [f"{value:.3f}" for value in values]


def draw(settings: Settings, results: Sequence[Result]) -> Figure:
    """Four panels of curves of the first seed; below, the means on UCI sets if there are any."""
    has_uci = "uci" in results[0].numbers
    figure = Figure(figsize=(12.5, 6.2 if has_uci else 3.6), layout="constrained")
    grid = figure.add_gridspec(2 if has_uci else 1, 4)
    axes = [figure.add_subplot(grid[0, i]) for i in range(4)]
    for ax, (key, title) in zip(axes, PANELS.items(), strict=True):
        _curves(ax, key, results[0].picture["curves"])
        ax.set(xlabel="step")
        ax.set_title(title, fontsize=7.5)
    axes[0].axhline(0.5, color="0.4", lw=0.8, ls=":")
    axes[0].text(0.3, 0.42, "½: the lemma", transform=axes[0].get_yaxis_transform(), fontsize=8)
    for ax in (axes[0], *axes[2:]):
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter("")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    if has_uci:
        _uci_panels(settings, figure, grid, results)
    return figure


def _curves(ax: Axes, key: str, curves: Json) -> None:
    for network, gps in curves.items():
        for gp, curve in gps.items():
            style: Json = {"color": COLOURS[network], "ls": GPS[gp], "lw": 1.2}
            ax.plot(curve["step"], curve[key], label=f"{NETWORKS[network]}, {gp}", **style)
            if key == "smallest_ratio":  # and the median distance, thinner
                ax.plot(curve["step"], curve["median_distance"], **{**style, "lw": 0.6})


def _uci_panels(
    settings: Settings, figure: Figure, grid: GridSpec, results: Sequence[Result]
) -> None:
    near, far = (f"{settings.far[i]:g}" for i in (0, -1))
    titles = {
        ("test_log_likelihood",): "test log-likelihood",
        ("rmse",): "test RMSE",
        (f"far_{far}", "std_over_prior"): f"latent std over the prior's, {far} std away",
        (f"far_{near}", "auroc"): f"AUROC of rows {near} std away",
    }
    for i, (path, title) in enumerate(titles.items()):
        ax = figure.add_subplot(grid[1, i])
        for shift, network in ((-0.2, "collapsed"), (0.2, "sound")):
            values = [
                [_at(result.numbers["uci"][name][network], path) for result in results]
                for name in settings.uci
            ]
            places = np.arange(len(values)) + shift
            ax.bar(places, np.mean(values, axis=1), 0.38, color=COLOURS[network], alpha=0.6)
            ax.plot(places, values, ".", color=COLOURS[network], ms=4)  # each seed
        ax.set_xticks(range(len(settings.uci)), settings.uci, fontsize=7, rotation=12)
        ax.set_title(title, fontsize=9)


def _at(found: Json, path: Sequence[str]) -> float:
    for key in path:
        found = found[key]
    return float(found)  # type: ignore[arg-type]


def _standard(values: Floats, of: Floats) -> Tensor:
    """In units of the standard deviation of each column of `of`, from its mean."""
    spread = of.std(0)
    return torch.as_tensor((values - of.mean(0)) / np.where(spread > 0, spread, 1)).float()


ARTEFACT = Tabled(
    Artefact("Why deep kernels collapse: terms of the likelihood, far rows", PRESETS, run, draw, 3),
    text,
)
