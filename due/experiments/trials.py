"""Trials: method × data set × seed → τ̂ and its variance on 75 people, one journal line each.

A finished trial is not run again, neither after a kill nor after an edit of the package, while the
settings of its method, what the estimator was built with and the version, are those of the line.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from due.data import ihdp
from due.data.download import DownloadError
from due.experiments.contender import Contender, message
from due.experiments.deferral import ONE_IN, at_random, certain_first, covered, keep, rmse
from due.experiments.journal import Journal, Json
from due.rows.randomness import own_randomness
from due.rows.scale import Floats

DATA = tuple(ONE_IN)
DEFERRALS = ("random", "uncertainty")


class Trial(NamedTuple):
    """One fit."""

    method: str
    data: str
    seed: int


class Result(NamedTuple):
    """Effects and variances of a finished trial, and its line of the journal."""

    tau_hat: Floats
    var: Floats
    line: Json


def journal_in(out: Path) -> Journal:
    """The journal of trials, `out`/table3.jsonl."""
    return Journal(out / "table3.jsonl", Trial._fields, ("tau_hat", "var"))


def results(journal: Journal, methods: Mapping[str, Contender]) -> dict[Trial, Result]:
    """Finished trials of these methods with their present settings."""
    return {
        trial: Result(np.array(line["tau_hat"]), np.array(line["var"]), line)
        for trial, line in _lines_of(journal, methods)
        if "error" not in line
    }


def errors(journal: Journal, methods: Mapping[str, Contender]) -> dict[Trial, str]:
    """Messages of the trials that failed and have not succeeded since."""
    lines = list(_lines_of(journal, methods))
    finished = {trial for trial, line in lines if "error" not in line}
    return {trial: line["error"] for trial, line in lines if trial not in finished}


def _lines_of(journal: Journal, methods: Mapping[str, Contender]) -> Iterator[tuple[Trial, Json]]:
    settings = {name: method.settings() for name, method in methods.items()}
    for line in journal.lines:
        if settings.get(line["method"]) == line["settings"]:
            yield Trial(line["method"], line["data"], line["seed"]), line


def plan(methods: Collection[str], data: Sequence[str], n: int) -> list[Trial]:
    """Seeds 0 to n − 1, each with all methods, so that a stopped run leaves paired results."""
    return [Trial(name, part, seed) for seed in range(n) for part in data for name in methods]


def run(
    trials: Sequence[Trial],
    methods: Mapping[str, Contender],
    journal: Journal,
    *,
    jobs: int = 1,
    say: Callable[[str], object] = lambda text: None,
) -> None:
    """Run the missing trials, `jobs` at a time; those that failed before are tried again.

    Neither the results nor what is run depend on `jobs`.
    """
    done = results(journal, methods)
    left = [trial for trial in trials if trial not in done]
    say(f"{len(trials)} trials: {len(trials) - len(left)} were already there, {len(left)} to run")
    if not left:
        return
    ihdp.load(0)  # without data nothing is tried
    settings = {name: method.settings() for name, method in methods.items()}
    finished = [result.line for result in done.values()]
    failed = []
    work = (delayed(attempt)(methods[trial.method], trial) for trial in left)
    outcomes = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)(work)
    with tqdm(total=len(left), unit="trial", disable=None, smoothing=0) as bar:
        for trial, found in outcomes:
            line = journal.add(settings[trial.method], found, **trial._asdict())
            name = f"{trial.method} on {trial.data}"
            if "error" in found:
                failed.append(f"{name}, seed {trial.seed}: {found['error']}")
            else:
                finished.append(line)
                bar.set_postfix_str(f"{name}: {_means_like(line, finished)}")
            bar.update()
    if failed:
        say(f"{len(failed)} trials failed; the next run tries them again; the first: {failed[0]}")


def attempt(method: Contender, trial: Trial) -> tuple[Trial, Json]:
    """What one trial gave, or its error; a missing package or file, which fails all, is raised."""
    torch.set_num_threads(1)
    began = time.process_time()
    try:
        with threadpool_limits(1), own_randomness(trial.seed):
            return trial, fit_and_predict(method, trial)
    except (ImportError, DownloadError):
        raise
    except Exception as error:
        seconds = round(time.process_time() - began, 3)
        return trial, {"error": message(error), "cpu_seconds": seconds}


def fit_and_predict(method: Contender, trial: Trial) -> Json:
    """Effects of the 75 people, their errors and what they cost in CPU seconds."""
    train, validation, test, *_ = ihdp.load(trial.seed, trial.data == "ihdp-cov")
    estimator = method.build(trial.seed)
    began = time.process_time()
    estimator.fit(train.y, train.t, train.X, validation=(validation.y, validation.t, validation.X))
    fitted = time.process_time()
    inference = estimator.effect_inference(test.X)
    predicted = time.process_time()

    tau_hat, var = _rounded(inference.point_estimate), _rounded(inference.var)
    if not (np.isfinite(tau_hat).all() and np.isfinite(var).all() and (var >= 0).all()):
        raise ValueError("an effect is not finite, or a variance is not finite or negative")
    trained = getattr(estimator, "estimator_", estimator)  # inside MCDropout
    history = getattr(trained, "history_", None)
    one_in, n = ONE_IN[trial.data], len(test.tau)
    random, certain = keep(at_random(n, trial.seed), one_in), keep(certain_first(var), one_in)
    return {
        "rmse_random": rmse(tau_hat[random], test.tau[random]),
        "rmse_uncertainty": rmse(tau_hat[certain], test.tau[certain]),
        "coverage": float(covered(tau_hat, var, test.tau).mean()),
        "fit_seconds": round(fitted - began, 4),
        "predict_seconds": round(predicted - fitted, 4),
        "epochs": len(history["loss"]) if history else None,
        "missed_effect": history.get("missed_effect", {}).get("p") if history else None,
        "tau_hat": tau_hat.tolist(),
        "var": var.tolist(),
    }


def true_effects(trial: Trial) -> Floats:
    """τ of the 75 people."""
    return ihdp.load(trial.seed, trial.data == "ihdp-cov").test.tau


def _means_like(line: Json, lines: Sequence[Json]) -> str:
    """Mean RMSEs of the trials with the method and the data set of `line`."""
    same = [x for x in lines if (x["method"], x["data"]) == (line["method"], line["data"])]
    random, certain = (np.mean([x[f"rmse_{key}"] for x in same]) for key in DEFERRALS)
    return f"random {random:.2f}, uncertainty {certain:.2f} over {len(same)}"


def _rounded(values: Floats) -> Floats:
    """To six significant digits."""
    return np.array([float(f"{value:.6g}") for value in values])
