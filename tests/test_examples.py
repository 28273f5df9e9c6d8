"""Every example runs to its end, without a warning, and says what it promises."""

import re
import runpy
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"
FILES = sorted(set(EXAMPLES.glob("*.py")) - {EXAMPLES / "demo.py"})  # which has test_demo.py


@pytest.fixture
def output_of(capsys):
    def run(name):
        with torch.random.fork_rng():
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def number(pattern, text):
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found[1])


def test_classification_notices_classes_never_seen(output_of):
    text = output_of("classification")
    assert number(r"0 to 4: ([\d.]+)", text) > 0.95
    assert number(r"by ood_score: ([\d.]+)", text) > 0.95
    assert number(r"never seen ([\d.]+)", text) > 10 * number(r"known ([\d.]+)", text)


def test_regression_widens_in_the_gap_and_beyond(output_of):
    text = output_of("regression")
    std = dict(re.findall(r"x = +(-?[\d.]+): .* ± ([\d.]+)", text))
    on_data, in_gap, far = (float(std[x]) for x in ("4.0", "0.0", "30.0"))
    assert in_gap > 1.5 * on_data
    assert far > 2 * on_data
    assert far > in_gap
    assert "curves: (50, 3)" in text


def test_own_network_is_bounded_and_learns(output_of):
    text = output_of("own_network")
    assert number(r"accuracy ([\d.]+)", text) > 0.9
    assert text.count("bounded=True") == 2


def test_own_training_loop_is_unsure_far_away(output_of):
    text = output_of("own_training_loop")
    assert number(r"accuracy ([\d.]+)", text) > 0.85
    assert number(r"on the data ([\d.]+)", text) > 0.85
    assert number(r"far from it ([\d.]+)", text) < 0.6


def test_a_pretrained_network_is_bounded_and_learns(output_of):
    pytest.importorskip(
        "efficientnet_lite_pytorch",
        reason="needs pip install 'due[pretrained]'",
        exc_type=ImportError,
    )
    text = output_of("pretrained")
    assert number(r"(\d+) layers bounded", text) == 99
    assert number(r"accuracy ([\d.]+)", text) > 0.7


def test_save_and_load_gives_the_same_answers(output_of):
    text = output_of("save_and_load")
    assert "['config.json', 'model.safetensors']" in text
    assert "the same probabilities: True" in text
    assert "with its own network, too: True" in text


def test_no_example_is_untested():
    tested = {
        "classification",
        "regression",
        "own_network",
        "own_training_loop",
        "pretrained",
        "save_and_load",
        "treatment_effects",
    }
    assert {file.stem for file in FILES} == tested


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_examples_stay_short(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 40


def test_treatment_effects_refers_the_doubtful(output_of):
    text = output_of("treatment_effects")
    assert number(r"RMSE ([\d.]+)", text) > number(r"those decided ([\d.]+)", text)
    assert number(r"for (\d+)%", text) > 80
