"""`due compare`: one table for all methods, and a journal that outlives a kill."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial import KDTree
from typer.testing import CliRunner

from due.cli import app
from due.compare import run
from due.compare.measure import measure
from due.compare.methods import CLASSIFIERS, REGRESSORS, SMOKE
from due.compare.run import compare
from due.compare.tasks import DATA, FAR, Task
from due.data import uci
from due.data.download import find
from due.experiments.contender import Contender

CHEAP = ["--smoke", "--seeds", "2", "--methods", "ddu,softmax"]


def due(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


def compute_nothing(*_):
    raise AssertionError("computed twice")


def test_it_writes_table_numbers_and_picture_and_computes_nothing_twice(out, monkeypatch):
    result = due("--data", "moons", *CHEAP, "--out", out)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "moons: mean ± standard error over 2 seeds"
    assert lines[2].split("  ")[-1].strip() == "predict ×"
    assert [line.split("  ")[0] for line in lines[3:5]] == ["Softmax", "DDU"]
    written = [f"{out}/compare-moons.{kind}" for kind in ("json", "txt", "png")]
    assert lines[-1] == f"wrote {written[0]}, {written[1]} and {written[2]}"
    assert (out / "compare-moons.txt").read_text().splitlines() == lines[:-1]
    assert (out / "compare-moons.png").read_bytes().startswith(b"\x89PNG")

    report = json.loads((out / "compare-moons.json").read_text())
    row = report["methods"]["ddu"]
    assert row["seeds"] == [0, 1]
    for name in ("accuracy", "nll", "ece", "auroc", "aupr", "fpr95", "fit_time", "predict_time"):
        assert np.isfinite(list(row[name].values())).all()
    assert report["methods"]["softmax"]["fit_time"]["mean"] == 1
    assert "extractor=tiny" in row["estimator"] and "0x" not in row["estimator"]

    monkeypatch.setattr(run, "measure", compute_nothing)
    again = due("--data", "moons", *CHEAP, "--out", out, "--json")
    assert again.exit_code == 0, again.output
    assert "4 fits: 4 were already there, 0 to run" in again.stderr
    assert json.loads(again.stdout)["methods"] == report["methods"]


def test_a_stopped_run_goes_on(tmp_path, monkeypatch):
    calls = []

    def stops(model, task, classes):
        calls.append(model)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measure(model, task, classes)

    monkeypatch.setattr(run, "measure", stops)
    with pytest.raises(KeyboardInterrupt):
        compare("moons", tmp_path, methods="ddu", seeds=2, smoke=True)
    said: list[str] = []
    compare("moons", tmp_path, methods="ddu", seeds=2, smoke=True, say=said.append)
    assert said[0] == "4 fits: 2 were already there, 2 to run"
    said.clear()
    monkeypatch.setitem(CLASSIFIERS, "ddu", replace(CLASSIFIERS["ddu"], version=2))
    compare("moons", tmp_path, methods="ddu", seeds=2, smoke=True, say=said.append)
    assert said[0] == "4 fits: 2 were already there, 2 to run"


def test_regression_is_compared_with_the_plain_network(tmp_path):
    result = due(
        "--data", "diabetes", "--methods", "exact-gp", "--seeds", 1, "--smoke", "--out", tmp_path
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("diabetes: one seed\n")
    report = json.loads((tmp_path / "compare-diabetes.json").read_text())
    assert list(report["methods"]) == ["network", "exact-gp"]
    assert report["times_relative_to"] == "network"
    exact = report["methods"]["exact-gp"]
    assert exact["rmse"]["stderr"] is None
    assert 0.8 < exact["coverage"]["mean"] <= 1
    assert exact["auroc"]["mean"] > 0.99  # far rows are far


def test_results_do_not_depend_on_the_number_of_jobs(tmp_path):
    one, two = (
        compare("moons", tmp_path / str(n), methods="ddu", seeds=1, smoke=True, jobs=n).report
        for n in (1, 2)
    )
    for key in ("accuracy", "nll", "auroc"):
        assert one["methods"]["ddu"][key] == two["methods"]["ddu"][key]


def test_a_method_that_fails_leaves_the_others(tmp_path, monkeypatch):
    healthy = CLASSIFIERS["ddu"].build

    def flaky(seed, **given):
        if seed:
            raise RuntimeError("no\nluck")
        return healthy(seed, **given)

    monkeypatch.setitem(CLASSIFIERS, "flaky", Contender("Flaky", flaky))
    result = due(
        "--data", "moons", "--methods", "flaky", "--seeds", 2, "--smoke", "--out", tmp_path
    )
    assert result.exit_code == 0, result.output
    assert "failed: flaky, seed 1: RuntimeError: no luck" in result.stdout
    assert "over 1 to 2 seeds" in result.stdout


@pytest.mark.parametrize("name", DATA)
def test_every_data_set_has_rows_to_learn_from_like_them_and_far(name):
    if name in uci.NAMES and find(f"uci/{name}.npz") is None:
        pytest.skip(f"needs uci/{name}.npz under DUE_DATA")
    task = DATA[name].load(1)
    assert len(task.X) == len(task.y) and len(task.X_test) == len(task.y_test)
    assert min(len(task.X), len(task.X_test), len(task.X_far)) > 10
    assert len({part.shape[1] for part in (task.X, task.X_test, task.X_far)}) == 1
    if DATA[name].classes:
        assert set(task.y) == set(range(len(set(task.y)))) == set(task.y_test)


def test_nothing_to_show_is_an_error(tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("no luck")

    monkeypatch.setattr(run, "measure", broken)
    result = due("--data", "moons", *CHEAP, "--out", tmp_path)
    assert result.exit_code == 1
    assert (
        "error: no fit succeeded; the first: softmax, seed 0: RuntimeError: no luck"
        in result.stderr
    )
    assert not (tmp_path / "compare-moons.json").exists()


@pytest.mark.parametrize("name", ["moons", "cosines"])
def test_far_points_are_far(name):
    task = DATA[name].load(0)
    assert KDTree(task.X).query(task.X_far)[0].min() > FAR
    assert len(task.X_far) > 100


def test_a_regressor_that_knows_its_distribution_is_judged_by_it():
    class Normal:
        def fit(self, X, y):
            return self

        def predict(self, X, return_std=True):
            return np.zeros(len(X)), np.ones(len(X))

        def uncertainty(self, X):
            return np.zeros(len(X))

    class Own(Normal):
        def log_density(self, X, y):
            return np.full(len(X), -7.0)

        def predict_interval(self, X, alpha):
            assert alpha == 0.05
            return np.full(len(X), -1.0), np.full(len(X), 1.0)

    y = np.array([0.0, 1.5, 0.5, 3.0])
    task = Task(*(np.zeros((4, 1)), y) * 2, np.zeros((4, 1)))
    normal, own = (measure(each(), task, False) for each in (Normal, Own))
    assert normal["nll"] == pytest.approx(0.5 * np.log(2 * np.pi) + np.mean(y**2) / 2)
    assert (normal["coverage"], own["coverage"], own["nll"]) == (0.75, 0.5, 7.0)


def test_a_probability_of_zero_leaves_the_nll_finite():
    class Sure:
        def fit(self, X, y):
            return self

        def predict_proba(self, X):
            return np.tile([1.0, 0.0], (len(X), 1))

        def uncertainty(self, X):
            return np.zeros(len(X))

    task = Task(*(np.zeros((4, 1)), np.array([0, 1, 0, 1])) * 2, np.zeros((4, 1)))
    numbers = measure(Sure(), task, True)
    assert numbers["nll"] == pytest.approx(-np.log(1e-12) / 2)
    assert numbers["auroc"] == 0.5
    assert "ood_auroc" not in numbers


def test_an_ood_score_stands_beside_the_uncertainty(tmp_path):
    result = due("--data", "moons", "--methods", "due", "--seeds", 1, "--smoke", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    row = json.loads((tmp_path / "compare-moons.json").read_text())["methods"]["due"]
    task = DATA["moons"].load(0)
    task = Task(*(part[: run.SMOKE_ROWS] for part in task))
    model = CLASSIFIERS["due"].build(0, **SMOKE).fit(task.X, task.y)
    inside, outside = model.ood_score(task.X_test), model.ood_score(task.X_far)
    higher = (outside[:, None] > inside).mean() + (outside[:, None] == inside).mean() / 2
    assert row["ood_auroc"]["mean"] == pytest.approx(higher)
    assert f"DUE by ood_score: AUROC {higher:.3f}." in result.stdout


@pytest.mark.parametrize("methods", [CLASSIFIERS, REGRESSORS])
def test_settings_do_not_depend_on_the_process(methods):
    for method in methods.values():
        for shared in ({}, SMOKE):
            assert "0x" not in method.settings(**shared)["estimator"]
    titles = [str(method.settings()) for method in methods.values()]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "moon"], "error: --data 'moon' is not known; give one of digits, moons, wine"),
        (["--data", "moons", "--seeds", "0"], "error: --seeds 0 is too few; give at least 1"),
        (["--data", "moons", "--jobs", "0"], "error: --jobs 0 is too few; give at least 1"),
        (
            ["--data", "moons", "--methods", "exact-gp"],
            "error: --methods: unknown method 'exact-gp'; known are softmax, due",
        ),
        (["--data", "moons", "--methods", ","], "error: --methods ',' names none; give some of"),
    ],
)
def test_a_mistake_is_answered_in_one_line(arguments, message, tmp_path):
    result = due(*arguments, "--out", tmp_path / "new")
    assert result.exit_code == 1
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_missing_engine_is_named_or_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    result = due("--data", "moons", "--methods", "svdkl", "--out", tmp_path)
    assert result.stderr == "error: svdkl needs gpytorch: pip install 'due[rivals]'\n"
    said: list[str] = []
    chosen = run.runnable(None, CLASSIFIERS, said.append)
    assert "svdkl" not in chosen and "svdkl-free" not in chosen
    assert said == ["without svdkl and svdkl-free, which need: pip install 'due[rivals]'"]


def test_a_damaged_journal_is_named(tmp_path):
    (tmp_path / "compare-moons.jsonl").write_text("{}\n")
    result = due("--data", "moons", *CHEAP, "--out", tmp_path)
    assert result.exit_code == 1
    assert "compare-moons.jsonl is damaged: line 1" in result.stderr


def test_help_names_data_methods_and_options():
    text = due("--help").stdout
    for word in ("digits", "diabetes", "svdkl-free", "exact-gp", "--json", "--jobs", "--smoke"):
        assert word in text
