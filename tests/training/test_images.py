"""A Wide ResNet trained as images are: bf16, channels_last, augmented, norms now and then."""

import pytest
import torch

from due import DUE, Images, Recipe, constrain, fit
from due.data.images import load
from due.gp import InducingGP, Softmax
from due.lipschitz import SilentNetworkWarning, layers
from due.networks import WideResNet
from due.rows import crop

QUICK = Recipe(
    optimizer="sgd",
    lr=0.05,
    momentum=0.9,
    weight_decay=5e-4,
    schedule="one_cycle",
    batch_size=32,
    precision="bf16",
    refresh=4,
    accumulate=2,
    epochs=2,
)


@pytest.fixture(scope="module")
def digits():
    x, y = load("digits", "train")
    return x, y


def model(warm=True, dropout=0.1):
    torch.manual_seed(0)
    f = WideResNet(10, 1, 1, dropout, stride=2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    constrain(f, 3.0, torch.zeros(2, 1, 16, 16), batch_norm_momentum=0.1)
    return DUE(f, InducingGP(torch.zeros(10, 64), 10), Softmax(10), warm=warm)


class Killed(Exception):
    pass


@pytest.mark.parametrize("step", [3, 11])
def test_a_killed_run_goes_on_to_the_same_bits(digits, tmp_path, monkeypatch, step):
    x, y = digits
    source = Images(x[:200], y[:200], augment=crop)
    monkeypatch.setattr("due.training.loop.FAST_STEPS", 2)
    whole = model()
    fit(whole, source, QUICK)

    steps = 0
    original = Images.normalise

    def killing(self, images):
        nonlocal steps
        steps += len(images) != 200  # not those of the start
        if steps > step:
            raise Killed
        return original(self, images)

    monkeypatch.setattr(Images, "normalise", killing)
    file = tmp_path / "run.pt"
    with pytest.raises(Killed):
        fit(model(), source, QUICK, checkpoint=file, checkpoint_every=1)
    monkeypatch.setattr(Images, "normalise", original)
    resumed = model()
    fit(resumed, source, QUICK, checkpoint=file)
    want, found = whole.state_dict(), resumed.state_dict()
    assert [name for name in want if not torch.equal(want[name], found[name])] == []


def test_it_learns_and_holds_its_bounds(digits):
    x, y = digits
    source = Images(x[:1000], y[:1000], augment=crop)
    method = model(dropout=0.0)
    fit(method, source, Recipe(epochs=6, accumulate=1).over(QUICK))
    new = Images(x[1000:], y[1000:], source.mean, source.std)
    images, classes = new.whole()
    with torch.no_grad():
        probabilities = method.predict(images)
    assert isinstance(probabilities, torch.Tensor)
    assert (probabilities.argmax(-1) == classes).float().mean() > 0.9
    assert max(layers(method.f, images[:2]).values()) <= 3.0 * 1.01
    assert method.gp.Z.dtype == torch.float64


def test_a_silent_network_is_named_at_the_start(digits):
    x, y = digits
    f = WideResNet(16, 1, 1, stride=2)
    with pytest.warns(SilentNetworkWarning, match="of a network that is not trained"):
        constrain(f, 0.9, torch.zeros(2, 1, 16, 16))
    method = DUE(f, InducingGP(torch.zeros(10, 64), 10), Softmax(10))
    with pytest.warns(SilentNetworkWarning, match=r"features of 200 rows hardly differ"):
        method.start(Images(x[:200], y[:200]), seed=0)
    constrain(f, 0.9, torch.zeros(2, 1, 16, 16), batch_norm="paired")
    method.start(Images(x[:200], y[:200]), seed=0)


def test_the_papers_start_and_step_schedule(digits):
    """m = 0 and S = I, and rates that fall by 0.2 at three shares of the training."""
    x, y = digits
    method = model(warm=False, dropout=0.0)
    method.start(Images(x[:200], y[:200]), seed=0)
    assert not method.gp.m.any()
    assert torch.equal(method.gp.L_S, torch.eye(10, dtype=torch.float64).expand(10, 10, 10))
    recipe = Recipe(schedule="steps", epochs=10, precision="float32").over(QUICK)
    history = fit(method, Images(x[:64], y[:64]), recipe)
    assert history.lr == pytest.approx([0.05] * 3 + [0.01] * 3 + [0.002] * 2 + [0.0004] * 2)
