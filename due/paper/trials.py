"""Trials: method × data set × seed → τ̂ and its variance on 75 people, one line of a journal each.

A line is written when its trial ends and is never run again: not by a run that follows a killed
one, nor after an edit of the package. It belongs to the method's settings, which are what its
estimator was built with and the version of its recipe.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn import config_context
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from due.data import ihdp
from due.data.download import DownloadError
from due.estimators.effects import UncertainEffects
from due.estimators.rows import Floats
from due.paper.deferral import ONE_IN, at_random, certain_first, covered, keep, rmse
from due.storage import StorageError

if sys.platform != "win32":
    import fcntl

Json = dict[str, Any]
DATA = tuple(ONE_IN)


@dataclass(frozen=True)
class Recipe:
    """A method. Raise `version` where a default or an algorithm it relies on changes its numbers.

    `as_printed` maps a data set to the paper's RMSE after random and after informed deferral.
    """

    title: str
    build: Callable[[int], UncertainEffects]  # of the seed
    version: int = 1
    as_printed: Mapping[str, tuple[str, str]] | None = None

    @property
    def settings(self) -> Json:
        """What makes a line ours: it does not depend on the seed, nor on the data set."""
        with config_context(print_changed_only=True):
            text = repr(self.build(0))
        plain = re.sub(r" at 0x[0-9a-f]+", "", " ".join(text.split()))
        return {"version": self.version, "estimator": plain}


class Trial(NamedTuple):
    """One fit."""

    method: str
    data: str
    seed: int


class Result(NamedTuple):
    """What a trial gave. `line` is its line of the journal."""

    tau_hat: Floats
    var: Floats
    line: Json


class Journal:
    """Finished and failed trials, one JSON object a line; lines of other settings are kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = _read(path)

    def results(self, recipes: Mapping[str, Recipe]) -> dict[Trial, Result]:
        """Finished trials of these recipes as they are now."""
        return {
            trial: Result(np.array(line["tau_hat"]), np.array(line["var"]), line)
            for trial, line in self._lines_of(recipes)
            if "error" not in line
        }

    def errors(self, recipes: Mapping[str, Recipe]) -> dict[Trial, str]:
        """Messages of the trials that failed and did not succeed since."""
        finished = self.results(recipes)
        return {
            trial: line["error"]
            for trial, line in self._lines_of(recipes)
            if "error" in line and trial not in finished
        }

    def add(self, line: Json) -> None:
        """Write a line so that it outlives this process; what a killed one left half is cut off."""
        self.lines.append(line)
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        try:
            with self.path.open("ab+") as file, _alone(file):
                whole = _whole_lines(file)
                if whole < file.seek(0, os.SEEK_END):
                    file.truncate(whole)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be written ({error.strerror}); free some space, check the "
                "permissions, or give another --out; finished trials are safe"
            ) from error

    def _lines_of(self, recipes: Mapping[str, Recipe]) -> Iterator[tuple[Trial, Json]]:
        settings = {name: recipe.settings for name, recipe in recipes.items()}
        for line in self.lines:
            if settings.get(line["method"]) == line["settings"]:
                yield Trial(line["method"], line["data"], line["seed"]), line


def plan(methods: Iterable[str], data: Sequence[str], n: int) -> list[Trial]:
    """Seeds 0 to n − 1, each with all methods: whatever a stopped run has done is paired."""
    names = list(methods)
    return [Trial(name, part, seed) for seed in range(n) for part in data for name in names]


def run(
    trials: Sequence[Trial],
    recipes: Mapping[str, Recipe],
    journal: Journal,
    *,
    jobs: int = 1,
    say: Callable[[str], object] = lambda text: None,
) -> None:
    """Run the trials that the journal lacks, `jobs` at a time; those that failed get a new chance.

    Neither the results nor what is run depend on `jobs`.
    """
    done = journal.results(recipes)
    left = [trial for trial in trials if trial not in done]
    say(f"{len(trials)} trials: {len(trials) - len(left)} were already there, {len(left)} to run")
    if not left:
        return
    ihdp.load(0)  # without data nothing is tried
    means = _RunningMeans(done)
    failed = []
    work = (delayed(attempt)(recipes[trial.method], trial) for trial in left)
    lines = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)(work)
    with tqdm(total=len(left), unit="trial", disable=None, smoothing=0) as bar:
        for line in lines:
            journal.add(line)
            if "error" in line:
                failed.append(line)
            else:
                means.add(line)
                bar.set_postfix_str(means.of(line))
            bar.update()
    if failed:
        first = failed[0]
        say(
            f"{len(failed)} trials failed and are tried again by the next run; the first: "
            f"{first['method']} on {first['data']}, seed {first['seed']}: {first['error']}"
        )


def attempt(recipe: Recipe, trial: Trial) -> Json:
    """The line of one trial, also where it raises.

    A package or a file that is missing would fail all trials, and is raised.
    """
    torch.set_num_threads(1)
    line = trial._asdict() | {"settings": recipe.settings, "versions": _versions()}
    began = time.process_time()
    try:
        with threadpool_limits(1), torch.random.fork_rng(devices=[]):
            torch.manual_seed(trial.seed)
            return line | fit_and_predict(recipe, trial)
    except (ImportError, DownloadError):
        raise
    except Exception as error:
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return line | {"error": message, "cpu_seconds": round(time.process_time() - began, 3)}


def fit_and_predict(recipe: Recipe, trial: Trial) -> Json:
    """Effects of the 75 people, and how good they are."""
    train, validation, test, *_ = ihdp.load(trial.seed, trial.data == "ihdp-cov")
    estimator = recipe.build(trial.seed)
    began = time.process_time()
    estimator.fit(train.y, train.t, train.X, validation=(validation.y, validation.t, validation.X))
    fitted = time.process_time()
    inference = estimator.effect_inference(test.X)
    predicted = time.process_time()

    tau_hat, var = _rounded(inference.point_estimate), _rounded(inference.var)
    if not (np.isfinite(tau_hat).all() and np.isfinite(var).all() and (var >= 0).all()):
        raise ValueError("an effect is not finite, or a variance is not finite or negative")
    one_in, n = ONE_IN[trial.data], len(test.tau)
    random, certain = keep(at_random(n, trial.seed), one_in), keep(certain_first(var), one_in)
    return {
        "rmse_random": rmse(tau_hat[random], test.tau[random]),
        "rmse_uncertainty": rmse(tau_hat[certain], test.tau[certain]),
        "coverage": float(covered(tau_hat, var, test.tau).mean()),
        "fit_seconds": round(fitted - began, 4),  # of the CPU, as are those of predicting
        "predict_seconds": round(predicted - fitted, 4),
        "epochs": _epochs(estimator),
        "tau_hat": tau_hat.tolist(),
        "var": var.tolist(),
    }


def true_effects(trial: Trial) -> Floats:
    """τ of the 75 people."""
    return ihdp.load(trial.seed, trial.data == "ihdp-cov").test.tau


class _RunningMeans:
    """Mean RMSE of each method on each data set, as trials come in."""

    def __init__(self, done: Mapping[Trial, Result]) -> None:
        self.sums: dict[tuple[str, str], Floats] = {}
        for result in done.values():
            self.add(result.line)

    def add(self, line: Json) -> None:
        new = np.array([1, line["rmse_random"], line["rmse_uncertainty"]])
        key = line["method"], line["data"]
        self.sums[key] = self.sums.get(key, np.zeros(3)) + new

    def of(self, line: Json) -> str:
        n, random, certain = self.sums[line["method"], line["data"]]
        means = f"random {random / n:.2f}, uncertainty {certain / n:.2f}"
        return f"{line['method']} on {line['data']}: {means} over {n:.0f}"


def _rounded(values: Floats) -> Floats:
    """To six significant digits."""
    return np.array([float(f"{value:.6g}") for value in values])


def _epochs(estimator: UncertainEffects) -> int | None:
    trained = getattr(estimator, "estimator_", estimator)  # inside MCDropout
    history = getattr(trained, "history_", None)
    return len(history["loss"]) if history else None


def _versions() -> dict[str, str]:
    return {"due": metadata.version("due"), "torch": str(torch.__version__)}


def _read(path: Path) -> list[Json]:
    if not path.exists():
        return []
    text, _, _half = path.read_bytes().rpartition(b"\n")
    lines = []
    for number, data in enumerate(text.splitlines(), start=1):
        try:
            line = json.loads(data)
            known = {"method", "data", "seed", "settings"} <= line.keys()
            if not known or not ("error" in line or {"tau_hat", "var"} <= line.keys()):
                raise ValueError("not a trial")
        except (ValueError, AttributeError) as error:
            raise StorageError(
                f"{path} is damaged: line {number} is no trial; delete that line to run its trial "
                "anew, or give another --out"
            ) from error
        lines.append(line)
    return lines


def _whole_lines(file: BinaryIO) -> int:
    """Bytes up to the end of the last whole line, looked for from the end."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 65536)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


@contextmanager
def _alone(file: BinaryIO) -> Iterator[None]:
    """Hold the journal against other runs while a line is written; the lock dies with us."""
    if sys.platform != "win32":
        with suppress(OSError):  # some network file systems know no locks
            fcntl.flock(file, fcntl.LOCK_EX)
    yield
