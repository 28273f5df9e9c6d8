import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from due.data.toy import random_cosines
from due.paper import cosines, fig1, fig7, gap

SMOKE = cosines.PRESETS["smoke"]


@pytest.fixture(scope="module", params=[fig1, fig7], ids=["fig1", "fig7"])
def figure(request):
    return request.param, request.param.run(SMOKE, seed=0)


def test_the_numbers_of_every_panel_are_those_of_its_curve(figure):
    module, result = figure
    assert set(result.picture["curves"]) == set(module.TITLES)
    x = np.abs(result.picture["x"])
    for name, found in result.picture["curves"].items():
        for size, curve in found.items():
            numbers = result.numbers[name][size]
            _, latent, predictive = np.array(curve)  # rounded to 4 digits
            for key, want in {
                "latent_std_gap": latent[x < cosines.GAP].mean(),
                "latent_std_far": latent[x > 12].mean(),
                "predictive_std_gap": predictive[x < cosines.GAP].mean(),
            }.items():
                assert numbers[key] == pytest.approx(want, abs=1e-4)
            if name == "ensemble":  # its noise depends on x
                assert (predictive > latent).all()
            else:
                assert_allclose(predictive, np.hypot(latent, numbers["noise_std"]), atol=2e-4)


def test_the_error_is_that_of_the_mean_on_fresh_rows():
    rows = cosines.training_rows(SMOKE, SMOKE.sizes[0], seed=0)
    mean = cosines.fit_exact(SMOKE, rows, seed=0).curve
    fresh = random_cosines(SMOKE.n_fresh, noise=SMOKE.noise, seed=10_000)
    errors = mean(torch.as_tensor(fresh.X, dtype=torch.float32)).mean - fresh.f
    got = fig7.run(SMOKE, seed=0).numbers["exact"]["100"]["rmse_support"]
    assert got == pytest.approx(np.sqrt((errors**2).mean()))


def test_the_ratio_is_that_of_the_gap_in_the_picture(figure):
    _, result = figure
    inside = np.abs(result.picture["x"]) < cosines.GAP
    for name, found in result.picture["curves"].items():
        if len(found) == 2:
            small, large = (np.array(curve)[1, inside].mean() for curve in found.values())
            assert result.numbers[name]["ratio_gap"] == pytest.approx(large / small, rel=1e-2)


def test_all_panels_share_their_axes(figure):
    module, result = figure
    axes = module.draw(SMOKE, [result]).axes
    assert len({(ax.get_xlim(), ax.get_ylim()) for ax in axes}) == 1
    assert axes[0].get_xlim() == cosines.X_RANGE


def test_fig1_has_two_sizes_of_each_method_and_fig7_no_exact_gp_at_the_larger():
    sizes = {cosines.label(n) for n in SMOKE.sizes}
    for module, names in ((fig1, {"due", "on_data", "sngp"}), (fig7, {"exact", "ensemble"})):
        curves = module.run(SMOKE, seed=0).picture["curves"]
        assert set(curves) == names
        for name, found in curves.items():
            assert set(found) == ({cosines.label(SMOKE.sizes[0])} if name == "exact" else sizes)


def test_the_same_seed_gives_the_same_curves(figure):
    module, result = figure
    torch.manual_seed(123)
    assert module.run(SMOKE, seed=0).picture == result.picture


def test_the_stream_has_every_row_as_often_as_any_other_or_once_more():
    order = cosines.stream(10, 25, seed=0).tolist()
    assert len(order) == 25
    assert sorted(order[:10]) == sorted(order[10:20]) == list(range(10))
    assert len(set(order[20:])) == 5


def test_the_smaller_set_is_the_head_of_the_larger_and_each_seed_has_its_function():
    small, large = (cosines.training_rows(SMOKE, n, seed=1) for n in (50, 80))
    assert torch.equal(small.y, large.y[:50])
    other = cosines.training_rows(SMOKE, 50, seed=2)
    assert not torch.equal(small.y, other.y)


def test_an_ensemble_is_a_mixture():
    rng = np.random.default_rng(0)
    mean, var = rng.normal(size=(3, 4)), rng.uniform(0.5, 2, size=(3, 4))
    curve = cosines.mixture(mean, var)
    draws = mean[:, None] + np.sqrt(var[:, None]) * rng.normal(size=(3, 200_000, 4))
    assert_allclose(curve.predictive_std, draws.reshape(-1, 4).std(0), rtol=0.01)
    assert_allclose(curve.latent_std, mean.std(0))


def test_the_exact_gp_predicts_as_dense_numpy_does_and_returns_to_its_prior():
    rows = cosines.training_rows(SMOKE, 40, seed=0)
    fitted = cosines.fit_exact(SMOKE, rows, seed=0)
    x, y = rows.x.double().numpy(), rows.y.double().numpy()[:, 0]
    x_new = np.array([[-14.0], [0.0], [5.0]])
    curve = fitted.curve(torch.as_tensor(x_new, dtype=torch.float32))
    length, s, sigma = (fitted.learned[key] for key in ("lengthscale", "prior_std", "noise_std"))

    def k(a, b):
        return s**2 * np.exp(-((a - b.T) ** 2) / (2 * length**2))

    K = k(x, x) + sigma**2 * np.eye(len(x))
    var = s**2 - np.einsum("pn,np->p", k(x_new, x), np.linalg.solve(K, k(x, x_new)))
    assert_allclose(curve.latent_std, np.sqrt(var), rtol=1e-4)
    assert curve.latent_std[0] == pytest.approx(s, rel=1e-3)
    at_data = fitted.curve(rows.x).mean
    assert np.sqrt(np.mean((at_data - y) ** 2)) < np.std(y)


def test_the_variants_of_the_gap_start_from_figure_1_and_change_what_they_say():
    of_figure = fig1.run(SMOKE, seed=0).numbers
    result = gap.run(gap.PRESETS["smoke"], seed=0)
    for name in ("due", "sngp"):
        for size, found in of_figure[name].items():
            if size != "ratio_gap":
                again = result.numbers[name][size]
                assert again["latent_std_gap"] == found["latent_std_gap"]
    assert result.numbers["sngp-15"]["100"]["lengthscale"] == 15
    widths = {name: found["100"]["latent_std_gap"] for name, found in result.numbers.items()}
    assert len(set(widths.values())) == len(gap.VARIANTS)
    table = gap.text(gap.PRESETS["smoke"], result.numbers)
    assert all(variant.title in table for variant in gap.VARIANTS.values())
    assert "gap, 100 " in table and "gap, 400 " in table
    axes = gap.draw(gap.PRESETS["smoke"], [result]).axes
    assert [text.get_text() for text in axes[0].get_yticklabels()][0] == "SNGP, l = 2"
