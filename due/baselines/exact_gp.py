"""Exact Gaussian process regression: y ~ N(μ, k(x, x') + σ² I), for up to 5,000 rows."""

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from due import archive
from due.baselines.arm_gp import ExactGP
from due.estimators.checks import check_columns, check_whole
from due.estimators.rows import Floats, Scale, fit_input_scale, fit_scale
from due.estimators.saved import Found, Memory, SavedEstimator, column_names, recall_columns
from due.gp.exact import factor
from due.gp.kernels import KINDS

LARGEST = 5000  # rows: time grows with their cube, memory with their square
ROWS = 1000  # predicted at once


class ExactGPRegressor(RegressorMixin, SavedEstimator):
    """A GP on the inputs themselves, without network and without inducing points.

    Its constant mean, one length scale, output scale and noise maximise the marginal likelihood,
    by L-BFGS. `uncertainty` is the variance of the latent function; the deviation of `predict`
    adds the noise. Nothing in it is random. It takes up to 5,000 rows.

    Parameters
    ----------
    kernel
        "rbf", "matern12", "matern32", "matern52" or "rq".
    steps
        The most steps of L-BFGS.
    scale_inputs
        Standardise the inputs; False takes X as it is, for those who have prepared it.

    Attributes
    ----------
    gp_
        The `ExactGP`, in standard units.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 50)[:, None]
    >>> model = ExactGPRegressor().fit(X, np.sin(X[:, 0]))
    >>> mean, std = model.predict([[0.0], [30.0]], return_std=True)
    >>> bool(abs(mean[0]) < 0.1), bool(std[1] > 2 * std[0])
    (True, True)
    """

    gp_: ExactGP
    scale_: Scale
    y_scale_: Scale
    n_features_in_: int

    def __init__(
        self, *, kernel: str = "matern32", steps: int = 100, scale_inputs: bool = True
    ) -> None:
        self.kernel = kernel
        self.steps = steps
        self.scale_inputs = scale_inputs

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn the hyper-parameters from rows X and targets y, (N,), and keep the rows."""
        self._check_parameters()
        check_columns(X)
        rows, target = validate_data(
            self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2
        )
        _check_size(len(rows))
        self.__dict__.pop("gp_", None)  # should this fit fail, the estimator is not fitted
        ones = np.ones(len(rows))
        plain = Scale(np.zeros(rows.shape[1]), np.ones(rows.shape[1]))
        self.scale_ = fit_input_scale(rows, ones) if self.scale_inputs else plain
        self.y_scale_ = fit_scale(target.astype(np.float64)[:, None], ones)
        standard = self.y_scale_(target[:, None])[:, 0]
        x = torch.as_tensor(np.ascontiguousarray(self.scale_(rows)))  # as it comes back from a file
        gp = ExactGP(x, torch.as_tensor(standard), self.kernel)
        gp.learn(self.steps)
        self._condition(gp)
        return self

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Mean of y, with the standard deviation of a new observation, noise included."""
        mean, var = self._latent(X)
        if not return_std:
            return mean
        sigma2 = float(self.gp_.sigma2.detach()) * self.y_scale_.std[0] ** 2
        return mean, np.sqrt(var + sigma2)

    def uncertainty(self, X: ArrayLike) -> Floats:
        """Variance of the latent function, without noise, shape (N,)."""
        return self._latent_variance(X)

    def _latent_variance(self, X: ArrayLike) -> Floats:
        return self._latent(X)[1]

    @torch.no_grad()
    def _condition(self, gp: ExactGP) -> None:
        """L of K + σ² I = L Lᵀ and α = (K + σ² I)⁻¹ (y − μ), once for all predictions."""
        self._L = factor(gp.kernel, gp.x, gp.sigma2)[0]
        self._alpha = torch.cholesky_solve(gp.y - gp.mu, self._L)  # (N, 1)
        self.gp_ = gp

    @torch.no_grad()
    def _latent(self, X: ArrayLike) -> tuple[Floats, Floats]:
        """Mean and variance of f(x), in the units of y."""
        check_is_fitted(self)
        check_columns(X)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        x = torch.as_tensor(self.scale_(rows))
        mean, var = (torch.cat(p) for p in zip(*map(self._batch, x.split(ROWS)), strict=True))
        centre = self.y_scale_.inverse(mean.numpy()[:, None])[:, 0]
        return centre, var.numpy() * self.y_scale_.std[0] ** 2

    def _batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gp = self.gp_
        k = gp.kernel(gp.x, x)[0]  # (N, P)
        A = torch.linalg.solve_triangular(self._L, k, upper=False)
        var = gp.kernel.outputscale - A.square().sum(0)
        return gp.mu + (k.mT @ self._alpha)[:, 0], var.clamp_min(0)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "gp_")

    def _check_parameters(self) -> None:
        check_whole("steps", self.steps)
        if self.kernel not in KINDS:
            raise ValueError(f"kernel={self.kernel!r} is not one of {', '.join(KINDS)}")

    def _memory(self) -> Memory:
        learned = {
            "feature_names": column_names(self),
            "scale": self.scale_.as_lists(),
            "y_scale": self.y_scale_.as_lists(),
        }
        gp = self.gp_
        return Memory(learned, {}, {**gp.state_dict(), "x": gp.x, "y": gp.y[:, 0]})

    def _recall(self, found: Found) -> None:
        saved, tensors = found.config["estimator"], dict(found.tensors)
        self.scale_ = Scale.from_lists(saved["scale"])
        self.y_scale_ = Scale.from_lists(saved["y_scale"])
        recall_columns(self, saved["feature_names"], len(self.scale_.mean))
        gp = ExactGP(tensors.pop("x"), tensors.pop("y"), self.kernel)
        self._condition(archive.load_state(gp, tensors))


def _check_size(n: int) -> None:
    if n > LARGEST:
        raise ValueError(
            f"X has {n} rows, an exact GP takes at most {LARGEST}: give fewer rows, or take "
            "DUERegressor, whose time grows with the rows and not with their cube"
        )
