import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.datasets import make_moons
from torch import nn

from due.methods.ddu import DDU, ClassGaussians
from due.networks import FCResNet
from due.rows.source import Table
from due.training import Recipe, fit


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(J=4, T=3, f=None):
    torch.manual_seed(0)
    return DDU(f or nn.Linear(2, J), J, T).double().eval()


def no_training(*args, **recipe):
    raise AssertionError("trained")


class Pieces(Table):
    """A table that is read in pieces of some rows."""

    piece = 7

    def chunks(self, rows=0):
        return super().chunks(self.piece)


def scipy_log_density(z, y, new, w=None, jitter=None):
    w = np.ones(len(z)) if w is None else w
    terms = []
    for c in np.unique(y):
        rows, w_c = z[y == c], w[y == c]
        cov = np.cov(rows.T, aweights=w_c, ddof=0)
        cov = cov + (0 if jitter is None else jitter[c]) * np.eye(len(cov))
        normal_c = multivariate_normal(np.average(rows, 0, weights=w_c), cov)
        terms.append(np.log(w_c.sum() / w.sum()) + normal_c.logpdf(new))
    return logsumexp(terms, axis=0)


@pytest.mark.parametrize("weighted", [False, True])
def test_density_equals_scipys(weighted):
    density, new = ClassGaussians(4, 3), 2 * normal(9, 4, seed=1)
    z, y = normal(60, 4) @ normal(4, 4, seed=2), torch.tensor([0, 0, 1, 2, 2, 2]).repeat(10)
    z = z + y[:, None]
    w = 1 + normal(60, seed=3).abs() if weighted else None
    density.fit(z, y, w)
    want = scipy_log_density(z.numpy(), y.numpy(), new.numpy(), None if w is None else w.numpy())
    assert_allclose(density(new), want, rtol=1e-9)
    assert_allclose(density.jitter, np.zeros(3))


def test_model_fits_the_density_of_its_features_in_one_clean_pass():
    x, y, new = normal(60, 2), torch.arange(60) % 3, normal(9, 2, seed=1)
    model = make(f=nn.Sequential(nn.Linear(2, 4), nn.ELU(), nn.Dropout(0.5))).train()
    model.finish(Pieces(x, y), None, 0, no_training)
    assert not model.training
    z, z_new = model.f(x).detach().numpy(), model.f(new).detach().numpy()
    want = scipy_log_density(z, y.numpy(), z_new)
    assert_allclose(model.log_density(new).detach(), want, rtol=1e-8)
    assert_allclose(model.foreign(model.f(new)).detach(), -want, rtol=1e-8)


def test_weights_of_the_rows_count_in_the_density():
    x, y, w = normal(30, 2), torch.arange(30) % 3, 1 + torch.arange(30) % 2
    once, again = make(), make()
    once.finish(Table(x, y, w.double()), None, 0, no_training)
    repeated = Table(x.repeat_interleave(w, 0), y.repeat_interleave(w, 0))
    again.finish(repeated, None, 0, no_training)
    assert_allclose(once.log_density(x).detach(), again.log_density(x).detach())


def test_survives_fewer_rows_than_features_and_names_the_jitter():
    z, y, new = normal(12, 20), torch.arange(12) % 2, normal(5, 20, seed=1)
    density = ClassGaussians(20, 2)
    density.fit(z, y)
    assert (density.jitter > 0).all() and (density.jitter < 1e-6).all()
    got = density(torch.cat([z, new]))
    assert torch.isfinite(got).all()
    assert got[:12].min() > got[12:].max() + 1e3
    z_np, jitter = z.numpy(), density.jitter.numpy()
    want = scipy_log_density(z_np, y.numpy(), new.numpy(), jitter=jitter)
    assert_allclose(got[12:], want, rtol=1e-4)  # Σ has digits for no more


@pytest.mark.parametrize("dead", [[2], [0, 1, 2, 3]])
def test_survives_features_that_never_move(dead):
    z, y = normal(40, 4), torch.arange(40) % 2
    z[:, dead] = 3.0
    density = ClassGaussians(4, 2)
    density.fit(z, y)
    near, far = density(z), density(z + 1.0)
    assert torch.isfinite(near).all() and torch.isfinite(far).all()
    assert near.min() > far.max()


def test_survives_a_class_of_one_row_and_one_of_none():
    z, y = normal(41, 4), torch.arange(41) % 2
    y[-1] = 2
    density = ClassGaussians(4, 4)
    density.fit(z, y)
    assert density.jitter[2] > 0 and density.log_pi[3] == -torch.inf
    got, new = density(z), normal(5, 4, seed=1)
    assert torch.isfinite(got).all() and got.argmax() == 40
    pair = ClassGaussians(4, 2)
    pair.fit(z[:-1], y[:-1])
    assert_allclose(density(new), pair(new) + np.log(40 / 41), rtol=1e-9)  # one row says nothing


def test_repeated_rows_weigh_as_weights():
    z, y, w = normal(30, 3), torch.arange(30) % 2, 1 + torch.arange(30) % 3
    once, again = ClassGaussians(3, 2), ClassGaussians(3, 2)
    once.fit(z, y, w.double())
    again.fit(z.repeat_interleave(w, 0), y.repeat_interleave(w, 0))
    assert_allclose(once(z), again(z))


def test_features_that_are_not_finite_are_refused():
    z = normal(10, 3)
    z[0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        ClassGaussians(3, 2).fit(z, torch.arange(10) % 2)


def test_float32_network_and_far_rows():
    X, y = make_moons(300, noise=0.1, random_state=0)
    x, y = torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(y)
    torch.manual_seed(0)
    model = DDU(FCResNet(2, 16, 2), 16, 2)
    fit(model, Table(x, y), Recipe(lr=5e-3, epochs=30, batch_size=64), progress=False)
    with torch.no_grad():
        assert (model.predict(x).argmax(-1) == y).float().mean() > 0.97
        far = model.log_density(torch.tensor([[20.0, 20.0], [-20.0, 20.0]]))
        near = model.log_density(x)
    assert near.dtype == torch.float64
    assert far.max() < near.min()


def test_loss_and_state():
    model, x, y = make(), normal(12, 2), torch.arange(12) % 3
    w = normal(12, seed=4).abs()
    log_p = model.predict(x).log().gather(1, y[:, None])[:, 0]
    assert_allclose(model(x, y).item(), -log_p.mean().item())
    assert_allclose(model(x, y, w).item(), -(w * log_p).mean().item())
    assert_allclose(model.losses(x, y).detach(), -log_p.detach())
    model.finish(Table(x, y), None, 0, no_training)
    other = DDU(nn.Linear(2, 4), 4, 3).double()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.log_density(x), model.log_density(x))
