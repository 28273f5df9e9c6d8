"""How fast `due` is against GPyTorch at its best, and how it scales with N, M, J and T.

Both sides have the same network, constraint, values, optimiser and number of threads. They run in
turns, in short bursts; printed is the median over rounds of the ratio. Memory is the peak resident
size of a fresh process.

    python benchmarks/speed.py [--quick | --smoke] [--json FILE] [--threads 1]
"""

import argparse
import copy
import json
import os
import platform
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from timing import Times, fresh_peak, in_process, interleave, peak
from torch import Tensor, nn

from due.gp import FrozenGP, Gaussian, InducingGP, Softmax, features, initialise
from due.lipschitz import constrain, fold
from due.methods import DUE
from due.networks import FCResNet
from due.rows import Table
from due.training import Recipe, fit

GIGABYTES = 8.0  # memory limit of a GPyTorch process
Results = dict[str, Any]


class Size(NamedTuple):
    """Rounds of a. and b. and seconds of a burst, rows of b. and c., and the cases of d."""

    rounds: int
    batches: int
    epochs: list[int]
    heads: list[dict[str, Any]]
    compiled: bool = False
    burst: float = 0.1
    rows: int = 512


def vary(name: str, values: list[int], **fixed: Any) -> list[dict[str, Any]]:
    base = {"M": 100, "J": 640, "T": 10, "shared": False}
    return [base | fixed | {name: value} for value in values]


HEADS = [
    *vary("M", [10, 30, 100, 300, 1000], T=1),
    *vary("J", [64, 256, 1024, 2048]),
    *vary("T", [1, 10, 100, 1000], shared=True),
    *vary("T", [10, 100, 1000], M=10),
]
QUICK_HEADS = [*vary("M", [300], T=1), *vary("T", [1000], M=10, shared=True)]
SMOKE_HEADS = [*vary("M", [8], J=16, T=1), *vary("T", [3], M=4, J=16, shared=True)]
FULL = Size(40, 15, [1_000, 10_000, 100_000, 1_000_000], HEADS, compiled=True)
QUICK = Size(5, 3, [10_000], QUICK_HEADS)
SMOKE = Size(1, 1, [1_000], SMOKE_HEADS, burst=0.0, rows=4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less than a minute, no torch.compile")
    parser.add_argument("--smoke", action="store_true", help="seconds: same code, tiny settings")
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--case", help=argparse.SUPPRESS)  # one measurement in a process of its own
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.case:
        case = json.loads(options.case)
        torch.set_num_threads(case.pop("threads"))
        print(json.dumps(CASES[case.pop("case")](**case)))
        return
    size = SMOKE if options.smoke else QUICK if options.quick else FULL
    began = time.perf_counter()
    results: Results = {"machine": machine(options.threads)}
    results["training_step"] = training_step(size)
    results["head"] = head(size)
    results[f"memory_{size.rows}_rows"] = memory(size)
    results["scaling"] = scaling(size)
    print(f"\n{time.perf_counter() - began:.0f} s in all")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def machine(threads: int) -> Results:
    import gpytorch

    versions = {"torch": torch.__version__, "gpytorch": gpytorch.__version__}
    load = os.getloadavg()[0]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load:.1f};")
    print(f"threads {threads}; " + ", ".join(f"{k} {v}" for k, v in versions.items()))
    return {"threads": threads, "cores": os.cpu_count(), "load": load, **versions}


# a. a training step


def training_step(size: Size) -> Results:
    """Batch of 100 × 25, FC-ResNet 200 × 3 with c = 0.95, M = 100, Matérn-3/2, Gaussian noise."""
    from rival import RivalLoss

    x, y = normal(747, 25), normal(747, 1, seed=1)
    model = ihdp_model(x)
    theirs = RivalLoss(copy.deepcopy(model.f), model)
    agree(model(x[:100], y[:100]), theirs(x[:100], y[:100]))
    unbounded = copy.deepcopy(model)
    unbounded.f = fold(unbounded.f)
    batch = x[:100], y[:100]
    steps = {
        "ours": stepper(copy.deepcopy(model), batch),
        "theirs": stepper(theirs, batch),
        "ours, no constraint": stepper(unbounded, batch),
    }
    if size.compiled:
        steps["ours, compiled"] = stepper(copy.deepcopy(model), batch, compiled=True)
    times = interleave(steps, size.rounds, size.burst)
    share = times.share("ours", "ours, no constraint")
    print("\na. Training step: 100 × 25 → FC-ResNet 200 × 3 (c = 0.95, elu), M = 100, Matérn-3/2")
    for name in steps:
        print_ratio(name, times, "theirs", {"ours": 1.8, "ours, compiled": 2.5}.get(name))
    print(f"   spectral norm: {100 * share:.0f} % of our step")
    return {**summary(times, "theirs"), "spectral_norm_share": share}


def ihdp_model(x: Tensor, J: int = 200, M: int = 100) -> DUE:
    torch.manual_seed(0)
    f = constrain(FCResNet(x.shape[1], J, depth=2, activation="elu"), 0.95, x[:2])
    Z, lengthscale = initialise(features(f, x)[0], M)
    return DUE(f, InducingGP(Z, 1, lengthscale, "matern32"), Gaussian(), n_data=len(x))


def stepper(
    model: nn.Module, batch: tuple[Tensor, Tensor], compiled: bool = False
) -> Callable[[], None]:
    """One step as `due.training.fit` takes it, which reads each loss to see if it is finite."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    loss_of = torch.compile(model) if compiled else model
    model.train()

    def step() -> None:
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.item()
        loss.backward()
        optimizer.step()

    return step


# b. the head, from features to probabilities


def head(size: Size) -> Results:
    """J = 640, M = 10, T = 10: FrozenGP and 32 samples, against GPyTorch with warm caches."""
    from rival import RivalHead

    gp, h = class_gp(size.rows)
    theirs, frozen = RivalHead(gp), FrozenGP(gp)
    sampled, exact = Softmax(gp.T, "monte_carlo"), Softmax(gp.T)

    def ours(rows: Tensor, likelihood: Softmax) -> Tensor:
        with torch.no_grad():
            return likelihood.predictive(*frozen(rows))

    many = RivalHead(gp, samples=20_000)  # its 32 are random: compare the limits
    agree(ours(h[:1], exact), many(h[:1]), tolerance=0.02)
    calls: dict[str, Callable[[], object]] = {
        "theirs": lambda: theirs(h[:1]),
        "theirs, authors' call": lambda: theirs.independent(h[:1]),
        "ours, 32 samples": lambda: ours(h[:1], sampled),
        "ours, exact (default)": lambda: ours(h[:1], exact),
        "GP alone": lambda: frozen(h[:1]),
    }
    times = interleave(calls, size.rounds, size.burst)
    print("\nb. Head for one row: J = 640, M = 10, T = 10, RBF, 32 samples")
    for name in calls:
        print_ratio(name, times, "theirs", None)
    authors = times.ratio("theirs, authors' call", "ours, 32 samples")
    print(f"   32 samples against the authors' call: {authors:.1f} times faster, target 30")
    batch: dict[str, Callable[[], object]] = {
        "ours, 32 samples": lambda: ours(h, sampled),
        "ours, exact (default)": lambda: ours(h, exact),
    }
    batches = interleave(batch, size.batches, size.burst)
    rows = {name: 1e6 * batches.of(name) / len(h) for name in batch}
    print(
        f"   {size.rows} rows at once: " + ", ".join(f"{n} {v:.1f} µs/row" for n, v in rows.items())
    )
    return {**summary(times, "theirs"), "ratio_to_authors": authors, "microseconds_per_row": rows}


def class_gp(N: int, T: int = 10, M: int = 10, J: int = 640) -> tuple[InducingGP, Tensor]:
    """A GP with its own values per class, and features to predict from."""
    gp = InducingGP(normal(M, J).double(), T, 0.5 * J**0.5)
    gp.set_q(2 * normal(T, M, seed=1).double(), 0.3 * normal(T, M, M, seed=2).tril().double())
    return gp, normal(M, J).repeat(N // M + 1, 1)[:N] + 0.3 * normal(N, J, seed=3)


# c. the memory of 512 rows


def memory(size: Size) -> Results:
    N = size.rows
    ours = measure("memory_ours", size, N=N)
    theirs = measure("memory_theirs", size, GIGABYTES, N=N, call="forward")
    authors = measure("memory_theirs", size, GIGABYTES, N=N, call="independent")
    print(f"\nc. {N} such rows: memory")
    print(f"   ours, 32 samples          {ours['monte_carlo']:6.0f} MB over the imports")
    print(f"   ours, exact (default)     {ours['exact']:6.0f} MB over the imports", end="")
    print(f", {ours['peak']:.0f} MB the whole process (target < 1,000)")
    print(f"   theirs                    {outcome(theirs)}")
    print(f"   theirs, authors' call     {outcome(authors)}")
    return {"ours": ours, "theirs": theirs, "theirs, authors' call": authors}


def memory_ours(N: int) -> Results:
    gp, h = class_gp(N)
    frozen, before, used = FrozenGP(gp), fresh_peak(), {}
    for method in ("monte_carlo", "exact"):  # the peak only grows
        with torch.inference_mode():
            Softmax(gp.T, method).predictive(*frozen(h))
        used[method] = peak() - before
    return {**used, "peak": peak()}


def memory_theirs(N: int, call: str) -> Results:
    from rival import RivalHead

    gp, h = class_gp(N)
    predict = getattr(RivalHead(gp), call)
    predict(h[:1])
    before = fresh_peak()
    predict(h)
    return {"megabytes": peak() - before}


def outcome(theirs: Results) -> str:
    if "megabytes" in theirs:
        return f"{theirs['megabytes']:6.0f} MB over the imports"
    asked = re.search(r"tried to allocate (\d+) bytes", theirs["error"])
    what = f"asked for {int(asked[1]) / 1e9:.0f} GB at once" if asked else theirs["error"]
    return f"out of memory within {GIGABYTES:g} GB: {what}"


# d. scaling


def scaling(size: Size) -> Results:
    print("\nd. Scaling: time, and memory over imports and data")
    epochs = [{"N": N} | measure("epoch", size, N=N) for N in size.epochs]
    print("   an epoch of the model of a., batches of 1,000, through due.training.fit")
    print(f"   {'N':>9} {'s / epoch':>11} {'µs / row':>9} {'data MB':>8} {'MB besides':>11}")
    for row in epochs:
        print(
            f"   {row['N']:9,d} {row['seconds']:11.2f} {1e6 * row['seconds'] / row['N']:9.1f} "
            f"{row['data']:8.0f} {row['megabytes']:11.0f}"
        )
    print("   head only, features (128, J) given: a training step; prediction, 64 rows at once")
    print(f"   {'M':>5} {'J':>5} {'T':>5} {'kernels':>8} {'ms / step':>10} {'MB':>6} ", end="")
    print(f"{'µs / row':>9} {'MB':>6}")
    rows = []
    for settings in size.heads:
        rows.append(settings | measure("head_step", size, burst=size.burst, **settings))
        row = rows[-1]
        print(
            f"   {row['M']:5d} {row['J']:5d} {row['T']:5d} "
            f"{'shared' if row['shared'] else 'own':>8} {1e3 * row['seconds']:10.1f} "
            f"{row['megabytes']:6.0f} {1e6 * row['predict']:9.1f} {row['predict_megabytes']:6.0f}",
            flush=True,
        )
    return {"epoch": epochs, "head": rows}


def epoch(N: int) -> Results:
    x = torch.randn(N, 25, generator=torch.Generator().manual_seed(0))
    y = torch.randn(N, 1, generator=torch.Generator().manual_seed(1))
    model = ihdp_model(x[:1000])
    model.n_data = N
    recipe = Recipe(lr=1e-3, batch_size=1000)
    few, all_rows = Table(x[:1000], y[:1000]), Table(x, y)
    fit(model, few, replace(recipe, epochs=2), start=False, progress=False)  # warm-up
    before = fresh_peak()
    history = fit(model, all_rows, replace(recipe, epochs=1), start=False, progress=False)
    return {"seconds": sum(history.seconds), "data": 26 * 4 * N / 1e6, "megabytes": peak() - before}


def head_step(M: int, J: int, T: int, shared: bool, burst: float) -> Results:
    small = DUE(nn.Identity(), InducingGP(normal(2, 2)), Gaussian(), n_data=10)
    stepper(small, (normal(2, 2), normal(2, 1)))()  # the first step loads 80 MB of libraries
    h = normal(128, J).requires_grad_()
    gp = InducingGP(normal(M, J, seed=1).double(), T, J**0.5, "rbf", shared)
    likelihood = Gaussian() if T == 1 else Softmax(T)
    y = normal(128, 1) if T == 1 else torch.arange(128) % T
    before = fresh_peak()
    model = DUE(nn.Identity(), gp, likelihood, n_data=10_000)
    times = interleave({"step": stepper(model, (h, y))}, rounds=5, burst=burst, warm=2)
    megabytes = peak() - before
    frozen, rows = FrozenGP(gp), normal(64, J, seed=2)

    def predict() -> None:
        with torch.inference_mode():
            likelihood.predictive(*frozen(rows))

    before = fresh_peak()
    predicted = interleave({"predict": predict}, rounds=3, burst=burst, warm=1)
    return {
        "seconds": times.of("step"),
        "megabytes": megabytes,
        "predict": predicted.of("predict") / len(rows),
        "predict_megabytes": peak() - before,
    }


CASES: dict[str, Callable[..., Results]] = {
    "memory_ours": memory_ours,
    "memory_theirs": memory_theirs,
    "epoch": epoch,
    "head_step": head_step,
}


def measure(case: str, size: Size, gigabytes: float | None = None, **settings: Any) -> Results:
    """In a fresh process, except for SMOKE, where imports would take most of the time."""
    if size is SMOKE:
        return CASES[case](**settings)
    whole = {"case": case, "threads": torch.get_num_threads(), **settings}
    return in_process(__file__, whole, gigabytes)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def agree(ours: Tensor, theirs: Tensor, tolerance: float = 2e-3) -> None:
    """Check that both sides compute the same thing."""
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=0, atol=tolerance)


def print_ratio(name: str, times: Times, rival: str, target: float | None) -> None:
    line = f"   {name:24} {1e3 * times.of(name):8.3f} ms"
    if name != rival:
        low, high = times.spread(rival, name)
        line += f"   {times.ratio(rival, name):6.2f} times faster ({low:.2f} … {high:.2f})"
    print(line + (f", target {target:g}" if target else ""), flush=True)


def summary(times: Times, rival: str) -> Results:
    return {
        name: {"seconds": times.of(name), "ratio": times.ratio(rival, name)}
        for name in times.rounds
    }


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch._inductor")
    warnings.filterwarnings("ignore", "Sparse invariant checks", module="linear_operator")
    main()
