"""The 1-D regression of Figures 1 and 7: models of y = Σ_k cos(W_k x + b_k) + noise, by size.

The inputs lie on 3 ≤ |x| ≤ 7. DUE and SNGP share network, start, rows, their order and the
optimiser. A member of the ensemble has the same layers and budget, but no bound, a start and an
order of its own, and a smaller rate. The smaller set is the head of the larger one; y is as it is.

Latent means without observation noise: √Var[f] of DUE, SNGP and the exact GP, and of an ensemble
the standard deviation of its members' means. With the noise it is called predictive.
"""

import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from due.data.toy import cosine_sum, random_cosines
from due.experiments.artefact import Result
from due.experiments.journal import Json
from due.gp import Gaussian, InducingGP
from due.lipschitz import constrain
from due.methods import DUE, Method
from due.methods.exact_gp import ExactGP
from due.methods.gaussian import GaussianNetwork
from due.methods.sngp import RandomFeatureGP, SNGPGaussian
from due.metrics import rmse
from due.networks import FCResNet
from due.rows import Data, Floats, Source, Table
from due.rows.randomness import own_randomness
from due.training import Recipe, fit

X_RANGE, Y_RANGE = (-15.0, 15.0), (-12.0, 12.0)
GAP = 2.0  # |x| below it is outside the support, between its two halves
BLUE = "tab:blue"


@dataclass(frozen=True)
class Settings:
    """What the methods have in common, then what is their own."""

    sizes: tuple[int, ...] = (1000, 1_000_000)
    noise: float = 0.1
    J: int = 128
    depth: int = 4
    c: float = 0.95
    dropout: float = 0.01
    steps: int = 5000
    batch_size: int = 128
    lr: float = 1e-2  # of Adam
    M: int = 20  # DUE
    S: int = 1024  # SNGP: random features
    ridge: float = 1.0
    sngp_lengthscale: float | None = None  # None: mean distance of features, as DUE starts
    sngp_sigma2: float = 1.0  # fixed unless it is learned
    sngp_learns_sigma2: bool = False
    members: int = 10  # ensemble; its networks have no bound
    ensemble_lr: float = 1e-3  # at 0.01 the Gaussian NLL of a free network does not learn
    gp_steps: int = 60  # exact GP: iterations of L-BFGS
    n_fresh: int = 2000
    grid: int = 601  # points of the picture
    n_drawn: int = 300  # training points in it


TINY = Settings(sizes=(100, 400), J=16, depth=1, steps=30, batch_size=32, M=5, S=64, members=2)
PRESETS = {
    "default": Settings(),
    "paper": Settings(),  # the printed settings are the defaults
    "notebook": Settings(noise=0.05, lr=1e-3),
    "smoke": replace(TINY, gp_steps=3, n_fresh=100, grid=61),
}


class Rows(NamedTuple):
    """The training set as tensors."""

    x: Tensor  # (N, 1)
    y: Tensor  # (N, 1)


class Curve(NamedTuple):
    """Predictions at some inputs, each of shape (P,)."""

    mean: Floats
    latent_std: Floats
    predictive_std: Floats


class Fitted(NamedTuple):
    """A model as a function of inputs, and what it has learned."""

    curve: Callable[[Tensor], Curve]
    learned: Json


Fit = Callable[[Settings, Rows, int], Fitted]


def fit_due(settings: Settings, rows: Rows, seed: int, inducing: str = "free") -> Fitted:
    """The stochastic ELBO from q(U) = N(0, I), noise learned."""
    gp, likelihood = InducingGP(torch.zeros(settings.M, settings.J)), Gaussian()
    model = DUE(bounded(settings, rows, seed), gp, likelihood, inducing=inducing)
    optimise(model, settings, rows, seed)
    scales = gp.kernel.lengthscale, gp.kernel.outputscale.sqrt(), likelihood.sigma2.sqrt()
    return Fitted(partial(curve_of, model), learned(*scales))


def fit_due_on_data(settings: Settings, rows: Rows, seed: int) -> Fitted:
    """The same with inducing points that stay at the features of training rows."""
    return fit_due(settings, rows, seed, inducing="tied")


def fit_sngp(settings: Settings, rows: Rows, seed: int) -> Fitted:
    """The mean by the penalised likelihood, then the covariance by a clean pass over all rows."""
    f = bounded(settings, rows, seed)
    with own_randomness(seed):
        gp = RandomFeatureGP(settings.J, 1, settings.S, ridge=settings.ridge, seed=seed)
    model = SNGPGaussian(f, gp, 1, settings.sngp_sigma2, settings.sngp_learns_sigma2)
    model.start(Table(*rows), seed)
    if settings.sngp_lengthscale is not None:
        gp.lengthscale.fill_(settings.sngp_lengthscale)
    optimise(model, settings, rows, seed, start=False)
    prior_std = torch.tensor(settings.ridge**-0.5, dtype=torch.float64)
    scales = gp.lengthscale, prior_std, model.likelihood.sigma2.sqrt()
    return Fitted(partial(curve_of, model), learned(*scales))


def fit_ensemble(settings: Settings, rows: Rows, seed: int) -> Fitted:
    """Networks without a bound, each with its own start and order of rows, by Gaussian NLL."""
    members = []
    for i in range(settings.members):
        with own_randomness(1000 * seed + i):
            f = FCResNet(1, settings.J, settings.depth, dropout=settings.dropout)
            member = GaussianNetwork(f, settings.J, 1)
        optimise(member, replace(settings, lr=settings.ensemble_lr), rows, 1000 * seed + i)
        members.append(member)

    @torch.no_grad()
    def curve(x: Tensor) -> Curve:
        predicted = [member.predict(x) for member in members]
        mean, var = (torch.stack(part)[..., 0] for part in zip(*predicted, strict=True))
        return mixture(mean.double().numpy(), var.double().numpy())  # (members, P)

    return Fitted(curve, {})


def mixture(mean: Floats, var: Floats) -> Curve:
    """Of members' N(mean_i, var_i), (members, P): mean, √Var[mean_i], √(Var[mean_i] + E[var_i])."""
    spread = mean.var(0)
    return Curve(mean.mean(0), np.sqrt(spread), np.sqrt(spread + var.mean(0)))


def fit_exact(settings: Settings, rows: Rows, seed: int) -> Fitted:
    """RBF on x itself; scales, noise and mean by the log marginal likelihood."""
    unit = rows.y.double().std()
    gp = ExactGP(rows.x.double(), rows.y[:, 0].double() / unit, "rbf")
    gp.learn(settings.gp_steps)

    @torch.no_grad()
    def curve(x: Tensor) -> Curve:
        mean, cov = gp.predict(x.double())
        var = cov.diagonal().clamp_min(0)
        parts = mean, var.sqrt(), (var + gp.sigma2).sqrt()
        return Curve(*((unit * part).numpy() for part in parts))

    stds = unit * gp.kernel.outputscale.sqrt(), unit * gp.sigma2.sqrt()
    return Fitted(curve, learned(gp.kernel.lengthscale, *stds))


def learned(*scales: Tensor) -> Json:
    """Length scale, standard deviation of the prior and of the noise, as numbers."""
    names = ("lengthscale", "prior_std", "noise_std")
    return {name: scale.item() for name, scale in zip(names, scales, strict=True)}


def bounded(settings: Settings, rows: Rows, seed: int) -> nn.Module:
    """The network that DUE and SNGP share, at the same start."""
    with own_randomness(seed):
        f = FCResNet(1, settings.J, settings.depth, dropout=settings.dropout)
        return constrain(f, settings.c, rows.x[:2])


def optimise(model: Method, settings: Settings, rows: Rows, seed: int, start: bool = True) -> None:
    """So many steps of Adam on batches of the stream of rows, shuffled."""
    recipe = Recipe(lr=settings.lr, epochs=1, batch_size=settings.batch_size)
    fit(model, Stream(rows, settings.steps), recipe, start=start, seed=seed, progress=False)


class Stream(Source):
    """One epoch of so many steps: permutation after permutation of the rows, then shuffled."""

    def __init__(self, rows: Rows, steps: int) -> None:
        self.table, self.steps = Table(*rows), steps

    def __len__(self) -> int:
        return len(self.table)

    def take(self, rows: Tensor) -> Data:
        """The rows of these numbers."""
        return self.table.take(rows)

    def share(self, rank: int, ranks: int) -> "Stream":
        """Refused: it is for one process."""
        raise NotImplementedError("a stream is for one process")

    def batches(
        self, batch_size: int | None, seed: int, epoch: int, start: int = 0
    ) -> Iterator[Data]:
        """So many batches, in which no row comes twice more than another."""
        order = stream(len(self), self.steps * (batch_size or len(self)), seed)
        return self.table.part(order).batches(batch_size, seed, epoch, start)

    def fingerprint(self) -> dict[str, str]:
        """That of the rows."""
        return self.table.fingerprint()


def stream(n: int, length: int, seed: int) -> Tensor:
    """Row numbers, permutation after permutation, so that no row comes twice more than another."""
    generator = torch.Generator().manual_seed(seed)
    rounds = -(-length // n)
    return torch.cat([torch.randperm(n, generator=generator) for _ in range(rounds)])[:length]


@torch.no_grad()
def curve_of(model: DUE | SNGPGaussian, x: Tensor) -> Curve:
    """Mean and standard deviations of q(f(x)) and of y, from either model."""
    mean, var = model.latent(x)
    assert isinstance(model.likelihood, Gaussian)
    noisy = model.likelihood.predictive(mean, var).var
    return Curve(*(part[:, 0].double().numpy() for part in (mean, var.sqrt(), noisy.sqrt())))


def run(settings: Settings, seed: int, panels: Sequence[tuple[str, Fit, int]]) -> Result:
    """Fit each (name, method, index of its size); measure it in the gap and in the support."""
    draw = partial(random_cosines, noise=settings.noise, function_seed=seed)
    fresh, drawn = draw(settings.n_fresh, seed=10_000 + seed), draw(settings.n_drawn, seed=seed)
    grid = np.linspace(*X_RANGE, settings.grid)
    inside = np.abs(grid) < GAP
    numbers: Json = {}
    curves: Json = {}
    for name, method, size in panels:
        n = settings.sizes[size]
        rows = training_rows(settings, n, seed)
        fitted = method(settings, rows, seed)
        at_fresh, at_grid = (fitted.curve(_tensor(x)) for x in (fresh.X, grid[:, None]))
        numbers.setdefault(name, {})[label(n)] = {
            "latent_std_gap": float(at_grid.latent_std[inside].mean()),
            "latent_std_support": float(at_fresh.latent_std.mean()),
            "latent_std_far": float(at_grid.latent_std[np.abs(grid) > 12].mean()),
            "predictive_std_gap": float(at_grid.predictive_std[inside].mean()),
            "rmse_support": rmse(fresh.f, at_fresh.mean),
            **fitted.learned,
            "peak_memory_mb": peak_memory(),  # of the process so far
        }
        curves.setdefault(name, {})[label(n)] = [part.round(4).tolist() for part in at_grid]
    small, large = (label(settings.sizes[i]) for i in (0, -1))
    for found in numbers.values():
        if small in found and large in found:
            found["ratio_gap"] = found[large]["latent_std_gap"] / found[small]["latent_std_gap"]
    picture = {
        "x": grid.round(4).tolist(),
        "f": cosine_sum(grid, function_seed=seed).round(4).tolist(),
        "points": np.column_stack([drawn.X[:, 0], drawn.y]).round(3).tolist(),
        "curves": curves,
    }
    return Result(numbers, picture)


def training_rows(settings: Settings, n: int, seed: int) -> Rows:
    """The first n rows of the seed's set, in float32; each seed has its own function."""
    data = random_cosines(n, noise=settings.noise, seed=seed, function_seed=seed)
    return Rows(_tensor(data.X), _tensor(data.y[:, None]))


def label(n: int) -> str:
    """1K, 1M: how the paper writes sizes.

    >>> label(1000), label(1_000_000), label(400)
    ('1K', '1M', '400')
    """
    for unit, name in ((1_000_000, "M"), (1000, "K")):
        if n % unit == 0:
            return f"{n // unit}{name}"
    return str(n)


def peak_memory() -> float:
    """Largest resident size of this process so far, in MB."""
    unit = 1024.0**2 if sys.platform == "darwin" else 1024.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def draw(settings: Settings, results: Sequence[Result], titles: dict[str, str]) -> Figure:
    """The curves of the first seed, all panels on the same axes."""
    picture = results[0].picture
    panels = [(name, size) for name, found in picture["curves"].items() for size in found]
    figure = Figure(figsize=(3.1 * len(panels), 3.3), layout="constrained")
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for ax, (name, size) in zip(axes, panels, strict=True):
        _panel(ax, picture, Curve(*map(np.array, picture["curves"][name][size])))
        gap = results[0].numbers[name][size]["latent_std_gap"]
        ax.set(title=f"{titles[name]} – {size}\nlatent std on |x| < {GAP:g}: {gap:.3g}", xlabel="x")
        ax.title.set_fontsize(9)
    axes[0].set(ylabel="y", xlim=X_RANGE, ylim=Y_RANGE)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    return figure


def _panel(ax: Axes, picture: Json, curve: Curve) -> None:
    x, (a, b) = np.array(picture["x"]), np.array(picture["points"]).T
    mean, std, noisy = curve
    ax.axvspan(-GAP, GAP, color="0.93", lw=0)
    ax.fill_between(x, mean - 2 * std, mean + 2 * std, color=BLUE, alpha=0.2, lw=0, label="2 std")
    ax.fill_between(x, mean - std, mean + std, color=BLUE, alpha=0.35, lw=0, label="1 std")
    for sign, text in ((-2, "2 std with noise"), (2, None)):
        ax.plot(x, mean + sign * noisy, color=BLUE, lw=0.6, ls=":", label=text)
    ax.plot(x, mean, color=BLUE, lw=1.2, label="mean")
    ax.plot(x, picture["f"], color="0.4", lw=0.8, ls="--", label="true function")
    ax.scatter(a, b, s=5, color="tab:green", lw=0, label="training points", zorder=3)


def _tensor(array: Floats) -> Tensor:
    return torch.as_tensor(array, dtype=torch.float32)
