import numpy as np
import pytest

from due.data.toy import X_RANGE, Y_RANGE, grid_points, two_moons
from due.paper import fig3

SMOKE = fig3.PRESETS["smoke"]


@pytest.fixture(scope="module")
def smoke():
    return fig3.run(SMOKE, seed=0)


def test_the_numbers_are_those_of_the_maps(smoke):
    grid = grid_points(SMOKE.grid)
    X, _ = two_moons(SMOKE.n, noise=SMOKE.noise, seed=0)
    distance = np.linalg.norm(grid[:, None] - X, axis=-1).min(1)
    assert list(smoke.numbers) == list(fig3.ROWS)
    for row, models in smoke.numbers.items():
        assert list(models) == list(fig3.MODELS)
        for name, numbers in models.items():
            entropy = np.array(smoke.picture["maps"][row][name])  # in units of ln 2, 3 digits
            far, certain = distance > SMOKE.far, entropy < 0.5
            assert numbers["far_entropy"] == pytest.approx(entropy[far].mean(), abs=1e-3)
            off_data = certain[distance > SMOKE.off].mean()
            assert numbers["certain_off_data"] == pytest.approx(off_data, abs=0.01)
            assert numbers["epochs"] == 3


def test_entropy_and_accuracy_are_those_of_the_probabilities():
    certain, even = np.array([1.0, 0.0]), np.array([0.5, 0.5])
    model = fig3.Fitted(lambda X: np.where(X[:, :1] > 0, certain, even), 1)
    X = np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert fig3.entropy_in_ln2(model, X) == pytest.approx([0, 1])


def test_the_estimators_learn_the_moons_and_the_settings_are_the_papers(smoke):
    X, y = two_moons(300, seed=1)
    assert SMOKE.estimator is not None
    arguments = {**SMOKE.estimator, "epochs": 40}
    models = fig3.fit_estimators(arguments, X, y, seed=0)
    for model in models.values():
        assert (model.predict(X).argmax(1) == y).mean() > 0.8
    assert fig3.PRESETS["paper"].printed == fig3.Printed(M=4, J=128, depth=4, c=0.95, lr=0.01)


def test_the_picture_shows_the_whole_grid(smoke):
    axes = fig3.draw(SMOKE, [smoke]).axes
    assert axes[0].get_xlim() == X_RANGE and axes[0].get_ylim() == Y_RANGE
    assert [ax.get_title() for ax in axes[:3]] == list(fig3.MODELS.values())
