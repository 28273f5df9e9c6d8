"""Rows and networks that must not spoil the answers about other rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from torch import nn

from due import DUECATE, DUERegressor
from due.networks import FCResNet


@pytest.fixture(scope="module")
def waves():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1]


@pytest.mark.parametrize("far", [1e6, 1e10])
def test_one_far_row_does_not_change_the_joint_answers_of_the_others(waves, far):
    X, y = waves
    model = DUERegressor(epochs=20, random_state=0).fit(X, y)
    more = np.concatenate([X[:15], np.full((1, 2), far)])
    alone, crowd = (model.predict(rows, return_cov=True)[1] for rows in (X[:15], more))
    assert_allclose(crowd[:15, :15], alone, atol=1e-9)
    T = np.arange(120) % 2
    effects = DUECATE(epochs=20, random_state=0).fit(y + T, T, X=X)
    alone, crowd = (effects.predictor_.joint(effects._tensor(r))[1].numpy() for r in (X[:15], more))
    assert_allclose(crowd[:15, :15], alone, atol=1e-9)


class InPlace(nn.Module):
    """Halves its input, in place or not."""

    def __init__(self, D, in_place):
        super().__init__()
        self.f, self.in_place = FCResNet(D, 16, 1), in_place

    def forward(self, x):
        if self.in_place:
            x /= 2
            return self.f(x)
        return self.f(x / 2)


def test_a_network_that_works_in_place_learns_as_one_that_does_not(waves):
    halved, whole = (
        DUERegressor(lambda shape: InPlace(shape[0], way), epochs=30, random_state=0)  # noqa: B023
        .fit(*waves)
        .predict(waves[0])
        for way in (True, False)
    )
    assert_allclose(halved, whole, atol=1e-4)
