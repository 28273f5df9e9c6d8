"""What uncertainty costs on images: DUE over a softmax network, in training and in prediction.

Wide ResNets, batches of 128 images of 3 × 32 × 32. A training step is that of `due.training.fit`:
bf16, channels_last, SGD, c = 3, M = 10, spectral norms refreshed every 8 steps, and 10 samples in
the loss, as `DUEClassifier` has them; integrated exactly, a step at WRN-16-2 takes 1 to 2 % longer.
DUE and softmax take a step each in turns, and each of DUE is compared with the two beside it. Every
other step of DUE refreshes its norms, and the mean over 8 steps follows from both medians.
Prediction is in float32, from normalised images to probabilities; a single image also with both
methods under `torch.compile`, which needs a C++ compiler. The parts are timed by themselves, as
shares of a softmax step.

The C library returns memory to the system whenever the top of its heap is free, and a later step
asks for it again, page by page: up to 5 % of a step, by turns of one method or the other. With
`--keep-memory` (of glibc) it keeps it.

    python benchmarks/images.py [--quick | --smoke] [--threads 1] [--keep-memory]
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from timing import Times, interleave
from torch import Tensor

from due.gp import InducingGP, Softmax
from due.lipschitz import SpectralNorm, constrain
from due.lipschitz.bounded import Bounded
from due.methods import DUE
from due.methods.method import Method
from due.methods.softmax import SoftmaxNetwork
from due.networks import WideResNet
from due.predictor import ClassPredictor
from due.rows import Images, crop_and_flip
from due.rows.scale import Scale
from due.training import Recipe
from due.training.loop import FAST_STEPS, Run

CLASSES, M, C = 10, 10, 3.0
REFRESH = 8  # steps between power iterations, as in the laptop presets
WARM = 4  # steps
KEPT = {"MALLOC_TRIM_THRESHOLD_": f"{2**40}", "MALLOC_MMAP_THRESHOLD_": f"{2**40}"}
RECIPE = Recipe(
    optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4, precision="bf16", batch_size=128
)


class Size(NamedTuple):
    """Networks with the most that step and prediction may cost, images per batch, and rounds."""

    networks: dict[tuple[int, int], tuple[float, float]]
    batch: int
    rounds: int
    burst: float
    pixels: int = 32
    compiler: str = "inductor"


FULL = Size({(16, 2): (1.03, 1.02), (16, 4): (1.02, 1.02)}, 128, 20, 0.3)
QUICK = FULL._replace(networks={(16, 2): (1.03, 1.02)}, rounds=16)
SMOKE = Size({(10, 1): (9.0, 9.0)}, 4, 2, 0.0, pixels=8, compiler="eager")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a minute: the smaller network")
    parser.add_argument("--smoke", action="store_true", help="seconds: same code, tiny settings")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep-memory", action="store_true", help="return none to the system")
    options = parser.parse_args()
    if options.keep_memory and not os.environ.keys() >= KEPT.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEPT})
    torch.set_num_threads(options.threads)
    size = SMOKE if options.smoke else QUICK if options.quick else FULL
    print(
        f"torch {torch.__version__}, {options.threads} thread of {os.cpu_count()}, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    for (depth, width), targets in size.networks.items():
        print(f"\nWRN-{depth}-{width}, {size.batch} images of 3 × {size.pixels} × {size.pixels}")
        report(depth, width, size, *targets)


def report(depth: int, width: int, size: Size, step: float, prediction: float) -> None:
    source = images(size)
    batch = next(source.batches(size.batch, 0, 0))
    due, softmax = build(depth, width, source, True), build(depth, width, source, False)
    seconds = training(due, softmax, batch, size, step)
    shares(due, softmax, source, batch, size, seconds)
    predicting(due, softmax, batch[0], size, prediction)


def images(size: Size) -> Images:
    """Random pixels: time does not depend on them."""
    generator = torch.Generator().manual_seed(0)
    shape = (2 * size.batch, 3, size.pixels, size.pixels)
    x = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return Images(x, torch.arange(len(x)) % CLASSES, augment=crop_and_flip)


def build(depth: int, width: int, source: Images, bounded: bool) -> Method:
    torch.manual_seed(0)
    f = WideResNet(depth, width).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if not bounded:
        return SoftmaxNetwork(f, f.out_features, CLASSES)
    constrain(f, C, source.take(torch.arange(2))[0], batch_norm_momentum=0.1)
    gp = InducingGP(torch.zeros(M, f.out_features), CLASSES, shared_kernel=False)
    due = DUE(f, gp, Softmax(CLASSES, samples=10))
    due.start(source, seed=0)
    return due


# a. a training step


def training(due: Method, softmax: Method, batch: Any, size: Size, target: float) -> float:
    """Prints the ratio; seconds of a softmax step."""
    ours, theirs = (stepper(method, batch) for method in (due, softmax))
    turns = [(seconds_of(ours), seconds_of(theirs)) for _ in range(2 * size.rounds + WARM)]
    times, between = [t for t, _ in turns[WARM:]], [t for _, t in turns[WARM - 1 :]]
    ratios = [2 * t / (a + b) for t, a, b in zip(times, between[:-1], between[1:], strict=True)]
    refreshed, plain = median(ratios[::2]), median(ratios[1::2])
    mean = plain + (refreshed - plain) / REFRESH
    print(f"   softmax step                    {1e3 * median(between):8.1f} ms")
    print(f"   DUE step ÷ softmax step         {mean:8.3f}     target {target:g}")
    print(f"      with power iteration         {refreshed:8.3f}     every {REFRESH} steps")
    print(f"      without                      {plain:8.3f}", flush=True)
    return median(between)


def seconds_of(call: Callable[[], None]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began


def stepper(method: Method, batch: tuple[Tensor, ...]) -> Callable[[], None]:
    """A step of `fit`, past its first ones; every other one refreshes the norms."""
    recipe = Recipe(refresh=2).over(RECIPE).complete()
    run = Run(method.train(), recipe, recipe.optimise(method), None, steps=FAST_STEPS)
    return partial(run.advance, method, batch, len(batch[0]))


# b. its parts


def shares(due: Any, softmax: Any, source: Images, batch: Any, size: Size, seconds: float) -> None:
    norms = [m for m in due.modules() if isinstance(m, Bounded)]
    convolutions = [m for m in norms if isinstance(m, SpectralNorm)]
    others = [m for m in norms if not isinstance(m, SpectralNorm)]
    h = due.f(batch[0]).detach().requires_grad_()
    epoch: Iterator[object] = iter(())

    def augmented() -> None:
        nonlocal epoch
        if next(epoch, None) is None:
            epoch = source.batches(size.batch, 0, 0)
            next(epoch)

    parts: dict[str, Callable[[], object]] = {
        "power iteration": partial(refresh, convolutions),
        "σ in between": weights(convolutions),
        "batch norm": weights(others),
        "GP and likelihood": lambda: on_features(due, h, batch[1]),
        "softmax output": lambda: on_features(softmax, h, batch[1]),
        "images": augmented,
    }
    times = interleave(parts, 2 * size.rounds, size.burst / 6, warm=2)
    cost = {name: times.of(name) / seconds for name in parts}
    gp = cost["GP and likelihood"] - cost["softmax output"]
    near = sum(not norm.slack for norm in convolutions)
    beyond = sum(float(norm.sigma().detach()) > C for norm in convolutions)
    where = f"{near} of {len(convolutions)} near c, {beyond} at it"
    iteration = cost["power iteration"]
    print("   shares of a softmax step:")
    print(f"      power iteration              {iteration / REFRESH:8.2%}     {iteration:.1%} once")
    print(f"      σ in between                 {cost['σ in between']:8.2%}     {where}")
    print(f"      batch norm                   {cost['batch norm']:8.2%}")
    print(f"      GP instead of softmax        {gp:8.2%}")
    print(f"      images, of both methods      {cost['images']:8.2%}", flush=True)


def refresh(layers: Sequence[SpectralNorm]) -> None:
    for layer in layers:
        layer.refresh()


def weights(layers: Sequence[Bounded]) -> Callable[[], None]:
    """Bounded weights of all layers, forward and backward; what is used as it is costs nothing."""
    gradients = {layer: torch.randn_like(layer.raw_weight) for layer in layers}

    def once() -> None:
        found = [(layer, layer.bounded_weight()) for layer in layers]
        changed = [(w, gradients[layer]) for layer, w in found if w is not layer.raw_weight]
        if changed:
            torch.autograd.backward([w for w, _ in changed], [g for _, g in changed])

    return once


def on_features(method: Any, h: Tensor, y: Tensor) -> None:
    f, method.f = method.f, torch.nn.Identity()
    method(h, y).backward()
    method.f = f


# c. prediction


def predicting(due: Any, softmax: Any, x: Tensor, size: Size, target: float) -> None:
    ours, theirs = (ready(method, x) for method in (due, softmax))
    compiled = partial(torch.compile, backend=size.compiler, dynamic=False)
    cases = [
        (f"prediction of {len(x)}", len(x), target, (theirs, ours)),
        ("prediction of 1", 1, 1.10, (theirs, ours)),
        ("both compiled, 1", 1, 1.10, (compiled(theirs), compiled(ours))),
    ]
    for name, n, limit, (fast, slow) in cases:
        rows = x[:n].contiguous(memory_format=torch.channels_last)
        calls = {"softmax": partial(fast, rows), "DUE": partial(slow, rows)}
        with torch.inference_mode():
            times = interleave(calls, 2 * size.rounds, size.burst)
        print_ratio(f"{name}, DUE ÷ softmax", times, limit)


def ready(method: Any, x: Tensor) -> Callable[[Tensor], Tensor]:
    model = method.eval().predictor()
    return ClassPredictor(model, Scale.identity(tuple(x.shape[1:]))).probabilities


def print_ratio(name: str, times: Times, target: float) -> None:
    low, high = times.spread("DUE", "softmax")
    print(
        f"   {name:32}{times.ratio('DUE', 'softmax'):8.3f}     target {target:g} "
        f"({low:.3f} … {high:.3f}; softmax {1e3 * times.of('softmax'):.2f} ms)",
        flush=True,
    )


if __name__ == "__main__":
    main()
