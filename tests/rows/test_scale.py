"""Rows in one order, without repetitions, on a common scale: against plain numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal

from due.rows import source
from due.rows.scale import Scale, fit_input_scale, fit_scale
from due.rows.source import canonical, split

few_values = arrays(np.float64, (12, 2), elements=st.sampled_from([-1.0, 0.0, 0.5, 2.0]))
labels = arrays(np.int64, 12, elements=st.integers(0, 1))
counts = arrays(np.float64, 12, elements=st.integers(0, 3)).filter(np.any)
unit = st.floats(-1, 1, width=32)


@given(few_values, labels, counts)
def test_canonical_is_unique_with_summed_weights(X, y, weight):
    got = canonical(X, y, weight)

    kept = weight > 0
    table = np.column_stack([X, y])[kept]
    want, where = np.unique(table, axis=0, return_inverse=True)
    assert_array_equal(np.column_stack([got.X, got.y]).reshape(-1, 3), want)
    assert_array_equal(got.weight, np.bincount(where.ravel(), weight[kept], len(want)))
    assert got.y.dtype == y.dtype


@given(few_values, labels, counts, st.randoms(use_true_random=False))
def test_canonical_knows_neither_order_nor_how_a_repetition_is_written(X, y, weight, random):
    order = list(range(len(X)))
    random.shuffle(order)
    repeated = np.repeat(order, weight.astype(int)[order])

    weighted, written_out = canonical(X, y, weight), canonical(X[repeated], y[repeated], None)

    for a, b in zip(weighted, written_out, strict=True):
        assert_array_equal(a, b)


def test_canonical_keeps_the_shape_of_images_and_of_several_targets():
    X = np.arange(24.0).reshape(2, 3, 2, 2)[[1, 0, 1]]
    y = np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])

    got = canonical(X, y, None)

    assert_array_equal(got.X, np.arange(24.0).reshape(2, 3, 2, 2))
    assert_array_equal(got.y, [[3, 4], [1, 2]])
    assert_array_equal(got.weight, [1, 2])


def test_many_rows_are_taken_as_they_come(monkeypatch):
    monkeypatch.setattr(source, "CANONICAL_ROWS", 3)
    X, y = np.array([[2.0], [1.0], [1.0], [3.0], [0.0]]), np.zeros(5)
    got = canonical(X, y, np.array([1.0, 1, 1, 1, 0]))
    assert_array_equal(got.X[:, 0], [2, 1, 1, 3])


@given(arrays(np.float64, (9, 3), elements=unit), arrays(np.float64, 9, elements=st.floats(0.1, 5)))
def test_scale_is_the_weighted_mean_and_deviation(x, weight):
    scale = fit_scale(x, weight)

    mean = np.average(x, axis=0, weights=weight)
    std = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weight))
    assert_allclose(scale.mean, mean, atol=1e-12)
    assert_allclose(scale.std, np.where(np.ptp(x, axis=0) > 0, std, 1), rtol=1e-6)


def test_whole_weights_scale_as_repetitions():
    generator = np.random.default_rng(0)
    x, weight = generator.normal(size=(20, 3)), generator.integers(1, 4, 20)
    weighted, repeated = fit_scale(x, weight.astype(float)), np.repeat(x, weight, 0)
    assert_allclose(weighted.mean, repeated.mean(0))
    assert_allclose(weighted.std, repeated.std(0))


def test_scale_of_images_is_by_channel():
    x = np.random.default_rng(0).normal([[[[1.0]], [[5.0]]]], [[[[2.0]], [[3.0]]]], (50, 2, 4, 4))
    scale = fit_scale(x, np.ones(50))
    assert_allclose(scale.mean[:, 0, 0], x.mean((0, 2, 3)))
    assert_allclose(scale.std[:, 0, 0], x.std((0, 2, 3)))


@pytest.mark.parametrize("value", [0.0, 0.1, -1e9, 1e300])
@pytest.mark.parametrize("fit", [fit_scale, fit_input_scale])
def test_a_constant_column_is_centred_and_not_blown_up(fit, value):
    x = np.full((100_000, 1), value)  # long enough for the mean to round
    scale = fit(x, np.ones(len(x)))
    assert_array_equal(scale(x), 0.0)
    assert_array_equal(scale.std, 1.0)


def test_rounding_noise_is_no_movement():
    x = 1e9 + np.array([[0.0], [1.2e-7], [0.0]])
    assert fit_scale(x, np.ones(3)).std[0] == 1.0


@pytest.mark.parametrize("size", [1e-200, 1e-12, 1e12, 1e200])
@pytest.mark.parametrize("fit", [fit_scale, fit_input_scale])
def test_scale_works_at_any_size(fit, size):
    x = np.random.default_rng(0).normal(size=(50, 1))
    assert_allclose(fit(x * size, np.ones(50))(x * size), fit(x, np.ones(50))(x), rtol=1e-9)


def test_columns_of_one_unit_share_a_deviation():
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (200, 16)) * 1.0
    pixels[0], pixels[1] = 0.0, 255.0
    pixels[:, 0] = 0.0
    pixels[:, 1] = 0.0
    pixels[7, 1] = 1.0  # hardly ever moves, so it must stay small

    scale = fit_input_scale(pixels, np.ones(200))

    assert_allclose(scale.std, np.sqrt(np.mean(pixels.var(0))))
    assert np.abs(scale(pixels)[:, :2]).max() < 0.05


@pytest.mark.parametrize("units", [(1, 1e6), (1, 10, 100), (1, 1e6, 1e6), (1,) + (50,) * 20])
def test_columns_of_different_units_have_their_own(units):
    x = np.random.default_rng(0).normal(size=(200, len(units))) * units
    assert_allclose(fit_input_scale(x, np.ones(200)).std, x.std(0))


@given(arrays(np.float64, (5, 2), elements=unit), arrays(np.float64, (3, 2), elements=unit))
def test_scale_inverts_and_survives_json(x, new):
    scale = fit_scale(x, np.ones(5))
    again = Scale.from_lists(scale.as_lists())
    assert_array_equal(again(new), scale(new))
    assert_allclose(scale.inverse(scale(new)), new, atol=1e-7)


@settings(max_examples=50)
@given(
    st.integers(2, 60), st.sampled_from([0.0, 0.1, 0.2, 0.5]), st.integers(0, 5), st.integers(1, 4)
)
def test_split_is_a_partition_that_leaves_each_class_something_to_learn(n, fraction, seed, classes):
    strata = np.minimum(np.random.default_rng(seed).geometric(0.5, n), classes)
    fitted, held_out = (part.numpy() for part in split(n, fraction, strata, seed))

    assert_array_equal(np.sort(np.concatenate([fitted, held_out])), np.arange(n))
    if len(held_out) <= n - len(np.unique(strata)):
        assert set(strata[fitted]) == set(strata)
    assert len(held_out) == int(fraction * n)


def test_split_holds_out_each_class_in_its_share():
    strata = np.repeat([0, 1, 2], [600, 300, 100])
    _, held_out = split(1000, 0.2, strata, seed=0)
    assert_allclose(np.bincount(strata[held_out.numpy()]), [120, 60, 20], atol=2)
