"""A million rows of ten columns: does memory stay flat, and how many rows per second?

Each estimator runs in a fresh process. Memory is resident memory, in MB, minus what it was once the
data were loaded; X and y in float64 take 88 MB for a million rows. A thread reads it twice per
second; a shorter rise is missing in the course, but not in the peak, which the kernel keeps.

The allocator places blocks differently in each process, so peaks vary: use --repeats 3.

    python benchmarks/million_rows.py [--rows 1000000] [--epochs 1] [--repeats 1] [--threads 1]
    python benchmarks/million_rows.py --smoke
"""

import argparse
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import fresh_peak, in_process, peak

from due import DUEClassifier, DUERegressor

COLUMNS, SMOKE_ROWS = 10, 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=1, help="passes over the rows; default: 1")
    parser.add_argument("--repeats", type=int, default=1, help="fresh processes; default: 1")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="seconds: same code, tiny settings")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # one estimator, in its own process
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(**json.loads(options.case))))
        return
    rows = SMOKE_ROWS if options.smoke else options.rows
    print(f"{rows:,} × {COLUMNS} rows, {options.epochs} epoch(s), {options.threads} threads")
    for name in [name for name in ESTIMATORS for _ in range(options.repeats)]:
        case = {"name": name, "rows": rows, "epochs": options.epochs, "threads": options.threads}
        if options.smoke:  # here: the imports of a fresh process would take most of the time
            print(report(measure(**case)), flush=True)
        else:
            print(report(in_process(__file__, case)), flush=True)


def measure(name: str, rows: int, epochs: int, threads: int) -> dict[str, Any]:
    """Fit and predict in this process."""
    torch.set_num_threads(threads)
    warm_up(name, min(3000, rows))
    X, y = made_up(rows)
    model = ESTIMATORS[name](epochs=epochs, random_state=0)
    labels = y if name == "DUERegressor" else (y > 0).astype(int)
    before = fresh_peak()
    fit = watched(lambda: model.fit(X, labels))
    fit["loop_seconds"] = sum(model.history_["seconds"])
    fit["rows_fitted"] = model.history_["rows"]
    kept = resident()
    fresh_peak()
    predict = watched(lambda: model.predict(X))
    fresh_peak()
    uncertainty = watched(lambda: model.uncertainty(X))
    return {
        "name": name,
        "rows": rows,
        "epochs": epochs,
        "before": before,
        "kept": kept,
        "fit": fit,
        "predict": predict,
        "uncertainty": uncertainty,
    }


def warm_up(name: str, rows: int) -> None:
    """Load what is loaded lazily, so that it does not count as growth."""
    X, y = made_up(rows)
    labels = y if name == "DUERegressor" else (y > 0).astype(int)
    extra = {"bound": "elbo"} if name == "DUERegressor" else {}
    ESTIMATORS[name](epochs=1, random_state=0, **extra).fit(X, labels).uncertainty(X)


def made_up(rows: int) -> tuple[Any, Any]:
    """y = sin(x₁ + x₂) + ½ x₃ x₄ + noise of standard deviation 0.1; six columns are irrelevant."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, COLUMNS))
    y = np.sin(X[:, 0] + X[:, 1]) + 0.5 * X[:, 2] * X[:, 3]
    y += 0.1 * rng.standard_normal(rows)
    return X, y


def watched(call: Callable[[], object]) -> dict[str, Any]:
    """Seconds, peak memory, and memory at five moments of the call."""
    course: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            course.append(resident())

    thread = threading.Thread(target=watch)
    thread.start()
    began = time.perf_counter()
    call()
    seconds = time.perf_counter() - began
    over.set()
    thread.join()
    last = len(course) - 1
    moments = [course[int(q * last)] for q in (0.1, 0.3, 0.5, 0.7, 0.9) if course]
    return {"seconds": seconds, "peak": peak(), "course": moments}


def resident() -> float:
    """Resident memory of this process now, in MB (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def report(result: dict[str, Any]) -> str:
    if "error" in result:
        return f"failed: {result['error']}"
    before, fit = result["before"], result["fit"]
    passed = fit["rows_fitted"] * result["epochs"]
    course = " ".join(f"{value - before:+.0f}" for value in fit["course"])
    lines = [
        f"\n{result['name']}",
        f"  resident with the data loaded   {before:9,.0f} MB",
        f"  fit: peak                       {fit['peak'] - before:+9,.0f} MB",
        f"       at 10, 30, 50, 70, 90 %    {course} MB",
        f"       kept afterwards            {result['kept'] - before:+9,.0f} MB",
        f"       whole                      {fit['seconds']:9,.1f} s",
        f"       training loop              {fit['loop_seconds']:9,.1f} s"
        f" = {passed / fit['loop_seconds']:,.0f} rows/s",
    ]
    for verb in ("predict", "uncertainty"):
        took = result[verb]
        lines.append(
            f"  {verb + ': peak':<32}{took['peak'] - result['kept']:+9,.0f} MB,"
            f" {result['rows'] / took['seconds']:,.0f} rows/s"
        )
    return "\n".join(lines)


ESTIMATORS: dict[str, Any] = {"DUEClassifier": DUEClassifier, "DUERegressor": DUERegressor}


if __name__ == "__main__":
    main()
