import json
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn
from typer.testing import CliRunner

from due.cli import app
from due.experiments.artefact import average
from due.paper import constraints

SMOKE = constraints.PRESETS["smoke"]


@pytest.fixture(scope="module")
def smoke():
    return constraints.run(SMOKE, seed=0)


def test_every_way_is_measured_on_both_tasks_and_costs_are_relative_to_the_plain_one(smoke):
    assert list(smoke.numbers) == ["moons", "digits"]
    for found in smoke.numbers.values():
        assert list(found) == list(constraints.WAYS)
        for row in found.values():
            for key in ("seconds", "megabytes"):
                assert row[f"{key}_relative"] == row[key] / found[constraints.BASE][key]


@pytest.mark.parametrize("way", constraints.WAYS)
def test_the_numbers_are_those_of_the_model_counted_by_hand(smoke, way):
    task = constraints.moons(SMOKE, seed=0)
    model, loss = constraints.build(SMOKE, task, way, seed=0)
    constraints.optimise(loss, SMOKE, task, seed=0)
    row = smoke.numbers["moons"][way]
    with torch.no_grad():
        probs = (cast(torch.Tensor, model.predict(x)) for x in (task.x_test, task.x_out))
        inside, outside = (p.double().numpy() for p in probs)
        a, b = constraints.pairs(SMOKE, task, seed=0)
        stretch = (model.f(a) - model.f(b)).norm(dim=1) / (a - b).norm(dim=1)
    assert row["accuracy"] == pytest.approx((inside.argmax(1) == task.y_test).mean())
    low, high = (-(p * np.log(p)).sum(1) for p in (inside, outside))
    higher = (high[:, None] > low).mean() + (high[:, None] == low).mean() / 2
    assert row["auroc_entropy"] == pytest.approx(higher, abs=1e-3)
    got = [row[f"lipschitz_{key}"] for key in ("lower", "median", "upper")]
    want = [value.item() for value in (stretch.min(), stretch.median(), stretch.max())]
    assert_allclose(got, want, rtol=1e-4)
    assert row["distortion"] == pytest.approx(want[2] / want[0], rel=1e-4)


def test_the_bounded_residual_network_keeps_its_bounds(smoke):
    for found in smoke.numbers.values():
        row = found["spectral"]
        assert row["lipschitz_upper"] <= SMOKE.c * (1 + SMOKE.c) ** SMOKE.depth + 1e-4
        assert row["lipschitz_lower"] > 0


def test_the_digits_5_to_9_are_never_learned():
    task = constraints.digits(seed=0)
    assert set(task.y.tolist()) == set(task.y_test.tolist()) == set(range(5))
    assert len(task.x) + len(task.x_test) + len(task.x_out) == 1797
    assert len(task.x_out) == 896


def test_the_penalty_is_that_of_a_linear_map_in_closed_form():
    task = constraints.moons(SMOKE, seed=0)
    model, loss = constraints.build(replace(SMOKE, penalty=10.0), task, "penalty", seed=0)
    model.f = nn.Linear(2, SMOKE.J)
    model.eval()
    x, y = task.x[:8], task.y[:8]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        got = loss(x, y).item()
        torch.manual_seed(3)
        v = torch.randn(SMOKE.J)
    slope = ((v / v.norm()) @ model.f.weight).norm().item()
    want = model(x, y).item() + 10 * (slope - np.sqrt(2 / SMOKE.J)) ** 2
    assert got == pytest.approx(want, rel=1e-4)


def test_memory_counts_what_the_backward_pass_needs_once():
    class Square(nn.Module):
        def forward(self, x, y):
            return (x.exp() ** 2).sum()

    x = torch.zeros(10, 3, requires_grad=True)
    # exp keeps its result, which the square keeps too: one tensor of 30 floats
    assert constraints.kept_for_backward(Square(), x, torch.zeros(10)) == 30 * 4


def test_pairs_are_distinct_rows():
    task = constraints.moons(SMOKE, seed=0)
    a, b = constraints.pairs(SMOKE, task, seed=0)
    assert (a != b).any(1).all()
    assert_allclose(len(a), SMOKE.pairs, atol=3)


def test_the_command_writes_the_table_and_the_picture(tmp_path, smoke, monkeypatch):
    artefact = replace(constraints.ARTEFACT, run=lambda settings, seed: smoke)
    monkeypatch.setattr(constraints, "ARTEFACT", artefact)
    done = CliRunner().invoke(app, ["reproduce", "constraints", "--smoke", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    text = constraints.text(SMOKE, average([smoke.numbers]))
    assert text in done.stdout
    assert (tmp_path / "constraints.txt").read_text() == text + "\n"
    assert json.loads((tmp_path / "constraints.json").read_text())["seeds"] == [0]
    assert (tmp_path / "constraints.png").read_bytes().startswith(b"\x89PNG")
