import numpy as np
import pytest

from due import DUERegressor
from due.rows.categories import codes, warn_of_codes


def draw(seed, n=400, k=12):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.integers(k, size=n), rng.normal(size=n), rng.integers(3, size=n)])
    return rng, X.astype(float)


def test_codes_are_told_from_amounts():
    for seed in range(5):
        rng, X = draw(seed)
        effect, noise = rng.normal(size=12), 0.5 * rng.normal(size=len(X))
        assert codes(X, (effect[X[:, 0].astype(int)] + noise)[:, None]) == [0]
        smooth = 0.3 * X[:, 0] + np.sin(X[:, 0] / 6) + X[:, 1] + noise
        assert codes(X, smooth[:, None]) == []


def test_false_alarms_are_rare():
    found = 0
    for seed in range(300):
        rng, X = draw(seed)
        found += len(codes(X, rng.normal(size=(len(X), 2))))
    assert found <= 1


def test_fractions_and_constant_targets_are_no_codes():
    rng, X = draw(0)
    effect = rng.normal(size=12)[X[:, 0].astype(int)]
    assert codes(X / 2, effect[:, None]) == []
    assert codes(X, np.ones((len(X), 1))) == []


def test_fit_says_which_column_it_is():
    pd = pytest.importorskip("pandas")
    rng, X = draw(0)
    y = 3 * rng.normal(size=12)[X[:, 0].astype(int)] + 0.1 * rng.normal(size=len(X))
    frame = pd.DataFrame(X, columns=["town", "size", "kind"])
    with pytest.warns(UserWarning, match=r"columns \['town'\] hold integers that act on y"):
        DUERegressor(epochs=1, random_state=0).fit(frame, y)
    with pytest.warns(UserWarning, match=r"columns \[0\] hold"):
        warn_of_codes(object(), X, y[:, None])
