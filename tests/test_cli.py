import json
import os
from importlib import metadata

import pytest
from typer.testing import CliRunner

from due.cli import app
from due.paper import ARTEFACTS, Artefact


def due(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.mark.parametrize("name", ARTEFACTS)
def test_smoke_writes_numbers_and_picture_and_a_second_run_computes_nothing(name, out, monkeypatch):
    result = due("reproduce", name, "--smoke", "--out", out)
    assert result.exit_code == 0, result.output
    report = json.loads((out / f"{name}.json").read_text())
    assert report["artefact"] == name
    assert report["preset"] == "smoke"
    assert report["seeds"] == [0]
    assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert f"wrote {out / name}.json and {out / name}.png" in result.stdout

    real = ARTEFACTS[name]
    monkeypatch.setitem(ARTEFACTS, name, Artefact(real.title, real.presets, run_nothing, real.draw))
    again = due("reproduce", name, "--smoke", "--out", out)
    assert again.exit_code == 0, again.output
    assert "was already there" in again.stderr


def run_nothing(settings, seed):
    raise AssertionError("computed twice")


def test_fig2_reports_the_star_and_the_distances(out):
    numbers = report(out, "fig2")["each"][0]
    for name in ("without_constraint", "with_constraint"):
        assert isinstance(numbers[name]["star_on_class_data"], bool)
        ratios = list(numbers[name]["distance_ratio_quantiles"].values())
        assert ratios == sorted(ratios)
        assert ratios[0] > 0
        assert 0 <= numbers[name]["grid_on_class_data"] <= 1


def test_fig3_reports_three_models_in_each_row(out):
    saved = report(out, "fig3")
    for row in ("default", "printed"):
        assert list(saved["mean"][row]) == ["softmax", "gpdnn", "due"]
        for numbers in saved["mean"][row].values():
            assert 0 <= numbers["accuracy"] <= 1
            assert 0 <= numbers["far_entropy"] <= 1
            assert 0 <= numbers["train_entropy"] <= 1
    assert saved["settings"]["printed"]["M"] == 4
    assert saved["settings"]["estimator"]["n_inducing"] == 10


def report(out, name):
    due("reproduce", name, "--smoke", "--out", out)  # at once if it is there
    return json.loads((out / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig9"], "error: unknown artefact 'fig9'; the known ones are fig2, fig3"),
        (["fig2", "--preset", "paper"], "error: fig2 has no preset 'paper'; it has default, smoke"),
        (["fig2", "--seeds", "0"], "error: --seeds 0 is too few; give at least 1"),
    ],
)
def test_a_mistake_is_answered_in_one_line(arguments, message):
    result = due("reproduce", *arguments)
    assert result.exit_code == 1
    assert result.stderr == message + "\n"
    assert result.stdout == ""


def test_out_that_is_a_file_is_refused_before_any_work(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    result = due("reproduce", "fig2", "--out", file)
    assert result.exit_code == 1
    assert result.stderr == f"error: --out {file} is a file; give a directory, new or old\n"
    assert file.read_text() == "mine"
    below = due("reproduce", "fig2", "--out", file / "below")
    assert below.exit_code == 1
    assert below.stderr.count("\n") == 1


def test_out_that_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    result = due("reproduce", "fig2", "--out", tmp_path)
    assert result.exit_code == 1
    assert result.stderr == f"error: --out {tmp_path} is not writable; give another directory\n"


def test_an_error_inside_is_one_line_and_debug_raises_it(tmp_path, monkeypatch):
    def breaks(settings, seed):
        raise KeyError("lost\nand found")

    real = ARTEFACTS["fig2"]
    monkeypatch.setitem(ARTEFACTS, "fig2", Artefact(real.title, real.presets, breaks, real.draw))
    result = due("reproduce", "fig2", "--out", tmp_path)
    assert result.exit_code == 1
    assert "error: KeyError" in result.stderr
    assert "--debug shows where it came from" in result.stderr
    assert isinstance(due("reproduce", "fig2", "--out", tmp_path, "--debug").exception, KeyError)


def test_help_names_commands_artefacts_and_options():
    assert "reproduce" in due("--help").stdout
    text = due("reproduce", "--help").stdout
    for name, artefact in ARTEFACTS.items():
        assert f"{name}   {artefact.title}" in text
    for option in ("--out", "--preset", "--smoke", "--seeds", "--debug"):
        assert option in text


def test_version():
    assert due("--version").stdout == f"due {metadata.version('due')}\n"
