import numpy as np
import pytest
from numpy.testing import assert_array_equal

from due.data import uci
from due.data.download import find


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A set of six rows with two splits in the place of yacht."""
    (tmp_path / "uci").mkdir()
    x = np.arange(12.0).reshape(6, 2)
    np.savez(tmp_path / "uci" / "yacht.npz", x=x, y=x[:, 0], test_idx=[[5, 0], [1, 2]])
    monkeypatch.setenv("DUE_DATA", str(tmp_path))
    return x


def test_a_split_is_its_test_rows_and_the_rest(tiny):
    data = uci.load("yacht", 0)
    assert_array_equal(data.X_test, tiny[[5, 0]])
    assert_array_equal(data.X_train, tiny[[1, 2, 3, 4]])
    assert_array_equal(data.y_train, data.X_train[:, 0])
    assert_array_equal(uci.load("yacht", 1).y_test, tiny[[1, 2], 0])


@pytest.mark.parametrize("split", [-1, 2])
def test_an_unknown_split_names_the_range(tiny, split):
    with pytest.raises(ValueError, match=f"yacht has splits 0 to 1, got {split}"):
        uci.load("yacht", split)


def test_an_unknown_name_lists_the_names():
    with pytest.raises(ValueError, match=r"unknown UCI set 'boston'.*bostonHousing, .*, yacht"):
        uci.load("boston", 0)


def test_without_due_data_the_remedy_is_named(monkeypatch):
    monkeypatch.delenv("DUE_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"uci/yacht.npz .* set the .* variable DUE_DATA"):
        uci.load("yacht", 0)


SHAPES = {
    "bostonHousing": (506, 13),
    "concrete": (1030, 8),
    "energy": (768, 8),
    "power-plant": (9568, 4),
    "wine-quality-red": (1599, 11),
    "yacht": (308, 6),
}


@pytest.mark.parametrize("name", uci.NAMES)
def test_published_sets_have_their_size_and_twenty_splits(name):
    if find(f"uci/{name}.npz") is None:
        pytest.skip(f"needs uci/{name}.npz under DUE_DATA")
    N, D = SHAPES[name]
    for split in (0, 19):
        data = uci.load(name, split)
        assert data.X_train.shape[1] == data.X_test.shape[1] == D
        assert len(data.X_train) + len(data.X_test) == N
        assert len(data.y_test) == len(data.X_test) == pytest.approx(N / 10, abs=1)
    with pytest.raises(ValueError, match="splits 0 to 19"):
        uci.load(name, 20)
