import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.distributions import Bernoulli, Normal, kl_divergence

from due.methods.cevae import ArmOutput, CEVAENetwork, Gauss, Latent, divergence
from due.rows.source import Table

T = torch.tensor([0.0, 1, 1, 0, 0, 1, 0])


def people(columns):
    """Covariates, of which "n" are normal and "b" are 1 or 2, then t; and outcomes."""
    torch.manual_seed(0)
    two = torch.tensor([1.0, 2, 2, 1, 1, 2, 1])
    x = torch.stack([torch.randn(7) if kind == "n" else two.roll(i) for i, kind in columns], 1)
    return torch.cat([x, T[:, None]], 1), torch.randn(7, 1)


def started(columns="nnb", dropout=0.1):
    xt, y = people(list(enumerate(columns)))
    model = CEVAENetwork(len(columns), 8, 4, dropout, beta=0.3).eval()
    model.start(Table(xt, y), 0)
    return model, xt, y


def test_divergence_is_that_of_torch():
    torch.manual_seed(0)
    mean, sigma = torch.randn(5, 3), torch.rand(5, 3) + 0.1
    want = kl_divergence(Normal(mean, sigma), Normal(0, 1)).sum(-1)
    assert_allclose(divergence(Gauss(mean, sigma)), want, rtol=1e-4)


@pytest.mark.parametrize("columns", ["nnb", "nn", "bb"])  # also of one kind only
@pytest.mark.parametrize("weighted", [False, True])
@torch.no_grad()
def test_loss_is_the_sum_of_its_terms(columns, weighted):
    model, xt, y = started(columns)
    x, binary = xt[:, :-1], torch.tensor([kind == "b" for kind in columns])
    assert model.two_valued.tolist() == binary.tolist()
    w = torch.arange(7.0) if weighted else torch.ones(7)
    torch.manual_seed(1)
    loss = model(xt, y, w if weighted else None).item()
    torch.manual_seed(1)
    q = model.encode(x, T, y[:, 0])
    log_p = -0.3 * kl_divergence(Normal(*q), Normal(0, 1)).sum(-1)
    z = q.mean + q.sigma * torch.randn(7, 4)
    h = model.decoder(z)
    log_p += Normal(*model.x_normal(h)).log_prob(x)[:, ~binary].sum(-1)
    log_p += Bernoulli(logits=model.x_logit(h)[:, binary]).log_prob(x[:, binary] - 1).sum(-1)
    log_p += Bernoulli(logits=model.t_logit(z)[:, 0]).log_prob(T)
    log_p += Normal(*model.outcome(z, T)).log_prob(y)[:, 0]
    log_p += Bernoulli(logits=model.q_t_logit(x)[:, 0]).log_prob(T)
    log_p += Normal(*model.q_y(model.q_y_shared(x), T)).log_prob(y)[:, 0]
    assert_allclose(loss, -(w * log_p).mean(), rtol=1e-5)


@torch.no_grad()
def test_outcomes_are_means_at_the_mean_of_z_over_treatments():
    model, xt, y = started()
    x = xt[:, :-1]
    p = torch.sigmoid(model.q_t_logit(x))
    arms = [torch.full((7,), float(arm)) for arm in (0, 1)]
    means = [model.q_y(model.q_y_shared(x), t).mean[:, 0] for t in arms]
    z0, z1 = (model.encode(x, t, mean).mean for t, mean in zip(arms, means, strict=True))
    z = (1 - p) * z0 + p * z1
    want = torch.cat([model.outcome(z, t).mean for t in arms], 1)
    assert_allclose(model.outcomes(x), want, rtol=1e-5)
    received = torch.where(T == 1, want[:, 1], want[:, 0])
    assert_allclose(model.predict(xt), received, rtol=1e-5)
    assert_allclose(model.losses(xt, y), (received - y[:, 0]) ** 2, rtol=1e-4)


@torch.no_grad()
def test_each_row_is_answered_by_its_own_arm():
    torch.manual_seed(0)
    output, h = ArmOutput(4, 8, 2, 0.0, 0.0).eval(), torch.randn(7, 4)
    for got, *arms in zip(output(h, T), *(arm(h) for arm in output.arms), strict=True):
        assert_allclose(got, torch.stack([arms[int(t)][n] for n, t in enumerate(T)]))


def test_draws_its_latent_from_the_mixture_over_treatments():
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


def test_a_constant_column_has_not_two_values():
    xt, y = people(list(enumerate("nb")))
    xt[:, 1] = 3.0
    model = CEVAENetwork(2, 8, 4, 0.1, beta=1.0)
    model.start(Table(xt, y), 0)
    assert model.two_valued.tolist() == [False, False]
    assert np.isfinite(model(xt, y).item())
