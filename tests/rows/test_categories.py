import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from due import DUECATE, DUEClassifier, DUERegressor
from due.data import ihdp
from due.data.download import find
from due.rows.categories import codes, indicators, warn_of_codes


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


def test_classifiers_and_effects_say_it_too():
    rng, X = draw(0)
    effect = 3 * rng.normal(size=12)[X[:, 0].astype(int)]
    y = effect + 0.1 * rng.normal(size=len(X))
    with pytest.warns(UserWarning, match=r"columns \[0\] hold integers"):
        DUEClassifier(epochs=1, random_state=0).fit(X, y > 0)
    with pytest.warns(UserWarning, match=r"columns \[0\] hold integers"):
        DUECATE(epochs=1, inducing="free", random_state=0).fit(y, X[:, 2] > 1, X=X)


def test_classes_raise_few_false_alarms():
    found = 0
    for seed in range(200):
        rng, X = draw(seed)
        chance = rng.choice([0.5, 0.1, 0.02])
        smooth = 1 / (1 + np.exp(2 - 0.4 * X[:, 0] - X[:, 1]))
        label = rng.random(len(X)) < (chance if seed % 2 else smooth)
        found += len(codes(X, indicators(label.astype(int)).astype(float)))
    assert found <= 1


@pytest.mark.parametrize("load", [load_breast_cancer, load_digits, load_wine])
def test_known_tables_and_pixels_raise_no_alarm(load, recwarn):
    X, y = load(return_X_y=True)
    warn_of_codes(object(), X, indicators(y))
    assert not recwarn.list


@pytest.mark.skipif(find("ihdp/ihdp.RData") is None, reason="needs ihdp/ihdp.RData under DUE_DATA")
def test_the_people_of_ihdp_raise_no_alarm():
    for seed in range(10):
        people = ihdp.load(seed).train
        assert codes(people.X, people.y[:, None]) == []
