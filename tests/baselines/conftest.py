import numpy as np
import pytest

from due.rows.study import Study


def make_study(n=300, seed=0):
    """y = x₀ + t (2 + 2 x₁) + 0.1 ε; the third column is 0 or 1 and means nothing."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=(n, 2)), rng.integers(2, size=n)])
    t = rng.integers(2, size=n).astype(float)
    y = X[:, 0] + t * (2 + 2 * X[:, 1]) + 0.1 * rng.normal(size=n)
    return Study(X, t, y), 2 + 2 * X[:, 1]


@pytest.fixture(scope="session")
def study():
    return make_study()[0]


@pytest.fixture(scope="session")
def fresh():
    """People to predict, and their effects."""
    other, tau = make_study(200, seed=1)
    return other.X, tau


@pytest.fixture(scope="session")
def rmse():
    return lambda estimate, truth: float(np.sqrt(np.mean((estimate - truth) ** 2)))
