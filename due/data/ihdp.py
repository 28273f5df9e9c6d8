"""IHDP (Hill, 2011, surface B) and IHDP-Cov: real covariates, simulated outcomes of known effect.

With β_k ∈ {0, .1, .2, .3, .4}, g = (X + ½)β, ε ~ N(0, 1) and one seed a trial:

    μ0 = exp(g),   μ1 = g − ω,   y = μ_t + ε,   τ = μ1 − μ0,   mean of τ over the treated = 4.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from sklearn.model_selection import train_test_split

from due.data.download import DownloadError, damaged, fetch

CONTINUOUS = ("bw", "b.head", "preterm", "birth.o", "nnhealth", "momage")
SITES = ("ark", "ein", "har", "mia", "pen", "tex", "was")
BINARY = (
    *("sex", "twin", "b.marr", "mom.lths", "mom.hs", "mom.scoll", "cig", "first"),
    *("booze", "drugs", "work.dur", "prenatal"),
    *SITES,
)
COLUMNS: tuple[str, ...] = CONTINUOUS + BINARY
MARRIED = COLUMNS.index("b.marr")

URL = "https://github.com/vdorie/npci/raw/master/examples/ihdp_sim/data/ihdp.RData"
SHA256 = "b5a96fe240c01ef3348553db0fc5622fd8086e79466663df4ceb8e546cfb359c"


class Split(NamedTuple):
    """Rows of one trial, outcomes in their own units; `row` numbers the 747 kept."""

    X: Float[ndarray, "N D"]
    t: Int[ndarray, "N"]
    y: Float[ndarray, "N"]
    mu0: Float[ndarray, "N"]
    mu1: Float[ndarray, "N"]
    tau: Float[ndarray, "N"]
    row: Int[ndarray, "N"]


class IHDP(NamedTuple):
    """One trial; y_mean and y_std are those of train and validation together."""

    train: Split
    validation: Split
    test: Split
    y_mean: float
    y_std: float
    omega: float
    columns: tuple[str, ...]

    def standardise(self, y: Float[ndarray, "N"]) -> Float[ndarray, "N"]:
        """(y − y_mean) / y_std."""
        return (y - self.y_mean) / self.y_std


def load(seed: int, covariate_shift: bool = False) -> IHDP:
    """Trial `seed`; the paper runs 0…999.

    With `covariate_shift` (IHDP-Cov) only children of married mothers are trained and validated
    on, and no model sees that column; the 75 test rows stay as they are.
    """
    population, omega = _simulate(seed)
    rest, test = train_test_split(population.row, test_size=0.1, random_state=seed)
    columns = COLUMNS
    if covariate_shift:
        rest = rest[population.X[rest, MARRIED] == 1]
        population = population._replace(X=np.delete(population.X, MARRIED, axis=1))
        columns = COLUMNS[:MARRIED] + COLUMNS[MARRIED + 1 :]
    parts = (*train_test_split(rest, test_size=0.3, random_state=seed), test)
    train, validation, test = (Split(*(array[rows] for array in population)) for rows in parts)
    y = population.y[rest]
    return IHDP(train, validation, test, float(y.mean()), float(y.std()), omega, columns)


def _simulate(seed: int) -> tuple[Split, float]:
    """Outcomes of all 747 rows, and ω."""
    X, t = _covariates()
    rng = np.random.default_rng(seed)
    beta = rng.choice([0, 0.1, 0.2, 0.3, 0.4], size=X.shape[1], p=[0.6, 0.1, 0.1, 0.1, 0.1])
    g = (X + 0.5) @ beta
    mu0 = np.exp(g)
    omega = float((g - mu0)[t == 1].mean() - 4)
    mu1 = g - omega
    y = np.where(t == 1, mu1, mu0) + rng.normal(size=len(X))
    return Split(X, t, y, mu0, mu1, mu1 - mu0, np.arange(len(X))), omega


@cache
def _covariates() -> tuple[Float[ndarray, "747 25"], Int[ndarray, "747"]]:
    """X, its first six columns standardised, and t, without treated children of nonwhite mothers.

    Read once a process: a thousand trials share them.
    """
    frame = _frame()
    keep = ~((frame["treat"] == 1) & (frame["momwhite"] == 0))
    X = np.stack([frame[name][keep] for name in COLUMNS], axis=1)
    continuous = X[:, : len(CONTINUOUS)]
    X[:, : len(CONTINUOUS)] = (continuous - continuous.mean(0)) / continuous.std(0)
    t = frame["treat"][keep].astype(np.int64)
    X.flags.writeable = t.flags.writeable = False
    return X, t


def _frame() -> dict[str, Float[ndarray, "985"]]:
    """The 985 rows as published, or econml's copy of them where they cannot be had."""
    try:
        return _read_rdata()
    except (ImportError, DownloadError):
        if (copy := _econml_copy()) is None:
            raise
        return _read_econml(copy)


def _read_rdata() -> dict[str, Float[ndarray, "985"]]:
    try:
        import rdata
    except ImportError as error:
        raise ImportError("IHDP is an R file: pip install 'due[paper]'") from error
    path = fetch("ihdp/ihdp.RData", URL, SHA256)
    try:
        frame = rdata.read_rda(path)["ihdp"]
    except Exception as error:  # rdata raises many kinds for a damaged file
        raise damaged(path, error) from error
    return {name: frame[name].to_numpy(dtype=np.float64) for name in frame}


def _econml_copy() -> Path | None:
    spec = find_spec("econml")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "data" / "ihdp" / "sim.csv"
    return path if path.is_file() else None


def _read_econml(path: Path) -> dict[str, Float[ndarray, "985"]]:
    """There `first` is 0/1, site1…site7 are the seven sites in order, site8 none of them."""
    names = path.read_text().partition("\n")[0].split(",")
    values = np.loadtxt(path, delimiter=",", skiprows=1)
    frame = dict(zip(names, values.T, strict=True))
    frame["first"] = frame["first"] + 1
    return frame | {site: frame[f"site{k}"] for k, site in enumerate(SITES, start=1)}
