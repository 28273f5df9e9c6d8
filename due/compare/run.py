"""Methods side by side on one data set: method × seed → error, NLL, calibration, AUROC and time.

A finished (method, seed) is a line of `compare-DATA.jsonl` and is not computed again while the
method's settings, what its estimator was built with and its version, are those of the line.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits

from due.compare.measure import measure
from due.compare.methods import CLASSIFIERS, ENGINES, REGRESSORS, SMOKE
from due.compare.report import draw, notes, summarise, table
from due.compare.tasks import DATA, DataSet, Task
from due.experiments.contender import Contender, choose, message
from due.experiments.files import make_directory, write_files
from due.experiments.journal import Journal, Json

SMOKE_ROWS = 100


class Comparison(NamedTuple):
    """The numbers, the table, and the files that were written."""

    report: Json
    text: str
    files: Sequence[Path]


def compare(
    data: str,
    out: Path,
    *,
    own: DataSet | None = None,
    methods: str | None = None,
    seeds: int = 5,
    jobs: int = 1,
    smoke: bool = False,
    command: str = "",
    say: Callable[[str], object] = lambda text: None,
) -> Comparison:
    """Run what is missing of methods × seeds, `jobs` at a time, then write the table's files.

    `own` is a data set of the user's, under the name `data`. Times are relative to the first
    method, the plain network, which always runs.
    """
    if own is None and data not in DATA:
        raise ValueError(f"--data {data!r} is not known; give one of {', '.join(DATA)}")
    task = own or DATA[data]
    for name, count in (("seeds", seeds), ("jobs", jobs)):
        if count < 1:
            raise ValueError(f"--{name} {count} is too few; give at least 1")
    chosen = runnable(methods, CLASSIFIERS if task.classes else REGRESSORS, say)
    make_directory(out)
    task.load(0)  # without data nothing is tried
    shared = SMOKE if smoke else {}
    settings = {
        name: {**m.settings(**shared), "smoke": smoke, **task.settings}
        for name, m in chosen.items()
    }
    journal = Journal(out / f"compare-{data}.jsonl", ("method", "seed"), ("numbers",))
    failures = run(task, chosen, settings, journal, seeds, jobs, shared, say)

    lines: dict[str, dict[int, Json]] = {name: {} for name in chosen}
    for name, seed in product(chosen, range(seeds)):
        if (line := journal.find(settings[name], method=name, seed=seed)) is not None:
            lines[name][seed] = line
    rows = summarise(chosen, lines)
    if not rows:
        raise ValueError(f"no fit succeeded; the first: {failures[0]}")
    report = {
        "data": data,
        "classes": task.classes,
        "far": task.far,
        "times_relative_to": next(iter(chosen)),
        "command": command,
        "methods": rows,
        "failures": failures,
    }
    text = "\n".join([table(report).text(), "", *notes(report)])
    files = write_files(out, f"compare-{data}", json=report, txt=text, png=draw(report))
    return Comparison(report, text, files)


def runnable(
    names: str | None, known: Mapping[str, Contender], say: Callable[[str], object]
) -> dict[str, Contender]:
    """The methods asked for, after the one that times are relative to; None is all that can run."""
    chosen = choose(names, known)
    absent = [name for name in chosen if name in ENGINES and find_spec(ENGINES[name]) is None]
    if absent and names is not None:
        raise ImportError(f"{absent[0]} needs {ENGINES[absent[0]]}: pip install 'due[rivals]'")
    if absent:
        say(f"without {' and '.join(absent)}, which need: pip install 'due[rivals]'")
    reference = next(iter(known))
    rest = {name: method for name, method in chosen.items() if name not in absent}
    return {reference: known[reference], **rest}


def run(
    data: DataSet,
    methods: Mapping[str, Contender],
    settings: Mapping[str, Json],
    journal: Journal,
    seeds: int,
    jobs: int,
    shared: Json,
    say: Callable[[str], object],
) -> list[str]:
    """Fill the journal; the messages of the fits that failed, which the next run tries again."""
    pairs = [(name, seed) for seed in range(seeds) for name in methods]
    left = [(m, s) for m, s in pairs if journal.find(settings[m], method=m, seed=s) is None]
    say(f"{len(pairs)} fits: {len(pairs) - len(left)} were already there, {len(left)} to run")
    work = (delayed(attempt)(data, name, methods[name], seed, shared) for name, seed in left)
    failures = []
    for name, seed, found in Parallel(jobs, return_as="generator_unordered", batch_size=1)(work):
        if isinstance(found, str):
            in_short = found
            failures.append(f"{name}, seed {seed}: {found}")
        else:
            first = next(iter(found))
            in_short = f"{first} {found[first]:.4g}, AUROC {found['auroc']:.3f}"
            journal.add(settings[name], {"numbers": found}, method=name, seed=seed)
        say(f"{name}, seed {seed}: {in_short}")
    return failures


def attempt(
    data: DataSet, name: str, method: Contender, seed: int, shared: Json
) -> tuple[str, int, Json | str]:
    """The numbers of one fit, or its error; a missing package is raised."""
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            task = data.load(seed)
            few = Task(*(part[:SMOKE_ROWS] for part in task))
            with warnings.catch_warnings():  # the first fit pays for lazy imports
                warnings.simplefilter("ignore")
                method.build(seed, **SMOKE).fit(few.X, few.y)
            model = method.build(seed, **shared)
            return name, seed, measure(model, few if shared else task, data.classes)
    except ImportError:
        raise
    except Exception as error:
        return name, seed, message(error)
