"""A report about a model of a table: from the folder, from its own table, from other rows."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from due import DUECATE, DUEClassifier, DUERegressor
from due.cli import app
from due.report import measure
from due.report.answers import ClassRows, EffectRows, ValueRows
from due.report.evidence import from_json
from due.tables import TableModel, fit
from due.tables.card import card
from due.tables.evidence import NEVER, about, answers, beyond, evidence, unseen
from due.tables.reading import read

pytest.importorskip("vl_convert", reason="needs due[report]")
HOSTILE = "<script>alert('x')</script>"
N = 300


def table():
    rng = np.random.default_rng(0)
    x, day = rng.normal(size=N), rng.integers(0, 900, size=N)
    return pd.DataFrame(
        {
            "x": [f"{value:.4f}".replace(".", ",") for value in x],  # decimal comma, as text
            HOSTILE: rng.choice(["a", HOSTILE], N),
            "day": (pd.Timestamp("2020-01-01") + pd.to_timedelta(day, unit="D")).strftime(
                "%d.%m.%Y"
            ),
            "drug": rng.integers(0, 2, N),
            "label": np.where(x + 0.3 * rng.normal(size=N) > 0, HOSTILE, "low"),
            "value": x + 0.3 * rng.normal(size=N),
        }
    ).astype(str)  # as `due fit` reads a file


@pytest.fixture(scope="module")
def models():
    """One model of each task, hardly trained."""
    rows = table()
    few = {"epochs": 3, "random_state": 0}
    classes = fit(rows.drop(columns="value"), "label", estimator=DUEClassifier(**few))
    values = fit(rows.drop(columns="label"), "value", estimator=DUERegressor(**few))
    effects = fit(rows.drop(columns="label"), "value", treatment="drug", estimator=DUECATE(**few))
    return {model.task: model for model in (classes, values, effects)}


@pytest.fixture(params=["classification", "regression", "effect"])
def model(request, models):
    return models[request.param]


def answered(model, frame, truth=False):
    return answers(model, model.encode(frame), frame, truth)


def test_rows_of_a_report_are_the_answers_and_truths_of_the_model(model):
    rows = table()
    found, said = answered(model, rows, truth=True), model.answers(rows)
    assert found.row.tolist() == list(range(1, N + 1))
    assert found.uncertainty.tolist() == said["uncertainty"].tolist()
    if isinstance(found, ClassRows):
        labels = np.array(found.classes)
        assert found.truth is not None
        assert labels[found.truth].tolist() == rows["label"].tolist()
        assert labels[found.predicted].tolist() == said["prediction"].tolist()
    elif isinstance(found, ValueRows):
        assert found.truth == pytest.approx(rows["value"].astype(float)) and found.mean.shape == (
            N,
        )
    else:
        assert isinstance(found, EffectRows) and found.treatment is not None
        assert found.treatment.tolist() == rows["drug"].astype(int).tolist()


def test_the_stored_evidence_gives_the_figures_that_were_measured(model):
    found = from_json(model.evidence)
    scores = measure.scores(found.rows, found.widths)
    assert len(found.rows) == model.split.counts["test"]
    names = {"classification": ("accuracy", "nll"), "regression": ("rmse", "crps")}
    for name in names.get(model.task, ()):
        assert scores[name] == pytest.approx(model.measured[name], rel=1e-5)
    if model.task == "effect":
        assert scores["outcome_rmse"] == pytest.approx(model.measured["rmse_of_outcomes"], rel=1e-5)
    assert found.cells == {} and HOSTILE in [driver.column for driver in found.drivers]
    assert list(found.rivals) == ([] if model.task == "effect" else ["a random forest"])


def test_intervals_of_a_report_are_those_of_predict(models):
    model = models["regression"]
    found = from_json(model.evidence)
    lower = model.predict(table(), alpha=0.1)["lower"]
    rows = answered(model, table())
    assert isinstance(rows, ValueRows)
    width = found.widths[measure.LEVELS.tolist().index(0.9)]
    assert lower.to_numpy(float) == pytest.approx(rows.mean - width * rows.std)


def test_cells_beyond_are_foreign_in_the_format_of_the_column(model):
    cells = {column.name: beyond(column) for column in model.encoder.columns_}
    assert all("," in cell for cell in cells["x"]) and cells[HOSTILE] == [NEVER]
    assert all(re.fullmatch(r"\d\d\.\d\d\.\d{4}", cell) for cell in cells["day"])
    for column in model.encoder.columns_:
        if column.kind in ("numeric", "date"):
            assert not column.strange(pd.Series(cells[column.name])).any()
    low, high = model.encoder.transform(table().assign(x=cells["x"] * (N // 2)))[:2, 0]
    inside = model.encoder.transform(table())[:, 0]
    assert low < inside.min() and high > inside.max()


def test_of_its_own_table_the_test_rows_are_measured_and_of_another_all(model):
    own, where, tested = unseen(model, table(), "own.csv")
    assert (
        tested and len(own) == model.split.counts["test"] and where.endswith("test rows of own.csv")
    )
    other, where, tested = unseen(model, table().iloc[:50], "new.csv")
    assert not tested and len(other) == 50 and where == "50 rows of new.csv"
    bare, *_ = unseen(model, table().drop(columns=[model.target.name]), "bare.csv")
    assert len(bare) == N
    without = evidence(model, bare.iloc[:40], "here")
    assert measure.losses(without.rows) is None


def test_facts_and_card_speak_of_the_model(model):
    facts, text = about(model), card(model)
    assert facts.target == model.target.name and facts.parts["test"] == model.split.counts["test"]
    assert "should have been deferred" in text and "<script>" not in text.replace(
        f"`{HOSTILE}`", ""
    )
    assert f"{model.split.counts['test']} test" in text


# The command


@pytest.fixture(scope="module")
def folder(models, tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    models["classification"].save(home / "model")
    table().to_csv(home / "table.csv", index=False, sep=";")
    return home


def run(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_a_page_from_the_folder_and_from_a_table(folder):
    assert run(folder / "model", "-o", folder / "a.html").exit_code == 0
    done = run(folder / "model", folder / "table.csv", "-o", folder / "new" / "b.html")
    assert done.exit_code == 0 and "b.html" in done.output
    stored, measured = ((folder / name).read_text() for name in ("a.html", "new/b.html"))
    for page in (stored, measured):
        assert "<script>alert" not in page and "&lt;script&gt;alert" in page
        assert "a random forest" in page
    assert "test rows of table.csv" in measured
    accuracy = (
        re.findall(r"it says ([\d.]+)\s%", stored),
        re.findall(r"it says ([\d.]+)\s%", measured),
    )
    assert accuracy[0] and accuracy[0] == accuracy[1]  # the same rows
    assert len(read(folder / "table.csv")) == N


def test_a_model_without_evidence_and_one_with_another_s_are_refused_in_words(folder, models):
    model = TableModel.load(folder / "model")
    model.evidence = {}
    model.save(folder / "bare")
    done = run(folder / "bare", "-o", folder / "c.html")
    assert done.exit_code == 1 and "fitted without test rows" in done.output
    model.evidence = {**models["classification"].evidence, "rows": {"task": "classification"}}
    model.save(folder / "odd")
    done = run(folder / "odd", "-o", folder / "c.html")
    assert done.exit_code == 1 and "no evidence that due stored" in done.output
    assert not (folder / "c.html").exists()
    assert json.dumps(model.evidence)


def test_a_table_without_a_column_and_a_folder_that_is_not_there(folder):
    table().drop(columns="x").to_csv(folder / "less.csv", index=False)
    done = run(folder / "model", folder / "less.csv", "-o", folder / "c.html")
    assert done.exit_code == 1 and "no column 'x'" in done.output
    done = run(folder / "modle")
    assert done.exit_code == 1 and "did you mean 'model'" in done.output
