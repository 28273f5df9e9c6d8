"""How often 95 % intervals contain the true effect, in two simulated worlds where it is known.

Five normal covariates, treatment at random, τ(x) = 1 + sin 2x₁ (standard deviation .70), noise of
standard deviation .2. The outcome without treatment is x₂ + x₃²/2 in the plain world and
sin 2x₂ + x₃ x₄ in the tangled one. Means over seeds, on 1,000 new people.

    python benchmarks/coverage.py [--seeds 3] [--smoke]
"""

import argparse
import warnings
from collections.abc import Callable

import numpy as np
import torch

from due.baselines import ArmGP
from due.estimators import DUECATE
from due.estimators.effects import UncertainEffects
from due.gp import JitterWarning
from due.rows import Floats
from due.training import Recipe

PEOPLE = (300, 1000)
WORLDS: dict[str, Callable[[Floats], Floats]] = {
    "plain": lambda X: X[:, 1] + X[:, 2] ** 2 / 2,
    "tangled": lambda X: np.sin(2 * X[:, 1]) + X[:, 2] * X[:, 3],
}
METHODS: dict[str, Callable[[int], UncertainEffects]] = {
    "DUECATE": lambda seed: DUECATE(random_state=seed),
    "DUECATE, patience 20": lambda seed: DUECATE(recipe=Recipe(patience=20), random_state=seed),
    "DUECATE, the paper's recipe": lambda seed: DUECATE.paper(random_state=seed),
    "GP per arm": lambda seed: ArmGP(),
}


def main() -> None:
    """Print a line for each world, number of people and method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="seconds: same code, tiny settings")
    arguments = parser.parse_args()
    sizes, seeds = ((40,), 1) if arguments.smoke else (PEOPLE, arguments.seeds)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", JitterWarning)
    print(f"means over {seeds} seeds; effects vary by .70\n")
    columns = f"{'RMSE':>6} {'covered':>8} {'half width':>11}"
    print(f"{'world':8} {'people':>6}  {'method':28} {columns}  covered, each seed")
    for world in WORLDS:
        for n in sizes:
            for name in METHODS:
                runs = np.array([measure(name, world, n, seed) for seed in range(seeds)])
                error, covered, half = runs.mean(0)
                each = " ".join(f"{value:.2f}" for value in runs[:, 1])
                numbers = f"{error:6.2f} {covered:8.3f} {half:11.2f}"
                print(f"{world:8} {n:>6}  {name:28} {numbers}  {each}", flush=True)


def measure(name: str, world: str, n: int, seed: int) -> list[float]:
    """RMSE of the effects, share of them inside their intervals, mean half width of intervals."""
    X, tau = people(n, seed)
    rng = np.random.default_rng([seed, 1])
    T = rng.integers(2, size=n)
    Y = WORLDS[world](X) + T * tau + 0.2 * rng.normal(size=n)
    model = METHODS[name](seed).fit(Y, T, X=X)
    new, truth = people(1000, seed + 100)
    low, high = model.effect_interval(new)
    error = float(np.sqrt(np.mean((model.effect(new) - truth) ** 2)))
    return [error, float(np.mean((low <= truth) & (truth <= high))), float(np.mean(high - low) / 2)]


def people(n: int, seed: int) -> tuple[Floats, Floats]:
    """Covariates and true effects."""
    X = np.random.default_rng(seed).normal(size=(n, 5))
    return X, 1 + np.sin(2 * X[:, 0])


if __name__ == "__main__":
    main()
