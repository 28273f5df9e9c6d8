"""Error of each way to compute E[softmax(f)], against a million samples, and its cost per row.

For T classes and latent variance v: the largest error over rows, in entropy / ln T, of
"exact" (the default), "monte_carlo" (32 samples) and "mean_field". One row is the prior (equal
means), the others have means spread as N(0, 3²); "mixed" draws each variance from 0.01 … 100.

    python benchmarks/probabilities.py [--smoke]
"""

import argparse
import time
from math import log

import torch
from torch import Tensor

from due.gp import Softmax

CLASSES = (2, 3, 10, 100)
VARIANCES = (0.01, 0.1, 1.0, 10.0, 100.0, "mixed")
METHODS = ("exact", "monte_carlo", "mean_field")
ROWS, SAMPLES, BLOCK = 4, 1_000_000, 4_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="seconds: same code, tiny settings")
    smoke = parser.parse_args().smoke
    classes, timed = (CLASSES[:2], CLASSES[:2]) if smoke else (CLASSES, (*CLASSES, 1000))
    samples, seconds = (1000, 0.01) if smoke else (SAMPLES, 0.5)
    torch.set_num_threads(1)
    print(f"largest error of entropy / ln T against {samples:,} samples")
    print(f"{'T':>5} {'variance':>9}" + "".join(f"{method:>13}" for method in METHODS))
    for T in classes:
        cases = [rows(T, variance) for variance in VARIANCES]
        mean, var = torch.cat([m for m, _ in cases]), torch.cat([v for _, v in cases])
        want = entropy(sampled(mean, var, samples)).view(len(VARIANCES), ROWS)
        errors = {
            method: (entropy(Softmax(T, method).predictive(mean, var)).view_as(want) - want).abs()
            for method in METHODS
        }
        for i, variance in enumerate(VARIANCES):
            row = "".join(f"{errors[method][i].max().item():13.4f}" for method in METHODS)
            print(f"{T:5d} {variance!s:>9}" + row)
    print("\nmicroseconds per row, float32, 256 rows at once, one thread")
    print(f"{'T':>5} {'':>9}" + "".join(f"{method:>13}" for method in METHODS))
    for T in timed:
        costs = "".join(f"{cost(T, method, seconds):13.2f}" for method in METHODS)
        print(f"{T:5d} {'':>9}" + costs)


def rows(T: int, variance: float | str) -> tuple[Tensor, Tensor]:
    """Means and variances (ROWS, T); the means of the first row are equal."""
    generator = torch.Generator().manual_seed(T)
    mean = 3 * torch.randn(ROWS, T, generator=generator, dtype=torch.float64)
    mean[0] = 0
    if isinstance(variance, float):
        return mean, torch.full_like(mean, variance)
    return mean, 10 ** (4 * torch.rand(mean.shape, generator=generator, dtype=torch.float64) - 2)


def sampled(mean: Tensor, var: Tensor, samples: int) -> Tensor:
    """E[softmax(f)] from plain samples, in float32 and in blocks."""
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros_like(mean)
    mean, std = mean.float(), var.sqrt().float()
    for part in torch.arange(samples).split(BLOCK // mean.numel()):
        epsilon = torch.randn(len(part), 1, mean.shape[1], generator=generator)
        total += torch.softmax(mean + std * epsilon, -1).sum(0).double()
    return total / samples


def entropy(p: Tensor) -> Tensor:
    """Entropy as a share of ln T."""
    return -torch.special.xlogy(p, p).sum(-1) / log(p.shape[-1])


def cost(T: int, method: str, seconds: float, N: int = 256) -> float:
    likelihood, mean, var = Softmax(T, method), torch.randn(N, T), torch.rand(N, T)
    likelihood.predictive(mean, var)
    start, runs = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        likelihood.predictive(mean, var)
        runs += 1
    return (time.perf_counter() - start) / runs / N * 1e6


if __name__ == "__main__":
    main()
