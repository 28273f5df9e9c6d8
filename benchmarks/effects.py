"""CPU time of an IHDP trial: DUECATE against the stochastic ELBO in GPyTorch, in one run.

GPyTorch trains by the recipe of the authors' code: encoder of 3 × 200 with spectral norm,
Matérn-3/2, 100 inducing points, batches of 100, Adam at 1e-3 and 4e-3, at most 1,000 epochs,
patience 20 on −E_q[log p] of the validation rows. DUECATE trains as in Table 3, also with fewer
epochs at most: the first budget whose mean error is no larger than GPyTorch's gives the time to
GPyTorch's accuracy.

    DUE_DATA=... python benchmarks/effects.py [--seeds 10] [--smoke]
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import gpytorch
import numpy as np
import torch
from rival import RivalLoss
from torch import Tensor

from due.data import ihdp
from due.experiments.deferral import ONE_IN, at_random, certain_first, keep, rmse
from due.gp import Gaussian, InducingGP, features, initialise
from due.lipschitz import constrain
from due.methods import DUE
from due.networks import AppendTreatment, PreactivationResNet
from due.paper.table3 import our_recipe
from due.rows import Floats, Table
from due.training import Recipe, fit

BUDGETS = (20, 30, 40, 60, 80, 120, 1000)
Effects = tuple[Floats, Floats]
Method = Callable[[ihdp.IHDP, int], Effects]


def rival(data: ihdp.IHDP, seed: int, epochs: int) -> Effects:
    """τ̂ and its variance on the test rows, by GPyTorch."""
    x, y = _tensors(data, data.train)
    torch.manual_seed(seed)
    f = AppendTreatment(PreactivationResNet(x.shape[1] - 1)).eval()
    constrain(f, 0.95, x[:2])
    Z, lengthscale = initialise(features(f, x, 1000, seed)[0], 100, seed)
    start = DUE(f, InducingGP(Z, 1, lengthscale, "matern32"), Gaussian(), len(x))
    loss = RivalLoss(f, start)
    recipe = Recipe(
        lr=1e-3,
        head_lr=4e-3,
        weight_decay=0.45 / len(x),
        batch_size=100,
        epochs=epochs,
        patience=20,
    )
    held_out = Table(*_tensors(data, data.validation))
    fit(loss, Table(x, y), recipe, held_out=held_out, start=False, seed=seed, progress=False)
    arms = [torch.tensor(np.column_stack([data.test.X, np.full(75, t)])).float() for t in (1, 0)]
    with torch.no_grad(), gpytorch.settings.fast_pred_var():
        both = loss.gp(f(torch.cat(arms)))
        C = torch.cat([torch.eye(75), -torch.eye(75)], 1)
        var = (C @ both.covariance_matrix @ C.mT).diagonal().clamp_min(0)
        return (C @ both.mean).numpy() * data.y_std, var.numpy() * data.y_std**2


def ours(epochs: int) -> Method:
    """The same by DUECATE, after at most so many epochs."""

    def run(data: ihdp.IHDP, seed: int) -> Effects:
        (X, t, y, *_), (Xv, tv, yv, *_) = data.train, data.validation
        model = our_recipe(seed, epochs=epochs).fit(y, t, X, validation=(yv, tv, Xv))
        found = model.effect_inference(data.test.X)
        return found.point_estimate, found.var

    return run


def _tensors(data: ihdp.IHDP, split: ihdp.Split) -> tuple[Tensor, Tensor]:
    rows = np.column_stack([split.X, split.t])
    return torch.tensor(rows).float(), torch.tensor(data.standardise(split.y)[:, None]).float()


def measure(method: Method, part: str, seed: int) -> list[float]:
    """CPU seconds, and the error after random and after informed deferral."""
    data = ihdp.load(seed, part == "ihdp-cov")
    began = time.process_time()
    tau, var = method(data, seed)
    seconds = time.process_time() - began
    orders = at_random(len(tau), seed), certain_first(var)
    kept = [keep(order, ONE_IN[part]) for order in orders]
    return [seconds, *(rmse(tau[rows], data.test.tau[rows]) for rows in kept)]


def main() -> None:
    """Print a table for each data set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    parser.add_argument("--smoke", action="store_true", help="seconds: same code, tiny settings")
    arguments = parser.parse_args()
    smoke = arguments.smoke
    seeds = range(1 if smoke else arguments.seeds)
    budgets = (1,) if smoke else arguments.budgets
    torch.set_num_threads(1)
    methods: dict[str, Method] = {
        "GPyTorch, stochastic ELBO": partial(rival, epochs=1 if smoke else 1000)
    }
    methods |= {f"DUECATE, at most {e} epochs": ours(e) for e in budgets}
    for method in () if smoke else methods.values():
        measure(method, "ihdp", 0)  # warm-up
    print(f"one thread, {len(seeds)} seeds, methods interleaved; means over the seeds")
    for part in ONE_IN:
        runs = np.array([[measure(m, part, s) for m in methods.values()] for s in seeds])
        report(part, list(methods), runs)


def report(part: str, names: list[str], runs: Floats) -> None:
    """CPU time, its ratio (median over seeds of GPyTorch's ÷ this), and errors."""
    ratio = np.median(runs[:, :1, 0] / runs[:, :, 0], axis=0)
    seconds, random, certain = runs.mean(0).T
    print(f"\n{part:28} {'CPU s':>7} {'ratio':>7} {'random':>8} {'uncertainty':>12}")
    for i, name in enumerate(names):
        numbers = f"{seconds[i]:7.2f} {ratio[i]:7.1f} {random[i]:8.3f} {certain[i]:12.3f}"
        print(f"{name:28} {numbers}")
    as_good = [
        i for i in range(1, len(names)) if random[i] <= random[0] and certain[i] <= certain[0]
    ]
    if as_good:
        best = as_good[0]
        print(f"to GPyTorch's accuracy: {ratio[best]:.1f} times less CPU ({names[best]})")
    else:
        print("no budget reaches GPyTorch's accuracy")


if __name__ == "__main__":
    main()
