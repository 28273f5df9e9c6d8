import builtins
import importlib

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from due.data import ihdp
from due.data.download import DownloadError, find

needs_data = pytest.mark.skipif(
    find("ihdp/ihdp.RData") is None, reason="needs ihdp/ihdp.RData under DUE_DATA"
)

BOTH = pytest.mark.parametrize("covariate_shift", [False, True], ids=["IHDP", "IHDP-Cov"])


@pytest.fixture
def fresh():
    """Forget the covariates before and after: the test reads others."""
    ihdp._covariates.cache_clear()
    yield
    ihdp._covariates.cache_clear()


@needs_data
@pytest.mark.parametrize(
    ("seed", "omega", "y_std", "tau_mean", "tau_std"),
    [
        (0, -11.517827, 5.12387, 4.78287, 4.19021),
        (1, -9.833264, 4.90525, 4.31461, 4.16951),
        (2, -7.915882, 2.88812, 3.98521, 2.22319),
    ],
)
def test_golden_values(seed, omega, y_std, tau_mean, tau_std):
    trial = ihdp.load(seed)
    assert_allclose(trial.omega, omega, atol=1e-6)
    assert_allclose(trial.y_std, y_std, atol=1e-5)
    assert_allclose(trial.test.tau.mean(), tau_mean, atol=1e-5)
    assert_allclose(trial.test.tau.std(), tau_std, atol=1e-5)


@needs_data
def test_golden_split_of_seed_zero():
    trial, cov = ihdp.load(0), ihdp.load(0, covariate_shift=True)
    assert_allclose(trial.y_mean, 10.03634, atol=1e-5)
    assert_array_equal(trial.test.row[:5], [258, 521, 14, 31, 505])
    assert (len(trial.train.y), len(trial.validation.y), len(trial.test.y)) == (470, 202, 75)
    assert (len(cov.train.y), len(cov.validation.y), len(cov.test.y)) == (247, 107, 75)
    assert_allclose(cov.y_std, 4.96933, atol=1e-5)


@needs_data
@BOTH
def test_splits_are_disjoint_and_outcomes_hang_together(covariate_shift):
    trial = ihdp.load(7, covariate_shift)
    rows = np.concatenate([split.row for split in trial[:3]])
    assert len(np.unique(rows)) == len(rows)
    for split in trial[:3]:
        assert_array_equal(split.tau, split.mu1 - split.mu0)
        noise = split.y - np.where(split.t == 1, split.mu1, split.mu0)
        assert abs(noise.mean()) < 0.5 and 0.7 < noise.std() < 1.3
    fitted = trial.standardise(np.concatenate([trial.train.y, trial.validation.y]))
    assert_allclose([fitted.mean(), fitted.std()], [0, 1], atol=1e-12)


@needs_data
def test_population_is_747_rows_with_139_treated_and_an_effect_on_them_of_four():
    trial = ihdp.load(3)
    t, tau = (np.concatenate([getattr(s, name) for s in trial[:3]]) for name in ("t", "tau"))
    assert (len(t), t.sum()) == (747, 139)
    assert_allclose(tau[t == 1].mean(), 4)


@needs_data
def test_continuous_columns_are_standardised_and_first_stays_one_or_two():
    X, _ = ihdp._covariates()
    assert_allclose(X[:, :6].mean(0), 0, atol=1e-12)
    assert_allclose(X[:, :6].std(0), 1)
    binary = X[:, 6:]
    first = ihdp.BINARY.index("first")
    assert set(np.unique(binary[:, first])) == {1, 2}
    assert set(np.unique(np.delete(binary, first, axis=1))) == {0, 1}


@needs_data
def test_covariate_shift_trains_on_married_mothers_hides_the_column_and_keeps_the_test_set():
    trial, cov = ihdp.load(0), ihdp.load(0, covariate_shift=True)
    married = ihdp.COLUMNS.index("b.marr")
    X, _ = ihdp._covariates()
    assert trial.columns == ihdp.COLUMNS
    assert cov.columns == tuple(name for name in ihdp.COLUMNS if name != "b.marr")
    assert np.all(X[np.r_[cov.train.row, cov.validation.row], married] == 1)
    assert set(X[cov.test.row, married]) == {0, 1}
    assert_array_equal(cov.test.row, trial.test.row)
    assert_array_equal(cov.test.tau, trial.test.tau)
    assert_array_equal(cov.test.X, np.delete(trial.test.X, married, axis=1))


@needs_data
def test_trials_repeat_and_do_not_share_memory_with_the_cache():
    first = ihdp.load(0)
    first.train.X[:] = 0
    first.test.t[:] = 0
    again = ihdp.load(0)
    assert again.train.X.any() and again.test.t.any()
    assert_array_equal(again.test.y, first.test.y)


@needs_data
def test_the_file_is_read_once(monkeypatch, fresh):
    reads = []
    read = ihdp._frame

    def counted():
        reads.append(1)
        return read()

    monkeypatch.setattr(ihdp, "_frame", counted)
    for seed in range(20):
        ihdp.load(seed, covariate_shift=bool(seed % 2))
    assert len(reads) == 1


def write_econml_copy(folder, frame):
    """The frame in econml's layout: `first` from 0, sites by number, site8 for the rest."""
    columns = {name: frame[name] for name in frame if name not in ihdp.SITES}
    columns["first"] = columns["first"] - 1
    for k, site in enumerate(ihdp.SITES, start=1):
        columns[f"site{k}"] = frame[site]
    columns["site8"] = 1 - sum(frame[site] for site in ihdp.SITES)
    path = folder / "econml" / "data" / "ihdp" / "sim.csv"
    path.parent.mkdir(parents=True)
    (folder / "econml" / "__init__.py").write_text("raise AssertionError('imported')")
    np.savetxt(
        path,
        np.stack(list(columns.values()), 1),
        "%.10g",
        ",",
        header=",".join(columns),
        comments="",
    )


def unreachable(*args, **kwargs):
    raise DownloadError("no network; set DUE_DATA")


@needs_data
@BOTH
def test_econml_copy_gives_the_same_trials(monkeypatch, tmp_path, fresh, covariate_shift):
    want = ihdp.load(5, covariate_shift)
    write_econml_copy(tmp_path, ihdp._read_rdata())
    ihdp._covariates.cache_clear()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ihdp, "fetch", unreachable)

    got = ihdp.load(5, covariate_shift)

    for split, wanted in zip(got[:3], want[:3], strict=True):
        for name, array in split._asdict().items():
            assert_allclose(array, getattr(wanted, name), rtol=1e-6, atol=1e-7)


def test_econml_columns_are_renamed_and_recoded(tmp_path):
    rng = np.random.default_rng(0)
    names = ("treat", *ihdp.COLUMNS, "momwhite")
    frame = {name: rng.integers(2, size=985).astype(float) for name in names}
    frame["first"] += 1
    write_econml_copy(tmp_path, frame)
    got = ihdp._read_econml(tmp_path / "econml" / "data" / "ihdp" / "sim.csv")
    for name in names:
        assert_array_equal(got[name], frame[name], err_msg=name)


def test_without_any_source_the_remedy_is_named(monkeypatch, fresh):
    pytest.importorskip("rdata")
    monkeypatch.setattr(ihdp, "fetch", unreachable)
    monkeypatch.setattr(ihdp, "_econml_copy", lambda: None)
    with pytest.raises(DownloadError, match="DUE_DATA"):
        ihdp.load(0)


def test_without_rdata_the_extra_is_named(monkeypatch, fresh):
    real = builtins.__import__

    def no_rdata(name, *args, **kwargs):
        if name == "rdata":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_rdata)
    monkeypatch.setattr(ihdp, "_econml_copy", lambda: None)
    with pytest.raises(ImportError, match=r"pip install 'due\[paper\]'"):
        ihdp.load(0)


def test_an_installed_econml_is_found_without_importing_it(monkeypatch, tmp_path):
    package = tmp_path / "econml"
    (package / "data" / "ihdp").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert ihdp._econml_copy() is None
    (package / "data" / "ihdp" / "sim.csv").touch()
    assert ihdp._econml_copy() == package / "data" / "ihdp" / "sim.csv"
