"""What the test likelihood does not see: collapsed and sound deep kernels on UCI sets, far away.

The test log-likelihood of a collapsed model (feed-forward, free) and of a sound one (residual,
bounded), each at the step that a fifth of the training rows liked best, beside what each says of
test rows moved away from the data: √Var[f] over the prior's, and the AUROC of Var[f].
"""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from torch import Tensor

from due.data import uci
from due.gp import Gaussian, InducingGP, features, initialise
from due.lipschitz import converge
from due.metrics import auroc, gaussian_nll, rmse
from due.model import DUE, CollapsedBound
from due.paper.artefact import Json, Result
from due.paper.deep_kernels import COLOURS, NETWORKS, Floats, Settings, adam, extractor, standard
from due.paper.layout import Table
from due.train import train


def compare(settings: Settings, name: str, seed: int) -> Json:
    """Collapsed against sound on one split: what the likelihood sees, and what it does not."""
    data = uci.load(name, seed % 20)
    x, y = standard(data.X_train, data.X_train), standard(data.y_train, data.y_train)[:, None]
    x_test = standard(data.X_test, data.X_train)
    y_test = standard(data.y_test, data.y_train).double().numpy()
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


def tables(settings: Settings, mean: Json) -> list[str]:
    """One a set."""
    header = ["", "test log-likelihood", "RMSE"]
    header += [f"{what} at {far:g}" for far in settings.far for what in ("std/prior", "AUROC")]
    return [
        Table(
            name, header, [[NETWORKS[key], *_cells(settings, row)] for key, row in found.items()]
        ).text()
        for name, found in mean.items()
    ]


def _cells(settings: Settings, row: Json) -> list[str]:
    far = [row[f"far_{far:g}"] for far in settings.far]
    values = [row["test_log_likelihood"], row["rmse"]]
    values += [value for found in far for value in (found["std_over_prior"], found["auroc"])]
    return [f"{value:.3f}" for value in values]


def draw_panels(
    settings: Settings, figure: Figure, grid: GridSpec, results: Sequence[Result]
) -> None:
    """Below the curves: bars of the means, a dot a seed."""
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
