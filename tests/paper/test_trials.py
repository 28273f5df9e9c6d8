import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from due.data import ihdp
from due.data.download import DownloadError, find
from due.paper import trials
from due.paper.deferral import covered, rmse
from due.paper.table3 import SMOKE
from due.paper.trials import Journal, Trial, attempt, plan, run
from due.storage import StorageError

from .stand_ins import recipe

needs_data = pytest.mark.skipif(
    find("ihdp/ihdp.RData") is None, reason="needs ihdp/ihdp.RData under DUE_DATA"
)


def fits(log):
    return len(log.read_text().splitlines()) if log.exists() else 0


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
    recipes = {"a": recipe()}
    run(plan(recipes, ["ihdp", "ihdp-cov"], 1), recipes, Journal(path))
    for line in lines_of(path):
        test = ihdp.load(0, line["data"] == "ihdp-cov").test
        tau_hat, var = np.array(line["tau_hat"]), np.array(line["var"])
        assert len(tau_hat) == len(var) == 75
        assert_allclose(line["coverage"], covered(tau_hat, var, test.tau).mean())
        kept = np.argsort(var, kind="stable")[: {"ihdp": 68, "ihdp-cov": 38}[line["data"]]]
        assert_allclose(line["rmse_uncertainty"], rmse(tau_hat[kept], test.tau[kept]))
        assert line["epochs"] == 2
        assert line["fit_seconds"] >= 0 and line["predict_seconds"] >= 0
        assert set(line["versions"]) == {"due", "torch"}
    train, validation, test, *_ = ihdp.load(0)
    others = validation.y, validation.t, validation.X
    model = recipes["a"].build(0).fit(train.y, train.t, train.X, validation=others)
    assert_allclose(lines_of(path)[0]["tau_hat"], model.effect(test.X), rtol=1e-5)


@needs_data
def test_what_is_there_is_not_run_again(path, log):
    recipes = {"a": recipe(log=str(log)), "b": recipe(log=str(log), alpha=2.0)}
    run(plan(recipes, ["ihdp"], 2), recipes, Journal(path))
    before = path.read_bytes()
    run(plan(recipes, ["ihdp"], 2), recipes, Journal(path))
    assert fits(log) == 4
    assert path.read_bytes() == before
    run(plan(recipes, ["ihdp"], 3), recipes, Journal(path))
    assert fits(log) == 6
    assert path.read_bytes().startswith(before)


@needs_data
def test_other_settings_or_another_version_are_run_anew_and_old_lines_stay(path):
    for new in (recipe(), recipe(alpha=2.0), recipe(version=2)):
        run(plan(["a"], ["ihdp"], 1), {"a": new}, Journal(path))
    assert len(lines_of(path)) == 3
    settings = [line["settings"] for line in lines_of(path)]
    assert settings[0] == {"version": 1, "estimator": "RidgePerArm(random_state=0)"}
    assert settings[1] == {"version": 1, "estimator": "RidgePerArm(alpha=2.0, random_state=0)"}
    assert settings[2] == settings[0] | {"version": 2}
    assert list(Journal(path).results({"a": recipe()})) == [Trial("a", "ihdp", 0)]


def test_settings_do_not_hold_addresses():
    assert "0x" not in recipe(alpha=len.__call__).settings["estimator"]


@needs_data
def test_results_do_not_depend_on_jobs(tmp_path):
    recipes = {"due": SMOKE["due"], "ridge": recipe()}
    found = []
    for jobs in (1, 2):
        journal = Journal(tmp_path / f"{jobs}.jsonl")
        run(plan(recipes, ["ihdp"], 2), recipes, journal, jobs=jobs)
        found.append(journal.results(recipes))
    assert found[0].keys() == found[1].keys()
    for trial, result in found[0].items():
        plain = [
            {key: value for key, value in line.items() if not key.endswith("_seconds")}
            for line in (result.line, found[1][trial].line)
        ]
        assert plain[0] == plain[1], trial


@needs_data
def test_results_do_not_depend_on_what_ran_before():
    one = attempt(SMOKE["due"], Trial("due", "ihdp", 1))
    attempt(SMOKE["due"], Trial("due", "ihdp", 0))
    again = attempt(SMOKE["due"], Trial("due", "ihdp", 1))
    assert one["tau_hat"] == again["tau_hat"] and one["var"] == again["var"]


@needs_data
def test_a_trial_that_raises_is_recorded_and_tried_again(path, log, tmp_path):
    broken = tmp_path / "broken"
    broken.touch()
    recipes = {"a": recipe(log=str(log)), "b": recipe(broken=str(broken))}
    said = []
    run(plan(recipes, ["ihdp"], 2), recipes, Journal(path), say=said.append)
    journal = Journal(path)
    failed = {Trial("b", "ihdp", seed): "RuntimeError: singular matrix" for seed in (0, 1)}
    assert journal.errors(recipes) == failed
    assert set(journal.results(recipes)) == {Trial("a", "ihdp", 0), Trial("a", "ihdp", 1)}
    assert "2 trials failed" in said[-1] and "b on ihdp, seed 0: RuntimeError" in said[-1]

    broken.unlink()
    run(plan(recipes, ["ihdp"], 2), recipes, Journal(path))
    journal = Journal(path)
    assert journal.errors(recipes) == {}
    assert len(journal.results(recipes)) == 4
    assert fits(log) == 2


@needs_data
def test_effects_that_are_not_finite_are_a_failure():
    line = attempt(recipe(alpha=float("nan")), Trial("a", "ihdp", 0))
    assert "error" in line and "tau_hat" not in line
    json.dumps(line, allow_nan=False)


def test_what_fails_every_trial_is_raised(monkeypatch, path):
    def missing(*args):
        raise ImportError("pip install 'due[rivals]'")

    monkeypatch.setattr(trials, "fit_and_predict", missing)
    with pytest.raises(ImportError, match="rivals"):
        attempt(recipe(), Trial("a", "ihdp", 0))


def test_without_data_nothing_is_tried(monkeypatch, path, log):
    def unreachable(*args):
        raise DownloadError("no network; set DUE_DATA")

    monkeypatch.setattr(ihdp, "load", unreachable)
    recipes = {"a": recipe(log=str(log))}
    with pytest.raises(DownloadError, match="DUE_DATA"):
        run(plan(recipes, ["ihdp"], 2), recipes, Journal(path))
    assert not path.exists() and fits(log) == 0


def line(seed):
    settings = recipe().settings
    return Trial("a", "ihdp", seed)._asdict() | {"settings": settings, "tau_hat": [], "var": []}


def test_half_a_line_at_the_end_is_dropped_and_cut_off(path):
    journal = Journal(path)
    journal.add(line(0))
    whole = path.read_bytes()
    for half in (whole[:20], whole[:-1], b"x" * 200_000):
        path.write_bytes(whole + half)
        journal = Journal(path)
        assert len(journal.lines) == 1
        journal.add(line(1))
        assert [row["seed"] for row in lines_of(path)] == [0, 1]
    path.write_bytes(whole[:30])
    assert Journal(path).lines == []
    Journal(path).add(line(2))
    assert [row["seed"] for row in lines_of(path)] == [2]


@pytest.mark.parametrize("damage", [b"{\n", b"\n", b"[1]\n", b'{"seed": 0}\n', b"\x00\xff\n"])
def test_other_damage_is_named_with_its_line(path, damage):
    Journal(path).add(line(0))
    path.write_bytes(path.read_bytes() + damage + path.read_bytes())
    with pytest.raises(StorageError, match=r"table3\.jsonl is damaged: line 2 .* delete that line"):
        Journal(path)


def test_two_runs_may_write_to_one_journal(path):
    first, second = Journal(path), Journal(path)
    for seed in range(3):
        first.add(line(seed))
        second.add(line(10 + seed))
    assert [row["seed"] for row in lines_of(path)] == [0, 10, 1, 11, 2, 12]


def test_a_journal_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "gone").mkdir()
    journal = Journal(tmp_path / "gone" / "table3.jsonl")
    (tmp_path / "gone").rmdir()
    with pytest.raises(StorageError, match="cannot be written"):
        journal.add(line(0))


@needs_data
@pytest.mark.skipif(sys.platform == "win32", reason="needs kill -9")
def test_a_killed_run_goes_on_and_computes_nothing_twice(tmp_path, path, log, monkeypatch):
    if "DUE_DATA" in os.environ:  # the child works in another directory
        monkeypatch.setenv("DUE_DATA", str(Path(os.environ["DUE_DATA"]).resolve()))
    command = [sys.executable, "-m", "paper.killed_run", str(tmp_path), "6"]
    tests = Path(__file__).parents[1]
    child = subprocess.Popen(command, cwd=tests)
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < 4:
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    before, begun = path.read_bytes(), fits(log)
    done = before.count(b"\n")
    assert 4 <= done < 12
    assert begun - done in (0, 1)

    subprocess.run(command, cwd=tests, check=True)
    assert path.read_bytes().startswith(before[: before.rindex(b"\n") + 1])
    assert fits(log) - begun == 12 - done
    count = Counter((row["method"], row["seed"]) for row in lines_of(path))
    assert set(count.values()) == {1} and len(count) == 12
