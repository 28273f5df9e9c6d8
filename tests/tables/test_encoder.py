"""Columns of any kind as numbers."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from due.tables import TableEncoder


def features(encoder, frame):
    found = encoder.transform(frame)
    return pd.DataFrame(found, columns=encoder.get_feature_names_out())


def test_kinds_and_what_is_left_out(people):
    frame = people.assign(same=1, empty=None, lists=[[1, 2]] * len(people), name="p")
    frame["name"] = [f"person {i}" for i in range(len(people))]
    encoder = TableEncoder().fit(frame)
    kinds = {column.name: column.kind for column in encoder.columns_}
    assert kinds == {"x": "numeric", "city": "category", "age": "numeric", "member": "boolean",
                     "day": "date", "y": "category", "z": "numeric"}  # fmt: skip
    reasons = {out.name: out.reason for out in encoder.left_out_}
    assert set(reasons) == {"id", "same", "empty", "lists", "name"}
    assert "constant" in reasons["same"] and "lists" in reasons["lists"]
    assert "identifier" in reasons["id"]
    kept = TableEncoder(keep=("id",)).fit(frame)
    assert "id" in [column.name for column in kept.columns_]


def test_a_missing_number_is_the_median_and_says_so(people):
    encoder = TableEncoder().fit(people)
    found = features(encoder, people)
    gone = people["age"].isna().to_numpy()
    assert (found["age is missing"] == gone).all()
    assert (found["age"][gone] == people["age"].median()).all()
    np.testing.assert_array_equal(found["age"][~gone], people["age"][~gone])


def test_categories_match_pandas_dummies_and_an_unseen_one_has_its_own_signal(people):
    encoder = TableEncoder().fit(people[["city"]])
    found = features(encoder, people)
    wanted = pd.get_dummies(people["city"])
    for city in wanted:
        np.testing.assert_array_equal(found[f"city = {city}"], wanted[city])
    new = features(encoder, pd.DataFrame({"city": ["Atlantis"]}))
    assert new["city is unknown"].tolist() == [1] and new.to_numpy().sum() == 1


def test_texts_and_typed_cells_mean_the_same(people):
    encoder = TableEncoder().fit(people)
    as_text = people.astype(object).where(people.notna(), "").map(str)
    as_text["age"] = as_text["age"].str.replace(".0", "", regex=False)
    np.testing.assert_array_equal(encoder.transform(as_text), encoder.transform(people))
    dated = people.assign(day=pd.to_datetime(people["day"]))
    np.testing.assert_array_equal(encoder.transform(dated), encoder.transform(people))


def test_a_hundred_thousand_categories_take_few_features_and_little_time():
    rng = np.random.default_rng(0)
    words = [f"word {i}" for i in range(100_000)]
    cells = words + rng.choice(words[:50], 100_000).tolist()
    encoder = TableEncoder().fit(pd.DataFrame({"w": cells, "x": rng.normal(size=len(cells))}))
    assert len(encoder.get_feature_names_out()) < 40
    assert len(json.dumps(encoder.to_json())) < 1e6
    rows = pd.DataFrame({"w": ["word 1", "never", "word 99999"], "x": [0.0, 0, 0]})
    found = features(encoder, rows)
    assert found["w is unknown"].tolist() == [0, 1, 1]  # the rarest are as good as unknown
    assert any("categories" in sentence for sentence in encoder.odd_)


def test_what_was_learned_survives_json(people):
    encoder = TableEncoder().fit(people)
    again = TableEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
    np.testing.assert_array_equal(again.transform(people), encoder.transform(people))
    assert again.to_json() == encoder.to_json()


def test_it_works_in_a_pipeline_and_can_be_cloned(people):
    model = make_pipeline(TableEncoder(), StandardScaler(), LogisticRegression())
    X, y = people.drop(columns=["y", "z"]), people["y"]
    assert clone(model).fit(X, y).score(X, y) > 0.8


def test_mixed_types_are_numbers_if_most_are():
    mostly = pd.DataFrame({"a": [*map(str, np.arange(100) / 7), "oops"], "b": range(101)})
    encoder = TableEncoder(keep=("b",)).fit(mostly)
    assert encoder.columns_[0].kind == "numeric" and "'oops'" in encoder.odd_[0]
    half = pd.DataFrame({"a": ["1", "2", "x", "y"] * 10})
    encoder = TableEncoder().fit(half)
    assert encoder.columns_[0].kind == "category" and "mixes" in encoder.odd_[0]


def test_a_date_that_does_not_parse_is_missing_and_said(people):
    frame = people[["day", "x"]].copy()
    frame.loc[3, "day"] = "yesterday"
    encoder = TableEncoder().fit(frame)
    assert encoder.columns_[0].kind == "date" and "'yesterday'" in encoder.odd_[0]
    assert features(encoder, frame)["day is missing"].sum() == 1


def test_a_missing_or_renamed_column_is_answered_with_the_nearest(people):
    encoder = TableEncoder().fit(people)
    with pytest.raises(ValueError, match="no column 'age'; did you mean 'Age'"):
        encoder.transform(people.rename(columns={"age": "Age"}))
    with pytest.raises(ValueError, match="two columns are named 'x'"):
        TableEncoder().fit(people.rename(columns={"z": "x"}))
    with pytest.raises(ValueError, match="no column of the table can be used"):
        TableEncoder().fit(people[["id"]])
