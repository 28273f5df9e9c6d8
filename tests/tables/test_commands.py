"""The command line on tables: files in, files out, words and exit codes."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest
from typer.testing import CliRunner

from due.cli import app
from due.tables import TableModel

from . import frames


def due(*arguments, stdin=None):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table of people in a file, and a model of it."""
    home = tmp_path_factory.mktemp("tables")
    frames.people().drop(columns="z").to_csv(home / "people.csv", index=False)
    done = due("fit", home / "people.csv", "--target", "y", "-o", home / "model", "--epochs", 3)
    assert done.exit_code == 0, done.output
    (home / "said").write_text(done.output)
    return home


def test_fit_says_what_it_found(folder):
    said = (folder / "said").read_text()
    for words in ("task: classification", "not used: id", "accuracy", "forest", "10 % deferred",
                  "calibration error", "saved in"):  # fmt: skip
        assert words in said, words
    assert not list((folder / "model").glob(".fit-*"))


def test_predict_keeps_the_input_and_a_fresh_process_gives_the_same(folder):
    out = folder / "out.csv"
    done = due("predict", folder / "model", folder / "people.csv", "-o", out, "--chunk", 50)
    assert done.exit_code == 0, done.output
    given, found = (pd.read_csv(file, dtype=str, na_filter=False) for file in
                    (folder / "people.csv", out))  # fmt: skip
    pd.testing.assert_frame_equal(found[given.columns], given)
    command = [sys.executable, "-c", "from due.cli import app; app()", "predict"]
    command += [str(folder / "model"), str(folder / "people.csv"), "-q", "--chunk", "50"]
    one = {**os.environ, "OMP_NUM_THREADS": "1"}  # as here: several threads round otherwise
    fresh = subprocess.run(command, capture_output=True, check=True, env=one)
    assert fresh.stdout == out.read_bytes()


def test_without_calibration_rows_nothing_is_said_to_be_familiar(folder, tmp_path):
    frame = frames.people().drop(columns="z").assign(who=lambda f: f["x"] > 0)
    frame.to_csv(tmp_path / "two.csv", index=False)
    model, out = tmp_path / "model", tmp_path / "out.csv"
    words = ("--target", "y", "--group", "who", "--epochs", 1, "-o", model)
    done = due("fit", tmp_path / "two.csv", *words)
    assert "no rows to tell what is foreign: column 'who' has 2 groups" in done.output
    done = due("predict", model, tmp_path / "two.csv", "-o", out)
    assert pd.read_csv(out)["ood_pvalue"].isna().all() and "unknown how foreign" in done.output
    done = due("predict", folder / "model", folder / "people.csv", "-o", out)
    assert "of them foreign" in done.output


def test_pipes_json_and_quiet(folder):
    table = (folder / "people.csv").read_text()
    done = due("predict", folder / "model", "-", "--quiet", stdin="\n".join(table.split("\n")[:3]))
    assert done.exit_code == 0 and len(done.stdout.splitlines()) == 3 and not done.stderr
    done = due("predict", folder / "model", folder / "people.csv", "--json", "-o", folder / "o.csv")
    assert json.loads(done.stdout)["rows"] == frames.N
    done = due("info", folder / "model", "--json")
    found = json.loads(done.stdout)
    assert found["task"] == "classification" and found["altered"] == []
    done = due("evaluate", folder / "model", folder / "people.csv", "--part", "test", "--json")
    assert json.loads(done.stdout)["accuracy"] == found["measured"]["accuracy"]
    assert due("evaluate", folder / "model", folder / "people.csv").exit_code == 0
    assert "numeric: x, age" in due("info", folder / "model").stdout


def test_parquet_in_and_out(folder):
    frames.people().to_parquet(folder / "new.parquet")
    out = folder / "out.parquet"
    done = due("predict", folder / "model", folder / "new.parquet", "-o", out, "--chunk", 100)
    assert done.exit_code == 0, done.output
    wanted = TableModel.load(folder / "model").predict(frames.people())
    pd.testing.assert_frame_equal(pd.read_parquet(out), wanted, check_dtype=False)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["fit", "people.csv", "--target", "why"], "did you mean 'y'|its columns are"),
        (["fit", "peple.csv", "--target", "y"], "did you mean 'people.csv'"),
        (["fit", "people.csv", "--target", "y", "--ignore", "aeg"], "did you mean 'age'"),
        (["predict", "modle", "people.csv"], "did you mean 'model'"),
        (["predict", "model", "people.csv", "--level", "95"], "between 0 and 1"),
        (["effect", "model", "people.csv"], "not of effects"),
        (["evaluate", "model", "people.csv", "--part", "exam"], "not one of all"),
        (["info", "."], "no model in"),
    ],
)
def test_mistakes_are_answered_in_one_line(folder, monkeypatch, arguments, error):
    import re

    monkeypatch.chdir(folder)
    done = due(*arguments)
    assert done.exit_code == 1 and re.search(error, done.stderr)
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")


def test_predictions_do_not_overwrite_their_table(folder):
    table = folder / "people.csv"
    before = table.read_bytes()
    done = due("predict", folder / "model", table, "-o", folder / "." / "people.csv")
    assert done.exit_code == 1 and "is the table itself" in done.stderr
    assert table.read_bytes() == before


def test_usage_errors_have_code_2():
    assert due("fit", "x.csv").exit_code == 2
    assert due("predict", "--no-such-option").exit_code == 2


def test_effects_of_a_file(folder):
    frames.people().drop(columns="y").to_csv(folder / "trial.csv", index=False)
    given = ["--target", "z", "--treatment", "member", "-o", folder / "effects", "--epochs", 10]
    done = due("fit", folder / "trial.csv", *given)
    assert done.exit_code == 0, done.output
    done = due("effect", folder / "effects", folder / "trial.csv", "-o", folder / "effects.csv")
    assert done.exit_code == 0 and "average effect" in done.stderr
    found = pd.read_csv(folder / "effects.csv")
    assert {"effect", "lower", "upper", "overlap_untreated", "overlap_treated"} <= set(found)


def test_a_hostile_word_is_escaped_in_what_we_add(folder):
    evil = frames.people().drop(columns="z")
    evil["y"] = evil["y"].map({"good": "=HYPERLINK(1)", "bad": "<script>"})
    evil = evil.rename(columns={"x": "=cmd|x"})
    evil.to_csv(folder / "evil.csv", index=False)
    done = due("fit", folder / "evil.csv", "--target", "y", "-o", folder / "evil", "--epochs", 2)
    assert done.exit_code == 0, done.output
    assert (
        due("predict", folder / "evil", folder / "evil.csv", "-o", folder / "e.csv").exit_code == 0
    )
    found = pd.read_csv(folder / "e.csv")
    assert set(found["prediction"]) <= {"'=HYPERLINK(1)", "<script>"}
    assert (found["=cmd|x"] == evil["=cmd|x"]).all()  # cells and names of the input stay
    done = due("predict", folder / "evil", folder / "evil.csv", "-o", folder / "e.csv", "--escape")
    found = pd.read_csv(folder / "e.csv")
    assert "'=cmd|x" in found and set(found["y"]) == {"'=HYPERLINK(1)", "<script>"}


def test_compare_on_a_file(folder):
    arguments = [folder / "people.csv", "--target", "y", "--methods", "due", "--seeds", 1]
    done = due("compare", *arguments, "--smoke", "--out", folder / "results")
    assert done.exit_code == 0, done.output
    assert (folder / "results" / "compare-people.json").exists()
    assert due("compare", folder / "people.csv").exit_code == 1


def test_completion_is_offered():
    assert "--install-completion" in due("--help").output
