"""What must not change an answer of any estimator: the order of rows, units of X and y, names of
classes, weights for repetitions, an absurd row in the batch, threads, processes, torch's default
dtype, a second save and load. hypothesis draws the cases.

In commit 3d8e3da the default dtype fails for every network, threads for most, the order of people
for DUECATE, and an absurd row for the exact GPs.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from joblib import Parallel, delayed
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone, is_classifier
from test_contract import CLASSIFIERS, EFFECTS, REGRESSORS, need_engine

from due import DUEClassifier, DUERegressor
from due.estimators import DUECATE
from due.networks import FCResNet
from due.storage.estimator import SavedEstimator

N = 40
RNG = np.random.default_rng(0)
X, T = RNG.normal(size=(N, 3)), np.arange(N) % 2
SIGNAL = X[:, 0] + X[:, 1] ** 2 + 0.1 * RNG.normal(size=N)
NOT_OURS = ("BART", "S-learner", "T-learner")  # trees of other libraries
AS_THEY_COME = ("TARNet ensemble", "BTARNet", "BCEVAE", "DKLITE")  # the order seeds their batches
MASK_PER_PERSON = ("BTARNet", "BCEVAE")
ALL = {
    **{f"{name} classifier": model for name, model in CLASSIFIERS.items()},
    **{f"{name} regressor": model for name, model in REGRESSORS.items()},
    **{name: model for name, model in EFFECTS.items() if name not in NOT_OURS},
}
every = pytest.mark.parametrize("name", ALL)
few = settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@dataclass(frozen=True)
class Change:
    """Something that must not matter."""

    order: int | None = None  # seed of a permutation of the rows
    x_unit: int = 0  # powers of 2, which round nothing
    x_shift: int = 0
    y_unit: int = 0
    y_shift: int = 0
    labels: tuple = ("ham", "spam")
    wide: bool = False  # torch's default dtype
    thread: bool = False


changes = st.builds(
    Change,
    order=st.integers(0, 99),
    x_unit=st.integers(-30, 30),
    x_shift=st.sampled_from([0, 1, -4]),
    y_unit=st.integers(-30, 30),
    y_shift=st.sampled_from([0, 1, -4]),
    labels=st.sampled_from([("ham", "spam"), (0, 1), (-1.0, 5.0), (False, True)]),
    wide=st.booleans(),
    thread=st.booleans(),
)


@contextmanager
def default_dtype(wide):
    torch.set_default_dtype(torch.float64 if wide else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def fitted(name, change=Change(), **more):
    """The estimator of that name, fitted on changed data."""
    order = np.arange(N)
    if change.order is not None and name not in AS_THEY_COME:
        order = np.random.default_rng(change.order).permutation(N)
    rows, y = in_units(X, change)[order], (SIGNAL * 2.0**change.y_unit)[order]
    y = y + change.y_shift * 2.0**change.y_unit
    model = clone(ALL[name])
    data: tuple[Any, ...]
    if name in EFFECTS:
        data = (y, T[order], rows)
    elif is_classifier(model):
        data = (rows, np.array(change.labels)[(SIGNAL[order] > 0.5).astype(int)])
    else:
        data = (rows, y)
    with default_dtype(change.wide):
        if not change.thread:
            return model.fit(*data, **more)
        with ThreadPoolExecutor(2) as pool:
            twins = list(pool.map(lambda m: m.fit(*data, **more), [model, clone(model)]))
    return twins[0]


def in_units(rows, change):
    return (rows + change.x_shift) * 2.0**change.x_unit


def answers(model, rows, change=Change()):
    """In the units of the data that did not change, one row per row."""
    unit, shift = 2.0**change.y_unit, change.y_shift * 2.0**change.y_unit
    if hasattr(model, "potential_outcomes"):
        return (model.potential_outcomes(rows) - shift) / unit
    if is_classifier(model):
        return model.predict_proba(rows)
    mean, std = model.predict(rows, return_std=True)
    return np.column_stack([(mean - shift) / unit, std / unit])


@cache
def plain(name):
    model = fitted(name)
    return model, answers(model, X)


@every
@few
@given(change=changes)
def test_what_does_not_matter_changes_nothing(name, change):
    need_engine(name)
    model = fitted(name, change)
    _, want = plain(name)
    got = answers(model, in_units(X, change), change)
    assert_allclose(got, want, atol=1e-3 * max(1.0, np.abs(want).max()), rtol=0)
    if is_classifier(model):
        assert model.classes_.tolist() == list(change.labels)


@every
@few
@given(data=st.data())
def test_a_repetition_is_a_weight(name, data):
    need_engine(name)
    if "sample_weight" not in signature(ALL[name].fit).parameters:
        pytest.skip("it takes no weights")
    times = np.array(data.draw(st.lists(st.integers(1, 3), min_size=N, max_size=N)))
    weighted = clone(ALL[name]).fit(X, target(name), sample_weight=times)
    written = clone(ALL[name]).fit(np.repeat(X, times, 0), np.repeat(target(name), times))
    assert_allclose(answers(written, X), answers(weighted, X), rtol=1e-9, atol=1e-9)


def target(name):
    return SIGNAL if "regressor" in name else np.array(["ham", "spam"])[(SIGNAL > 0.5).astype(int)]


@every
@few
@given(
    far=st.sampled_from([1e3, 1e10, 1e100]), place=st.integers(0, N), sign=st.sampled_from([1, -1])
)
def test_an_absurd_row_leaves_the_others_alone(name, far, place, sign):
    need_engine(name)
    if name in MASK_PER_PERSON:
        pytest.skip("its dropout masks belong to the people of a call")
    model, want = plain(name)
    crowd = np.insert(X, place, sign * far, axis=0)
    with np.errstate(all="ignore"):
        got = np.delete(answers(model, crowd), place, axis=0)
    assert_allclose(got, want, atol=1e-7 * max(1.0, np.abs(want).max()), rtol=0)


@every
def test_a_second_save_and_load_changes_nothing(name, tmp_path):
    need_engine(name)
    model, want = plain(name)
    if not isinstance(model, SavedEstimator):
        pytest.skip("it cannot be saved")
    extractor = extractor_of(ALL[name])
    for folder in ("once", "twice"):
        model.save(tmp_path / folder)
        model = type(model).load(tmp_path / folder, extractor)
        assert_array_equal(answers(model, X), want)


def extractor_of(model):
    while hasattr(model, "estimator"):
        model = model.estimator
    return getattr(model, "extractor", None)


def of_another_process(name):
    torch.set_num_threads(1)
    return answers(fitted(name), X)


@pytest.mark.slow
def test_fits_in_another_process_are_the_same():
    names = [name for name in ALL if "SV-DKL" not in name]
    for name, got in zip(
        names, Parallel(2)(delayed(of_another_process)(name) for name in names), strict=True
    ):
        assert_allclose(got, plain(name)[1], atol=1e-6, err_msg=name)


# what holds for DUE itself


def small(shape):
    return FCResNet(shape[0], 8, 1)


@few
@given(order=st.permutations(range(3)))
def test_classes_in_another_order_have_their_own_probabilities(order):
    codes = np.digitize(SIGNAL, [0.0, 1.0])
    models = [
        DUEClassifier(small, epochs=3, n_inducing=6, random_state=0).fit(X, labels[codes])
        for labels in (np.arange(3), np.array(order))
    ]
    want, got = (model.predict_proba(X) for model in models)
    assert_allclose(got[:, order], want, atol=1e-3)


@few
@given(order=st.permutations(range(3)))
def test_columns_in_another_order_are_learned_as_well(order):
    """The weights of a network are drawn for a place, so only the quality can be the same."""
    columns = list(order)
    model = DUERegressor(small, epochs=60, random_state=0).fit(X[:, columns], SIGNAL)
    assert model.score(X[:, columns], SIGNAL) > 0.7


@few
@given(seed=st.integers(0, 99))
def test_effects_do_not_depend_on_the_order_of_people(seed):
    order = np.random.default_rng(seed).permutation(N)
    one, other = (
        DUECATE(small, epochs=5, n_inducing=6, random_state=0)
        .fit((SIGNAL + T)[rows], T[rows], X=X[rows])
        .effect_std(X)
        for rows in (np.arange(N), order)
    )
    assert_allclose(other, one, rtol=1e-6)
