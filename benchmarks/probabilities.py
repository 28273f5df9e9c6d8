"""Error of each way to compute E[softmax(f)], against a million samples, and its cost per row.

For T classes and latent variance v: the largest error over rows, in entropy / ln T, of
"exact" (the default), "monte_carlo" (32 samples), "mean_field" and "quasi", the symmetric
quasi-Monte Carlo of version 0.1. One row is the prior (equal means), the others have means spread
as N(0, 3²); "mixed" draws each variance from 0.01 … 100. Costs are medians of bursts in turns.

    python benchmarks/probabilities.py [--smoke]
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, log, log2

import torch
from timing import interleave
from torch import Tensor
from torch.quasirandom import SobolEngine

from due.gp import Softmax

CLASSES = (2, 3, 10, 100)
VARIANCES = (0.01, 0.1, 1.0, 10.0, 100.0, "mixed")
METHODS = ("exact", "monte_carlo", "mean_field", "quasi")
ROWS, SAMPLES, BLOCK = 4, 1_000_000, 4_000_000
CACHE = 2**17  # logits that `quasi` holds at once


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
            method: (entropy(way(T, method)(mean, var)).view_as(want) - want).abs()
            for method in METHODS
        }
        for i, variance in enumerate(VARIANCES):
            row = "".join(f"{errors[method][i].max().item():13.4f}" for method in METHODS)
            print(f"{T:5d} {variance!s:>9}" + row)
    print("\nmicroseconds per row, float32, 256 rows at once, one thread")
    print(f"{'T':>5} {'':>9}" + "".join(f"{method:>13}" for method in METHODS))
    for T in timed:
        found = costs(T, METHODS, seconds)
        print(f"{T:5d} {'':>9}" + "".join(f"{found[method]:13.2f}" for method in METHODS))


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


def costs(T: int, methods: Sequence[str], seconds: float, N: int = 256) -> dict[str, float]:
    """Microseconds per row of each method, N rows at once."""
    mean, var = torch.randn(N, T), torch.rand(N, T)
    calls = {method: partial(way(T, method), mean, var) for method in methods}
    times = interleave(calls, rounds=5, burst=seconds / 5, warm=1)
    return {method: 1e6 * times.of(method) / N for method in methods}


def way(T: int, method: str) -> Callable[[Tensor, Tensor], Tensor]:
    """From means and variances to probabilities."""
    return partial(quasi, points(T)) if method == "quasi" else Softmax(T, method).predictive


def points(T: int) -> Tensor:
    """Scrambled Sobol points as normals with their T rotations, 1,024 to 4,096, (S, T)."""
    B = 2 ** max(0, ceil(log2(min(max(1024, 32 * T), 2048) / T)))
    u = SobolEngine(T, scramble=True, seed=0).draw(B, dtype=torch.float64)
    t = torch.arange(T)
    return torch.special.ndtri(u.clamp(1e-9, 1 - 1e-9))[:, (t[:, None] + t) % T].flatten(0, 1)


def quasi(points: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """E[softmax(f)] over the points, given to classes in the order of their means."""
    order = mean.argsort(-1)
    mean, std = mean.gather(-1, order), var.gather(-1, order).sqrt()
    (S, T), blocks = points.shape, points.to(mean.dtype).split(max(1, CACHE // points.shape[1]))
    parts = []
    for m, s in zip(*(a.split(max(1, CACHE // (S * T))) for a in (mean, std)), strict=True):
        m, s = m.mT[..., None], s.mT[..., None]  # (T, rows, 1)
        sums = [torch.softmax(m + s * block.mT[:, None], 0).sum(-1) for block in blocks]
        parts.append(torch.stack(sums).sum(0).mT)
    p = torch.cat(parts) / S
    return torch.empty_like(p).scatter(-1, order, p)


if __name__ == "__main__":
    main()
