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
from due.gp.kernels import KINDS
from due.methods.exact_gp import ExactGP
from due.rows.categories import warn_of_codes
from due.rows.checks import argument, check_flag, check_rows, check_training, check_whole, one_of
from due.rows.scale import Floats, Scale, fit_covariate_scale, fit_input_scale, fit_scale
from due.rows.study import Study
from due.storage.atomic import StorageError
from due.storage.estimator import Found, Memory, SavedEstimator, part, prefixed, recall_columns
from due.storage.model import load_state

LARGEST = 5000  # rows: time grows with their cube, memory with their square


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
    scale_inputs: bool = argument(True, check_flag)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn the hyper-parameters from rows X and targets y, (N,), and keep the rows."""
        rows, target, *_ = check_training(self, X, y, None, y_numeric=True)
        if len(rows) > LARGEST:
            raise ValueError(
                f"X has {len(rows)} rows, an exact GP takes at most {LARGEST}: give fewer rows, or "
                "take DUERegressor, whose time grows with the rows and not with their cube"
            )
        self.__dict__.pop("gp_", None)  # should this fit fail, the estimator is not fitted
        ones, self.row_shape_ = np.ones(len(rows)), rows.shape[1:]
        plain = Scale.identity(self.row_shape_)
        self.scale_ = fit_input_scale(rows, ones) if self.scale_inputs else plain
        self.y_scale_ = fit_scale(target.astype(np.float64)[:, None], ones)
        standard = self.y_scale_(target[:, None])[:, 0]
        x = torch.as_tensor(np.ascontiguousarray(self.scale_(rows)))  # as it comes back from a file
        gp = ExactGP(x, torch.as_tensor(standard), self.kernel)
        gp.learn(self.steps)
        self.gp_ = gp
        return self

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Mean of y, with the standard deviation of a new observation, noise included."""
        mean, var, noise = self.moments(X)
        return (mean, np.sqrt(var + noise)) if return_std else mean

    def uncertainty(self, X: ArrayLike) -> Floats:
        """Variance of the latent function, without noise, shape (N,)."""
        return self.moments(X).epistemic

    def moments(self, X: ArrayLike) -> Moments:
        """Mean, and the two parts of the variance of a new observation."""
        rows = check_rows(self, X)
        mean, var = self.gp_.marginal(torch.as_tensor(self.scale_(rows)))
        centre = self.y_scale_.inverse(mean.numpy()[:, None])[:, 0]
        unit2 = self.y_scale_.std[0] ** 2
        noise = np.full(len(rows), self.gp_.sigma2.item() * unit2)
        return Moments(centre, var.numpy() * unit2, noise)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "gp_")

    def _memory(self) -> Memory:
        return Memory(_scales(self), {}, _tensors(self.gp_))

    def _recall(self, found: Found) -> None:
        _recall_scales(self, found.config["estimator"])
        self.row_shape_ = self.scale_.mean.shape
        self.gp_ = _rebuild(dict(found.tensors), self.kernel)


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
        warn_of_codes(self, study.X, study.y[:, None], stacklevel=4)
        study = study.join(validation)
        self.scale_ = fit_covariate_scale(study.X)
        self.y_scale_ = fit_scale(study.y[:, None], np.ones(len(study.y)))
        x = torch.as_tensor(self.scale_(study.X))
        y = torch.as_tensor(self.y_scale_(study.y[:, None])[:, 0])
        treated = torch.as_tensor(study.t == 1)
        arms = [ExactGP(x[rows], y[rows], self.kernel) for rows in (~treated, treated)]
        for gp in arms:
            gp.learn(self.steps)
        self.arms_ = arms[0], arms[1]

    def _memory(self) -> Memory:
        arms = [prefixed(f"arm{t}", _tensors(gp)) for t, gp in enumerate(self.arms_)]
        return Memory(_scales(self), {}, arms[0] | arms[1])

    def _recall(self, found: Found) -> None:
        _recall_scales(self, found.config["estimator"])
        gp0, gp1 = (_rebuild(part(f"arm{t}", found.tensors), self.kernel) for t in (0, 1))
        self.arms_ = gp0, gp1

    def _outcomes(self, X: Floats) -> Floats:
        means, _ = self._marginals(X)
        return self.y_scale_.inverse(means)

    def _posterior(self, X: Floats) -> Posterior:
        means, variances = self._marginals(X)
        std = self.y_scale_.std
        return Posterior((means[:, 1] - means[:, 0]) * std, variances.sum(1) * std**2)

    def _average(self, X: Floats) -> tuple[float, float]:
        x = torch.as_tensor(self.scale_(X))
        (mean0, cov0), (mean1, cov1) = (gp.predict(x) for gp in self.arms_)
        std = float(self.y_scale_.std[0])
        mean, var = float((mean1 - mean0).mean()), float((cov0 + cov1).mean())
        return mean * std, max(var, 0.0) * std**2

    def _marginals(self, X: Floats) -> tuple[Floats, Floats]:
        """Means and variances of both arms, in standard units, (N, 2) each."""
        x = torch.as_tensor(self.scale_(X))
        means, variances = zip(*(gp.marginal(x) for gp in self.arms_), strict=True)
        return torch.stack(means, 1).numpy(), torch.stack(variances, 1).numpy()


def _scales(model: Any) -> dict[str, Any]:
    return {"scale": model.scale_.as_lists(), "y_scale": model.y_scale_.as_lists()}


def _recall_scales(model: Any, saved: dict[str, Any]) -> None:
    model.scale_ = Scale.from_lists(saved["scale"])
    model.y_scale_ = Scale.from_lists(saved["y_scale"])
    recall_columns(model, saved["feature_names"], len(model.scale_.mean))


def _tensors(gp: ExactGP) -> dict[str, Tensor]:
    return {**gp.state_dict(), "x": gp.x, "y": gp.y[:, 0]}


def _rebuild(tensors: dict[str, Tensor], kernel: str) -> ExactGP:
    if len(tensors["x"]) > LARGEST:
        raise StorageError(f"its tensor x has {len(tensors['x'])} rows, more than {LARGEST}")
    gp = load_state(ExactGP(tensors.pop("x"), tensors.pop("y"), kernel), tensors)
    gp.condition()
    return gp
