"""How long the way of a call is: files, switches between them, jumps between classes.

python tools/trace.py [--each]

A *file* is one of the package in which a function ran. The functions are put in the order in which
each first ran; a *switch* is a place where that order goes from one file to another. A *jump* is a
pair of methods of one estimator, caller and callee, that are defined in different classes. The
mathematics (gp, lipschitz, networks) is counted twice: file by file ("in all"), to which the
targets belong, and each room as one, because a reader of a journey meets it as one.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.datasets import make_moons

import due
from due import DUECATE, DUEClassifier

ROOT = Path(due.__file__).parent
ROOMS = ("gp", "lipschitz", "networks")
TARGETS = {"fit": (14, 35, 4), "predict": (6, None, None), "trial": (22, None, None)}


class Trace(NamedTuple):
    """Files of functions in the order in which they first ran, and jumps between classes."""

    files: list[str]
    jumps: list[str]

    def rooms(self) -> list[str]:
        """The same with each room of the mathematics as one."""
        parts = [file.split("/") for file in self.files]
        return [p[0] if p[0] in ROOMS else "/".join(p) for p in parts]


def trace(call: Callable[[], object]) -> Trace:
    """Run the call and note every function of the package that runs in it."""
    first: dict[tuple[str, str], None] = {}
    jumps: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(str(ROOT)):
            return
        first[_file(frame), frame.f_code.co_qualname] = None
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(str(ROOT)):
            caller = caller.f_back
        if caller is not None and _is_jump(caller, frame):
            jumps[f"{caller.f_code.co_qualname} → {frame.f_code.co_qualname}"] = None

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Trace([file for file, _ in first], list(jumps))


def switches(files: list[str]) -> int:
    """Neighbours that differ."""
    return sum(a != b for a, b in zip(files, files[1:], strict=False))


def journeys() -> dict[str, Callable[[], object]]:
    """The calls that are traced; what loads lazily has been loaded."""
    X, y = make_moons(100, noise=0.1, random_state=0)
    T = np.arange(100) % 2
    settings: dict[str, Any] = {"epochs": 2, "random_state": 0}
    classifier = DUEClassifier(**settings).fit(X, y)
    effects = DUECATE(**settings).fit(X[:, 0] + T, T, X)
    classifier.predict(X)
    effects.effect_interval(X)
    calls: dict[str, Callable[[], object]] = {
        "fit": lambda: DUEClassifier(**settings).fit(X, y),
        "predict": lambda: classifier.predict(X),
        "effect_interval": lambda: effects.effect_interval(X),
    }
    if "DUE_DATA" in os.environ:
        calls["trial"] = _trial()
    return calls


def _trial() -> Callable[[], object]:
    from due.experiments.trials import Trial, fit_and_predict
    from due.paper.table3 import METHODS

    trial = Trial("due", "ihdp", 0)
    fit_and_predict(METHODS["due"], trial)
    return lambda: fit_and_predict(METHODS["due"], trial)


def _file(frame: FrameType) -> str:
    return Path(frame.f_code.co_filename).relative_to(ROOT).as_posix()


def _is_jump(caller: FrameType, callee: FrameType) -> bool:
    a, b = caller.f_code.co_qualname.split("."), callee.f_code.co_qualname.split(".")
    it = caller.f_locals.get("self")
    same = isinstance(it, BaseEstimator) and it is callee.f_locals.get("self")
    return same and len(a) == len(b) == 2 and a[0] != b[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--each", action="store_true", help="list the files and the jumps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    head = f"{'journey':<16}{'files':>7}{'switches':>10}{'jumps':>7}"
    print(f"{head}   in all (targets): files, switches")
    for name, call in journeys().items():
        found = trace(call)
        rooms = found.rooms()
        numbers = f"{len(set(rooms)):>7}{switches(rooms):>10}{len(found.jumps):>7}"
        whole = f"{len(set(found.files)):>10}{switches(found.files):>10}"
        target = TARGETS.get(name)
        aims = "" if target is None else f"   target {', '.join(str(t or '–') for t in target)}"
        print(f"{name:<16}{numbers}{whole}{aims}")
        if options.each:
            print(
                "  order:", " ".join(r for r, b in zip(rooms, ["", *rooms], strict=False) if r != b)
            )
            print("  jumps:", "; ".join(found.jumps) or "none")


if __name__ == "__main__":
    main()
