"""BART (Chipman et al., 2010): y = Σ_j tree_j(x, t) + ε, sampled by MCMC; by `stochtree`."""

from importlib import import_module
from typing import Any

import numpy as np
from scipy.stats import chi2
from sklearn.utils import check_random_state

from due.estimators.effects import SampledEffects
from due.estimators.network import estimator
from due.rows.checks import argument, check_not_negative, check_positive, check_whole
from due.rows.scale import Floats
from due.rows.study import Study

SMALLEST_LEAF = 5
NU, QUANTILE = 3, 0.9  # σ² ~ νλ/χ²_ν, with P(σ < σ̂) = 0.9: Chipman et al.'s default


@estimator
class BART(SampledEffects):
    """Bayesian additive regression trees on [x, t]; the draws of the posterior are the effects'.

    The prior is that of Chipman et al.: leaves N(0, (R/2k√m)²), where R is the range of y and m
    the number of trees; a node of depth d splits with probability 0.95 (1 + d)⁻²; σ² is scaled
    inverse χ² with 3 degrees of freedom and lies below the residual variance of least squares
    with probability 0.9. It needs no validation and learns from those people too.
    Needs `pip install 'due[rivals]'`.

    Parameters
    ----------
    n_trees
        Number of trees, m.
    k
        How many prior standard deviations of the sum of trees reach the ends of y's range.
    n_burn, n_draws
        MCMC steps thrown away, and kept.
    random_state
        Seed of the sampler; prediction is deterministic.

    Attributes
    ----------
    sampler_
        The fitted `stochtree.BARTModel`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, T = rng.normal(size=(100, 2)), rng.integers(2, size=100)
    >>> Y = X[:, 0] + 3 * T + 0.1 * rng.normal(size=100)
    >>> model = BART(n_trees=50, n_draws=100, random_state=0).fit(Y, T, X)  # doctest: +SKIP
    >>> bool(abs(model.ate(X) - 3) < 0.5)  # doctest: +SKIP
    True
    """

    n_trees: int = argument(200, check_whole)
    k: float = argument(2.0, check_positive)
    n_burn: int = argument(500, check_not_negative)
    n_draws: int = argument(1000, check_whole)
    random_state: Any = None
    _fitted = "sampler_"

    def _fit(self, study: Study, validation: Study | None) -> None:
        sampler = _engine()()
        X, t, y = study.join(validation)
        if len(y) < 2 * SMALLEST_LEAF:
            raise ValueError(
                f"{len(y)} people are too few for a tree, whose leaves hold {SMALLEST_LEAF} at "
                f"least; BART needs {2 * SMALLEST_LEAF}"
            )
        if not np.ptp(y) > 1e-12 * np.abs(y).max():
            raise ValueError(f"all outcomes are {y[0]:g}: BART has no variance to explain")
        standard = (y - y.mean()) / y.std()  # as stochtree does; the prior is on this scale
        inputs = np.column_stack([X, t])
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        shape, rate = noise_prior(inputs, standard)
        leaf_std = np.ptp(standard) / (2 * self.k * np.sqrt(self.n_trees))
        sampler.sample(
            X_train=inputs,
            y_train=y,
            num_gfr=0,
            num_burnin=self.n_burn,
            num_mcmc=self.n_draws,
            general_params={
                "standardize": True,
                "cutpoint_grid_size": 100,
                "sample_sigma2_global": True,
                "sigma2_global_shape": shape,
                "sigma2_global_scale": rate,
                "random_seed": seed,
                "num_chains": 1,
                "num_threads": 1,
            },
            mean_forest_params={
                "num_trees": self.n_trees,
                "alpha": 0.95,
                "beta": 2.0,
                "min_samples_leaf": SMALLEST_LEAF,
                "max_depth": -1,
                "sample_sigma2_leaf": False,
                "sigma2_leaf_init": float(leaf_std**2),
            },
        )
        self.sampler_: Any = sampler

    def _outcomes(self, X: Floats) -> Floats:
        return self._both(X).mean(2)

    def _draws(self, X: Floats) -> Floats:
        outcomes = self._both(X)
        return (outcomes[:, 1] - outcomes[:, 0]).T

    def _both(self, X: Floats) -> Floats:
        """Draws of the outcome without and with treatment, (N, 2, S)."""
        arms = [np.column_stack([X, np.full(len(X), float(t))]) for t in (0, 1)]
        draws = self.sampler_.predict(X=np.concatenate(arms), type="posterior", terms="y_hat")
        return np.asarray(draws).reshape(2, len(X), -1).transpose(1, 0, 2)


def noise_prior(inputs: Floats, y: Floats) -> tuple[float, float]:
    """Shape and scale of the inverse gamma prior of σ²: ν/2 and νλ/2."""
    design = np.column_stack([np.ones(len(inputs)), inputs])
    coefficients, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    free = len(y) - int(rank)
    variance = float(np.sum((y - design @ coefficients) ** 2) / free) if free > 0 else 0.0
    variance = max(variance, 1e-6)
    lam = variance * chi2.ppf(1 - QUANTILE, NU) / NU  # P(νλ/χ² < σ̂²) = P(χ² > νλ/σ̂²) = 0.9
    return NU / 2, float(NU * lam / 2)


def _engine() -> Any:
    try:
        return import_module("stochtree").BARTModel
    except ImportError as error:
        raise ImportError("BART is sampled by stochtree: pip install 'due[rivals]'") from error
