import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax
from sklearn.utils.estimator_checks import parametrize_with_checks

from due.baselines import SoftmaxClassifier
from due.data.toy import two_moons
from due.lipschitz import singular_value
from due.methods.softmax import SoftmaxNetwork
from due.networks import FCResNet
from due.training import Recipe


def small(shape):
    return FCResNet(shape[0], 16, 1)


@parametrize_with_checks([SoftmaxClassifier(epochs=15, random_state=0)])
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


def test_the_loss_is_the_weighted_cross_entropy():
    model = SoftmaxNetwork(torch.nn.Identity(), 3, 2)
    x, y = torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])
    weights = torch.rand(5)
    log_p = log_softmax(model.output(x).detach().numpy(), axis=1)[np.arange(5), y]
    assert_allclose(model(x, y).item(), -log_p.mean(), rtol=1e-5)
    assert_allclose(model(x, y, weights).item(), -(weights.numpy() * log_p).mean(), rtol=1e-5)


def test_it_learns_the_moons_and_is_certain_far_from_them():
    X, y = two_moons(500)
    model = SoftmaxClassifier(epochs=40, random_state=0).fit(X, y)
    fresh = two_moons(500, seed=1)
    assert model.score(*fresh) > 0.98
    assert model.uncertainty([[0.0, 50.0]])[0] < 0.01
    assert_allclose(model.predict_proba(X).sum(1), 1)


def test_c_bounds_the_features_but_not_the_output():
    X, y = two_moons(100)
    model = SoftmaxClassifier(small, c=0.5, epochs=20, lr=1e-1, random_state=0).fit(X, y)
    assert singular_value(model.predictor_.model.f.first) <= 0.5 * 1.001
    assert singular_value(model.model_.output) > 0.5


def test_a_seed_fixes_the_fit():
    X, y = two_moons(100)
    a, b = (SoftmaxClassifier(small, epochs=3, random_state=7).fit(X, y) for _ in range(2))
    assert_array_equal(a.predict_proba(X), b.predict_proba(X))


def test_one_class_is_refused_with_its_name():
    with pytest.raises(ValueError, match="one class only, 'cat'"):
        SoftmaxClassifier().fit(np.eye(3), ["cat"] * 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": -1.0}, "lr=-1.0 is not"),
        ({"epochs": 0}, "epochs=0 is not"),
        ({"recipe": Recipe(weight_decay=-1.0)}, "weight_decay=-1.0 is not"),
        ({"c": 0}, "c=0 is not"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        SoftmaxClassifier(**arguments).fit(*two_moons(20))


def test_inputs_can_be_taken_as_they_are():
    X, y = two_moons(50)
    model = SoftmaxClassifier(small, epochs=1, scale_inputs=False, random_state=0).fit(X, y)
    assert_array_equal(model.scale_(X), X)


def test_training_goes_on_where_it_was_with_the_same_classes():
    X, y = two_moons(100)
    model = SoftmaxClassifier(small, epochs=5, warm_start=True, random_state=0).fit(X, y)
    first = model.history_["loss"][0]
    assert model.fit(X, y).history_["loss"][0] < first
    with pytest.raises(ValueError, match="warm_start goes on with the same ones"):
        model.fit(X, y + 1)
