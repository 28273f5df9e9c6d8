"""Methods side by side on one data set: method × seed → error, NLL, calibration, AUROC and time.

A finished (method, seed) is a line of `compare-DATA.jsonl` and is not computed again while the
method's settings, what its estimator was built with and its version, are those of the line.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits

from due.compare.journal import Journal
from due.compare.measure import measure
from due.compare.methods import CLASSIFIERS, ENGINES, REGRESSORS, SMOKE, Method
from due.compare.report import draw, notes, summarise, table
from due.compare.tasks import DATA, Task
from due.paper.artefact import make_directory, write_figure, write_text

Json = dict[str, Any]
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
    methods: str | None = None,
    seeds: int = 5,
    jobs: int = 1,
    smoke: bool = False,
    command: str = "",
    say: Callable[[str], object] = lambda text: None,
) -> Comparison:
    """Run what is missing of methods × seeds, `jobs` at a time, then write the table's files.

    Times are relative to the first method, the plain network, which always runs.
    """
    if data not in DATA:
        raise ValueError(f"--data {data!r} is not known; give one of {', '.join(DATA)}")
    for name, count in (("seeds", seeds), ("jobs", jobs)):
        if count < 1:
            raise ValueError(f"--{name} {count} is too few; give at least 1")
    chosen = choose(methods, CLASSIFIERS if DATA[data].classes else REGRESSORS, say)
    make_directory(out)
    DATA[data].load(0)  # without data nothing is tried
    shared = SMOKE if smoke else {}
    journal = Journal(
        out / f"compare-{data}.jsonl", {n: m.settings(shared) for n, m in chosen.items()}
    )
    failures = run(data, chosen, journal, seeds, jobs, shared, say)

    rows = summarise(chosen, journal, seeds)
    if not rows:
        raise ValueError(f"no fit succeeded; the first: {failures[0]}")
    report = {
        "data": data,
        "far": DATA[data].far,
        "times_relative_to": next(iter(chosen)),
        "command": command,
        "methods": rows,
        "failures": failures,
    }
    text = "\n".join([table(report).text(), "", *notes(report)])
    files = tuple(out / f"compare-{data}.{kind}" for kind in ("json", "txt", "png"))
    write_text(files[0], json.dumps(report, indent=2, allow_nan=False) + "\n")
    write_text(files[1], text + "\n")
    write_figure(files[2], draw(report))
    return Comparison(report, text, files)


def choose(
    names: str | None, known: Mapping[str, Method], say: Callable[[str], object]
) -> dict[str, Method]:
    """The methods asked for, after the one that times are relative to; None is all that can run."""
    reference = next(iter(known))
    if names is None:
        absent = [name for name in known if not _engine_found(name)]
        if absent:
            say(f"without {' and '.join(absent)}, for which: pip install 'due[rivals]'")
        return {name: method for name, method in known.items() if name not in absent}
    asked = [name for name in names.split(",") if name]
    for name in asked:
        if name not in known:
            raise ValueError(
                f"--methods: unknown method {name!r}; for this data they are {', '.join(known)}"
            )
        if not _engine_found(name):
            raise ImportError(f"{name} is built on {ENGINES[name]}: pip install 'due[rivals]'")
    if not asked:
        raise ValueError(f"--methods {names!r} names none; give some of {', '.join(known)}")
    return {name: known[name] for name in dict.fromkeys([reference, *asked])}


def _engine_found(name: str) -> bool:
    return name not in ENGINES or find_spec(ENGINES[name]) is not None


def run(
    data: str,
    methods: Mapping[str, Method],
    journal: Journal,
    seeds: int,
    jobs: int,
    shared: Json,
    say: Callable[[str], object],
) -> list[str]:
    """Fill the journal; the messages of those that failed, which the next run tries again."""
    pairs = [(name, seed) for seed in range(seeds) for name in methods]
    left = [pair for pair in pairs if journal.find(*pair) is None]
    say(f"{len(pairs)} fits: {len(pairs) - len(left)} were already there, {len(left)} to run")
    work = (delayed(attempt)(data, name, methods[name], seed, shared) for name, seed in left)
    failures = []
    for name, seed, found in Parallel(jobs, return_as="generator_unordered", batch_size=1)(work):
        if isinstance(found, str):
            failures.append(f"{name}, seed {seed}: {found}")
        else:
            journal.add(name, seed, found)
        say(f"{name}, seed {seed}: {found if isinstance(found, str) else _in_short(found)}")
    return failures


def attempt(
    data: str, name: str, method: Method, seed: int, shared: Json
) -> tuple[str, int, Json | str]:
    """The numbers of one fit, or what went wrong; a package that is missing is raised."""
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            task = DATA[data].load(seed)
            few = Task(*(part[:SMOKE_ROWS] for part in task))
            method.build(seed, SMOKE).fit(few.X, few.y)  # the first fit pays for lazy imports
            model = method.build(seed, shared)
            return name, seed, measure(model, few if shared else task, DATA[data].classes)
    except ImportError:
        raise
    except Exception as error:
        return name, seed, f"{type(error).__name__}: {' '.join(str(error).split())}"


def _in_short(numbers: Json) -> str:
    first = next(iter(numbers))
    return f"{first} {numbers[first]:.4g}, AUROC {numbers['auroc']:.3f}"
