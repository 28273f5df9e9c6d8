"""Times on a shared machine: short bursts in turns, and medians over rounds of ratios."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple


class Times(NamedTuple):
    """Seconds per call, one entry per round; round i of all names ran within about a second."""

    rounds: dict[str, list[float]]

    def of(self, name: str) -> float:
        """Median seconds of one call."""
        return median(self.rounds[name])

    def ratio(self, slow: str, fast: str) -> float:
        """Median over rounds of slow / fast."""
        return median(a / b for a, b in zip(self.rounds[slow], self.rounds[fast], strict=True))

    def spread(self, slow: str, fast: str) -> tuple[float, float]:
        """The middle half of those ratios."""
        ratios = [a / b for a, b in zip(self.rounds[slow], self.rounds[fast], strict=True)]
        ordered, quarter = sorted(ratios), len(ratios) // 4
        return ordered[quarter], ordered[-1 - quarter]

    def share(self, whole: str, without: str) -> float:
        """Median over rounds of 1 − without / whole."""
        return 1 - self.ratio(without, whole)


def interleave(
    calls: Mapping[str, Callable[[], object]], rounds: int, burst: float = 0.1, warm: int = 5
) -> Times:
    """Time each call in bursts of about `burst` seconds, in an order that turns every round."""
    names = list(calls)
    repeats = {name: _repeats(call, burst, warm) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            times[name].append(_burst(calls[name], repeats[name]))
    return Times(times)


def in_process(script: str, case: dict[str, Any], gigabytes: float | None = None) -> dict[str, Any]:
    """Run `script --case …` in a fresh process, with a limit on its memory; its last line is JSON.

    A process that fails gives {"error": its last line}.
    """

    def limit() -> None:
        if gigabytes is not None:
            size = int(gigabytes * 1e9)
            resource.setrlimit(resource.RLIMIT_AS, (size, size))

    done = subprocess.run(
        [sys.executable, script, "--case", json.dumps(case)],
        capture_output=True,
        text=True,
        preexec_fn=limit,
    )
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode != 0:
        return {"error": lines[-1] if lines else f"exit code {done.returncode}"}
    return dict(json.loads(lines[-1]))


def fresh_peak() -> float:
    """Forget the peak so far; the resident memory of this process now, in MB (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> float:
    """Largest resident memory since `fresh_peak`, in MB; ru_maxrss would include the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _repeats(call: Callable[[], object], burst: float, warm: int) -> int:
    return max(1, round(burst / min(_burst(call, 1) for _ in range(warm))))


def _burst(call: Callable[[], object], repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats
