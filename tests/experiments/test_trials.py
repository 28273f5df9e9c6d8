import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from due.data import ihdp
from due.data.download import DownloadError, find
from due.experiments import trials
from due.experiments.deferral import covered, rmse
from due.experiments.trials import Trial, attempt, errors, journal_in, plan, results, run
from due.paper.table3 import SMOKE

from .stand_ins import fits, ridge

needs_data = pytest.mark.skipif(
    find("ihdp/ihdp.RData") is None, reason="needs ihdp/ihdp.RData under DUE_DATA"
)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def log(tmp_path):
    return tmp_path / "fits.log"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table3.jsonl"


def test_each_seed_has_all_methods_before_the_next_begins():
    got = plan(["a", "b"], ["ihdp", "ihdp-cov"], 2)
    assert [trial.seed for trial in got] == [0] * 4 + [1] * 4
    assert len(set(got)) == 8


@needs_data
def test_a_line_holds_what_the_trial_gave(path):
    methods = {"a": ridge()}
    run(plan(methods, ["ihdp", "ihdp-cov"], 1), methods, journal_in(path.parent))
    for line in lines_of(path):
        test = ihdp.load(0, line["data"] == "ihdp-cov").test
        tau_hat, var = np.array(line["tau_hat"]), np.array(line["var"])
        assert len(tau_hat) == len(var) == 75
        assert_allclose(line["coverage"], covered(tau_hat, var, test.tau).mean())
        kept = np.argsort(var, kind="stable")[: {"ihdp": 68, "ihdp-cov": 38}[line["data"]]]
        assert_allclose(line["rmse_uncertainty"], rmse(tau_hat[kept], test.tau[kept]))
        assert line["epochs"] == 2
        assert line["fit_seconds"] >= 0 and line["predict_seconds"] >= 0
        assert set(line["versions"]) == {"due", "torch", "numpy", "python"}
    train, validation, test, *_ = ihdp.load(0)
    others = validation.y, validation.t, validation.X
    model = methods["a"].build(0).fit(train.y, train.t, train.X, validation=others)
    assert_allclose(lines_of(path)[0]["tau_hat"], model.effect(test.X), rtol=1e-5)


@needs_data
def test_what_is_there_is_not_run_again(path, log):
    methods = {"a": ridge(log=str(log)), "b": ridge(log=str(log), alpha=2.0)}
    run(plan(methods, ["ihdp"], 2), methods, journal_in(path.parent))
    before = path.read_bytes()
    run(plan(methods, ["ihdp"], 2), methods, journal_in(path.parent))
    assert fits(log) == 4
    assert path.read_bytes() == before
    run(plan(methods, ["ihdp"], 3), methods, journal_in(path.parent))
    assert fits(log) == 6
    assert path.read_bytes().startswith(before)


@needs_data
def test_other_settings_or_another_version_are_run_anew_and_old_lines_stay(path):
    for new in (ridge(), ridge(alpha=2.0), ridge(version=2)):
        run(plan(["a"], ["ihdp"], 1), {"a": new}, journal_in(path.parent))
    assert len(lines_of(path)) == 3
    settings = [line["settings"] for line in lines_of(path)]
    assert settings[0] == {"version": 1, "estimator": "RidgePerArm(random_state=0)"}
    assert settings[1] == {"version": 1, "estimator": "RidgePerArm(alpha=2.0, random_state=0)"}
    assert settings[2] == settings[0] | {"version": 2}
    assert list(results(journal_in(path.parent), {"a": ridge()})) == [Trial("a", "ihdp", 0)]


def test_settings_do_not_hold_addresses():
    method = ridge(alpha=len.__call__)  # type: ignore[operator]
    assert "0x" not in method.settings()["estimator"]


@needs_data
def test_results_do_not_depend_on_jobs(tmp_path):
    methods = {"due": SMOKE["due"], "ridge": ridge()}
    found = []
    for jobs in (1, 2):
        (tmp_path / str(jobs)).mkdir()
        journal = journal_in(tmp_path / str(jobs))
        run(plan(methods, ["ihdp"], 2), methods, journal, jobs=jobs)
        found.append(results(journal, methods))
    assert found[0].keys() == found[1].keys()
    for trial, result in found[0].items():
        plain = [
            {key: value for key, value in line.items() if not key.endswith("_seconds")}
            for line in (result.line, found[1][trial].line)
        ]
        assert plain[0] == plain[1], trial


@needs_data
def test_results_do_not_depend_on_what_ran_before():
    _, one = attempt(SMOKE["due"], Trial("due", "ihdp", 1))
    attempt(SMOKE["due"], Trial("due", "ihdp", 0))
    _, again = attempt(SMOKE["due"], Trial("due", "ihdp", 1))
    assert one["tau_hat"] == again["tau_hat"] and one["var"] == again["var"]


@needs_data
def test_a_trial_that_raises_is_recorded_and_tried_again(path, log, tmp_path):
    broken = tmp_path / "broken"
    broken.touch()
    methods = {"a": ridge(log=str(log)), "b": ridge(broken=str(broken))}
    said: list[str] = []
    run(plan(methods, ["ihdp"], 2), methods, journal_in(path.parent), say=said.append)
    journal = journal_in(path.parent)
    failed = {Trial("b", "ihdp", seed): "RuntimeError: singular matrix" for seed in (0, 1)}
    assert errors(journal, methods) == failed
    assert set(results(journal, methods)) == {Trial("a", "ihdp", 0), Trial("a", "ihdp", 1)}
    assert "2 trials failed" in said[-1] and "b on ihdp, seed 0: RuntimeError" in said[-1]

    broken.unlink()
    run(plan(methods, ["ihdp"], 2), methods, journal_in(path.parent))
    journal = journal_in(path.parent)
    assert errors(journal, methods) == {}
    assert len(results(journal, methods)) == 4
    assert fits(log) == 2


@needs_data
def test_effects_that_are_not_finite_are_a_failure():
    _, line = attempt(ridge(alpha=float("nan")), Trial("a", "ihdp", 0))
    assert "error" in line and "tau_hat" not in line
    json.dumps(line, allow_nan=False)


def test_what_fails_every_trial_is_raised(monkeypatch):
    def missing(*args):
        raise ImportError("pip install 'due[rivals]'")

    monkeypatch.setattr(trials, "fit_and_predict", missing)
    with pytest.raises(ImportError, match="rivals"):
        attempt(ridge(), Trial("a", "ihdp", 0))


def test_without_data_nothing_is_tried(monkeypatch, path, log):
    def unreachable(*args):
        raise DownloadError("no network; set DUE_DATA")

    monkeypatch.setattr(ihdp, "load", unreachable)
    methods = {"a": ridge(log=str(log))}
    with pytest.raises(DownloadError, match="DUE_DATA"):
        run(plan(methods, ["ihdp"], 2), methods, journal_in(path.parent))
    assert not path.exists() and fits(log) == 0


@needs_data
@pytest.mark.skipif(sys.platform == "win32", reason="needs kill -9")
def test_a_killed_run_goes_on_and_computes_nothing_twice(tmp_path, path, log, monkeypatch):
    if "DUE_DATA" in os.environ:  # the child works in another directory
        monkeypatch.setenv("DUE_DATA", str(Path(os.environ["DUE_DATA"]).resolve()))
    (tmp_path / "hold").touch()
    command = [sys.executable, "-m", "experiments.killed_run", str(tmp_path), "3", "5"]
    tests = Path(__file__).parents[1]
    child = subprocess.Popen(command, cwd=tests)
    try:
        while fits(log) < 5:  # the fifth of six fits hangs
            assert child.poll() is None
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait()
    before = path.read_bytes()
    assert before.count(b"\n") == 4

    (tmp_path / "hold").unlink()
    subprocess.run(command, cwd=tests, check=True)
    assert path.read_bytes().startswith(before)
    assert fits(log) == 7
    keys = [(line["method"], line["seed"]) for line in lines_of(path)]
    assert sorted(keys) == [(method, seed) for method in "ab" for seed in range(3)]
