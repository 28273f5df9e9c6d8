"""DUECATE's default on IHDP and IHDP-Cov beside the default of earlier versions, on paired seeds.

"before" is `DUECATE(inducing="free", recipe=Recipe(patience=20))`, the row DUE of Table 3, whose
trials are in results/table3.jsonl. The present default was chosen on seeds 100 to 108 and on
simulated worlds, so the seeds here are 200 to 299.

    DUE_DATA=... python benchmarks/defaults.py [--trials 100] [--seconds 600] [--smoke]

Each trial is written to results/defaults.jsonl: the same command continues. With `--seconds` it
begins none after that time.
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from due import DUECATE
from due.estimators.residuals import ALARM
from due.experiments import statistics, trials
from due.experiments.contender import Contender
from due.experiments.journal import Journal
from due.experiments.layout import Table
from due.experiments.trials import DATA, DEFERRALS, Result, Trial
from due.paper.table3 import METHODS, SMOKE

FIRST = 200  # seed
NOW = Contender("DUECATE", lambda seed: DUECATE(random_state=seed), version=7)
SMALL = Contender("DUECATE", lambda seed: DUECATE(epochs=2, random_state=seed))


def main() -> None:
    """Run the trials that are missing, and print a table for each data set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=FIRST, help="the first seed")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--smoke", action="store_true", help="seconds: same code, tiny settings")
    arguments = parser.parse_args()
    if arguments.smoke:
        with TemporaryDirectory() as folder:
            run(Path(folder), {"now": SMALL, "due": SMOKE["due"]}, range(FIRST, FIRST + 2), np.inf)
    else:
        methods = {"now": NOW, "due": METHODS["due"]}
        seeds = range(arguments.first, arguments.first + arguments.trials)
        run(Path("results"), methods, seeds, arguments.seconds)


def run(folder: Path, methods: dict[str, Contender], seeds: range, seconds: float) -> None:
    """Both methods on these seeds, and the table of all that is there."""
    began = time.monotonic()
    own = Journal(folder / "defaults.jsonl", Trial._fields, ("tau_hat", "var"))
    before = trials.results(trials.journal_in(folder), methods)
    for seed in seeds:
        if time.monotonic() - began > seconds:
            break
        plan = [Trial(name, part, seed) for part in DATA for name in methods]
        trials.run([trial for trial in plan if trial not in before], methods, own)
    found = {**before, **trials.results(own, methods)}
    for part in DATA:
        both = {
            name: {t.seed: r for t, r in found.items() if t[:2] == (name, part) and t.seed >= FIRST}
            for name in ("due", "now")
        }
        print(table(part, both).text(), end="\n\n")
        print(warned(both["now"]), end="\n\n\n")
    print("random, uncertainty: RMSE after that deferral. p: Wilcoxon signed-rank test, two-sided.")


def table(part: str, both: dict[str, dict[int, Result]]) -> Table:
    """The two rows on the seeds they share, and their difference."""
    seeds = statistics.common_seeds(both.values())
    rows = []
    for name, title in (("due", "before"), ("now", "DUECATE")):
        row = statistics.of_method({seed: both[name][seed] for seed in seeds})
        errors = [
            text for key in DEFERRALS for text in (_mean(row[key]), f"{row[key]['median']:.2f}")
        ]
        rows.append([title, *errors, f"{row['coverage']:.3f}", f"{row['cpu_seconds']:.1f}"])
    less = statistics.minus(both["due"], both["now"], seeds)
    cells = [
        text for key in DEFERRALS for text in (_mean(less[key]), f"p {_p(less[key]['wilcoxon_p'])}")
    ]
    rows.append(["before − DUECATE", *cells, "", ""])
    header = ["", "random", "median", "uncertainty", "median", "covered", "CPU s"]
    return Table(f"{part}: {len(seeds)} seeds from {FIRST} on", header, rows)


def warned(found: dict[int, Result]) -> str:
    """How many fits warned of a missed effect, and how well they covered."""
    alarms = [r.line.get("missed_effect") for r in found.values()]
    missed = [r for r, p in zip(found.values(), alarms, strict=True) if p is not None and p < ALARM]
    covered = [r.line["coverage"] for r in missed]
    known = f"; their coverage {np.mean(covered):.3f}" if covered else ""
    return f"warned of a missed effect: {len(missed)} of {len(found)} fits of DUECATE{known}"


def _mean(value: dict[str, float]) -> str:
    stderr = "" if value["stderr"] is None else f" ± {value['stderr']:.2f}"
    return f"{value['mean']:.2f}{stderr}".replace("-", "−")


def _p(value: float | None) -> str:
    return "–" if value is None or np.isnan(value) else f"{value:.1g}"


if __name__ == "__main__":
    main()
