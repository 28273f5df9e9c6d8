import json
from dataclasses import replace

import numpy as np
import pytest
from experiments.stand_ins import ridge

from due.data.download import find
from due.experiments.artefact import Options
from due.experiments.trials import Trial, journal_in, results, true_effects
from due.paper.fig4 import Figure4
from due.paper.table3 import Table3

pytestmark = pytest.mark.skipif(
    find("ihdp/ihdp.RData") is None, reason="needs ihdp/ihdp.RData under DUE_DATA"
)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "fits.log"


@pytest.fixture
def presets(log):
    made = {"due": ridge(log=str(log)), "btarnet": ridge(log=str(log), alpha=100.0)}
    return {"default": made}


def test_counts_the_intervals_that_miss(presets, tmp_path):
    written = Figure4(presets=presets).reproduce("fig4", Options(tmp_path, seeds=3))
    report = json.loads((tmp_path / "fig4.json").read_text())
    found = results(journal_in(tmp_path), presets["default"])
    assert report["seeds"] == [0, 1, 2] and report["drawn"] == 0
    for method in ("due", "btarnet"):
        total = 0
        for seed in range(3):
            trial = Trial(method, "ihdp", seed)
            tau_hat, var, _ = found[trial]
            missed = sum(
                abs(a - b) > 1.96 * v**0.5
                for a, b, v in zip(tau_hat, true_effects(trial), var, strict=True)
            )
            assert report["each"][seed][method]["missed"] == missed
            assert report["each"][seed][method]["of"] == 75
            total += missed
        assert report["total"][method]["missed"] == total
        assert np.isclose(report["total"][method]["coverage"], 1 - total / 225)
        assert f"{total} of 225 intervals miss" in written.text
    assert written.files[1].read_bytes().startswith(b"\x89PNG")


def test_trials_of_the_table_are_not_fitted_again(presets, tmp_path, log):
    Table3(presets=presets).reproduce("table3", Options(tmp_path, trials=2, data="ihdp"))
    before = log.read_text()
    Figure4(presets=presets).reproduce("fig4", Options(tmp_path, seeds=2))
    assert log.read_text() == before


def test_a_seed_without_both_methods_is_left_out(presets, tmp_path):
    broken = tmp_path / "broken"
    broken.touch()
    presets["default"]["btarnet"] = ridge(broken=str(broken))
    figure = Figure4(presets=presets)
    with pytest.raises(ValueError, match=r"btarnet failed on seed 0 \(RuntimeError.*more --seeds"):
        figure.reproduce("fig4", Options(tmp_path, seeds=1))
    assert not (tmp_path / "fig4.json").exists()


def test_the_seeds_that_have_both_methods_are_drawn(presets, tmp_path):
    broken = tmp_path / "broken"
    broken.touch()
    good, bad = presets["default"]["btarnet"], ridge(broken=str(broken))
    presets["default"]["btarnet"] = replace(
        good, build=lambda seed: (good if seed else bad).build(seed)
    )
    Figure4(presets=presets).reproduce("fig4", Options(tmp_path, seeds=2))
    report = json.loads((tmp_path / "fig4.json").read_text())
    assert report["seeds"] == [1] and len(report["each"]) == 1
