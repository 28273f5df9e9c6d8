import numpy as np
import pytest
import torch
from torch import nn

from due.data.toy import BLOB_STD, two_blobs
from due.paper import fig2


@pytest.fixture(scope="module")
def smoke():
    return fig2.run(fig2.PRESETS["smoke"], seed=0)


class DropsSecondInput(nn.Module):
    """A whole collapse of the direction that tells nothing of the class."""

    def forward(self, x):
        return x[:, :1]


def far_points(blobs):
    """Distances to the nearest class point, the slow way."""
    away = np.linalg.norm(blobs.grid[:, None] - blobs.X, axis=-1).min(1)
    return away, away >= 3 * BLOB_STD


def test_the_star_is_far_in_input_and_the_nearest_far_point_in_features():
    blobs = two_blobs(200, n_grid=20)
    away, far = far_points(blobs)
    star = fig2.worst_collapse(DropsSecondInput(), blobs, far)
    nearest = np.abs(blobs.grid[:, :1] - blobs.X[:, 0]).min(1)
    assert away[star] >= 3 * BLOB_STD
    assert nearest[star] == pytest.approx(nearest[far].min(), abs=1e-6)


def test_a_collapse_is_told_from_the_identity():
    blobs, settings = two_blobs(200, n_grid=20), fig2.Settings(pairs=50)
    _, far = far_points(blobs)
    star = fig2.worst_collapse(DropsSecondInput(), blobs, far)
    collapsed = fig2.measure(DropsSecondInput(), blobs, star, far, settings, seed=0)
    kept = fig2.measure(nn.Identity(), blobs, star, far, settings, seed=0)
    assert collapsed["star_within_median"] and collapsed["star_on_class_data"]
    assert not kept["star_within_median"] and not kept["star_on_class_data"]
    assert collapsed["far_grid_on_class_data"] > 0.4 > kept["far_grid_on_class_data"] == 0


def test_the_report_says_where_the_star_is(smoke):
    star = smoke.numbers["star"]
    assert [star["x1"], star["x2"]] == pytest.approx(smoke.picture["input"]["star"], abs=1e-3)
    assert star["input_distance"] >= 3 * BLOB_STD
    assert star["chosen_among"] > 1


def test_the_star_is_the_nearest_far_point_of_the_free_network_only_by_choice(smoke):
    free, bounded = smoke.numbers[fig2.FREE], smoke.numbers[fig2.BOUNDED]
    for unit in ("medians", "95_quantiles"):
        star, nearest = f"star_distance_in_{unit}", f"nearest_far_grid_point_distance_in_{unit}"
        assert free[star] == free[nearest]
        assert bounded[star] >= bounded[nearest]


def test_the_same_seed_gives_the_same_numbers(smoke):
    torch.manual_seed(123)
    assert fig2.run(fig2.PRESETS["smoke"], seed=0).numbers == smoke.numbers


def test_distance_ratios_are_those_of_a_map_that_is_known():
    class Doubles(nn.Module):
        def forward(self, x):
            return 2 * x

    blobs, settings = two_blobs(200, n_grid=20), fig2.Settings(pairs=50)
    found = fig2.measure(Doubles(), blobs, 0, far_points(blobs)[1], settings, seed=0)
    assert list(found["distance_ratio_quantiles"].values()) == pytest.approx([2] * 7, rel=1e-5)
    plain = fig2.measure(nn.Identity(), blobs, 0, far_points(blobs)[1], settings, seed=0)
    own = np.linalg.norm(blobs.X[:, None] - blobs.X, axis=-1)
    reach = np.quantile(np.sort(own, axis=1)[:, 1], 0.95)
    share = (far_points(blobs)[0] <= reach).mean()
    assert found["grid_on_class_data"] == plain["grid_on_class_data"] == pytest.approx(share)
