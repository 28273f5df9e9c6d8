"""The OOD score of several views: directions, ranks, Fisher's sum, and exact p-values."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import binom

from due import DUEClassifier
from due.gp import InducingGP, Softmax
from due.gp.panel import RIDGE, Panel, learn_directions, look
from due.methods import DUE
from due.networks import VGG, ResNet18, WideResNet
from due.predictor import ClassPredictor
from due.rows.scale import Scale
from due.rows.source import Table
from due.training import Recipe, fit

NETWORKS: dict[str, Any] = {
    "wrn": WideResNet(10, 1, 1, stride=2),
    "vgg": VGG(1, 1 / 16),
    "resnet18": ResNet18(1),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_stages_end_in_the_features_and_directions_have_length_one(name):
    f, x = NETWORKS[name].eval(), torch.randn(4, 1, 16, 16)
    with torch.no_grad():
        *maps, h = f.stages(x)
        found, directions = look(f, x)
        assert torch.equal(h, f(x)) and torch.equal(h, found)
    assert len(directions) == len(maps) + 1 and all(m.ndim == 4 for m in maps)
    for u in directions:
        assert_allclose(u.norm(dim=1), 1, rtol=1e-5)
    mean, std = maps[1].mean((2, 3)), maps[1].std((2, 3), correction=0)
    v = torch.cat([mean, std], 1)
    assert_allclose(directions[1], v / v.norm(dim=1, keepdim=True), atol=1e-5)


def test_views_are_mahalanobis_distances():
    rng = np.random.default_rng(0)
    stages = [rng.normal(size=(50, D)) @ rng.normal(size=(D, D)) for D in (2, 3)]
    panel = Panel(*learn_directions([torch.tensor(u) for u in stages]), (2, 3), torch.empty(0))
    new = [rng.normal(size=(5, D)) for D in (2, 3)]
    energy = torch.arange(5.0)
    views = panel.views(energy, [torch.tensor(u) for u in new])
    assert_allclose(views[:, 0], energy)
    for k, (u, known) in enumerate(zip(new, stages, strict=True)):
        cov = np.cov(known.T, bias=True)
        cov += RIDGE * np.trace(cov) / len(cov) * np.eye(len(cov))
        gap = u - known.mean(0)
        assert_allclose(views[:, k + 1], (gap @ np.linalg.inv(cov) * gap).sum(1))


def test_the_score_is_fishers_sum_and_goes_on_beyond_the_ranked_rows():
    rng = np.random.default_rng(1)
    known = np.sort(rng.normal(size=(99, 2)), 0)
    panel = Panel(torch.empty(0), torch.empty(0), (), torch.tensor(known))
    views = rng.uniform(-2, known[-1].min(), size=(20, 2))
    p = (1 + (known[None] >= views[:, None]).sum(1)) / 100
    F = -np.log(p).sum(1)
    assert_allclose(panel(torch.tensor(views)), F / (F + 2))
    far = torch.tensor([[0.0, known[-1, 1]], [0.0, 5.0], [0.0, 6.0], [0.0, 1e30]]).double()
    scores = panel(far)
    assert (scores.diff() > 0).all() and torch.isfinite(scores).all() and scores[-1] <= 1


def model_rows():
    """Three shapes in noise, in turn."""
    shapes = torch.zeros(3, 1, 8, 8)
    shapes[0, :, :4], shapes[1, :, :, :4], shapes[2, :, 2:6, 2:6] = 1, 1, 1
    noise = torch.randn(3000, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return shapes[torch.arange(3000) % 3] + 0.7 * noise


@pytest.fixture(scope="module")
def model():
    """DUE on a small Wide ResNet, and images like those it learned from."""
    x, y = model_rows(), torch.arange(3000) % 3
    torch.manual_seed(0)
    f = WideResNet(10, 1, 1, stride=2)
    method = DUE(f, InducingGP(torch.zeros(6, 64), 3), Softmax(3))
    fit(method, Table(x[:600], y[:600]), Recipe(epochs=3, batch_size=64), progress=False)
    method.calibrate(Table(x[600:900], y[600:900]), method.predictor())
    return method, x[900:]


@torch.no_grad()
def ask(frozen, x):
    score = frozen.foreign(*frozen.look(x.double()))
    return score, frozen.pvalue(score)


def test_it_finds_foreign_images_and_seldom_flags_known_ones(model):
    method, new = model
    frozen = method.predictor()
    assert len(method.view_known) == len(method.calibration) == 150
    score, p = ask(frozen, new)
    for alpha in (0.02, 0.1):  # given the calibration rows the share is Beta around α
        assert (p <= alpha).double().mean() < binom.ppf(0.999, 150, alpha) / 150
    stripes = torch.zeros(200, 1, 8, 8)
    stripes[..., ::2] = 2
    foreign, p = ask(frozen, stripes + 0.7 * torch.randn(200, 1, 8, 8))
    assert (p < 0.02).double().mean() > 0.9 and foreign.mean() > score.mean()
    assert torch.isfinite(ask(frozen, 1e10 * new[:3])[0]).all()


def test_one_half_ranks_the_views_and_the_other_half_the_score(model):
    """Which halves: those of a fixed permutation of the rows that were held out."""
    method, _ = model
    frozen, x = method.predictor(), model_rows()[600:900].double()
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        h, stages = look(frozen.f, x[order])
        views = frozen.panel.views(frozen.energy(h), stages)
        assert_allclose(method.view_known, views[:150].sort(0).values, rtol=1e-6)
        scores = frozen.panel(views[150:]).sort().values
    assert_allclose(method.calibration, scores, rtol=1e-6)


def test_without_held_out_rows_the_score_is_the_distance_alone(model):
    method, new = model
    known = method.view_known
    method.view_known = known.new_empty(0)
    frozen, x = method.predictor(), new[:5].double()
    assert frozen.panel is None
    with torch.no_grad():
        assert torch.equal(frozen.foreign(*frozen.look(x)), 1 - frozen.reference(frozen.f(x)))
    method.view_known = known


def test_the_predictor_exports_with_its_panel(model):
    method, new = model
    predictor = ClassPredictor(method.predictor(), Scale.identity((1, 8, 8))).eval()
    batch = ({0: torch.export.Dim("N")},)
    run = torch.export.export(predictor, (new[:4],), dynamic_shapes=batch).module()
    with torch.no_grad():
        want, found = predictor(new[:7]), run(new[:7])
    assert_allclose(found.ood_score, want.ood_score, rtol=1e-9)
    assert_allclose(found.ood_pvalue, want.ood_pvalue)


def test_an_estimator_on_a_network_with_stages_keeps_its_views_in_a_file(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(500) % 2
    X = rng.normal(size=(500, 1, 8, 8)) + y[:, None, None, None]

    def network(shape):
        return WideResNet(10, 1, shape[0], stride=2)

    fitted = DUEClassifier(network, c=None, epochs=1, n_inducing=5, random_state=0).fit(X, y)
    assert len(fitted.model_.view_known) == 25
    fitted.save(tmp_path)
    again = DUEClassifier.load(tmp_path, network)
    assert_allclose(again.ood_score(X[:20]), fitted.ood_score(X[:20]), rtol=1e-6)
    assert_allclose(again.ood_pvalue(X[:20]), fitted.ood_pvalue(X[:20]))
