"""Input as it comes: handled as documented, or refused with the value and the remedy."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_matrix
from sklearn.exceptions import NotFittedError
from torch import nn

from due.estimators import DUEClassifier, DUERegressor
from due.training import Recipe

pytestmark = pytest.mark.usefixtures("as_users_run")
FAST = {"epochs": 5, "n_inducing": 10, "random_state": 0}
BOTH = pytest.mark.parametrize("Estimator", [DUEClassifier, DUERegressor])


def data(n=60, D=2, seed=0):
    X = np.random.default_rng(seed).normal(size=(n, D))
    return X, (X[:, 0] > 0).astype(int)


def fitted(Estimator, X, y, **kwargs):
    return Estimator(**{**FAST, **kwargs}).fit(X, y)


def answers(estimator, X):
    """All that an estimator says about rows."""
    found = [estimator.predict(X), estimator.uncertainty(X), estimator.ood_score(X)]
    if isinstance(estimator, DUERegressor):
        found += [*estimator.predict(X, return_std=True)]
    else:
        found += [estimator.predict_proba(X)]
    return found


def assert_finite(estimator, X):
    for answer in answers(estimator, X):
        assert len(answer) == len(X)
        assert np.isfinite(answer).all()


# rows


@BOTH
@pytest.mark.parametrize(("bad", "message"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_values_that_are_not_finite_are_refused(Estimator, bad, message):
    X, y = data()
    spoiled = X.copy()
    spoiled[3, 1] = -bad
    with pytest.raises(ValueError, match=f"Input X contains {message}"):
        fitted(Estimator, spoiled, y)
    with pytest.raises(ValueError, match=f"Input X contains {message}"):
        fitted(Estimator, X, y).predict(spoiled)


@BOTH
def test_too_few_rows_are_refused(Estimator):
    X, y = data()
    with pytest.raises(ValueError, match=r"0 sample.* minimum of 2"):
        fitted(Estimator, X[:0], y[:0])
    with pytest.raises(ValueError, match=r"1 sample.* minimum of 2"):
        fitted(Estimator, X[:1], y[:1])
    with pytest.raises(ValueError, match=r"0 sample"):
        fitted(Estimator, X, y).predict(X[:0])


@BOTH
def test_two_rows_are_enough(Estimator):
    estimator = fitted(Estimator, [[0.0, 1.0], [1.0, 0.0]], [0, 1], n_inducing=100)
    assert_finite(estimator, np.eye(2))


@BOTH
def test_fewer_rows_than_inducing_points(Estimator):
    X, y = data(8)
    estimator = fitted(Estimator, X, y, n_inducing=100, validation_fraction=0)
    assert len(estimator.model_.gp.Z) == 8
    assert_finite(estimator, X)


@BOTH
def test_repeated_rows(Estimator):
    X, y = data(6)
    estimator = fitted(Estimator, np.tile(X, (20, 1)), np.tile(y, 20), n_inducing=100)
    assert len(estimator.model_.gp.Z) <= 6
    assert_finite(estimator, X)


@BOTH
def test_the_same_rows_with_other_targets(Estimator):
    X, y = np.repeat(data(6)[0], 10, axis=0), np.tile([0, 1, 2, 3, 4], 12)
    estimator = fitted(Estimator, X, y, n_inducing=30)
    assert_finite(estimator, X)


@BOTH
def test_constant_columns(Estimator):
    X, y = data()
    estimator = fitted(Estimator, np.column_stack([X, np.full(60, 0.1), np.zeros(60)]), y)
    assert_finite(estimator, np.column_stack([X, np.full(60, 0.1), np.ones(60)]))


@BOTH
def test_all_columns_constant(Estimator):
    X, y = np.full((60, 2), 3.0), data()[1]
    estimator = fitted(Estimator, X, y, validation_fraction=0, epochs=200)
    assert_finite(estimator, X)
    value = y.mean()  # all there is to know
    if Estimator is DUEClassifier:
        assert_allclose(estimator.predict_proba(X)[:, 1], value, atol=0.1)
    else:
        assert_allclose(estimator.predict(X), value, atol=0.1)
        assert_allclose(estimator.predict(X, return_std=True)[1], y.std(), rtol=0.3)


def test_constant_target():
    X, y = data()
    with pytest.warns(UserWarning, match="y is 1000000.0 in all rows: there is nothing to learn"):
        estimator = fitted(DUERegressor, X, np.full(60, 1e6))
    with pytest.warns(UserWarning, match=r"y\[:, \[1\]\] is 2.0 in all rows"):
        fitted(DUERegressor, X, np.column_stack([y, np.full(60, 2.0)]))
    mean, std = estimator.predict(X, return_std=True)
    assert_allclose(mean, 1e6, atol=0.5)
    assert np.isfinite(std).all()
    assert (std < 1.5).all()


@BOTH
def test_columns_of_wildly_different_sizes_answer_as_tame_ones(Estimator):
    X, y = data(D=3)
    tame, wild = X * [1, 8, 64], X * [2.0**-40, 1, 2.0**40]  # powers of two: to the same bits
    expected = answers(fitted(Estimator, tame, y), tame)
    for got, want in zip(answers(fitted(Estimator, wild, y), wild), expected, strict=True):
        assert_array_equal(got, want)
    assert_finite(fitted(Estimator, X * [1e-12, 1, 1e12], y), X * [1e-12, 1, 1e12])


@BOTH
def test_large_offsets_change_little(Estimator):
    X, y = data()
    near, far = fitted(Estimator, X, y), fitted(Estimator, X + 1e9, y)
    for got, want in zip(answers(far, X + 1e9)[1:], answers(near, X)[1:], strict=True):
        assert_allclose(got, want, atol=1e-3)


@BOTH
def test_another_width_is_refused(Estimator):
    X, y = data()
    with pytest.raises(ValueError, match="X has 3 features, but .* is expecting 2 features"):
        fitted(Estimator, X, y).predict(np.zeros((4, 3)))


@BOTH
def test_one_row_as_a_vector_is_refused(Estimator):
    X, y = data()
    with pytest.raises(ValueError, match="Reshape your data"):
        fitted(Estimator, X, y).predict(X[0])


@BOTH
def test_strings_are_refused(Estimator):
    X, y = data()
    words = X.astype(str).astype(object)
    words[0, 0] = "red"
    with pytest.raises(ValueError, match="could not convert string to float: 'red'"):
        fitted(Estimator, words, y)


@BOTH
def test_sparse_matrices_are_refused(Estimator):
    X, y = data()
    with pytest.raises(TypeError, match="Sparse data was passed.*dense data is required"):
        fitted(Estimator, csr_matrix(X), y)


@BOTH
@pytest.mark.parametrize("verb", ["predict", "uncertainty", "uncertainty_details", "ood_score"])
def test_unfitted(Estimator, verb):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(Estimator(), verb)(data()[0])


@BOTH
def test_unfitted_is_not_saved(Estimator, tmp_path):
    with pytest.raises(NotFittedError):
        Estimator().save(tmp_path)


@BOTH
def test_a_fit_that_fails_leaves_the_estimator_unfitted(Estimator):
    X, y = data()
    estimator = fitted(Estimator, X, y).set_params(extractor=lambda shape: Broken())
    with pytest.raises(RuntimeError, match="broken"):
        estimator.fit(X * 100, y)
    with pytest.raises(NotFittedError):  # rather than the old weights with the new scale
        estimator.predict(X)


class Broken(nn.Module):
    def forward(self, x):
        raise RuntimeError("broken")


@BOTH
def test_layout_and_type_of_the_array_do_not_matter(Estimator):
    X, y = data()
    X = X.astype(np.float16)
    estimator = fitted(Estimator, X.astype(np.float64), y)
    wide = np.zeros((60, 4), dtype=np.float16)
    wide[:, ::2] = X
    for other in (X, X.astype(np.float32), np.asfortranarray(X), wide[:, ::2], X.astype(object)):
        again = fitted(Estimator, other, y)
        for got, want in zip(answers(again, other), answers(estimator, X), strict=True):
            assert_array_equal(got, want)
    assert_array_equal(estimator.predict(X.tolist()), estimator.predict(X))
    assert_array_equal(estimator.predict(X[::-1]), estimator.predict(X)[::-1])


# targets


@pytest.mark.parametrize(
    "names",
    [
        ["ham", "spam"],
        np.array(["ham", "spam"], dtype=object),
        [-7, 300],
        [False, True],
        [1.0, 2.0],
        np.array([3, 250], dtype=np.uint8),
    ],
    ids=str,
)
def test_labels_of_any_type_come_back(names):
    X, y = data()
    names = np.asarray(names)
    plain, named = fitted(DUEClassifier, X, y), fitted(DUEClassifier, X, names[y])
    assert_array_equal(named.classes_, names)
    assert named.classes_.dtype == named.predict(X).dtype == names.dtype
    assert_array_equal(named.predict(X), names[plain.predict(X)])
    assert_array_equal(named.predict_proba(X), plain.predict_proba(X))


def test_one_class_is_refused():
    X, _ = data()
    with pytest.raises(ValueError, match="one class only, 'ham'; .* two classes"):
        fitted(DUEClassifier, X, np.full(60, "ham"))


def test_continuous_labels_are_refused():
    X, _ = data()
    with pytest.raises(ValueError, match="continuous"):
        fitted(DUEClassifier, X, X[:, 0])


@BOTH
@pytest.mark.parametrize(("bad", "message"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_targets_that_are_not_finite_are_refused(Estimator, bad, message):
    X, y = data()
    spoiled = y.astype(float)
    spoiled[3] = bad
    with pytest.raises(ValueError, match=f"Input y contains {message}"):
        fitted(Estimator, X, spoiled)


def test_missing_labels_are_refused():
    X, y = data()
    with pytest.raises((ValueError, TypeError), match="y|label"):
        fitted(DUEClassifier, X, np.where(y > 0, "a", np.array(None)))


def test_words_are_no_values():
    X, y = data()
    with pytest.raises(ValueError, match="could not convert string to float"):
        fitted(DUERegressor, X, np.array(["a", "b"])[y])


@BOTH
def test_lengths_must_agree(Estimator):
    X, y = data()
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fitted(Estimator, X, y[:-1])


def test_numbers_as_objects_are_values_but_no_labels():
    X, y = data()
    got, want = fitted(DUERegressor, X, y.astype(object)), fitted(DUERegressor, X, y)
    assert_array_equal(got.predict(X), want.predict(X))
    with pytest.raises(ValueError, match="Unknown label type"):  # as all of scikit-learn
        fitted(DUEClassifier, X, y.astype(object))


# weights


@BOTH
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.full(60, np.nan), "sample_weight contains NaN"),
        (np.full(60, np.inf), "sample_weight contains infinity"),
        (np.linspace(-1, 1, 60), "[Nn]egative values in"),
        (np.zeros(60), "zero"),
        (np.ones(59), r"sample_weight.shape == \(59,\), expected \(60,\)"),
        (np.ones((60, 2)), "1D array or scalar"),
    ],
    ids=["nan", "inf", "negative", "zero", "short", "wide"],
)
def test_weights_without_sense_are_refused(Estimator, weight, message):
    X, y = data()
    with pytest.raises(ValueError, match=message):
        Estimator(**FAST).fit(X, y, sample_weight=weight)


@BOTH
def test_weight_zero_leaves_a_row_out(Estimator):
    X, y = data()
    weight = np.repeat([1.0, 0.0], 30)
    got = Estimator(**FAST).fit(X, y, sample_weight=weight)
    want = fitted(Estimator, X[:30], y[:30])
    assert_array_equal(got.uncertainty(X), want.uncertainty(X))


@BOTH
def test_weight_on_a_single_row(Estimator):
    X, y = data()
    estimator = Estimator(**FAST).fit(X, y, sample_weight=np.eye(60)[0])
    assert_finite(estimator, X)


# extractors


@BOTH
def test_images_need_an_extractor(Estimator):
    X, y = np.zeros((60, 3, 4)), data()[1]
    with pytest.raises(ValueError, match=r"rows have shape \(3, 4\).*flatten them or .*extractor"):
        fitted(Estimator, X, y)


def flat(shape):
    return nn.Flatten()


@BOTH
def test_rows_of_another_shape_are_refused(Estimator):
    X, y = np.random.default_rng(0).normal(size=(60, 3, 4)), data()[1]
    estimator = fitted(Estimator, X, y, extractor=flat)
    assert_finite(estimator, X)
    with pytest.raises(ValueError, match=r"shape \(3, 5\).* fitted on rows of shape \(3, 4\)"):
        estimator.predict(np.zeros((2, 3, 5)))
    with pytest.raises(ValueError, match=r"fitted on rows of shape \(3, 4\)"):
        estimator.predict(np.zeros((2, 3)))


@BOTH
@pytest.mark.parametrize("network", [nn.Identity(), nn.Flatten(0), nn.Flatten(0, 1)], ids=str)
def test_extractor_that_gives_no_vectors(Estimator, network):
    X, y = np.random.default_rng(0).normal(size=(60, 3, 4)), data()[1]
    with pytest.raises(ValueError, match=r"features of shape .*one vector for each row"):
        fitted(Estimator, X, y, extractor=lambda shape: network)


@BOTH
def test_extractor_that_is_a_network(Estimator):
    X, y = data()
    with pytest.raises(TypeError, match="extractor is a network; give a function that builds one"):
        fitted(Estimator, X, y, extractor=nn.Linear(2, 4))


@BOTH
def test_extractor_that_builds_no_network(Estimator):
    X, y = data()
    with pytest.raises(TypeError, match="extractor returned a .*; it must be"):
        fitted(Estimator, X, y, extractor=lambda shape: torch.relu)


# parameters


@BOTH
@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ({"kernel": "cosine"}, "kernel='cosine' is not one of rbf, matern12"),
        ({"c": 0}, "c=0 is not a number above 0"),
        ({"c": -1.0}, "c=-1.0 is not"),
        ({"c": np.nan}, "c=nan is not"),
        ({"c": "tight"}, "c='tight' is not"),
        ({"n_inducing": 0}, "n_inducing=0 is not a whole number of at least 1"),
        ({"n_inducing": 2.5}, "n_inducing=2.5 is not"),
        ({"n_inducing": "few"}, "n_inducing='few' is not"),
        ({"epochs": 0}, "epochs=0 is not"),
        ({"batch_size": 0}, "batch_size=0 is not"),
        ({"recipe": Recipe(patience=0)}, "patience=0 is not"),
        ({"lr": 0.0}, "lr=0.0 is not a number above 0"),
        ({"recipe": Recipe(head_lr=-0.1)}, "head_lr=-0.1 is not"),
        ({"validation_fraction": 1.0}, r"validation_fraction=1.0 is not in \[0, 1\)"),
        ({"validation_fraction": -0.1}, "validation_fraction=-0.1 is not"),
        ({"validation_fraction": np.nan}, "validation_fraction=nan is not"),
    ],
    ids=str,
)
def test_bad_parameters(Estimator, parameter, message):
    with pytest.raises(ValueError, match=message):
        fitted(Estimator, *data(), **parameter)


def test_bad_parameters_of_one_kind():
    with pytest.raises(
        ValueError, match="bound='tight' is not one of auto, collapsed, elbo, exact"
    ):
        fitted(DUERegressor, *data(), bound="tight")
    with pytest.raises(ValueError, match="probabilities='sum' is not one of exact, monte_carlo"):
        fitted(DUEClassifier, *data(), probabilities="sum")


def test_questions_without_an_answer():
    X, y = data()
    estimator = fitted(DUERegressor, X, y)
    with pytest.raises(ValueError, match="return_std and return_cov exclude each other"):
        estimator.predict(X, return_std=True, return_cov=True)
    for alpha in (0, 1, 5, np.nan):
        with pytest.raises(ValueError, match=f"alpha={alpha} is not between 0 and 1"):
            estimator.predict_interval(X, alpha=alpha)


# warm start


@BOTH
def test_warm_start_with_other_columns_is_refused(Estimator):
    X, y = data()
    estimator = fitted(Estimator, X, y, warm_start=True)
    want = estimator.uncertainty(X)
    with pytest.raises(ValueError, match="X has 3 features, but .* is expecting 2 features"):
        estimator.fit(data(D=3)[0], y)
    assert_array_equal(estimator.uncertainty(X), want)  # nothing was touched


@BOTH
def test_warm_start_with_other_shapes_is_refused(Estimator):
    X, y = np.random.default_rng(0).normal(size=(60, 3, 4)), data()[1]
    estimator = fitted(Estimator, X, y, warm_start=True, extractor=flat)
    with pytest.raises(ValueError, match=r"shape \(3, 2\).* fitted on rows of shape \(3, 4\)"):
        estimator.fit(X[..., :2], y)


def test_warm_start_with_other_classes_is_refused():
    X, y = data()
    estimator = fitted(DUEClassifier, X, y, warm_start=True)
    for other in (np.arange(60) % 3, y + 1, np.array(["a", "b"])[y]):
        with pytest.raises(ValueError, match=r"the last fit had \[0, 1\].*warm_start=False"):
            estimator.fit(X, other)
    assert_array_equal(estimator.classes_, [0, 1])
    estimator.set_params(warm_start=False).fit(X, np.arange(60) % 3)
    assert estimator.predict_proba(X).shape == (60, 3)


def test_warm_start_with_other_outputs_is_refused():
    X, y = data()
    estimator = fitted(DUERegressor, X, y, warm_start=True)
    for other in (np.column_stack([y, y]), y[:, None]):
        with pytest.raises(ValueError, match="warm_start goes on with the same outputs"):
            estimator.fit(X, other)
    assert estimator.predict(X).shape == (60,)
