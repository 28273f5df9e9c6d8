"""Images (N, channels, height, width) in an estimator: fit to load, and what is refused."""

import numpy as np
import pytest
import torch

from due import DUEClassifier
from due.baselines import DDUClassifier, SoftmaxClassifier
from due.data.images import load
from due.networks import WideResNet
from due.training import Recipe

pytestmark = pytest.mark.usefixtures("as_users_run")
FAST = {"epochs": 8, "batch_size": 32, "recipe": Recipe(lr=5e-3, head_lr=5e-3), "random_state": 0}


def network(shape):
    return WideResNet(10, 1, shape[0], stride=2)


@pytest.fixture(scope="module")
def digits():
    x, y = (part.numpy() for part in load("digits", "train"))
    order = np.random.default_rng(0).permutation(len(x))  # the file goes from writer to writer
    x, y = x[order], y[order]
    return x[:1000], y[:1000], x[1000:], y[1000:]


@pytest.fixture(scope="module")
def model(digits):
    X, y, *_ = digits
    return DUEClassifier(network, c=3.0, n_inducing=10, **FAST).fit(X, y)


def test_images_are_learned_and_negatives_are_foreign(model, digits):
    _, _, X, y = digits
    assert model.score(X, y) > 0.9
    assert np.mean(model.ood_pvalue(X) <= 0.05) < 0.15
    assert np.mean(model.ood_pvalue(255 - X) <= 0.05) > 0.95
    assert model.uncertainty_details(X).entropy.shape == (len(X),)


def test_an_image_hardly_depends_on_its_batch(model, digits):
    X = digits[2]
    whole = model.predict_proba(X)
    one = np.concatenate([model.predict_proba(x[None]) for x in X[:5]])
    np.testing.assert_allclose(whole[:5], one, atol=1e-5)


def test_the_network_predicts_in_float32_as_it_does_in_float64(model, digits):
    x = model.predictor_.scale(torch.from_numpy(digits[2][:20]))
    f = model.predictor_.model.f
    single = f(x)
    assert single.dtype == torch.float64
    assert next(f.parameters()).dtype == torch.float32
    double = f.f.double()(x)
    f.f.float()
    torch.testing.assert_close(single, double, rtol=1e-3, atol=1e-4)


def test_saved_and_loaded_it_says_the_same(model, digits, tmp_path):
    X = digits[2][:50]
    model.save(tmp_path / "model")
    again = DUEClassifier.load(tmp_path / "model", extractor=network)
    for question in ("predict_proba", "uncertainty", "ood_score", "ood_pvalue"):
        np.testing.assert_array_equal(getattr(model, question)(X), getattr(again, question)(X))
    with pytest.raises(ValueError, match="was fitted on uint8 images"):
        again.predict(X / 255)


def test_the_order_of_images_does_not_matter(digits):
    X, y, new, _ = digits
    few = {**FAST, "epochs": 1}
    order = np.random.default_rng(0).permutation(200)
    one = SoftmaxClassifier(network, **few).fit(X[:200], y[:200])
    other = SoftmaxClassifier(network, **few).fit(X[:200][order], y[:200][order])
    np.testing.assert_array_equal(one.predict_proba(new[:9]), other.predict_proba(new[:9]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda X: X.repeat(3, 1), r"shape \(3, 16, 16\), but DUEClassifier was fitted .*\(1, 16"),
        (lambda X: X[:, :, :8, :8], r"shape \(1, 8, 8\), but .* \(1, 16, 16\)"),
        (lambda X: X[:, 0], r"shape \(16, 16\), but .* \(1, 16, 16\)"),
        (lambda X: X.reshape(len(X), -1), r"shape \(256,\), but .* \(1, 16, 16\)"),
        (lambda X: X / 255, "images lie between 0 and 1, but .* uint8 images, 0 … 255"),
    ],
)
def test_other_images_are_refused(model, digits, wrong, message):
    with pytest.raises(ValueError, match=message):
        model.predict(wrong(digits[2][:4]))


def test_floats_of_whole_pixels_are_pixels(model, digits):
    X = digits[2][:4]
    np.testing.assert_array_equal(model.predict(X.astype(float)), model.predict(X))


def test_bytes_are_refused_by_a_model_of_floats(digits):
    X, y, new, _ = digits
    few = {**FAST, "epochs": 1}
    model = DDUClassifier(network, **few).fit(X[:100].astype(np.float32) / 255, y[:100])
    with pytest.raises(ValueError, match=r"images are uint8, 0 … 255, but .* X / 255"):
        model.predict(new)
