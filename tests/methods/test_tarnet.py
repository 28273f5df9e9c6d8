import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import norm

from due.lipschitz import singular_value
from due.methods.tarnet import TARNetwork

T = torch.tensor([0.0, 1, 1, 0, 0, 1])


def people(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(6, 3, generator=generator), torch.randn(6, 1, generator=generator)
    return torch.cat([x, T[:, None]], 1), y


def network(K=2, c=0.95):
    torch.manual_seed(0)
    return TARNetwork(3, 8, K, 0.2, c).eval()


@pytest.mark.parametrize("K", [1, 2])
@torch.no_grad()
def test_loss_is_the_mixture_likelihood_of_each_arm(K):
    (xt, y), model = people(), network(K)
    parts = [model.outputs[a](model.heads[a](model.f(xt[:, :-1]))) for a in (0, 1)]
    want, want_mean = np.empty(6), np.empty((6, 2))
    for n in range(6):
        for arm in (0, 1):
            log_pi, mu, sigma = (part[n].numpy() for part in parts[arm])
            want_mean[n, arm] = np.sum(np.exp(log_pi) * mu)
            if arm == T[n]:
                want[n] = -np.log(np.sum(np.exp(log_pi) * norm.pdf(y[n].item(), mu, sigma)))
    w = torch.arange(6.0)
    assert_allclose(model.losses(xt, y), want, rtol=1e-5)
    assert_allclose(model(xt, y).item(), want.mean(), rtol=1e-5)
    assert_allclose(model(xt, y, w).item(), (w.numpy() * want).mean(), rtol=1e-5)
    assert_allclose(model.outcomes(xt[:, :-1]), want_mean, rtol=1e-4, atol=1e-6)
    assert_allclose(model.predict(xt), want_mean[range(6), T.long()], rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_bounds_all_layers_but_the_densities():
    model = network(c=0.5)
    for parameter in model.parameters():
        parameter.mul_(10)
    (xt, y), frozen = people(), model.train()
    for _ in range(30):  # of power iteration
        model(xt, y)
    frozen = model.predictor()
    inside = [m for part in (frozen.f, frozen.heads) for m in part.modules() if hasattr(m, "bias")]
    assert len(inside) == 9
    assert_allclose([singular_value(layer) for layer in inside], 0.5, rtol=1e-3)
    assert min(singular_value(output.linear) for output in frozen.outputs) > 0.5


@torch.no_grad()
def test_dropout_gives_each_arm_masks_of_its_own_and_none_in_eval_mode():
    (xt, _), model = people(), network()
    assert torch.equal(model.outcomes(xt[:, :-1]), model.outcomes(xt[:, :-1]))
    torch.manual_seed(0)
    noisy, again = (model.train().outcomes(xt[:, :-1]) for _ in range(2))
    assert not torch.allclose(noisy, again)
