"""Time of `fit`, `predict`, `save` and `load` in two source trees of due, in turns.

python tools/versus.py OLD NEW [--rounds 5]

OLD and NEW are directories that hold the package `due`, such as a git worktree. Each round runs
both in a process of its own, one after the other, and takes the shortest CPU time of each task; the
ratio is that of the medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Times = dict[str, float]
SAME_WORK = {  # arguments under which later versions do what earlier ones did, where they know them
    "inducing": "free",
    "noise": "constant",
    "layers": 3,
    "dropout": 0.1,
    "column_scales": False,
    "shared_covariance": False,
}


def measure() -> Times:
    """Seconds of each task in the package that this process imports."""
    import warnings

    import numpy as np
    import torch
    from sklearn.datasets import load_diabetes, load_digits

    from due import DUECATE, DUEClassifier, DUERegressor

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    images, digits = load_digits(return_X_y=True)
    rows, values = load_diabetes(return_X_y=True)
    t = np.arange(len(rows)) % 2
    many_images, many_rows = np.repeat(images, 3, 0), np.repeat(rows, 10, 0)
    times: Times = {}

    def alike(kind: Any, **given: Any) -> Any:
        known = {k: v for k, v in SAME_WORK.items() if k in kind._get_param_names()}
        return kind(**known, **given, random_state=0)

    def timed(name: str, call: Callable[[], object], repeats: int = 3) -> None:
        each = []
        for _ in range(repeats):
            began = time.process_time()
            call()
            each.append(time.process_time() - began)
        times[name] = min(each)

    DUEClassifier(epochs=1).fit(images[:50], digits[:50]).predict(images)  # torch loads lazily
    classifier = alike(DUEClassifier, epochs=8)
    timed("classifier, fit", lambda: classifier.fit(images, digits))
    timed("classifier, predict", lambda: classifier.predict(many_images), 10)
    regressor = alike(DUERegressor, epochs=100, kernel="rbf")
    timed("regressor, fit", lambda: regressor.fit(rows, values))
    timed("regressor, predict", lambda: regressor.predict(many_rows, return_std=True), 10)
    effects = alike(DUECATE, epochs=150)
    timed("effects, fit", lambda: effects.fit(values, t, X=rows))
    timed("effects, interval", lambda: effects.effect_interval(many_rows), 10)
    with tempfile.TemporaryDirectory() as folder:
        timed("save", lambda: classifier.save(folder), 10)
        timed("load", lambda: DUEClassifier.load(folder), 10)
    return times


def in_tree(tree: Path) -> Times:
    """The same in a process that imports the package of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--measure"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tree)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: Times = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trees", type=Path, nargs="*", metavar="TREE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure()))
        return
    old, new = options.trees
    rounds = [(in_tree(old), in_tree(new)) for _ in range(options.rounds)]
    print(f"{'median of ' + str(options.rounds):<22}{'old, ms':>10}{'new, ms':>10}{'new/old':>9}")
    for name in rounds[0][0]:
        before, after = (statistics.median(each[i][name] for each in rounds) for i in (0, 1))
        print(f"{name:<22}{1e3 * before:>10.1f}{1e3 * after:>10.1f}{after / before:>9.2f}")


if __name__ == "__main__":
    main()
