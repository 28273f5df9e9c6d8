"""Is the bound c held? The constants of a Wide ResNet in training and after it, and exact ones.

While it trains, σ of a convolution is estimated: by one power iteration every `refresh` steps, and
by ⟨G, W⟩ in between. "lag" is that estimate over the exact σ of the same weights, the least over
the convolutions that are scaled at all. "held" is the exact constant of a layer as it computes
over c, the largest over all of them; convolutions whose σ was below 0.9 c at the last refresh are
not scaled. Exact is a long block power iteration in float64 (`due.lipschitz.layers`).

Then the accuracy on 2,000 test images after two epochs on 20,000, at a bound below 1 and at the
paper's, with batch norm bounded alone and in pairs. Images are those of Fashion-MNIST under
DUE_DATA, or digits that come with scikit-learn.

    python benchmarks/bounds.py [--smoke]
"""

import argparse
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from due.data.download import find
from due.lipschitz import (
    SilentNetworkWarning,
    SpectralNorm,
    constrain,
    converge,
    layers,
    singular_value,
)
from due.lipschitz.bounded import Bounded
from due.methods import DUE
from due.paper.image_models import LAPTOP, SMOKE, ImageSettings, build, rows
from due.rows.randomness import own_randomness
from due.rows.source import n_steps
from due.training import Recipe, fit
from due.training.loop import Run

STEPS = (20, 40, 80, 120, 200, 400, 800, 1200)
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="seconds: same code, tiny settings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    real = find("fashion-mnist/train-images-idx3-ubyte.gz") is not None and not options.smoke
    settings, steps = (LAPTOP["fashion"], STEPS) if real else (SMOKE, STEPS[:2])
    print(f"WRN-{settings.depth}-{settings.width} on {settings.data}, c = {settings.c:g}")
    print(f"{'refresh':>8}{'step':>6}{'estimated':>11}{'lag':>8}{'held':>8}")
    for refresh in (1, settings.recipe.refresh or 8):
        train(settings, refresh, steps)
    accuracies(settings, epochs=2 if real else 1, n=20_000 if real else 200)


def train(settings: ImageSettings, refresh: int, steps: tuple[int, ...]) -> None:
    """Steps of `fit`, with a look at the constants now and then."""
    source = rows(settings).train
    method, example = build("due", settings, SEED), source.take(torch.arange(2))[0]
    recipe = Recipe(refresh=refresh, epochs=-(-steps[-1] // n_steps(len(source), 128)))
    recipe = recipe.over(settings.recipe).complete()
    with own_randomness(SEED, torch.device("cpu")):
        method.start(source, SEED)
        optimizer = recipe.optimise(method)
        schedule = recipe.scheduler(optimizer, n_steps(len(source), recipe.rows_per_step))
        run = Run(method.train(), recipe, optimizer, schedule)
        while run.steps < steps[-1]:
            for batch in source.batches(recipe.rows_per_step, SEED, run.epoch):
                run.advance(method, batch, len(batch[0]))
                if run.steps in steps:
                    print_state(method, example, f"{refresh:8d}{run.steps:6d}")
            run.epoch, run.step = run.epoch + 1, 0
    converge(method)
    print_state(method, example, f"{refresh:8d}{'end':>6}")
    if refresh > 1:
        print_layers(method, example)


def accuracies(settings: ImageSettings, epochs: int, n: int) -> None:
    print(f"\n{'c':>6} {'batch norm':12}{'accuracy':>9}")
    known = rows(settings)
    few = known.train.part(torch.arange(n), augment=known.train.augment)
    x, y = known.test.take(torch.arange(2000 if n > 2000 else 200))
    recipe = Recipe(epochs=epochs).over(settings.recipe)
    for c in (0.95, 3.0):
        for how in ("alone", "paired"):
            method: Any = build("due", replace(settings, c=1e6), SEED)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SilentNetworkWarning)
                momentum = settings.momentum
                constrain(method.f, c, x[:2], batch_norm=how, batch_norm_momentum=momentum)
                fit(method, few, recipe, seed=SEED, progress=False)
            with torch.no_grad():
                right = torch.cat([method.predict(part).argmax(-1) for part in x.split(256)]) == y
            print(f"{c:6g} {how:12}{right.float().mean():9.3f}", flush=True)


def print_state(method: Any, example: torch.Tensor, name: str) -> None:
    scaled = [m for m in method.modules() if isinstance(m, SpectralNorm) and not m.slack]
    lag = min(map(lag_of, scaled), default=1.0)
    held = max(held_by_layer(method, example).values())
    print(f"{name}{len(scaled):11d}{lag:8.3f}{held:8.3f}", flush=True)


def lag_of(layer: SpectralNorm) -> float:
    """The running estimate of σ over the exact one."""
    with torch.no_grad():
        sigma = float(layer.sigma())
    return sigma / max(1.0, sigma / layer.c) / singular_value(layer)


def held_by_layer(method: DUE, example: torch.Tensor) -> dict[str, float]:
    """The exact constant of each bounded layer over its c."""
    bounds = {n: m.c for n, m in method.f.named_modules() if isinstance(m, Bounded)}
    return {name: value / bounds[name] for name, value in layers(method.f, example).items()}


def print_layers(method: Any, example: torch.Tensor) -> None:
    modules = dict(method.f.named_modules())
    held = held_by_layer(method, example)
    for kind, norm in (("convolutions", False), ("batch norm", True)):
        own = [v for name, v in held.items() if isinstance(modules[name], _BatchNorm) is norm]
        print(f"{kind:>14}: {len(own)} layers, largest {max(own):.4f} c,", end=" ")
        print(f"{sum(v > 0.9 for v in own)} above 0.9 c, {sum(v > 1.05 for v in own)} above 1.05 c")


if __name__ == "__main__":
    main()
