import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from due.baselines import DKLITE
from due.baselines.dklite import DKLITENetwork, regress


@pytest.fixture(scope="module")
def model(study):
    return DKLITE(epochs=50, width=8, random_state=0).fit(study.y, study.t, study.X)


def oracle(Z, y):
    K = Z.T @ Z / 1000 + np.eye(Z.shape[1])
    return np.linalg.solve(K, Z.T @ (y - y.mean())) / 1000, np.linalg.inv(K) / 1000


def test_posterior_is_the_formula():
    rng = np.random.default_rng(0)
    Z, y, new = 20 * rng.normal(size=(30, 4)), rng.normal(size=30), rng.normal(size=(5, 4))
    w, cov = oracle(Z, y)
    got = regress(torch.as_tensor(Z), torch.as_tensor(y))
    assert_allclose(got.mean(torch.as_tensor(new)), y.mean() + new @ w)
    assert_allclose(got.var(torch.as_tensor(new)), np.einsum("ni,ij,nj->n", new, cov, new))
    b = Z.T @ (y - y.mean())
    assert_allclose(got.fit, b @ (1000 * cov) @ b / 4)  # ‖L⁻¹b‖² = bᵀK⁻¹b


def test_loss_is_fit_variance_and_reconstruction():
    torch.manual_seed(0)
    model = DKLITENetwork(3, 4, reg_var=2.0, reg_rec=3.0).double()
    x, y = torch.randn(9, 3).double(), torch.randn(9).double()
    t = torch.tensor([0.0, 1, 1, 0, 0, 1, 0, 1, 1])
    with torch.no_grad():
        z = model.encoder(x).numpy()
        xhat = model.decoder(model.encoder(x))
        got = model(x, t, y)
    treated, want = t.numpy() == 1, 3.0 * ((x - xhat) ** 2).sum(1).mean().item()
    for arm in (treated, ~treated):
        _, cov = oracle(z[arm], y.numpy()[arm])
        b = z[arm].T @ (y.numpy()[arm] - y.numpy()[arm].mean())
        want += -b @ (1000 * cov) @ b / 4
        want += 2.0 * np.mean(np.einsum("ni,ij,nj->n", z[~arm], cov, z[~arm]))
    assert_allclose(got.item(), want)


def test_variances_of_the_arms_add_up_and_the_average_is_that_of_the_weights(model, fresh, study):
    X, _ = fresh
    with torch.no_grad():
        code = model.frozen_.encoder
        z = code(torch.as_tensor(model.scale_(X))).numpy()
        Z = code(torch.as_tensor(model.scale_(study.X).astype(np.float32)).double()).numpy()
    y = model.y_scale_(study.y[:, None])[:, 0]
    (_, cov0), (_, cov1) = (oracle(Z[study.t == a], y[study.t == a]) for a in (0, 1))
    std = model.y_scale_.std[0]
    cov = z @ (cov0 + cov1) @ z.T * std**2
    assert_allclose(model.uncertainty(X), np.diag(cov), rtol=1e-4)
    low, high = model.ate_interval(X)
    assert_allclose((high - low) / 2, 1.959964 * np.sqrt(cov.mean()), rtol=1e-4)
    assert_allclose((high + low) / 2, model.ate(X))
    assert_allclose(model.effect_inference(X).point_estimate, model.effect(X))
