"""Regressors: targets in standard units, (y − mean) / std, and back; and DUE as one of them."""

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, ndtr
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data
from torch import Tensor, nn

from due.estimators.choice import Choosing
from due.estimators.effects import quantile
from due.estimators.network import (
    FEWEST,
    NetworkEstimator,
    OnData,
    better_than_mean,
    estimator,
    learn_rows,
)
from due.gp import Gaussian, InducingGP, StudentT
from due.gp.initialise import inducing
from due.gp.kernels import KINDS
from due.gp.levels import Levels
from due.methods.due import BOUNDS, DUE, FINISHES, INDUCING, NOISE_KINDS, PLACEMENTS, takes_all_rows
from due.predictor import ValuePredictor
from due.rows.categories import warn_of_codes
from due.rows.checks import (
    argument,
    check_flag,
    check_fraction,
    check_rows,
    check_size,
    check_training,
    check_whole,
    one_of,
    or_none,
)
from due.rows.randomness import joint_draws
from due.rows.scale import Floats, Scale, fit_scale
from due.rows.source import Rows, canonical
from due.training import Recipe
from due.training.recipe import ALL

KERNELS = ("matern52", "rbf")  # of "auto": to train with, and to change to
NEWTON = 200  # steps at most; 95 % take about ten
AT_ONCE = 10_000  # rows, each of which needs room for a mixture of up to 81 normals


class Moments(NamedTuple):
    """What a regressor knows of y, in its units (variances in their square), of its shape."""

    mean: Floats
    epistemic: Floats  # variance of the latent function
    aleatoric: Floats  # variance of the noise


class ValueUncertainty(NamedTuple):
    """In the units of y, squared; each of the shape of y, the OOD score (N,)."""

    total: Floats  # variance of a new observation
    aleatoric: Floats  # of the noise
    epistemic: Floats  # of the latent function
    ood_score: Floats  # in [0, 1], 1 far from the data


class Tails(NamedTuple):
    """Noise as a mixture of normals: shares, and variances relative to that of the noise."""

    share: Floats
    ratio: Floats


def half_width(z: Floats, var: Floats, noise: Floats, tails: Tails) -> Floats:
    """h with P(|y − mean| ≤ h) = P(|N(0, 1)| ≤ z), for the variances of function and noise."""
    if len(var) > AT_ONCE:
        parts = (half_width(z[r], var[r], noise[r], tails) for r in _parts(len(var)))
        return np.concatenate(list(parts))
    alpha = 2 * ndtr(-z)
    std = np.sqrt(var[..., None] + noise[..., None] * tails.ratio)
    half = z * std.min(-1)  # too small, and P is concave: Newton's steps grow towards the root
    for _ in range(NEWTON if len(tails.share) > 1 else 0):
        u = half[..., None] / std
        outside = 2 * (tails.share * ndtr(-u)).sum(-1)
        slope = 2 * (tails.share / std * np.exp(-0.5 * u * u)).sum(-1) / np.sqrt(2 * np.pi)
        step = (outside - alpha) / slope
        half = half + step
        if np.all(np.abs(step) <= 1e-10 * half):
            break
    return half


def _at_level(z: float, var: Floats, noise: Floats, levels: Levels) -> Floats:
    """z' of each row, as held-out rows of such a std need it, for a z that they know.

    Where the function is more uncertain than at any of these, it is not narrowed: they cannot tell.
    """
    nominal, of_levels, widths, largest = (part.cpu().numpy() for part in levels)
    found = []
    outputs = zip(_outputs(var), _outputs(noise), of_levels, widths, largest, strict=True)
    for v, own, std, of_std, most in outputs:
        each = [np.interp(z, nominal, width) for width in of_std]
        there = np.interp(0.5 * np.log(v + own), np.log(std), each)
        far = np.clip(np.log2(np.sqrt(v) / most), 0, 1)  # at twice the largest, 1
        found.append(there + far * (np.maximum(there, z) - there))
    return np.stack(found, 1).reshape(var.shape)


def _outputs(values: Floats) -> Floats:
    """(T, N)."""
    return values.reshape(len(values), -1).T


def log_mixture(square: Floats, var: Floats, noise: Floats, tails: Tails) -> Floats:
    """log p(y) from (y − mean)² and the variances of the function and of the noise."""
    if len(var) > AT_ONCE:
        parts = (log_mixture(square[r], var[r], noise[r], tails) for r in _parts(len(var)))
        return np.concatenate(list(parts))
    spread = var[..., None] + noise[..., None] * tails.ratio
    normal = -0.5 * (np.log(2 * np.pi * spread) + square[..., None] / spread)
    return np.asarray(logsumexp(normal, axis=-1, b=tails.share))


def _parts(n: int) -> list[slice]:
    return [slice(i, i + AT_ONCE) for i in range(0, n, AT_ONCE)]


@estimator
class Regressor(RegressorMixin, MultiOutputMixin, NetworkEstimator):
    """Abstract: a `NetworkEstimator` of one or several outputs, each normal or with other tails."""

    validation_fraction: float = argument(0.2, check_fraction)

    @abstractmethod
    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Mean of y, with the standard deviation of a new observation."""

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Train on rows X with targets y, (N,) or (N, T); a weight counts as repetitions.

        `validation` is (X, y) of other rows to choose the best epoch on, in place of a fraction.
        """
        of_y = {"multi_output": True, "y_numeric": True}
        inputs, values, weight, anew = check_training(self, X, y, sample_weight, **of_y)
        if not anew:
            _check_outputs(values, self.y_scale_.std, self._flat)
        targets = _columns(values)
        check_size("y", targets)
        rows, held = canonical(inputs, targets, weight), 0
        if validation is not None:
            others = _others(self, validation, T=rows.y.shape[1])
            rows, held = Rows(*map(np.concatenate, zip(rows, others, strict=True))), len(others.X)
        if anew:
            _warn_of_constant(rows)
            self.y_scale_ = fit_scale(rows.y, rows.weight)
            self._flat: bool = values.ndim == 1  # y is (N,), not (N, 1)
            warn_of_codes(self, rows.X, rows.y)
        standard = torch.as_tensor(self.y_scale_(rows.y)).float()
        learn_rows(self, rows, standard, standard.shape[1], anew, held=held)
        return self

    def moments(self, X: ArrayLike) -> Moments:
        """Mean, and the two parts of the variance of a new observation."""
        rows = check_rows(self, X)
        mean, var, noise = self._ask(self.predictor_.moments, rows)
        return Moments(self._shape(mean), self._shape(var), self._shape(noise))

    def uncertainty(self, X: ArrayLike) -> Floats:
        """Variance of the latent function, without noise, of the shape of `predict(X)`.

        A plain network, which knows no such variance, gives that of its noise.
        """
        found = self.moments(X)
        only_noise = getattr(self.model_, "only_noise", False)
        return found.aleatoric if only_noise else found.epistemic

    def predict_interval(self, X: ArrayLike, alpha: float = 0.05) -> tuple[Floats, Floats]:
        """Lower and upper end of the central 1 − alpha interval of a new observation."""
        mean, var, noise = self.moments(X)
        half = self._half_width(quantile(alpha), var, noise)
        return mean - half, mean + half

    def log_density(self, X: ArrayLike, y: ArrayLike) -> Floats:
        """log p(y | x) of new observations, shape (N,); outputs are summed."""
        mean, var, noise = self.moments(X)
        values = np.asarray(y, dtype=np.float64)
        if values.shape != mean.shape:
            raise ValueError(f"y has shape {values.shape}, the rows of X give {mean.shape}")
        density = log_mixture((values - mean) ** 2, var, noise, self._tails())
        return density if self._flat else density.sum(-1)

    def _half_width(self, z: float, var: Floats, noise: Floats) -> Floats:
        """As held-out rows need it; beyond what they know, as much wider as at their last level."""
        levels, tails = self.predictor_.levels(), self._tails()
        plain = half_width(np.full(var.shape, z), var, noise, tails)
        if levels is None:
            return plain
        last = float(levels.nominal[-1])
        known = min(z, last)
        half = half_width(_at_level(known, var, noise, levels), var, noise, tails)
        if z <= last:
            return half
        return half * plain / half_width(np.full(var.shape, last), var, noise, tails)

    def _tails(self) -> Tails:
        share, ratio = self.predictor_.tails()
        return Tails(share.cpu().numpy(), ratio.cpu().numpy())

    def _observed(self, X: ArrayLike) -> tuple[Floats, Floats]:
        """Mean and standard deviation of a new observation."""
        mean, var, noise = self.moments(X)
        return mean, np.sqrt(var + noise)

    def _shape(self, values: Floats) -> Floats:
        return values[:, 0] if self._flat else values

    def _explains(self, x: Tensor, y: Tensor) -> bool:
        rows = self.scale_.inverse(x.double().numpy())
        mean = self.y_scale_(self._ask(self.predictor_.moments, rows)[0])
        return better_than_mean(mean, y.double().numpy())

    def _wrap(self, model: nn.Module) -> ValuePredictor:
        return ValuePredictor(model, self.scale_, self.y_scale_)

    @property
    def _T(self) -> int:
        return self.y_scale_.std.size

    def _learned(self) -> dict[str, Any]:
        return {"y_scale": self.y_scale_.as_lists(), "flat": self._flat}

    def _relearn(self, learned: dict[str, Any]) -> None:
        self.y_scale_, self._flat = Scale.from_lists(learned["y_scale"]), learned["flat"]


@estimator
class DUERegressor(Choosing, OnData, Regressor):
    """Deep network with distance-keeping features and a GP on top; uncertainty in one pass.

    What speaks of y (`predict`'s standard deviation and covariance, `predict_interval`,
    `sample_y`, `log_density`) includes the noise; `uncertainty` is the variance of the latent
    function alone.

    By default the collapsed bound trains on all rows at once for at most 300 epochs of one step,
    with Adam at rates of 4e-3 for the network and 5e-2 for the GP; the ELBO takes about 4,000
    steps in 5 to 80 epochs, at 2e-3 and 1e-2. Without held-out rows the rates fall to zero.

    Parameters
    ----------
    n_inducing
        Number of inducing points (at most the number of distinct rows).
    kernel
        "rbf", "matern12", "matern32", "matern52" or "rq". "auto" trains with "matern52", and
        changes to "rbf" where `finish` finds that training rows are more probable under it, unless
        held-out rows are less so by a standard error (`history_` says which).
    inducing
        Inducing points "tied" to the features of training rows, "refreshed" from these every 10
        steps, or "free" in feature space, as the paper has them; see `due.DUE`.
    placement
        Which rows those are, by "kmeans" or "greedy" conditional variance.
    bound
        "collapsed" trains on all rows at once with q(U) in closed form, "elbo" on batches as the
        paper does; "auto" takes the first up to 5,000 rows. "exact" needs no inducing points and
        takes up to 2,000 rows. `history_` says which. Rows that are held out do not count: with
        a fifth held out, that is up to 6,250 and 2,500 rows in all.
    finish
        What follows once held-out rows have chosen the features. "noise" takes the kernel under
        which training rows (2,000 of them under the ELBO) are most probable, unless held-out rows
        object or there are more than 500 inducing points (or rows, if "exact"), and the noise
        under which those are, because features settle before the GP does and fit the rows they
        were trained on too well; then q(U) learns from all rows, under the ELBO from those of the
        training. With `noise="student"` the kernel stays, and under the ELBO q(U) too. The others
        are for q(U) in closed form: "q" lets q(U) learn from all rows, "gp" takes 60 steps of the
        noise and of all the GP on them, the smallest error but intervals that are too narrow on
        most tables. "nothing" stops there.
    noise
        "varying" has a variance per row, σ² exp(g(h)), with g a GP on the features, fitted to the
        residuals of rows left out or held out; "constant" has one σ² per output. "auto" takes the
        first if it makes held-out rows more probable by a standard error; with `finish="noise"` it
        also makes the noise a Student-t with 5, 10 or 30 degrees of freedom, as they choose
        (`history_` says so), and `predict_interval` as wide as they need: all together if they are
        5 or more, in each third of them by standard deviation if they are 30 or more; the density
        stays as it is. Under the ELBO, if the noise varies, half of them count. "student" trains
        with a Student-t, of one σ² and down to 3 degrees of freedom: its mean resists outliers, and
        with skewed noise is not that of y.
    column_scales
        Let the default network learn a scale per column of 10 or more, as in `DUEClassifier`. None
        trains both with and without where q(U) is in closed form, and takes the one under which
        held-out rows are the more probable; `history_` says which, and both losses.
    calibration_fraction
        Share of the rows held out for `ood_pvalue`; None takes the rows that choose the epoch.
    extractor, c, epochs, batch_size, lr, recipe, validation_fraction, scale_inputs, warm_start, \
random_state, device, verbose
        As in `Regressor`, `NetworkEstimator` and `Trained`, the classes it is built on.

    Attributes
    ----------
    history_
        Loss and validation of each epoch, and the bound that was trained.
    model_, predictor_
        The `due.DUE` behind it, and what predicts from raw rows.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 100)[:, None]
    >>> model = DUERegressor(epochs=150, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> mean, std = model.predict([[0.0], [30.0]], return_std=True)
    >>> bool(abs(mean[0]) < 0.2), bool(std[1] > 2 * std[0])
    (True, True)
    """

    n_inducing: int = argument(100, check_whole)
    kernel: str = argument("auto", one_of((*KINDS, "auto")))
    inducing: str = argument("tied", one_of(INDUCING))
    placement: str = argument("kmeans", one_of(PLACEMENTS))
    bound: str = argument("auto", one_of(BOUNDS))
    finish: str = argument("noise", one_of(FINISHES))
    noise: str = argument("auto", one_of(NOISE_KINDS))
    column_scales: bool | None = argument(None, or_none(check_flag))  # type: ignore[assignment]
    calibration_fraction: float | None = argument(None, or_none(check_fraction))

    def predict(self, X: ArrayLike, return_std: bool = False, return_cov: bool = False) -> Any:
        """Mean of y, with the standard deviation of a new observation or the joint covariance.

        Both include the noise. The covariance is (N, N), or (N, N, T) for several outputs.
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov exclude each other: ask for one of them")
        if return_cov:
            return self._joint(X)
        mean, std = self._observed(X)
        return (mean, std) if return_std else mean

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Any = 0) -> Floats:
        """Joint draws of new observations, shape (N, n_samples) or (N, T, n_samples)."""
        mean, cov = self._joint(X)
        generator = check_random_state(random_state)
        mean = mean.reshape(len(mean), -1)
        cov = cov.reshape(len(mean), len(mean), -1)
        draws = []
        share, ratio = self._tails()
        aleatoric = self.moments(X).aleatoric.reshape(len(mean), -1)
        for m, K, own in zip(mean.T, np.moveaxis(cov, -1, 0), aleatoric.T, strict=True):
            f = joint_draws(m, K - np.diag(own), n_samples, generator)
            times = generator.choice(ratio, p=share, size=f.shape)  # of the noise's own variance
            noise = generator.standard_normal(f.shape)
            draws.append(f + np.sqrt(own[:, None] * times) * noise)
        return draws[0] if self._flat else np.stack(draws, 1)

    def uncertainty_details(self, X: ArrayLike) -> ValueUncertainty:
        """Variance of an observation with its two parts, and the OOD score."""
        rows = check_rows(self, X)
        _, var, noise, ood_score = self._ask(lambda x: self.predictor_(x)[:4], rows)
        epistemic, aleatoric = self._shape(var), self._shape(noise)
        return ValueUncertainty(epistemic + aleatoric, aleatoric, epistemic, ood_score)

    def _joint(self, X: ArrayLike) -> tuple[Floats, Floats]:
        rows = check_rows(self, X)
        mean, cov = self._ask_jointly(self.predictor_.joint, rows)
        return self._shape(mean), cov[..., 0] if self._flat else cov

    def _candidates(self, n: int) -> dict[str, dict[str, Any]]:
        given = self.column_scales is not None or self.extractor is not None
        if given or not self._columns_may_fade or not takes_all_rows(self.bound, n):
            return {"given": {}}
        return {"scaled columns": {"column_scales": True}, "all columns": {"column_scales": False}}

    def _combine(self, trials: Mapping[str, Any], weights: Mapping[str, float]) -> None:
        """The best one answers alone."""

    def _method(self, f: nn.Module, J: int, T: int, n: int) -> DUE:
        kernels = KERNELS if self.kernel == "auto" else ()
        kernel = KERNELS[0] if self.kernel == "auto" else self.kernel
        gp = InducingGP(torch.zeros(inducing(self.n_inducing, n), J), T, kernel=kernel)
        where: dict[str, Any] = {"inducing": self.inducing, "placement": self.placement}
        how: dict[str, Any] = {"bound": self.bound, "finish": self.finish, "noise": self.noise}
        likelihood = StudentT(T) if self.noise == "student" else Gaussian(T)
        return DUE(f, gp, likelihood, n, kernels=kernels, **how, **where)

    def _default_recipe(self, n: int) -> Recipe:
        return gp_recipe(self.bound, n)


def gp_recipe(bound: str, n: int) -> Recipe:
    """How a GP of values is trained under this bound."""
    if takes_all_rows(bound, n):
        return Recipe(lr=4e-3, head_lr=5e-2, batch_size=ALL, epochs=300, warm_up=20, patience=30)
    return Recipe(lr=2e-3, head_lr=1e-2, warm_up=20, patience=30)


def _others(estimator: Any, validation: Any, T: int) -> Rows:
    """Rows to validate on, checked like those to train on."""
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        what = f"{len(validation)} parts" if isinstance(validation, tuple | list) else "one part"
        raise ValueError(f"validation has {what}; it is (X, y) of other rows")
    X, y = validation
    try:
        inputs, values = validate_data(
            estimator, X, y, dtype=np.float64, allow_nd=True, multi_output=True, reset=False
        )
        check_size("y", values)
    except ValueError as error:
        raise ValueError(f"validation: {error}") from error
    others = canonical(inputs, _columns(values), None)
    if others.y.shape[1] != T:
        raise ValueError(f"y of validation has {others.y.shape[1]} outputs, y has {T}")
    return others


def _warn_of_constant(rows: Rows) -> None:
    """Say which outputs are the same in all rows."""
    y = rows.y
    constant = np.flatnonzero((y == y[0]).all(0))
    if len(constant) and rows.weight.sum() >= FEWEST:
        which = "y" if y.shape[1] == 1 else f"y[:, {constant.tolist()}]"
        warnings.warn(
            f"{which} is {', '.join(map(str, y[0, constant].tolist()))} in all rows: there is "
            "nothing to learn in it, and its predicted uncertainty says nothing about other rows",
            stacklevel=3,
        )


def _check_outputs(values: NDArray[Any], std: Floats, flat: bool) -> None:
    if values.shape[1:] != (() if flat else std.shape):
        raise ValueError(
            f"y has shape {values.shape}, the last fit predicts {std.size} "
            f"output(s) as {'(N,)' if flat else '(N, T)'}; warm_start goes on with the "
            "same outputs, warm_start=False starts anew"
        )


def _columns(y: NDArray[Any]) -> Floats:
    return y.astype(np.float64).reshape(len(y), -1)
