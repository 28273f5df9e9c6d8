"""Softmax of normals by ten million samples: E[p], E[log Σ exp f] and E[entropy(p)], an oracle.

For T = 3, 10, 100 and 1,000 classes and latent variances from 0.01 to 100, with means spread as
N(0, 3²) or all equal. `tests/gp/test_softmax.py` compares the integral with the file this writes:

    python tools/softmax_samples.py [--samples 10000000] [--out tests/gp/softmax_samples.npz]

It takes about a quarter of an hour on one core. What is done is kept beside the file: the same
command continues.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CLASSES = (3, 10, 100, 1000)
BLOCK = 1_000_000  # samples between two savings
AT_ONCE = 2_000_000  # values
Arrays = dict[str, NDArray[Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--out", type=Path, default=Path("tests/gp/softmax_samples.npz"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    partial = options.out.with_suffix(".partial.npz")
    done: Arrays = dict(np.load(partial)) if partial.exists() else {}
    for T in CLASSES:
        mean, var = cases(T)
        for block in range(-(-options.samples // BLOCK)):
            if int(done.get(f"blocks {T}", 0)) > block:
                continue
            size = min(BLOCK, options.samples - block * BLOCK)
            for name, total in sums(mean, var, size, seed=block).items():
                done[f"{name} {T}"] = done.get(f"{name} {T}", 0) + total
            done[f"blocks {T}"] = np.array(block + 1)
            kept: dict[str, Any] = done
            np.savez(partial, **kept)
            print(f"{T} classes: {block * BLOCK + size:,} samples", flush=True)
    means = {
        k: (v / options.samples).astype(np.float32) for k, v in done.items() if k[:6] != "blocks"
    }
    inputs = {
        f"{name} {T}": a.numpy() for T in CLASSES for name, a in zip("mv", cases(T), strict=True)
    }
    counts = {f"n {T}": np.array(options.samples) for T in CLASSES}
    whole: dict[str, Any] = {**counts, **means, **inputs}
    np.savez_compressed(options.out, **whole)
    partial.unlink()


def cases(T: int) -> tuple[Tensor, Tensor]:
    """Means and variances, (C, T): spread means at each variance, mixed variances, equal means."""
    rng = np.random.default_rng(T)
    variances = (0.01, 1.0, 100.0) if T == 1000 else (0.01, 0.1, 1.0, 10.0, 100.0)
    equal = () if T == 1000 else (1.0, 25.0)
    mean = 3 * rng.normal(size=(len(variances) + 1 + len(equal), T))
    mean[len(variances) + 1 :] = 0
    mixed = 10 ** rng.uniform(-2, 2, T)
    var = [np.full(T, v) for v in variances] + [mixed] + [np.full(T, v) for v in equal]
    return torch.tensor(mean, dtype=torch.float32), torch.tensor(np.stack(var), dtype=torch.float32)


def sums(mean: Tensor, var: Tensor, samples: int, seed: int) -> Arrays:
    """Sums over samples, in float64 beyond a few thousand of them."""
    C, T = mean.shape
    generator = torch.Generator().manual_seed(seed)
    p, log_sum, H = torch.zeros(C, T).double(), torch.zeros(C).double(), torch.zeros(C).double()
    std = var.sqrt()
    for part in torch.arange(samples).split(max(1, AT_ONCE // (C * T))):
        f = torch.addcmul(mean, std, torch.randn(len(part), 1, T, generator=generator))
        total = torch.logsumexp(f, -1)  # (S, C)
        q = (f - total[..., None]).exp_()
        p += q.sum(0).double()
        log_sum += total.double().sum(0)
        H += (total - (q * f).sum(-1)).double().sum(0)
    return {"p": p.numpy(), "s": log_sum.numpy(), "H": H.numpy()}


if __name__ == "__main__":
    main()
