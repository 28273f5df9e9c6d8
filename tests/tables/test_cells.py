"""Cells as numbers, texts and dates."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from due.tables.cells import (
    CONTINENTAL,
    ENGLISH,
    date_format,
    dates,
    holds_lists,
    number_format,
    numbers,
    texts,
)

values = st.floats(-1e9, 1e9, allow_nan=False).map(lambda v: round(v, 4))


def column(*cells):
    return pd.Series(list(cells), dtype=object)


@given(st.lists(values, min_size=1, max_size=20))
def test_numbers_written_in_english_and_on_the_continent_are_read_back(given_values):
    english = [f"{v:,.4f}" for v in given_values]
    swap = str.maketrans(",.", ".,")
    for cells, style in ((english, ENGLISH), ([t.translate(swap) for t in english], CONTINENTAL)):
        assert number_format(column(*cells)) == style
        np.testing.assert_allclose(numbers(column(*cells), style), given_values, rtol=1e-12)


@pytest.mark.parametrize(
    ("cell", "value"),
    [("1,234,567", 1234567), ("1 234.5", 1234.5), ("1'000", 1000), ("−3", -3), ("12 %", 12),
     ("$1,000", 1000), ("1e3", 1000), (" 7 ", 7), (".5", 0.5)],
)  # fmt: skip
def test_usual_ways_to_write_a_number(cell, value):
    assert numbers(column(cell))[0] == value


@pytest.mark.parametrize("cell", ["abc", "1,2,3", "12,34", "", "NA", "inf", "1.2.3", "0x10", None])
def test_what_is_no_number_is_missing(cell):
    assert np.isnan(numbers(column(cell, "1")))[0]


def test_1_234_is_a_thousand_or_a_decimal_by_what_is_likely():
    cells = column("1,234", "2,345")
    assert numbers(cells, number_format(cells)).tolist() == [1234, 2345]
    assert numbers(cells, number_format(cells, CONTINENTAL)).tolist() == [1.234, 2.345]
    assert number_format(column("1,234", "0,5")) == CONTINENTAL  # no thousand has one digit


def test_missing_cells_have_many_names():
    assert texts(column("a ", "", "N/A", None, np.nan, "?", 3.0)).tolist() == [
        "a", None, None, None, None, None, "3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "style"),
    [("2024-02-29", "ISO8601"), ("29.02.2024", "%d.%m.%Y"), ("2024-02-29T12:30:00Z", "ISO8601"),
     ("29/02/2024", "%d/%m/%Y"), ("02/29/2024", "%m/%d/%Y")],
)  # fmt: skip
def test_dates_are_recognised(cell, style):
    found = date_format(column(cell, cell))
    assert found == style
    assert dates(column(cell), style).dt.strftime("%Y-%m-%d").tolist() == ["2024-02-29"]


def test_words_and_numbers_are_no_dates():
    assert date_format(column("a", "b")) is None
    assert date_format(column("Main Street 5 12", "Elm 3")) is None


def test_lists_are_recognised_as_values_and_as_texts():
    assert holds_lists(column([1, 2], [3])) and holds_lists(column("[1, 2]", "[]"))
    assert not holds_lists(column("a", "(b)"))
