"""Tables and figures about images: smoke runs on small digits, and the parts they are made of."""

import json
from importlib import import_module

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from typer.testing import CliRunner

from due import metrics
from due.cli import app
from due.paper import image_results
from due.paper.image_models import LAPTOP, PAPER, SMOKE, as_if, chosen, rows, trained
from due.paper.table2 import best_score


def due(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def due_model(out):
    return trained("due", SMOKE, 0, out, progress=False).method


def test_every_table_is_written_and_a_second_run_trains_nothing(out, due_model, monkeypatch):
    methods = {"table1": "due,gpdnn-plain,gpdnn", "table2": "softmax,due,sngp,ddu,ensemble,duq"}
    for name in ("table2", "table1", "table4", "table5", "fig5", "fig6"):
        given = ["--methods", methods[name]] if name in methods else []
        given += ["--methods", "due,softmax"] if name == "table5" else []
        result = due("reproduce", name, "--smoke", "--out", out, *given)
        assert result.exit_code == 0, result.output
        assert "Preset smoke: digits against 597 test images of negatives" in result.stdout
        report = json.loads((out / f"{name}-digits.json").read_text())
        assert (report["artefact"], report["preset"]) == (name, "smoke")
    assert (out / "fig5-digits.png").read_bytes().startswith(b"\x89PNG")
    table = json.loads((out / "table2-digits.json").read_text())["models"]
    assert list(table) == ["softmax", "due", "sngp", "ddu", "ensemble", "duq"]

    monkeypatch.setattr(image_results, "trained", trains_nothing)
    again = due("reproduce", "table2", "--smoke", "--out", out, "--methods", "due")
    assert again.exit_code == 0, again.output
    assert "DUE on digits, seed 0 was already there" in again.stderr
    assert "Deep Ensemble" in again.stdout  # what earlier commands left is shown


def trains_nothing(*args, **given):
    raise AssertionError("trained twice")


def test_numbers_of_a_line_are_those_of_the_model(out, due_model):
    numbers = image_results.measure("due", SMOKE, 0, out)
    test, foreign = rows(SMOKE).test, rows(SMOKE).foreign
    frozen = due_model.predictor()
    with torch.no_grad():
        probs = frozen.probabilities(frozen.f(test.whole()[0].double())).numpy()
        inside, outside = (
            frozen.foreign(*frozen.look(part.whole()[0].double())) for part in (test, foreign)
        )
    y = test.whole()[1].numpy()
    assert numbers["accuracy"] == metrics.accuracy(probs / probs.sum(1, keepdims=True), y)
    found = numbers["auroc"]["foreign"]
    assert found["ood_score"] == pytest.approx(metrics.auroc(inside, outside), abs=1e-3)
    assert found["panel"] == pytest.approx(found["ood_score"], abs=0.02)  # other rows rank it
    assert len(found["views"]) == 6  # energy, first convolution, three groups, features
    assert numbers["flagged"].keys() == {"0.01", "0.05", "0.1"}


def test_the_best_score_of_others_is_found_with_hindsight_but_not_that_of_due():
    lines = [{"auroc": {"foreign": {"entropy": 0.9, "energy": 0.95, "ood_score": 0.8, "panel": 1}}}]
    assert best_score("due", lines) == "ood_score"
    assert best_score("softmax", lines) == "energy"


def test_foreign_images_take_the_shape_of_known_ones():
    x = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    grey = as_if(x, torch.zeros(1, 1, 28, 28))
    assert_allclose(grey[:, 0].double(), x[:, :, 2:-2, 2:-2].double().mean(1), atol=0.5)
    small = x[:, :1, :28, :28]
    padded = as_if(small, torch.zeros(1, 3, 32, 32))
    assert torch.equal(padded[:, 1, 2:-2, 2:-2], small[:, 0])
    assert padded.sum() == 3 * small.sum()


def test_presets_are_what_they_say():
    assert chosen("paper", None) is PAPER and chosen("laptop", "fashion") is LAPTOP["fashion"]
    assert (PAPER.recipe.epochs, PAPER.recipe.lr, PAPER.M, PAPER.warm) == (200, 0.1, 10, False)
    with pytest.raises(ValueError, match="--data 'svhn' is not known; give cifar10 or fashion"):
        chosen("laptop", "svhn")
    assert "all takes no option but" in due("reproduce", "all", "--seeds", "1").stderr
    assert "nothing has the preset 'lapto'" in due("reproduce", "all", "--preset", "lapto").stderr


def test_spread_is_mean_and_standard_error():
    values = [0.9, 0.8, 0.85]
    want = f"{np.mean(values):.3f} ± {np.std(values, ddof=1) / 3**0.5:.3f}"
    assert image_results.spread(values) == want
    assert image_results.spread([0.5], 1, 100) == "50.0"


def test_constants_of_batch_norm_are_counted(out, due_model):
    fig5 = import_module("due.paper.fig5")
    figure = fig5.draw(np.array([0.5, 1.5, 3.0]), "title")
    assert sum(patch.get_height() for patch in figure.axes[0].patches) == 3
