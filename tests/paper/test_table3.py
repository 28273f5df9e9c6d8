import json

import numpy as np
import pytest
from experiments.stand_ins import ridge
from numpy.testing import assert_allclose
from scipy.stats import ttest_rel, wilcoxon

from due.data.download import find
from due.experiments.artefact import Options
from due.experiments.deferral import curve, oracle, rmse
from due.experiments.layout import Table
from due.experiments.statistics import (
    common_seeds,
    minus,
    of_method,
    on_common_seeds,
    paired,
    spread,
)
from due.experiments.trials import Result, Trial, journal_in, true_effects
from due.experiments.trials import results as results_of
from due.paper.table3 import METHODS, NOTES, SMOKE, Table3, summarise, tables

needs_data = pytest.mark.skipif(
    find("ihdp/ihdp.RData") is None, reason="needs ihdp/ihdp.RData under DUE_DATA"
)


def made_up(seeds, shift=0.0):
    """Results by seed, with numbers from nowhere."""
    results = {}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        random, certain, coverage = rng.exponential(size=3)
        line = {
            "rmse_random": random + shift * (1 + seed),
            "rmse_uncertainty": certain + shift * rng.normal(1, 0.3),
            "coverage": coverage,
            "fit_seconds": 2.0 + shift,
            "predict_seconds": 0.5,
            "epochs": 10 * seed,
        }
        results[seed] = Result(rng.normal(size=75), rng.exponential(size=75), line)
    return results


def test_a_row_has_mean_standard_error_and_median():
    results = made_up(range(7))
    row = of_method(results)
    values = np.array([result.line["rmse_random"] for result in results.values()])
    assert row["trials"] == 7
    assert_allclose(row["random"]["mean"], values.mean())
    assert_allclose(row["random"]["stderr"], np.sqrt(values.var(ddof=1) / 7))
    assert_allclose(row["random"]["median"], np.median(values))
    assert_allclose(row["coverage"], np.mean([r.line["coverage"] for r in results.values()]))
    assert row["cpu_seconds"] == 2.5 and row["epochs"] == 30
    assert_allclose(row["cpu_minutes_in_all"], 7 * 2.5 / 60)


def test_one_trial_has_no_standard_error_and_no_test():
    assert spread([2.0]) == {"mean": 2.0, "stderr": None, "median": 2.0}
    assert paired(np.array([2.0]))["t_test_p"] is None
    assert paired(np.zeros(5))["wilcoxon_p"] is None


def test_methods_are_compared_on_the_seeds_they_share():
    methods = {"due": made_up(range(10)), "x": made_up(range(3, 20), shift=1.0)}
    common = on_common_seeds(methods, "due")
    assert common["seeds"] == list(range(3, 10)) == common_seeds(methods.values())
    assert common["rows"]["due"]["trials"] == common["rows"]["x"]["trials"] == 7
    assert "minus_due" not in common["rows"]["due"]
    got = common["rows"]["x"]["minus_due"]
    a, b = (
        np.array([methods[name][seed].line["rmse_uncertainty"] for seed in range(3, 10)])
        for name in ("x", "due")
    )
    assert_allclose(got["random"]["mean"], 7.0)  # of 1 + seed
    assert_allclose(got["uncertainty"]["mean"], (a - b).mean())
    assert_allclose(got["uncertainty"]["stderr"], (a - b).std(ddof=1) / 7**0.5)
    assert_allclose(got["uncertainty"]["t_test_p"], ttest_rel(a, b).pvalue)
    assert_allclose(got["uncertainty"]["wilcoxon_p"], wilcoxon(a, b).pvalue)
    assert_allclose(got["times_cpu"], 3.5 / 2.5)


def test_seeds_in_any_order_pair_up():
    seeds = [4, 0, 2]
    forwards, backwards = made_up(seeds, 1.0), made_up(sorted(seeds))
    assert_allclose(minus(forwards, backwards, [0, 2, 4])["random"]["median"], 3.0)


def test_all_rows_of_the_paper_are_there():
    assert list(METHODS)[:2] == ["due", "due-paper"]
    printed = {name: made.as_printed for name, made in METHODS.items() if made.as_printed}
    rows = {"bart", "btarnet", "bcevae", "dklite", "tarnet-ensemble"}
    assert set(printed) == rows | {"due", "due-paper"}
    assert printed["due-paper"]["ihdp"] == ("0.91 ± 0.04", "0.48 ± 0.02")
    starred = {name for name, cells in printed.items() if "*" in cells["ihdp"][0]}
    assert starred == {"bart", "btarnet", "bcevae"}
    assert "* come from other realisations" in " ".join(NOTES)


@pytest.mark.parametrize("name", METHODS)
def test_recipes_are_built_and_told_apart(name):
    settings = METHODS[name].settings()
    assert settings == METHODS[name].settings()
    assert METHODS[name].build(7).get_params().get("random_state", 7) == 7
    assert name not in SMOKE or SMOKE[name].settings() != settings


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("table3")


@pytest.fixture(scope="module")
def table():
    printed = {"ihdp": ("1.0 ± 0.1*", "0.5 ± 0.1*")}
    made = {
        "due": ridge(title="Due"),
        "due-paper": ridge(title="Paper", alpha=30.0),
        "bart": ridge(title="Bart", alpha=300.0, as_printed=printed),
    }
    return Table3(presets={"default": made})


@pytest.fixture(scope="module")
def report(table, out):
    """Five trials of two methods, three of the other; the journal has more than one run."""
    table.reproduce("table3", Options(out, methods="due,due-paper", trials=5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("due.paper.table3.FRESH", 1)
        options = Options(out, methods=" bart", trials=3, command="due x")
        written = table.reproduce("table3", options)
    assert [file.name for file in written.files] == [f"table3.{e}" for e in ENDINGS]
    return json.loads((out / "table3.json").read_text())


ENDINGS = ("json", "txt", "md", "png")


@needs_data
def test_the_table_has_all_that_the_journal_holds(report):
    for part in ("ihdp", "ihdp-cov"):
        rows = report["data"][part]["rows"]
        assert {name: row["trials"] for name, row in rows.items()} == {
            "due": 5,
            "due-paper": 5,
            "bart": 3,
        }
        assert report["data"][part]["common"]["seeds"] == [0, 1, 2]
        assert report["data"][part]["fresh"]["seeds"] == [1, 2]
        assert report["data"][part]["fresh"]["rows"]["bart"]["minus_due"]["trials"] == 2
        assert report["data"][part]["paper_recipe_minus_due"]["trials"] == 5
    assert report["command"] == "due x"
    assert report["failures"] == []


@needs_data
def test_numbers_are_those_of_the_journal(report, out, table):
    results = results_of(journal_in(out), table.presets["default"])
    values = [results[Trial("due", "ihdp", seed)].line["rmse_random"] for seed in range(5)]
    row = report["data"]["ihdp"]["rows"]["due"]["random"]
    assert_allclose([row["mean"], row["median"]], [np.mean(values), np.median(values)])


@needs_data
def test_curves_start_at_the_plain_error_and_stay_above_the_oracle(report, out, table):
    results = results_of(journal_in(out), table.presets["default"])
    curves = report["data"]["ihdp-cov"]["curves"]
    assert curves["percent"] == list(range(0, 100, 5))
    trials = [Trial("due", "ihdp-cov", seed) for seed in range(3)]
    due = curves["methods"]["due"]
    plain = [rmse(results[t].tau_hat, true_effects(t)) for t in trials]
    for kind in ("uncertainty", "random", "oracle"):
        assert_allclose(due[kind]["mean"][0], np.mean(plain))
        assert_allclose(due[kind]["median"][0], np.median(plain))
        assert np.all(np.array(due["oracle"]["mean"]) <= np.array(due[kind]["mean"]) + 1e-12)
    best = [
        curve(results[t].tau_hat, true_effects(t), oracle(results[t].tau_hat, true_effects(t)))
        for t in trials
    ]
    assert_allclose(due["oracle"]["mean"], np.mean(best, 0))
    assert list(curves["methods"]["bart"]) == ["uncertainty"]
    point = report["data"]["ihdp-cov"]["common"]["rows"]["due"]  # half of the people deferred
    assert_allclose(due["uncertainty"]["mean"][10], point["uncertainty"]["mean"])
    assert_allclose(due["random"]["mean"][10], point["random"]["mean"])


@needs_data
def test_text_and_markdown_show_both_blocks_and_the_paper(report, out):
    text, marked = ((out / f"table3.{ending}").read_text() for ending in ("txt", "md"))
    for shown in (text, marked):
        assert "IHDP: RMSE of the effect, 68 of 75 kept" in shown
        assert "IHDP-Cov: RMSE of the effect, 38 of 75 kept" in shown
        assert "IHDP: seeds that all methods share (3)" in shown
        assert "IHDP: those from 1 on (2)" in shown
        assert "Paper: 5 seeds" in shown
        assert "0.5 ± 0.1*" in shown
    row = report["data"]["ihdp"]["rows"]["bart"]["random"]
    cells = f"{row['mean']:.2f} ± {row['stderr']:.2f} | {row['median']:.2f}"
    assert f"| Bart | 3 | {cells} |" in marked
    assert "Made by `due x`." in marked
    assert (out / "table3.png").read_bytes().startswith(b"\x89PNG")


@needs_data
def test_failed_trials_are_counted_and_shown(tmp_path):
    broken = tmp_path / "broken"
    broken.touch()
    made = {"due": ridge(title="Due"), "bart": ridge(title="Bart", broken=str(broken))}
    table = Table3(presets={"default": made})
    said: list[str] = []
    written = table.reproduce("table3", Options(tmp_path, trials=2, data="ihdp", say=said.append))
    assert "0 (2 failed)" in written.text
    report = json.loads((tmp_path / "table3.json").read_text())
    assert report["data"]["ihdp"]["rows"]["bart"] == {"failed": 2, "trials": 0}
    assert report["data"]["ihdp"]["common"]["seeds"] == [0, 1]
    assert "ihdp-cov" not in report["data"]
    assert report["failures"][0]["error"] == "RuntimeError: singular matrix"
    assert "2 trials failed" in said[-1]


@needs_data
def test_a_table_without_due_or_without_any_result_is_still_written(tmp_path):
    broken = tmp_path / "broken"
    broken.touch()
    made = {"bart": ridge(broken=str(broken)), "dklite": ridge()}
    table = Table3(presets={"default": made})
    table.reproduce("table3", Options(tmp_path, trials=1, methods="bart"))
    broken.unlink()
    text = table.reproduce("table3", Options(tmp_path, trials=1)).text
    assert "failed" not in text


def test_nothing_at_all_gives_no_table():
    numbers = summarise({"due": ridge()}, {}, {})
    assert numbers == {"data": {}, "failures": []}
    assert tables({"due": ridge()}, numbers["data"]) == []


def test_text_is_aligned_and_markdown_has_one_row_a_line():
    table = Table("A title", ["name", "x"], [["a", "1.00"], ["longer", "–"]])
    assert table.text().splitlines()[2:] == ["name       x", "a       1.00", "longer     –"]
    assert table.markdown().splitlines()[2:] == [
        "| name | x |",
        "| :-- | --: |",
        "| a | 1.00 |",
        "| longer | – |",
    ]
