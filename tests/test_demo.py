import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "examples"))
demo = import_module("demo")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "new" / "folder"


@pytest.fixture(scope="module")
def numbers(out):
    return demo.run(out, smoke=True)


def test_it_writes_three_pictures_and_the_numbers_it_returns(out, numbers):
    assert {file.name for file in out.iterdir()} == {
        "digits.png",
        "gap.png",
        "moons.png",
        "demo.json",
    }
    for picture in out.glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "demo.json").read_text()) == numbers


def test_it_says_which_score_each_auroc_is_of(numbers):
    due, softmax = numbers["digits"]["due"], numbers["digits"]["softmax"]
    assert {"auroc_entropy", "auroc_ood_score"} <= set(due)
    assert "auroc_ood_score" not in softmax
    table = demo.table(numbers)
    assert f"by ood_score                        {due['auroc_ood_score']:.3f}" in table
    assert f"by predictive entropy               {due['auroc_entropy']:.3f}" in table


def test_ratios_are_those_of_the_times_beside_them(numbers):
    digits = numbers["digits"]
    for ratio, time in {
        "fit_ratio": "fit_seconds",
        "predict_ratio": "predict_microseconds_per_row",
    }.items():
        assert digits[ratio] == pytest.approx(digits["due"][time] / digits["softmax"][time])


def test_training_and_test_digits_never_meet():
    data = demo.held_out_digits()
    assert set(data.y) == set(data.y_seen) == set(range(5))
    assert set(data.y_unseen) == set(range(5, 10))
    rows = np.concatenate([data.X, data.X_seen, data.X_unseen])
    assert len(rows) == 1797
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_calls_take_turns():
    order = []
    calls = {name: (lambda name=name: order.append(name)) for name in "ab"}
    times = demo.in_turns(calls, rounds=3)
    assert "".join(order) == "abababab"
    assert set(times) == {"a", "b"}


def test_the_command_runs_on_the_threads_it_is_told(tmp_path, monkeypatch):
    seen: dict[str, Any] = {}
    monkeypatch.setattr(demo, "run", lambda out, smoke: seen.update(out=out, smoke=smoke))
    monkeypatch.setattr(demo.torch, "set_num_threads", lambda n: seen.update(threads=n))
    monkeypatch.setattr("sys.argv", ["demo.py", "--out", str(tmp_path), "--smoke"])
    demo.main()
    assert seen == {"out": tmp_path, "smoke": True, "threads": 1}
