"""Exact Gaussian processes on the inputs themselves: regression, and one per arm for effects."""

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from torch import Tensor

from due.estimators.effects import Posterior, UncertainEffects
from due.estimators.network import estimator
from due.estimators.regressor import Moments
from due.gp.exact import factor
from due.gp.kernels import KINDS
from due.methods.exact_gp import ExactGP
from due.rows.checks import argument, check_rows, check_training_rows, check_whole, one_of
from due.rows.scale import Floats, Scale, fit_covariate_scale, fit_input_scale, fit_scale
from due.rows.study import Study
from due.storage.estimator import (
    Found,
    Memory,
    SavedEstimator,
    Tensors,
    column_names,
    part,
    prefixed,
    recall_columns,
)
from due.storage.model import load_state

LARGEST = 5000  # rows: time grows with their cube, memory with their square
ROWS = 1000  # predicted at once
PEOPLE = 500  # at once: their joint covariance is a square


@estimator
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

    kernel: str = argument("matern32", one_of(KINDS))
    steps: int = argument(100, check_whole)
    scale_inputs: bool = True

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn the hyper-parameters from rows X and targets y, (N,), and keep the rows."""
        rows, target = check_training_rows(self, X, y, True, y_numeric=True)
        _check_size(len(rows))
        self.__dict__.pop("gp_", None)  # should this fit fail, the estimator is not fitted
        ones, self.row_shape_ = np.ones(len(rows)), rows.shape[1:]
        plain = Scale.identity(self.row_shape_)
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
        mean, var, noise = self.moments(X)
        return (mean, np.sqrt(var + noise)) if return_std else mean

    def uncertainty(self, X: ArrayLike) -> Floats:
        """Variance of the latent function, without noise, shape (N,)."""
        return self.moments(X).epistemic

    @torch.no_grad()
    def _condition(self, gp: ExactGP) -> None:
        """L of K + σ² I = L Lᵀ and α = (K + σ² I)⁻¹ (y − μ), once for all predictions."""
        self._L = factor(gp.kernel, gp.x, gp.sigma2)[0]
        self._alpha = torch.cholesky_solve(gp.y - gp.mu, self._L)  # (N, 1)
        self.gp_ = gp

    @torch.no_grad()
    def moments(self, X: ArrayLike) -> Moments:
        """Mean, and the two parts of the variance of a new observation."""
        rows = check_rows(self, X)
        x = torch.as_tensor(self.scale_(rows))
        mean, var = (torch.cat(p) for p in zip(*map(self._batch, x.split(ROWS)), strict=True))
        centre = self.y_scale_.inverse(mean.numpy()[:, None])[:, 0]
        unit2 = self.y_scale_.std[0] ** 2
        noise = np.full(len(x), float(self.gp_.sigma2) * unit2)
        return Moments(centre, var.numpy() * unit2, noise)

    def _batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gp = self.gp_
        k = gp.kernel(gp.x, x)[0]  # (N, P)
        A = torch.linalg.solve_triangular(self._L, k, upper=False)
        var = gp.kernel.outputscale - A.square().sum(0)
        return gp.mu + (k.mT @ self._alpha)[:, 0], var.clamp_min(0)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "gp_")

    @classmethod
    def _arguments(cls, saved: dict[str, Any]) -> dict[str, Any]:
        return saved

    def _memory(self) -> Memory:
        return Memory(_scales(self), {}, _tensors(self.gp_))

    def _recall(self, found: Found) -> None:
        _recall_scales(self, found.config["estimator"])
        self.row_shape_ = self.scale_.mean.shape
        self._condition(_rebuild(dict(found.tensors), self.kernel))


@estimator
class ArmGP(UncertainEffects, SavedEstimator):
    """Two independent exact GPs, for untreated and for treated people.

    Each has a constant mean, one length scale, an output scale and a noise, which maximise its
    marginal likelihood. Var[f1 − f0] = Var[f1] + Var[f0]. It needs no validation and learns from
    those people too. Nothing in it is random.

    Parameters
    ----------
    kernel
        "rbf", "matern12", "matern32", "matern52" or "rq".
    steps
        The most steps of L-BFGS.

    Attributes
    ----------
    arms_
        The two `ExactGP`s.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, T = rng.normal(size=(100, 2)), rng.integers(2, size=100)
    >>> Y = X[:, 0] + 3 * T + 0.1 * rng.normal(size=100)
    >>> model = ArmGP().fit(Y, T, X)
    >>> bool(abs(model.ate(X) - 3) < 0.2)
    True
    """

    kernel: str = argument("matern32", one_of(KINDS))
    steps: int = argument(100, check_whole)
    _fitted = "arms_"

    def _fit(self, study: Study, validation: Study | None) -> None:
        study = study.join(validation)
        self.scale_ = fit_covariate_scale(study.X)
        self.y_scale_ = fit_scale(study.y[:, None], np.ones(len(study.y)))
        x = torch.as_tensor(self.scale_(study.X))
        y = torch.as_tensor(self.y_scale_(study.y[:, None])[:, 0])
        treated = torch.as_tensor(study.t == 1)
        untreated_gp = ExactGP(x[~treated], y[~treated], self.kernel)
        treated_gp = ExactGP(x[treated], y[treated], self.kernel)
        for gp in (untreated_gp, treated_gp):
            gp.learn(self.steps)
        self.arms_ = untreated_gp, treated_gp

    def _memory(self) -> Memory:
        arms = [prefixed(f"arm{t}", _tensors(gp)) for t, gp in enumerate(self.arms_)]
        return Memory(_scales(self), {}, arms[0] | arms[1])

    def _recall(self, found: Found) -> None:
        _recall_scales(self, found.config["estimator"])
        gp0, gp1 = (_rebuild(part(f"arm{t}", found.tensors), self.kernel) for t in (0, 1))
        self.arms_ = gp0, gp1

    @classmethod
    def _arguments(cls, saved: dict[str, Any]) -> dict[str, Any]:
        return saved

    def _outcomes(self, X: Floats) -> Floats:
        parts = [[gp.predict(x)[0] for gp in self.arms_] for x in self._batches(X)]
        means = torch.cat([torch.stack(part, 1) for part in parts])
        return self.y_scale_.inverse(means.numpy())

    def _posterior(self, X: Floats) -> Posterior:
        outcomes = self._outcomes(X)
        parts = [[gp.predict(x)[1].diagonal() for gp in self.arms_] for x in self._batches(X)]
        var = torch.cat([torch.stack(part).sum(0) for part in parts]).clamp_min(0).numpy()
        return Posterior(outcomes[:, 1] - outcomes[:, 0], var * self.y_scale_.std**2)

    def _average(self, X: Floats) -> tuple[float, float]:
        x = torch.as_tensor(self.scale_(X))
        (mean0, cov0), (mean1, cov1) = (gp.predict(x) for gp in self.arms_)
        std = float(self.y_scale_.std[0])
        mean, var = float((mean1 - mean0).mean()), float((cov0 + cov1).mean())
        return mean * std, max(var, 0.0) * std**2

    def _batches(self, X: Floats) -> tuple[Tensor, ...]:
        return torch.as_tensor(self.scale_(X)).split(PEOPLE)


def _check_size(n: int) -> None:
    if n > LARGEST:
        raise ValueError(
            f"X has {n} rows, an exact GP takes at most {LARGEST}: give fewer rows, or take "
            "DUERegressor, whose time grows with the rows and not with their cube"
        )


def _scales(model: Any) -> dict[str, Any]:
    return {
        "feature_names": column_names(model),
        "scale": model.scale_.as_lists(),
        "y_scale": model.y_scale_.as_lists(),
    }


def _recall_scales(model: Any, saved: dict[str, Any]) -> None:
    model.scale_ = Scale.from_lists(saved["scale"])
    model.y_scale_ = Scale.from_lists(saved["y_scale"])
    recall_columns(model, saved["feature_names"], len(model.scale_.mean))


def _tensors(gp: ExactGP) -> Tensors:
    return {**gp.state_dict(), "x": gp.x, "y": gp.y[:, 0]}


def _rebuild(tensors: Tensors, kernel: str) -> ExactGP:
    gp = ExactGP(tensors.pop("x"), tensors.pop("y"), kernel)
    return load_state(gp, tensors)
