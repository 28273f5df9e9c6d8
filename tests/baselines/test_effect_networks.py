import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm
from torch.distributions import Bernoulli, Normal, kl_divergence

from due.baselines import CEVAE, DKLITE, TARNet
from due.baselines.cevae import CEVAENetwork, Gauss, Latent, divergence
from due.baselines.tarnet import TARNetwork
from due.lipschitz import singular_value

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
        kind(epochs=4, patience=4, **SMALL).fit(*known, validation=(outcomes, t, X))
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
        ({"weight_decay": -1.0}, "weight_decay=-1"),
        ({"components": 0}, "components=0"),
        ({"width": 1}, "width=1 is not at least 2"),
        ({"width": "wide"}, "width='wide'"),
    ],
)
def test_bad_arguments_are_named(arguments, message, study):
    with pytest.raises(ValueError, match=message):
        TARNet(**arguments).fit(study.y, study.t, study.X)


# TARNet


@pytest.mark.parametrize("K", [1, 2])
def test_tarnet_loss_is_the_mixture_likelihood_of_each_arm(K):
    torch.manual_seed(0)
    x, y, t = torch.randn(6, 3), torch.randn(6), torch.tensor([0.0, 1, 1, 0, 0, 1])
    model = TARNetwork(x, 8, K, 0.2, 0.95).eval()
    with torch.no_grad():
        parts = [model.outputs[a](model.heads[a](model.f(x))) for a in (0, 1)]
        loss, mean = model(x, t, y).item(), model.predict(x, t)
    want, want_mean = [], []
    for n in range(6):
        log_pi, mu, sigma = (part[n].numpy() for part in parts[int(t[n])])
        want.append(np.log(np.sum(np.exp(log_pi) * norm.pdf(y[n].item(), mu, sigma))))
        want_mean.append(np.sum(np.exp(log_pi) * mu))
    assert_allclose(loss, -np.mean(want), rtol=1e-5)
    assert_allclose(mean, want_mean, rtol=1e-4)


def test_tarnet_bounds_all_layers_but_the_densities(study):
    model = TARNet(epochs=20, lr=3e-2, c=0.5, **SMALL).fit(study.y, study.t, study.X)
    frozen = model.frozen_
    inside = [m for part in (frozen.f, frozen.heads) for m in part.modules() if hasattr(m, "bias")]
    assert len(inside) == 9
    assert max(singular_value(layer) for layer in inside) < 0.5 * 1.001
    assert max(singular_value(output.linear) for output in frozen.outputs) > 0.5


def test_tarnet_starts_from_the_recipe_of_the_protocol():
    model = TARNet()
    network = model._network(torch.randn(5, 25))
    assert [layer.p for layer in network.modules() if isinstance(layer, torch.nn.Dropout)] == (
        [0.2] * 2 + [0.2] * 8
    )
    assert (model.lr, model.batch_size, model.epochs, model.patience) == (1e-3, 100, 500, 20)
    assert network.outputs[0].linear.weight.shape == (6, 100)


# CEVAE


def test_cevae_divergence_is_that_of_torch():
    torch.manual_seed(0)
    mean, sigma = torch.randn(5, 3), torch.rand(5, 3) + 0.1
    want = kl_divergence(Normal(mean, sigma), Normal(0, 1)).sum(-1)
    assert_allclose(divergence(Gauss(mean, sigma)), want, rtol=1e-4)


def test_cevae_loss_is_the_sum_of_its_terms():
    torch.manual_seed(0)
    X = torch.column_stack([torch.randn(7, 2), torch.tensor([1.0, 2, 2, 1, 1, 2, 1])])
    t, y = torch.tensor([0.0, 1, 1, 0, 0, 1, 0]), torch.randn(7)
    model = CEVAENetwork(X, 8, 4, 0.1, beta=0.3).eval()
    assert model.two_valued.tolist() == [False, False, True]
    with torch.no_grad():
        torch.manual_seed(1)
        loss = model(X, t, y).item()
        torch.manual_seed(1)
        q = model.encode(X, t, y)
        log_p = -0.3 * kl_divergence(Normal(*q), Normal(0, 1)).sum(-1)
        z = q.mean + q.sigma * torch.randn(7, 4)
        h = model.decoder(z)
        log_p += Normal(*model.x_normal(h)).log_prob(X)[:, :2].sum(-1)
        log_p += Bernoulli(logits=model.x_logit(h)[:, 2]).log_prob(X[:, 2] - 1)
        log_p += Bernoulli(logits=model.t_logit(z)[:, 0]).log_prob(t)
        log_p += Normal(*model.outcome(z, t)).log_prob(y[:, None])[:, 0]
        helpers = Bernoulli(logits=model.q_t_logit(X)[:, 0]).log_prob(t)
        helpers += Normal(*model.q_y(model.q_y_shared(X), t)).log_prob(y[:, None])[:, 0]
    assert_allclose(loss, -(log_p + helpers).mean(), rtol=1e-5)


def test_cevae_judges_an_epoch_by_the_outcomes_of_held_out_people(study):
    half = len(study.y) // 2
    held = study.y[half:], study.t[half:], study.X[half:]
    model = CEVAE(epochs=3, latent=2, **SMALL)
    model.fit(study.y[:half], study.t[:half], study.X[:half], validation=held)
    outcomes = model.potential_outcomes(study.X[half:])
    error = np.where(study.t[half:] == 1, outcomes[:, 1], outcomes[:, 0]) - study.y[half:]
    best = min(model.history_["validation"])
    assert_allclose(np.mean(error**2) / model.y_scale_.std[0] ** 2, best, rtol=1e-4)


def test_cevae_draws_its_latent_from_the_mixture_over_treatments():
    q0 = Gauss(torch.tensor([[0.0, 5.0]]), torch.tensor([[1.0, 0.1]]))
    q1 = Gauss(torch.tensor([[4.0, 5.0]]), torch.tensor([[2.0, 0.1]]))
    many = [Gauss(*(part.expand(100_000, 2) for part in q)) for q in (q0, q1)]
    p = torch.full((100_000, 1), 0.25)
    latent = Latent()
    assert_allclose(latent.eval()(p, *many)[0], [1.0, 5.0])
    torch.manual_seed(0)
    draws = latent.train()(p, *many)
    assert_allclose(draws.mean(0), [1.0, 5.0], atol=0.03)
    assert_allclose(draws.var(0), [0.75 + 0.25 * 4 + 0.25 * 0.75 * 16, 0.01], rtol=0.03)


def test_cevae_takes_columns_of_one_kind_only(study):
    for X in (study.X[:, :2], study.X[:, 2:]):
        model = CEVAE(epochs=1, latent=2, **SMALL).fit(study.y, study.t, X)
        assert np.isfinite(model.effect(X)).all()
