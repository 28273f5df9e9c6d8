import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from due.methods.dklite import DKLITENetwork, regress
from due.rows.source import Table

T = torch.tensor([0.0, 1, 1, 0, 0, 1, 0, 1, 1])


def oracle(Z, y):
    K = Z.T @ Z / 1000 + np.eye(Z.shape[1])
    return np.linalg.solve(K, Z.T @ (y - y.mean())) / 1000, np.linalg.inv(K) / 1000


def network(dtype=torch.float64):
    torch.manual_seed(0)
    model = DKLITENetwork(3, 4, reg_var=2.0, reg_rec=3.0).to(dtype)
    x, y = torch.randn(9, 3, dtype=dtype), torch.randn(9, 1, dtype=dtype)
    return model, torch.cat([x, T[:, None].to(dtype)], 1), y


def no_training(*args, **recipe):
    raise AssertionError("trained")


def test_posterior_is_the_formula():
    rng = np.random.default_rng(0)
    Z, y, new = 20 * rng.normal(size=(30, 4)), rng.normal(size=30), rng.normal(size=(5, 4))
    w, cov = oracle(Z, y)
    got = regress(torch.as_tensor(Z), torch.as_tensor(y))
    assert_allclose(got.mean(torch.as_tensor(new)), y.mean() + new @ w)
    assert_allclose(got.var(torch.as_tensor(new)), np.einsum("ni,ij,nj->n", new, cov, new))
    b = Z.T @ (y - y.mean())
    assert_allclose(got.fit, b @ (1000 * cov) @ b / 4)  # ‖L⁻¹b‖² = bᵀK⁻¹b


@torch.no_grad()
def test_loss_is_fit_variance_and_reconstruction():
    model, xt, y = network()
    x, outcomes = xt[:, :-1], y[:, 0].numpy()
    z, xhat = model.encoder(x).numpy(), model.decoder(model.encoder(x))
    treated, want = T.numpy() == 1, 3.0 * ((x - xhat) ** 2).sum(1).mean().item()
    for arm in (treated, ~treated):
        _, cov = oracle(z[arm], outcomes[arm])
        b = z[arm].T @ (outcomes[arm] - outcomes[arm].mean())
        want += -b @ (1000 * cov) @ b / 4
        want += 2.0 * np.mean(np.einsum("ni,ij,nj->n", z[~arm], cov, z[~arm]))
    assert_allclose(model(xt, y).item(), want)


def test_weights_are_refused():
    model, xt, y = network()
    with pytest.raises(ValueError, match="takes no weights"):
        model(xt, y, torch.ones(9))


@pytest.mark.parametrize("finished", [False, True])
@torch.no_grad()
def test_regressions_learn_from_training_people_and_in_the_end_from_all(finished):
    model, xt, y = network(torch.float32)
    known, held_out = Table(xt[:6], y[:6]), Table(xt[6:], y[6:])
    model.settle(known)
    if finished:
        model.finish(known, held_out, 0, no_training)
        model = model.predictor()  # the regressions are float64 from here on
    n = 9 if finished else 6
    new = xt[:, :-1].to(next(model.parameters()).dtype)
    Z, t, outcomes = model.encoder(new).double().numpy(), T.numpy()[:n], y.double().numpy()[:n, 0]

    arms = [oracle(Z[:n][t == arm], outcomes[t == arm]) for arm in (0, 1)]
    centres = [outcomes[t == arm].mean() for arm in (0, 1)]
    mean = np.stack([centres[arm] + Z @ arms[arm][0] for arm in (0, 1)], 1)
    var = np.einsum("ni,ij,nj->n", Z, arms[0][1] + arms[1][1], Z)
    rtol = 1e-9 if finished else 1e-4
    assert_allclose(model.outcomes(new), mean, rtol=rtol)
    got = model.difference(new)
    assert_allclose(got.mean[:, 0], mean[:, 1] - mean[:, 0], rtol=rtol, atol=rtol)
    assert_allclose(got.var[:, 0], var, rtol=rtol)
    average = model.average(new)
    z = Z.mean(0)
    assert_allclose(average.mean.item(), (mean[:, 1] - mean[:, 0]).mean(), rtol=rtol)
    assert_allclose(average.var.item(), z @ (arms[0][1] + arms[1][1]) @ z, rtol=rtol)
    received = np.where(T.numpy() == 1, mean[:, 1], mean[:, 0])
    losses = model.losses(torch.cat([new, T[:, None].to(new)], 1), y.to(new))
    assert_allclose(losses, (received - y.double().numpy()[:, 0]) ** 2, rtol=100 * rtol, atol=rtol)
