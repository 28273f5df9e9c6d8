"""Which rows are trained on and which are not."""

import numpy as np
import pandas as pd
import pytest

from due.tables.split import PARTS, divide

SHARES = {"validation": 0.1, "calibration": 0.2, "test": 0.3}


def test_shares_are_kept_and_by_class(people):
    split = divide(people, SHARES, by="y")
    parts = split.parts(people)
    for label in ("good", "bad"):
        of_label = parts[people["y"] == label]
        for part, share in SHARES.items():
            assert abs((of_label == part).mean() - share) < 1 / len(of_label)
    assert split.counts == {part: int((parts == part).sum()) for part in PARTS}


def test_a_row_keeps_its_part_in_any_order_and_equal_rows_share_one(people):
    split = divide(people, SHARES)
    order = np.random.default_rng(0).permutation(len(people))
    parts = split.parts(people)
    assert (split.parts(people.iloc[order]) == parts[order]).all()
    twice = people.drop(columns="id").assign(x=people["x"].round())
    twice = pd.concat([twice, twice], ignore_index=True)
    again = divide(twice, SHARES).parts(twice)
    assert (again[: len(people)] == again[len(people) :]).all()


def test_groups_stay_together_and_time_goes_forward(people):
    frame = people.assign(who=people["id"] // 6)
    parts = divide(frame, SHARES, group="who").parts(frame)
    assert pd.Series(parts).groupby(frame["who"]).nunique().max() == 1
    assert set(parts) == set(PARTS)
    parts = divide(people, SHARES, time="day").parts(people)
    order = [PARTS.index(part) for part in parts]  # days rise with the rows
    assert order == sorted(order) and set(parts) == set(PARTS)
    numbered = divide(people, SHARES, time="id").parts(people)
    assert (numbered == parts).all()


def test_seeds_differ_and_bad_splits_are_refused(people):
    one, two = (divide(people, SHARES, seed=seed).parts(people) for seed in (0, 1))
    assert 0.3 < (one == two).mean() < 0.6
    with pytest.raises(ValueError, match="cells that are no time"):
        divide(people.assign(day="soon"), SHARES, time="day")
    with pytest.raises(ValueError, match="no rows are left to train on"):
        divide(people.assign(one="a"), {"test": 0.9}, group="one")
