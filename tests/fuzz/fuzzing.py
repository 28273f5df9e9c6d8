"""Change saved models and checkpoints at random, and see what becomes of them.

    cd tests; python -m fuzz.fuzzing --cases 20000 [--seed 0]

One rule: the same answer as before, or a StorageError; never another exception ("raw"), another
answer ("other"), more than `SECONDS` ("hang") or more than `MEGABYTES` ("memory"). The kinds:

- "bytes": bits flipped, bytes cut out or put in, in the file of a model, mostly in its header;
- "config": a field of the configuration changed, and the checksum made right again;
- "tensors": a tensor of another shape or dtype, not finite, missing; the checksum likewise;
- "checkpoint": both, of a training run.
"""

import argparse
import copy
import os
import random
import resource
import signal
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from due.storage import StorageError, files
from due.storage import checkpoint as checkpoints

from .subjects import Answers, Subject, interrupted, subjects, train

SECONDS, MEGABYTES = 20.0, 300
TOLERANCE = 1e-3  # of the largest answer: what a changed field may round differently
KINDS = {"bytes": 0.35, "config": 0.4, "tensors": 0.2, "checkpoint": 0.05}
GOOD = ("same", "refused")
VALUES: list[Any] = [
    *(None, True, False, "", "x", "rbf", "__class__", "../..", "<U200000000", "|O", "cuda", "meta"),
    *(-1, 0, 1, 2, 7, 2**31, 10**7, 10**12, 2**63, 10**400, 0.5, -0.5, 1e300, -1e300, 1e-300),
    *([], {}, [[]], [0], [-1], [10**7], [10**7, 10**7], [1, 2, 3], ["a", "b"], {"a": 1}),
]


class Hang(BaseException):
    """Not an Exception, so that no handler takes it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts, bad = run(options.cases, options.seed)
    for kind in KINDS:
        print(f"{kind:<12}", *(f"{v} {n}" for (k, v), n in sorted(counts.items()) if k == kind))
    for line in bad[:40]:
        print(line)
    raise SystemExit(bool(bad))


def run(cases: int, seed: int) -> tuple[Counter[tuple[str, str]], list[str]]:
    """How often each kind of change ended how, and a line for each that broke the rule."""
    counts: Counter[tuple[str, str]] = Counter()
    bad = []
    with tempfile.TemporaryDirectory() as home, quick(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = [(each, each.ask(each.load(each.folder))) for each in subjects(Path(home))]
        run_ = interrupted()
        for case in range(cases):
            chance = random.Random(f"{seed}-{case}")
            (kind,) = chance.choices(list(KINDS), list(KINDS.values()))
            subject, before = chance.choice(models)
            if kind == "checkpoint":
                what, verdict = try_checkpoint(chance, *run_)
            else:
                what, verdict = try_model(chance, kind, subject, before, Path(home) / "case")
            counts[kind, verdict.partition(":")[0]] += 1
            if verdict not in GOOD:
                bad.append(f"{seed}-{case} {kind} of {subject.folder.name}: {what}: {verdict}")
    return counts, bad


def try_model(
    chance: random.Random, kind: str, subject: Subject, before: Answers, folder: Path
) -> tuple[str, str]:
    """Change one model in one way, load it and ask it."""
    folder.mkdir(exist_ok=True)
    if kind == "bytes":
        data = (subject.folder / "model.safetensors").read_bytes()
        changed, what = damaged(chance, data, 8 + int.from_bytes(data[:8], "little"))
        (folder / "model.safetensors").write_bytes(changed)
    else:
        config, tensors = files.load(subject.folder)
        what = change_config(chance, config) if kind == "config" else change(chance, tensors)
        try:
            files.save(folder, config, tensors)
        except (StorageError, ValueError, OverflowError):  # nothing that could be written
            return what, "refused"
    return what, verdict(lambda: subject.ask(subject.load(folder)), before)


def try_checkpoint(chance: random.Random, file: Path, before: Answers) -> tuple[str, str]:
    """Change the checkpoint in one way, and go on from it."""
    changed = file.with_name("case.pt")
    data = file.read_bytes()
    if chance.random() < 0.5:
        new, what = damaged(chance, data, len(data))
        changed.write_bytes(new)
    else:
        state = torch.load(file, map_location="cpu", weights_only=True)
        what = break_state(chance, state)
        settings = state.pop("settings", {})
        try:
            checkpoints.write(changed, settings, state)
        except TypeError:  # no longer a dict
            return what, "refused"
    return what, verdict(lambda: train(changed), before)


def verdict(answer: Callable[[], Answers], before: Answers) -> str:
    """How it ended."""
    try:
        with limited():
            after = answer()
    except StorageError:
        return "refused" if peak() < MEGABYTES else f"memory: {peak():.0f} MB"
    except Hang:
        return "hang"
    except Exception as error:
        return f"raw: {type(error).__name__}: {str(error)[:80]}"
    if peak() >= MEGABYTES:
        return f"memory: {peak():.0f} MB"
    return "same" if same(after, before) else "other"


def same(after: Answers, before: Answers) -> bool:
    """Up to rounding."""
    for new, old in zip(after, before, strict=True):
        if new.shape != old.shape:
            return False
        if old.dtype.kind != "f":
            if not (new == old).all():
                return False
        elif old.size and not np.abs(new - old).max() <= TOLERANCE * max(1e-9, np.abs(old).max()):
            return False
    return True


def damaged(chance: random.Random, data: bytes, head: int) -> tuple[bytes, str]:
    """Bits or bytes changed, mostly in the first `head` ones."""
    end = head if chance.random() < 0.7 else len(data)
    place, new = chance.randrange(end), bytearray(data)
    way = chance.choice(("flip", "flip", "flip", "byte", "cut", "insert", "truncate", "zero"))
    if way == "flip":
        new[place] ^= 1 << chance.randrange(8)
    elif way == "byte":
        new[place] = chance.randrange(256)
    elif way == "cut":
        del new[place : place + chance.randint(1, 20)]
    elif way == "insert":
        new[place:place] = chance.randbytes(chance.randint(1, 20))
    elif way == "truncate":
        del new[place:]
    else:
        length = min(chance.randint(1, 200), len(new) - place)
        new[place : place + length] = bytes(length)
    return bytes(new), f"{way} at {place}"


def change_config(chance: random.Random, config: dict[str, Any]) -> str:
    """One field of the configuration, at any depth."""
    parts = {"estimator": 5, "model": 5, "members": 5, "fitted": 5, "probe": 1}
    holder: Any = config
    (key,) = chance.choices(*zip(*((p, n) for p, n in parts.items() if p in config), strict=True))
    where: Any = str(key)
    while isinstance(holder[key], dict | list) and holder[key] and chance.random() < 0.85:
        holder = holder[key]
        key = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        where += f".{key}"
    way = chance.choice(("set", "set", "set", "delete", "rename", "scale", "twist"))
    if way == "delete":
        del holder[key]
    elif way == "rename" and isinstance(holder, dict):
        holder[f"{key}_"] = holder.pop(key)
    elif way == "scale" and isinstance(holder[key], int | float):
        holder[key] = holder[key] * chance.choice((-1, 0.5, 1.5, 2, 1000))
    elif way == "twist" and isinstance(holder[key], list):
        holder[key] = chance.choice((holder[key][::-1], holder[key][:-1], holder[key] * 2))
    elif way == "twist" and isinstance(holder[key], str):
        holder[key] = chance.choice((holder[key] + "x", holder[key][:-1], holder[key].upper()))
    else:
        holder[key] = copy.deepcopy(chance.choice(VALUES))
        where += f" = {holder[key]!r}"
    return f"{way} {where}"[:120]


def change(chance: random.Random, tensors: dict[str, torch.Tensor]) -> str:
    """One tensor, so that it is no longer one of this model."""
    name = chance.choice(sorted(tensors))
    tensor = tensors[name]
    way = chance.choice(("nan", "inf", "shape", "row", "int", "delete", "rename", "more", "empty"))
    if way in ("nan", "inf"):
        if not tensor.is_floating_point() or not tensor.numel():
            return "nothing"
        tensors[name] = tensor = tensor.clone()
        tensor.view(-1)[chance.randrange(tensor.numel())] = float(way)
    elif way == "shape":
        tensors[name] = tensor[None] if chance.random() < 0.5 else tensor.reshape(-1, 1)
    elif way == "row":
        tensors[name] = torch.cat([tensor, tensor]) if tensor.ndim else tensor.repeat(2)
    elif way == "int":
        tensors[name] = tensor.to(torch.int64)
    elif way in ("delete", "rename"):
        del tensors[name]
        if way == "rename":
            tensors[f"{name}_"] = tensor
    elif way == "more":
        tensors["more"] = tensor
    else:
        tensors[name] = tensor.new_empty(0)
    return f"{way} {name}"


def break_state(chance: random.Random, state: dict[str, Any]) -> str:
    """One part of a checkpoint, so that it is no longer one of this run."""
    holder: Any = state
    key: Any = chance.choice([name for name in state if name != "seconds"])
    where = str(key)
    while isinstance(holder[key], dict | list) and holder[key] and chance.random() < 0.8:
        holder = holder[key]
        key = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        where += f".{key}"
    value = holder[key]
    if chance.random() < 0.2:
        del holder[key]
        return f"delete {where}"
    broken: list[Any] = ["x", [torch.zeros(3)], {"a": 1}, -(10**9), float("nan")]
    if isinstance(value, torch.Tensor):
        broken = [value[None], value.reshape(-1)[:0], "x", None, [1.0]]
        if value.is_floating_point() and value.numel():
            broken.append(torch.full_like(value, float("nan")))
    holder[key] = chance.choice(broken)
    return f"{where} = {str(holder[key])[:40]!r}"


@contextmanager
def quick() -> Iterator[None]:
    """Files need not survive a crash of the machine here."""
    real, os.fsync = os.fsync, lambda fd: None
    try:
        yield
    finally:
        os.fsync = real


@contextmanager
def limited() -> Iterator[None]:
    """Within, time is limited; and memory to a few GB, so that the machine lives on."""

    def stop(*_: Any) -> None:
        raise Hang

    Path("/proc/self/clear_refs").write_text("5")  # the peak is from here on
    limited.before = status("VmRSS")  # type: ignore[attr-defined]
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, ((status("VmSize") + 3000) << 20, hard))
    old = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def peak() -> float:
    """MB that the last case took beyond what there was."""
    return status("VmHWM") - limited.before  # type: ignore[attr-defined]


def status(name: str) -> int:
    """MB of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) >> 10


if __name__ == "__main__":
    main()
