"""What the test likelihood does not show: deep kernels, collapsed or not, far from UCI data.

The test log-likelihood of a collapsed model (feed-forward, free) and of a sound one (residual,
bounded), each at the step with the best loss on held-out rows, beside its uncertainty on
test rows moved away from the data: √Var[f] over the prior's, and the AUROC of Var[f].
"""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from due.data import uci
from due.experiments.artefact import Result, leaves
from due.experiments.journal import Json
from due.experiments.layout import Table
from due.gp import Gaussian, InducingGP
from due.methods import DUE
from due.metrics import auroc, gaussian_nll, rmse
from due.paper.deep_kernels import COLOURS, NETWORKS, Settings, extractor, recipe, standard
from due.rows.scale import Floats
from due.rows.source import Table as Rows
from due.training import fit


def compare(settings: Settings, name: str, seed: int) -> Json:
    """Collapsed against sound on one split: what the likelihood sees, and what it does not."""
    data = uci.load(name, seed % 20)
    x, y = standard(data.X_train, data.X_train), standard(data.y_train, data.y_train)[:, None]
    x_test = standard(data.X_test, data.X_train)
    y_test = standard(data.y_test, data.y_train).double().numpy()
    return {
        network: judge(train(settings, network, x, y, seed), settings, x_test, y_test, seed)
        for network in ("collapsed", "sound")
    }


def train(settings: Settings, network: str, x: Tensor, y: Tensor, seed: int) -> DUE:
    """DUE by the collapsed bound, all rows at once, stopped by the held-out ones."""
    f = extractor(network, x, settings.J, settings.depth, settings.c, seed)
    gp = InducingGP(torch.zeros(min(2 * settings.M, len(x)), settings.J))
    model = DUE(f, gp, Gaussian(), bound="collapsed")
    generator = torch.Generator().manual_seed(seed)
    held, known = torch.randperm(len(x), generator=generator).tensor_split([len(x) // 5])
    rows, how = Rows(x, y), recipe(settings, settings.uci_steps)
    model.start(rows, seed)
    stop = rows.part(held)
    fit(model, rows.part(known), how, held_out=stop, start=False, seed=seed, progress=False)
    return model


@torch.no_grad()
def judge(model: DUE, settings: Settings, x: Tensor, y: Floats, seed: int) -> Json:
    """Test log-likelihood and error, then the same rows moved away from the data."""
    assert isinstance(model.likelihood, Gaussian)
    mean, inside = (part[:, 0].double().numpy() for part in model.latent(x))
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
    """One per data set."""
    columns = {"test_log_likelihood": "test log-likelihood", "rmse": "RMSE"}
    for far in settings.far:
        columns |= {f"far_{far:g}.std_over_prior": f"std/prior at {far:g}"}
        columns |= {f"far_{far:g}.auroc": f"AUROC at {far:g}"}
    texts = []
    for name, found in mean.items():
        values = {NETWORKS[network]: dict(leaves(row)) for network, row in found.items()}
        rows = [[title, *(f"{row[key]:.3f}" for key in columns)] for title, row in values.items()]
        texts.append(Table(name, ["", *columns.values()], rows).text())
    return texts


def draw_panels(settings: Settings, axes: Sequence[Axes], results: Sequence[Result]) -> None:
    """Below the curves: bars of the means, a dot per seed."""
    near, far = (f"{settings.far[i]:g}" for i in (0, -1))
    titles = {
        "test_log_likelihood": "test log-likelihood",
        "rmse": "test RMSE",
        f"far_{far}.std_over_prior": f"latent std over the prior's, {far} std away",
        f"far_{near}.auroc": f"AUROC of rows {near} std away",
    }
    each = [dict(leaves(result.numbers["uci"])) for result in results]
    for ax, (key, title) in zip(axes, titles.items(), strict=True):
        for shift, network in ((-0.2, "collapsed"), (0.2, "sound")):
            values = [[seed[f"{name}.{network}.{key}"] for seed in each] for name in settings.uci]
            places = np.arange(len(values)) + shift
            ax.bar(places, np.mean(values, axis=1), 0.38, color=COLOURS[network], alpha=0.6)
            ax.plot(places, values, ".", color=COLOURS[network], ms=4)  # each seed
        ax.set_xticks(range(len(settings.uci)), settings.uci, fontsize=7, rotation=12)
        ax.set_title(title, fontsize=9)
