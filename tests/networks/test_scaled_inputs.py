import numpy as np
import torch
from numpy.testing import assert_allclose
from sklearn.datasets import load_digits

from due import DUE, DUEClassifier, constrain
from due.gp import InducingGP, Softmax
from due.lipschitz import report
from due.networks import FCResNet, ScaledInputs
from due.networks.scaled_inputs import PENALTY


def useful_and_useless(n, seed, D=30):
    """Two columns decide the class, the others are noise; all have units of their own."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D))
    return X * np.linspace(1, 5, D), (X[:, 0] * X[:, 1] > 0).astype(int)


def test_columns_that_do_not_matter_fade_and_the_answer_is_better():
    X, y = useful_and_useless(600, 0)
    new = useful_and_useless(2000, 1)
    model = DUEClassifier(random_state=0).fit(X, y)
    plain = DUEClassifier(random_state=0, column_scales=False).fit(X, y)
    scale = model.model_.f.scale.detach().numpy()
    assert scale[:2].min() > 2 * scale[2:].max()
    assert model.score(*new) > plain.score(*new) + 0.1


def test_scales_stay_between_0_and_1_and_need_no_bound():
    f = ScaledInputs(FCResNet(3, 8, 1), 3)
    f.raw.data = torch.tensor([-1.0, 0.5, 7.0])
    assert f.scale.tolist() == [0.0, 0.5, 1.0]
    x = torch.randn(5, 3)
    assert_allclose(f(x).detach(), f.f(x * f.scale).detach())
    assert all(row.bounded for row in report(constrain(f, 0.9, x)))


def test_the_penalty_is_the_sum_of_scales_and_pulls_large_ones_down():
    f = ScaledInputs(FCResNet(3, 8, 1), 3)
    f.raw.data = torch.tensor([-1.0, 0.5, 7.0])
    penalty = f.penalty()
    assert_allclose(penalty.item(), PENALTY * 7.5, rtol=1e-6)
    penalty.backward()
    assert f.raw.grad is not None
    assert_allclose(f.raw.grad.numpy(), np.array([0, PENALTY, PENALTY]), rtol=1e-6)


def test_the_loss_has_the_penalty():
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    f = ScaledInputs(FCResNet(3, 8, 1), 3)
    model = DUE(f, InducingGP(torch.randn(4, 8), 2), Softmax(2), n_data=20).eval()
    plain = DUE(f.f, model.gp, model.likelihood, n_data=20).eval()  # all scales are 1
    assert_allclose((model(x, y) - plain(x, y)).item(), 3 * PENALTY, rtol=1e-4)


def test_pixels_and_networks_of_the_user_keep_their_scale(tmp_path):
    X, y = load_digits(return_X_y=True)
    assert not isinstance(DUEClassifier(epochs=1).fit(X[:900], y[:900]).model_.f, ScaledInputs)
    few = DUEClassifier(epochs=1).fit(*useful_and_useless(60, 0, D=9))
    assert not isinstance(few.model_.f, ScaledInputs)
    rows = useful_and_useless(60, 0)
    own = DUEClassifier(lambda shape: FCResNet(shape[0], 8, 1), epochs=1).fit(*rows)
    assert not isinstance(own.model_.f, ScaledInputs)
    raw = DUEClassifier(epochs=1, scale_inputs=False).fit(*rows)
    assert not isinstance(raw.model_.f, ScaledInputs)
    model = DUEClassifier(epochs=1, random_state=0).fit(*rows)
    model.save(tmp_path)
    again = DUEClassifier.load(tmp_path)
    assert torch.equal(again.model_.f.raw, model.model_.f.raw)
    np.testing.assert_array_equal(again.predict_proba(rows[0]), model.predict_proba(rows[0]))
