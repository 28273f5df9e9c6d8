import pytest

from . import frames


@pytest.fixture(scope="session")
def people():
    return frames.people()


@pytest.fixture(scope="session")
def classifier():
    return frames.classifier()


@pytest.fixture(scope="session")
def regressor():
    return frames.regressor()


@pytest.fixture(scope="session")
def effects():
    return frames.effects()
