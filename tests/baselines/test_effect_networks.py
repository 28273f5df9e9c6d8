from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from due.baselines import CEVAE, DKLITE, TARNet
from due.lipschitz import singular_value
from due.training import Recipe

SMALL = {"width": 32, "random_state": 0}
LEARNERS = [
    TARNet(epochs=60, lr=1e-2, dropout=0.1, **SMALL),
    CEVAE(epochs=200, lr=5e-3, dropout=0.0, latent=4, **SMALL),
    DKLITE(epochs=200, lr=1e-2, **SMALL),
]


def name(estimator):
    return type(estimator).__name__


@pytest.mark.parametrize("model", LEARNERS, ids=name)
def test_it_learns_effects_that_differ_between_people(model, study, fresh, rmse):
    X, tau = fresh
    model.fit(study.y, study.t, study.X)
    assert rmse(model.effect(X), tau) < 0.3 * tau.std()
    assert len(model.history_["validation"]) == len(model.history_["loss"])
    assert_allclose(model.ate(X), tau.mean(), atol=0.3)


@pytest.mark.parametrize("kind", [TARNet, CEVAE, DKLITE])
def test_a_seed_fixes_the_fit_and_nothing_else_moves(kind, study):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    a, b = (kind(epochs=2, **SMALL).fit(study.y, study.t, study.X) for _ in range(2))
    assert_array_equal(a.effect(study.X), b.effect(study.X))
    assert_array_equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", [TARNet, CEVAE, DKLITE])
def test_units_of_y_do_not_matter(kind, study):
    a = kind(epochs=3, **SMALL).fit(study.y, study.t, study.X)
    b = kind(epochs=3, **SMALL).fit(100 + 1000 * study.y, study.t, study.X)
    assert_allclose(b.effect(study.X), 1000 * a.effect(study.X), rtol=1e-3, atol=1)


@pytest.mark.parametrize("kind", [TARNet, CEVAE])
def test_validation_people_choose_the_epoch_and_teach_nothing(kind, study):
    """Shuffled validation outcomes have the same moments: until an epoch is chosen all is equal."""
    half = 150
    known = study.y[:half], study.t[:half], study.X[:half]
    y, t, X = study.y[half:], study.t[half:], study.X[half:]
    shuffled = np.random.default_rng(0).permutation(y)
    a, b = (
        kind(epochs=4, recipe=Recipe(patience=4), **SMALL).fit(*known, validation=(outcomes, t, X))
        for outcomes in (y, shuffled)
    )
    assert_allclose(a.history_["loss"], b.history_["loss"], rtol=1e-5)
    assert a.history_["validation"] != b.history_["validation"]
    assert a.history_["rows"] == half


def test_without_validation_all_epochs_are_taken_on_all_people(study):
    model = TARNet(epochs=3, validation_fraction=0.0, **SMALL).fit(study.y, study.t, study.X)
    assert model.history_["rows"] == 300
    assert model.history_["validation"] == []
    assert len(model.history_["loss"]) == 3


def test_columns_of_two_values_stay_as_they_are(study):
    model = TARNet(epochs=1, **SMALL).fit(study.y, study.t, study.X)
    assert_allclose(model.scale_(study.X)[:, 2], study.X[:, 2])
    assert_allclose(model.scale_(study.X)[:, :2].std(0), 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"lr": -1.0}, "lr=-1"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"recipe": Recipe(weight_decay=-1.0)}, "weight_decay=-1"),
        ({"components": 0}, "components=0"),
        ({"width": 1}, "width=1 is not a whole number of at least 2"),
        ({"width": "wide"}, "width='wide'"),
    ],
)
def test_bad_arguments_are_named(arguments, message, study):
    with pytest.raises(ValueError, match=message):
        TARNet(**arguments).fit(study.y, study.t, study.X)


# TARNet


def test_tarnet_bounds_all_layers_but_the_densities(study):
    model = TARNet(epochs=20, lr=3e-2, c=0.5, **SMALL).fit(study.y, study.t, study.X)
    frozen = model.predictor_.model
    inside = [m for part in (frozen.f, frozen.heads) for m in part.modules() if hasattr(m, "bias")]
    assert len(inside) == 9
    assert max(singular_value(layer) for layer in inside) < 0.5 * 1.001
    assert max(singular_value(output.linear) for output in frozen.outputs) > 0.5


def test_tarnet_starts_from_the_recipe_of_the_protocol():
    model = TARNet()
    network, recipe = model._build(torch.Size([26]), 1, 500), model._default_recipe(500)
    assert [layer.p for layer in network.modules() if isinstance(layer, torch.nn.Dropout)] == (
        [0.2] * 2 + [0.2] * 8
    )
    assert (recipe.lr, recipe.batch_size, recipe.epochs, recipe.patience) == (1e-3, 100, 500, 20)
    assert recipe.weight_decay == 0.5 * 0.8 / 500
    output: Any = network.outputs[0]
    assert output.linear.weight.shape == (6, 100)


# CEVAE


def test_cevae_judges_an_epoch_by_the_outcomes_of_held_out_people(study):
    half = len(study.y) // 2
    held = study.y[half:], study.t[half:], study.X[half:]
    model = CEVAE(epochs=3, latent=2, **SMALL)
    model.fit(study.y[:half], study.t[:half], study.X[:half], validation=held)
    outcomes = model.potential_outcomes(study.X[half:])
    error = np.where(study.t[half:] == 1, outcomes[:, 1], outcomes[:, 0]) - study.y[half:]
    best = min(model.history_["validation"])
    assert_allclose(np.mean(error**2) / model.y_scale_.std[0] ** 2, best, rtol=1e-4)


@pytest.mark.parametrize("columns", [[0, 1], [2]], ids=["normal", "two-valued"])
def test_cevae_learns_from_columns_of_one_kind_only(columns, study, fresh):
    X, tau = study.X[:, columns], 2 + 2 * study.X[:, 1]
    model = CEVAE(epochs=100, lr=5e-3, dropout=0.0, latent=4, **SMALL).fit(study.y, study.t, X)
    assert_allclose(model.ate(X), tau.mean(), atol=0.4)
    assert model.model_.two_valued.tolist() == [column == 2 for column in columns]


# DKLITE


def test_dklite_variances_add_up_and_the_average_is_that_of_the_weights(study, fresh):
    X, _ = fresh
    model = DKLITE(epochs=50, width=8, random_state=0).fit(study.y, study.t, study.X)
    with torch.no_grad():
        code = model.predictor_.model.encoder
        z = code(torch.as_tensor(model.scale_(X))).numpy()
        Z = code(torch.as_tensor(model.scale_(study.X).astype(np.float32)).double()).numpy()
    K0, K1 = (Z[study.t == arm].T @ Z[study.t == arm] / 1000 + np.eye(8) for arm in (0, 1))
    inverse = np.linalg.inv(K0) + np.linalg.inv(K1)
    cov = z @ inverse @ z.T / 1000 * model.y_scale_.std[0] ** 2
    assert_allclose(model.uncertainty(X), np.diag(cov), rtol=1e-4)
    low, high = model.ate_interval(X)
    assert_allclose((high - low) / 2, 1.959964 * np.sqrt(cov.mean()), rtol=1e-4)
    assert_allclose((high + low) / 2, model.ate(X))
    assert_allclose(model.effect_inference(X).point_estimate, model.effect(X))
