"""A table, fitted, saved and loaded."""

import numpy as np
import pandas as pd
import pytest

from due import DUEClassifier
from due.tables import TableModel, fit


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    n = 300
    x, city = rng.normal(size=n), rng.choice(["Oslo", "Rome", "Lima"], n)
    age = pd.Series(rng.integers(18, 80, n).astype(float)).mask(rng.random(n) < 0.1)
    day = pd.Series(pd.date_range("2024-01-01", periods=n).strftime("%Y-%m-%d"))
    y = np.where(x + (city == "Rome") > 0, "yes", "no")
    return pd.DataFrame({"id": range(n), "x": x, "city": city, "age": age, "day": day, "y": y})


@pytest.fixture(scope="module")
def model(frame):
    return fit(frame, target="y", estimator=DUEClassifier(epochs=5, random_state=0))


def test_the_kinds_of_columns_are_found(model):
    kinds = {"x": "numeric", "city": "category", "age": "numeric", "day": "date"}
    assert model.schema.kinds == kinds
    assert [out.name for out in model.schema.left_out] == ["id"]
    assert model.task == "classification"
    assert "age is missing" in model.encoder.get_feature_names_out()


def test_a_saved_model_predicts_the_same_bits(model, frame, tmp_path):
    model.save(tmp_path)
    loaded = TableModel.load(tmp_path)
    pd.testing.assert_frame_equal(loaded.predict(frame), model.predict(frame), check_exact=True)
    assert loaded.measured == model.measured
    assert (loaded.split.parts(frame) == model.split.parts(frame)).all()
