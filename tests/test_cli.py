import json
import os
from dataclasses import replace
from importlib import import_module, metadata

import pytest
from typer.testing import CliRunner

from due.cli import app
from due.data import ihdp
from due.data.download import DownloadError, find
from due.experiments import trials
from due.paper import CATALOGUE, fig2


def due(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


needs_data = pytest.mark.skipif(
    find("ihdp/ihdp.RData") is None, reason="needs ihdp/ihdp.RData under DUE_DATA"
)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.mark.parametrize("name", ["fig1", "fig2", "fig3", "fig7"])
def test_smoke_writes_numbers_and_picture_and_a_second_run_computes_nothing(name, out, monkeypatch):
    result = due("reproduce", name, "--smoke", "--out", out)
    assert result.exit_code == 0, result.output
    report = json.loads((out / f"{name}.json").read_text())
    assert report["artefact"] == name
    assert report["preset"] == "smoke"
    assert report["seeds"] == [0]
    assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert f"wrote {out / name}.json and {out / name}.png" in result.stdout

    module = import_module(f"due.paper.{name}")
    monkeypatch.setattr(module, "ARTEFACT", replace(module.ARTEFACT, run=run_nothing))
    again = due("reproduce", name, "--smoke", "--out", out)
    assert again.exit_code == 0, again.output
    assert "was already there" in again.stderr


def run_nothing(*args):
    raise AssertionError("computed twice")


@needs_data
def test_smoke_of_table3_serves_fig4_and_a_second_run_computes_nothing(out, monkeypatch):
    result = due("reproduce", "table3", "--smoke", "--out", out)
    assert result.exit_code == 0, result.output
    assert "table3: 8 trials: 0 were already there, 8 to run" in result.stderr
    assert "IHDP-Cov: RMSE of the effect, 38 of 75 kept" in result.stdout
    files = [out / f"table3.{ending}" for ending in ("json", "txt", "md", "png")]
    assert f"wrote {files[0]}, {files[1]}, {files[2]} and {files[3]}\n" in result.stdout
    table = json.loads(files[0].read_text())
    assert table["preset"] == "smoke" and table["failures"] == []
    assert [row["trials"] for row in table["data"]["ihdp"]["rows"].values()] == [2, 2]
    assert files[1].read_text() in result.stdout

    monkeypatch.setattr(trials, "fit_and_predict", run_nothing)
    for name in ("table3", "fig4"):
        again = due("reproduce", name, "--smoke", "--out", out)
        assert again.exit_code == 0, again.output
        assert "0 to run" in again.stderr
    assert "intervals miss the true effect over 1 trial (" in again.stdout
    assert (out / "fig4.png").read_bytes().startswith(b"\x89PNG")


def test_missing_data_and_a_missing_extra_are_one_line(tmp_path, monkeypatch):
    for error in (DownloadError("no network\nset DUE_DATA"), ImportError("pip install 'x[y]'")):

        def missing(*args, error=error):
            raise error

        monkeypatch.setattr(ihdp, "load", missing)
        result = due("reproduce", "table3", "--smoke", "--out", tmp_path)
        assert result.exit_code == 1
        assert result.stderr.splitlines()[1:] == [f"error: {' '.join(str(error).split())}"]
    assert not (tmp_path / "table3.json").exists()


def test_a_data_folder_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("DUE_DATA", str(tmp_path / "nowhere"))
    ihdp._covariates.cache_clear()
    result = due("reproduce", "fig4", "--smoke", "--out", tmp_path)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[1:] == [
        f"error: DUE_DATA is not a folder: {tmp_path / 'nowhere'}. Create it or unset DUE_DATA"
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["fig9"],
            "error: unknown artefact 'fig9'; the known ones are fig1, fig2, fig3, fig4, fig5, "
            "fig6, fig7, table1, table2, table3, table4, table5, gap, choices, collapse, "
            "constraints and all",
        ),
        (["fig2", "--preset", "paper"], "error: fig2 has no preset 'paper'; it has default, smoke"),
        (["fig2", "--seeds", "0"], "error: --seeds 0 is too few; give at least 1"),
        (["fig2", "--threads", "0"], "error: --threads 0 is too few; give at least 1"),
        (["table3", "--trials", "0"], "error: --trials 0 is too few; give at least 1"),
        (["table3", "--jobs", "-1"], "error: --jobs -1 is too few; give at least 1"),
        (
            ["fig3", "--trials", "3"],
            "error: fig3 takes no --trials; it takes --out, --preset, --smoke, --seeds, --threads",
        ),
        (
            ["fig4", "--methods", "due"],
            "error: fig4 takes no --methods; it takes --out, --preset, --smoke, --seeds, --jobs",
        ),
        (
            ["table3", "--seeds", "3"],
            "error: table3 takes no --seeds; it takes --out, --preset, --smoke, --trials, "
            "--methods, --data, --jobs",
        ),
        (
            ["table3", "--smoke", "--methods", "due,dou"],
            "error: --methods: unknown method 'dou'; known are due, btarnet",
        ),
        (
            ["table3", "--smoke", "--methods", ","],
            "error: --methods ',' names none; give some of due, btarnet",
        ),
        (
            ["table3", "--data", "acic"],
            "error: --data 'acic' is not known; give ihdp, ihdp-cov or both",
        ),
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

    monkeypatch.setattr(fig2, "ARTEFACT", replace(fig2.ARTEFACT, run=breaks))
    result = due("reproduce", "fig2", "--out", tmp_path)
    assert result.exit_code == 1
    assert "error: KeyError" in result.stderr
    assert "--debug shows where it came from" in result.stderr
    assert isinstance(due("reproduce", "fig2", "--out", tmp_path, "--debug").exception, KeyError)


def test_a_missing_matplotlib_is_one_line_that_names_the_extra(tmp_path, monkeypatch):
    def breaks(settings, seed):
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")

    monkeypatch.setattr(fig2, "ARTEFACT", replace(fig2.ARTEFACT, run=breaks))
    result = due("reproduce", "fig2", "--out", tmp_path)
    assert result.exit_code == 1
    _, error = result.stderr.splitlines()  # the first says which seed runs
    assert error == "error: matplotlib is not installed: pip install 'due[paper]'"


def test_help_names_commands_artefacts_and_options():
    assert "reproduce" in due("--help").stdout
    text = due("reproduce", "--help").stdout
    for name, entry in CATALOGUE.items():
        assert f"{name:<11} {entry.title}" in text
    for option in ("--out", "--preset", "--smoke", "--seeds", "--trials", "--methods", "--jobs"):
        assert option in text


def test_version():
    assert due("--version").stdout == f"due {metadata.version('due')}\n"
