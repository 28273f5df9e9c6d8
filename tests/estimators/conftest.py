import jaxtyping
import numpy as np
import pytest
from sklearn.datasets import make_moons

from due.estimators import DUEClassifier, DUERegressor


@pytest.fixture
def as_users_run(monkeypatch):
    """Without the annotation checks of our tests: what a user gets who passes the wrong thing."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="session")
def moons():
    return make_moons(200, noise=0.1, random_state=0)


@pytest.fixture(scope="session")
def classifier(moons):
    return DUEClassifier(epochs=40, n_inducing=20, random_state=0).fit(*moons)


@pytest.fixture(scope="session")
def waves():
    """y = (sin x, cos x) + N(0, .2²) on x in [−3, 3]."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-3, 3, (300, 1))
    noise = 0.2 * generator.standard_normal((300, 2))
    return x, np.column_stack([np.sin(x), np.cos(x)]) + noise


@pytest.fixture(scope="session")
def regressor(waves):
    X, Y = waves
    return DUERegressor(epochs=60, n_inducing=20, random_state=0).fit(X, Y[:, 0])


@pytest.fixture(scope="session")
def two_outputs(waves):
    return DUERegressor(epochs=60, n_inducing=20, random_state=0).fit(*waves)
