"""Every benchmark runs to its end with --smoke, and has a line for each thing it measures."""

import subprocess
import sys
from pathlib import Path

import pytest

from due.data.download import data_dir, find

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
HELPERS = {"class_sets", "rival", "timing"}
HAS_YACHT = find("uci/yacht.npz") is not None
LINES = {  # how they begin, one space between words
    "bounds": [
        "refresh step estimated lag held",
        "1 20 ",
        "8 40 ",
        "8 end ",
        "convolutions: 10 layers, largest ",
        "batch norm: 7 layers, largest ",
        "c batch norm accuracy",
        "0.95 alone ",
        "0.95 paired ",
        "3 alone ",
    ],
    "boosting": ["data rows method error", "iris 150 due ", "diabetes 442 lightgbm "],
    "classifiers": [
        "iris DUE ",
        "iris before ",
        "iris softmax ",
        "iris SNGP ",
        "iris DDU ",
        "iris forest ",
        "target was wanted now rivals",
        "NLL above that before",
        "class integral, 10 classes, µs per row ",
        "class integral, 1,000 classes, µs per row ",
        "digits: fit ÷ softmax, default ",
        "digits: uncertainty ÷ softmax ",
    ],
    "coverage": [
        "world people method RMSE covered half width CPU s covered, each seed",
        "plain 40 DUECATE ",
        "tangled 40 before ",
        "25 covariates 40 GP per arm ",
    ],
    "coverage --others": ["stepped effect 40 DUECATE ", "few treated 40 before "],
    "defaults": ["ihdp: 2 seeds from 200 on", "ihdp-cov: 2 seeds from 200 on", "before − DUECATE "],
    "effects": [
        "ihdp CPU s ratio random uncertainty",
        "ihdp-cov CPU s ratio random uncertainty",
        "GPyTorch, stochastic ELBO ",
        "DUECATE, at most 1 epochs ",
    ],
    "foreign": [
        "1. False alarms",
        "digits ",
        "moons ",
        "2. p-values of one new row after each of 3 fits",
        "Kolmogorov–Smirnov against uniform: D = ",
        "3. Unseen digits 5 to 9",
        "DUE, ood_pvalue ",
        "5 nearest neighbours ",
        "isolation forest ",
        "4. AUROC of unseen digits",
        "inducing='free' entropy ",
        "inducing='tied' left by inducing points ",
    ],
    "heads": [
        "classes head, batch 1 total, batch 1",
        "softmax 2 ",
        "DUE 2 ",
        "DUE, mean field 2 ",
        "DUE, 10 inducing points 2 ",
        "DUQ 2 ",
        "SNGP 2 ",
        "SV-DKL 2 ",
        "DDU 2 ",
    ],
    "images": [
        "WRN-10-1, 4 images of 3 × 8 × 8",
        "DUE step ÷ softmax step ",
        "with power iteration ",
        "power iteration ",
        "batch norm ",
        "GP instead of softmax ",
        "images, of both methods ",
        "prediction of 4, DUE ÷ softmax ",
        "prediction of 1, DUE ÷ softmax ",
        "both compiled, 1, DUE ÷ softmax ",
    ],
    "million_rows": ["DUEClassifier", "DUERegressor", "fit: peak ", "predict: peak "],
    "probabilities": [
        "T variance exact monte_carlo mean_field quasi",
        "2 0.01 ",
        "3 mixed ",
        "T exact monte_carlo mean_field quasi",
    ],
    "sampling": ["accuracy NLL ECE seconds last loss", "moons exact ", "moons difference "],
    "speed": [
        "a. Training step",
        "ours, no constraint ",
        "b. Head for one row",
        "theirs, authors' call ",
        "ours, exact (default) ",
        "c. 4 such rows: memory",
        "d. Scaling",
        "1,000 ",
        "8 16 1 own ",
        "4 16 3 shared ",
    ],
    "tabular": [
        "rows DUE linear forest allowed",
        "iris 150 ",
        "diabetes 442 ",
        "accuracy ECE entropy ood_score",
        "DUE ",
        "forest ",
        *(["RMSE DUE plain network forest exact GP", "yacht "] if HAS_YACHT else ["UCI: left out"]),
    ],
    "trust": [
        "ranking nll rmse coverage quiet middle loud seconds fits",
        "growing noise DUE before ",
        "steps DUE ",
        "arm forest ",
        "two modes ensemble of 5 ",
        "cosines exact GP ",
        "few columns boosted trees ",
        "growing noise ranking ",
        "cosines gap std ",
        "few columns RMSE / std ",
        "growing noise, 30 DUE ",
        "30 rows covered ",
        "tied free refreshed greedy exact fits",
        "cosines gap_std ",
        "Thirds: ",
        "rows before tied exact default",
        "Choosing: ",
        *(["yacht DUE before ", "1 sets, 1 splits quiet third "] if HAS_YACHT else []),
    ],
}


@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from /proc")
@pytest.mark.parametrize("name", LINES)
def test_benchmark_has_a_line_for_each_thing_it_measures(name, tmp_path, monkeypatch):
    if name in ("effects", "defaults") and find("ihdp/ihdp.RData") is None:
        pytest.skip("needs ihdp/ihdp.RData under DUE_DATA")
    if name == "boosting":
        pytest.importorskip("lightgbm", reason="needs due[benchmarks]")
    if name in ("tabular", "trust") and not HAS_YACHT:
        monkeypatch.delenv("DUE_DATA", raising=False)
    elif (folder := data_dir()) is not None:  # the child works in another directory
        monkeypatch.setenv("DUE_DATA", str(folder.resolve()))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    script, *more = name.split()
    command = [sys.executable, str(BENCHMARKS / f"{script}.py"), *more, "--smoke"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    text = "\n".join(["", *(" ".join(line.split()) for line in done.stdout.splitlines())])
    assert [start for start in LINES[name] if f"\n{start}" not in text] == [], text
    assert list(tmp_path.iterdir()) == []


def test_no_benchmark_is_untested():
    assert {file.stem for file in BENCHMARKS.glob("*.py")} == {
        name.split()[0] for name in LINES
    } | HELPERS


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on memory")
def test_a_fresh_process_gives_its_last_line_or_its_error(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from timing import in_process  # --smoke measures all in one process

    script = tmp_path / "script.py"
    script.write_text(
        "import json, sys\ncase = json.loads(sys.argv[2])\nprint('{\"x\":', case['x'], '}')"
    )
    assert in_process(str(script), {"x": 3}) == {"x": 3}
    assert in_process(str(script), {}, gigabytes=8) == {"error": "KeyError: 'x'"}
