"""Regressors that DUE is compared with, on the same network and with the same training."""

from typing import Any

from numpy.typing import ArrayLike
from torch import nn

from due.baselines.classifiers import random_features
from due.estimators.network import estimator
from due.estimators.regressor import Regressor
from due.methods.gaussian import GaussianNetwork
from due.methods.sngp import SNGPGaussian
from due.methods.svdkl import GridGP, SVDKLGaussian, check_grid
from due.rows.checks import argument, check_flag, check_positive, check_whole, or_none
from due.training import Recipe


@estimator
class PlainRegressor(Regressor):
    """Abstract: a `Regressor` whose rows are independent of one another."""

    _recipe = Recipe(lr=2e-3, warm_up=20, patience=30)

    def _default_recipe(self, n: int) -> Recipe:
        return self._recipe

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Mean of y, with the standard deviation of a new observation, noise included."""
        mean, std = self._observed(X)
        return (mean, std) if return_std else mean


@estimator
class NetworkRegressor(PlainRegressor):
    """The usual deep regressor, trained by the likelihood of N(μ(x), σ²(x)).

    It has the arguments and the training of `DUERegressor` in batches, at a rate of 2e-3, and its
    network is free by default. σ² is noise: far from the data a single network does not know what
    it does not know, and σ² may be small there. `DeepEnsemble(NetworkRegressor(), 10)` does, by
    how far its members differ. All arguments are those of `Regressor`, `NetworkEstimator` and
    `Trained`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 200)[:, None]
    >>> model = NetworkRegressor(epochs=60, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> bool(model.score(X, np.sin(X[:, 0])) > 0.9)
    True
    """

    c: float | None = argument(None, or_none(check_positive))

    def _method(self, f: nn.Module, J: int, T: int, n: int) -> GaussianNetwork:
        return GaussianNetwork(f, J, T)


@estimator
class SNGPRegressor(PlainRegressor):
    """SNGP (Liu et al., 2020) for regression, with the arguments and training of `DUERegressor`.

    The mean is f = β φ(h) + b on random Fourier features φ of h, trained by the likelihood of
    y ~ N(f, σ²) and the prior of β, at rates of 2e-3 for the network and 1e-2 for β. A last pass
    over the training rows, in eval mode, then gives
    Var[f] = φᵀ (ridge · I + Σ_i φ_i φ_iᵀ / σ²)⁻¹ φ, in units of Var[y]. That is `uncertainty`;
    the deviation of `predict` adds σ². As rows are added Var[f] goes to 0 everywhere.

    Parameters
    ----------
    n_random_features
        Number of random features.
    ridge
        Prior precision of β.
    sigma2
        Noise variance in units of Var[y]; None learns it. With 1 the loss is half the squared
        error and the precision is ridge · I + Σφφᵀ, as in Figure 1 of the DUE paper.
    layer_norm
        Put h through a LayerNorm first, as the authors do. Rows in one direction then look alike
        however far they are.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 200)[:, None]
    >>> model = SNGPRegressor(n_random_features=128, epochs=60, random_state=0)
    >>> mean, std = model.fit(X, np.sin(X[:, 0])).predict([[0.0], [30.0]], return_std=True)
    >>> bool(abs(mean[0]) < 0.2), bool(std[1] > 2 * std[0])
    (True, True)
    """

    n_random_features: int = argument(1024, check_whole)
    ridge: float = argument(1.0, check_positive)
    sigma2: float | None = argument(None, or_none(check_positive))
    layer_norm: bool = argument(False, check_flag)
    _recipe = Recipe(head_lr=1e-2).over(PlainRegressor._recipe)

    def _method(self, f: nn.Module, J: int, T: int, n: int) -> SNGPGaussian:
        gp = random_features(self, J, T)
        if self.sigma2 is None:
            return SNGPGaussian(f, gp, n, learn_sigma2=True)
        return SNGPGaussian(f, gp, n, float(self.sigma2))


@estimator
class SVDKLRegressor(PlainRegressor):
    """SV-DKL (Wilson et al., 2016) for regression, with the arguments of `DUERegressor`.

    Each feature h_j has a GP g_j of its own, interpolated from a grid, and y = A g(h) + b + noise.
    The ELBO is trained, at rates of 2e-3 for the network and 2e-2 for the GPs, and `uncertainty`
    is the latent variance Σ_j A_j² Var[g_j]. The features are scaled to the grid by the range of
    the training rows, and clipped to it. Needs `pip install 'due[rivals]'`.

    Parameters
    ----------
    n_grid
        Points of each grid.

    Examples
    --------
    >>> import numpy as np
    >>> from due.networks import FCResNet
    >>> def small(shape):
    ...     return FCResNet(shape[0], 8, 2)
    >>> X = np.linspace(-3, 3, 200)[:, None]
    >>> model = SVDKLRegressor(small, n_grid=16, epochs=40, random_state=0)  # doctest: +SKIP
    >>> bool(model.fit(X, X[:, 0]).score(X, X[:, 0]) > 0.8)  # doctest: +SKIP
    True
    """

    n_grid: int = argument(64, check_grid)
    _recipe = Recipe(head_lr=2e-2).over(PlainRegressor._recipe)

    def _method(self, f: nn.Module, J: int, T: int, n: int) -> SVDKLGaussian:
        return SVDKLGaussian(f, GridGP(J, self.n_grid), T, n)
