"""DUE as a scikit-learn regressor."""

from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data
from torch import Tensor, nn

from due.estimators.base import (
    DUEEstimator,
    Extractor,
    Objective,
    Targets,
    check_weight,
    stochastic,
)
from due.estimators.rows import Floats, Rows, Scale, canonical, fit_scale
from due.frozen import FrozenDUE
from due.gp import Gaussian, InducingGP
from due.model import DUE, CollapsedBound
from due.train import train


class ValueUncertainty(NamedTuple):
    """In the units of y, squared; each of the shape of y, the OOD score (N,)."""

    total: Floats  # variance of a new observation
    aleatoric: Floats  # of the noise
    epistemic: Floats  # of the latent function
    ood_score: Floats  # in [0, 1], 1 far from the data


class DUERegressor(RegressorMixin, MultiOutputMixin, DUEEstimator):
    """Deep network with distance-keeping features and a GP on top; uncertainty in one pass.

    What speaks of y (`predict`'s standard deviation and covariance, `predict_interval`,
    `sample_y`) includes the noise; `uncertainty` is the variance of the latent function alone.

    Parameters
    ----------
    extractor
        Function from the shape of a row to an `nn.Module` that gives one feature vector a row.
        It predicts in float64. None builds an FC-ResNet of 4 layers as wide as a row, but 128 to
        1,024.
    c
        Bound on the Lipschitz constant of each layer; below 1 a residual network is bi-Lipschitz,
        at 1 and above only its upper bound remains. None leaves the network free.
    n_inducing
        Number of inducing points (at most the number of distinct rows).
    kernel
        "rbf", "matern12", "matern32", "matern52" or "rq".
    bound
        "collapsed" trains on all rows at once with q(U) in closed form, "elbo" on batches as the
        paper does; "auto" takes the first up to `COLLAPSED_ROWS` rows. `history_` says which.
    epochs, batch_size
        None is 300 epochs for the collapsed bound, which always takes all rows at once, and
        about 4,000 steps in 5 to 80 epochs for the ELBO.
    lr, gp_lr
        Learning rates of Adam for the network, and for the GP; None is 4e-3 and 5e-2 for the
        collapsed bound, 2e-3 and 1e-2 for the ELBO.
    weight_decay
        L2 penalty of Adam, on every parameter.
    scale_inputs
        Standardise the inputs; False takes X as it is, for those who have prepared it.
    validation_fraction
        Share of the rows held out to choose the best epoch. 0 trains on all of them, with a
        learning rate that falls to zero.
    patience
        Epochs without improvement after which training stops, if rows are held out.
    refine
        Under the collapsed bound, steps of the GP alone on all rows once the best epoch has fixed
        the features: the noise and the kernel settle later than they do. 0 only puts q(U) in
        closed form; None leaves the rows held out unlearned.
    warm_start
        Let `fit` go on from the last fit: its scaling, network, kernel and inducing points stay,
        whatever the parameters say now.
    random_state
        Seed of everything random in `fit`; prediction is deterministic.
    device
        Where to train and predict, such as "cpu" or "cuda".
    verbose
        Show a progress bar on a terminal.

    Attributes
    ----------
    history_
        Loss and validation of each epoch, and the bound that was trained.
    model_
        The `due.DUE` behind it.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 100)[:, None]
    >>> model = DUERegressor(epochs=150, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> mean, std = model.predict([[0.0], [30.0]], return_std=True)
    >>> bool(abs(mean[0]) < 0.2), bool(std[1] > 2 * std[0])
    (True, True)
    """

    y_scale_: Scale
    _flat: bool

    def __init__(
        self,
        extractor: Extractor | None = None,
        *,
        c: float | None = 0.95,
        n_inducing: int = 100,
        kernel: str = "matern32",
        bound: str = "auto",
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        gp_lr: float | None = None,
        weight_decay: float = 0.0,
        scale_inputs: bool = True,
        validation_fraction: float = 0.2,
        patience: int = 30,
        refine: int | None = 60,
        warm_start: bool = False,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.extractor = extractor
        self.c = c
        self.n_inducing = n_inducing
        self.kernel = kernel
        self.bound = bound
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.gp_lr = gp_lr
        self.weight_decay = weight_decay
        self.scale_inputs = scale_inputs
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.refine = refine
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> "DUERegressor":
        """Train on rows X with targets y, (N,) or (N, T); a weight counts as repetitions.

        `validation` is (X, y) of other rows to choose the best epoch on, in place of a fraction.
        """
        if self.refine is not None and not (
            isinstance(self.refine, int | np.integer) and self.refine >= 0
        ):
            raise ValueError(f"refine={self.refine!r} is neither None nor a number of steps")
        if self.bound not in BOUNDS:
            raise ValueError(f"bound={self.bound!r} is not one of {', '.join(BOUNDS)}")
        inputs, values = self._validate(X, y, multi_output=True, y_numeric=True)
        weight = check_weight(sample_weight, inputs)
        if self._continues and values.shape[1:] != (() if self._flat else self.y_scale_.std.shape):
            raise ValueError(
                f"y has shape {values.shape}, the last fit predicts {self.y_scale_.std.size} "
                f"output(s) as {'(N,)' if self._flat else '(N, T)'}; warm_start goes on with the "
                "same outputs, warm_start=False starts anew"
            )
        self._flat = values.ndim == 1
        rows = canonical(inputs, _columns(values), weight)
        others = None if validation is None else self._others(*validation, rows.y.shape[1])
        if others is not None:
            rows = Rows(*(np.concatenate(pair) for pair in zip(rows, others, strict=True)))
        if not self._continues:
            self.y_scale_ = fit_scale(rows.y, rows.weight)
        targets = torch.as_tensor(self.y_scale_(rows.y), dtype=torch.float32)
        held_out = 0 if others is None else len(others.X)
        self._fit(rows, Targets(targets, targets.shape[1], None), held_out)
        return self

    def _others(self, X: ArrayLike, y: ArrayLike, T: int) -> Rows:
        """Rows to validate on, checked like those to train on."""
        inputs, values = validate_data(
            self, X, y, dtype=np.float64, allow_nd=True, multi_output=True, reset=False
        )
        others = canonical(inputs, _columns(values), None)
        if others.y.shape[1] != T:
            raise ValueError(f"y of validation has {others.y.shape[1]} outputs, y has {T}")
        return others

    def predict(self, X: ArrayLike, return_std: bool = False, return_cov: bool = False) -> Any:
        """Mean of y, with the standard deviation of a new observation or the joint covariance.

        Both include the noise. The covariance is (N, N), or (N, N, T) for several outputs.
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov exclude each other: ask for one of them")
        if return_cov:
            return self._joint(X)
        mean, var = self._map(FrozenDUE.predict, X)
        mean = self._shape(self.y_scale_.inverse(mean))
        return (mean, self._shape(np.sqrt(var) * self.y_scale_.std)) if return_std else mean

    def predict_interval(self, X: ArrayLike, alpha: float = 0.05) -> tuple[Floats, Floats]:
        """Lower and upper end of the central 1 − alpha interval of a new observation."""
        if not 0 < alpha < 1:
            raise ValueError(f"alpha={alpha} is not between 0 and 1; 0.05 gives 95 % intervals")
        mean, std = self.predict(X, return_std=True)
        half = norm.ppf(1 - alpha / 2) * std
        return mean - half, mean + half

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Any = 0) -> Floats:
        """Joint draws of new observations, shape (N, n_samples) or (N, T, n_samples)."""
        mean, cov = self._joint(X)
        generator = check_random_state(random_state)
        mean = mean.reshape(len(mean), -1)
        cov = cov.reshape(len(mean), len(mean), -1)
        draws = [
            mean[:, t, None]
            + np.linalg.cholesky(cov[..., t]) @ generator.standard_normal((len(mean), n_samples))
            for t in range(mean.shape[1])
        ]
        return draws[0] if self._flat else np.stack(draws, 1)

    def uncertainty(self, X: ArrayLike) -> Floats:
        """Variance of the latent function, without noise, of the shape of `predict(X)`."""
        _, var = self._map(FrozenDUE.latent, X)
        return self._shape(var * self.y_scale_.std**2)

    def uncertainty_details(self, X: ArrayLike) -> ValueUncertainty:
        """Variance of an observation with its two parts, and the OOD score."""
        epistemic = self.uncertainty(X)
        sigma2 = self._sigma2.numpy(force=True) * self.y_scale_.std**2
        aleatoric = np.broadcast_to(sigma2, (len(epistemic), len(self.y_scale_.std)))
        aleatoric = self._shape(aleatoric.copy())
        return ValueUncertainty(epistemic + aleatoric, aleatoric, epistemic, self.ood_score(X))

    @torch.no_grad()
    def _joint(self, X: ArrayLike) -> tuple[Floats, Floats]:
        h = torch.cat([self.frozen_.f(batch) for batch in self._batches(self._checked(X))])
        mean, cov = self.model_.gp.joint(h)
        noise = torch.eye(len(h), dtype=cov.dtype, device=cov.device)
        cov = cov + self._sigma2[:, None, None] * noise
        scaled = cov.permute(1, 2, 0).numpy(force=True) * self.y_scale_.std**2
        centre = self._shape(self.y_scale_.inverse(mean.numpy(force=True)))
        return centre, scaled[..., 0] if self._flat else scaled

    @property
    def _sigma2(self) -> Tensor:
        return cast(Gaussian, self.model_.likelihood).sigma2.detach()

    def _shape(self, values: Floats) -> Floats:
        return values[:, 0] if self._flat else values

    def _absorb(self, data: tuple[Tensor, ...]) -> None:
        """Once held-out rows have chosen the features, the GP on them learns from all rows.

        Early stopping finds good features before the noise and the kernel have settled.
        """
        if self.refine is None or self.history_["bound"] != "collapsed":
            return
        x, *rest = (part.to(self.device) for part in data)
        with torch.no_grad():
            h = self.model_.f(x)
        head = CollapsedBound(DUE(nn.Identity(), self.model_.gp, self.model_.likelihood, len(h)))
        if self.refine:
            optimizer = torch.optim.Adam(head.parameters(), lr=REFINE_LR, fused=True)
            train(head, (h, *rest), optimizer=optimizer, epochs=self.refine, progress=False)
        head.set_q(h, *rest)

    def _learned(self) -> dict[str, Any]:
        return {"y_scale": self.y_scale_.as_lists(), "flat": self._flat}

    def _relearn(self, learned: dict[str, Any]) -> None:
        self.y_scale_, self._flat = Scale.from_lists(learned["y_scale"]), learned["flat"]

    def _likelihood(self, T: int) -> Gaussian:
        return Gaussian(T)

    def _start(self, gp: InducingGP, h: Tensor, y: Tensor) -> None:
        """q(U) starts at N(0, I); the collapsed bound never uses it."""

    def _objective(self, model: DUE, data: tuple[Tensor, ...]) -> Objective:
        if self.bound == "elbo" or (self.bound == "auto" and len(data[0]) > COLLAPSED_ROWS):
            return stochastic(model, len(data[0]), self.batch_size, lr=2e-3, gp_lr=1e-2)
        loss = CollapsedBound(model)
        whole = tuple(part.to(self.device) for part in data)
        return Objective("collapsed", loss, None, 300, 4e-3, 5e-2, lambda: loss.set_q(*whole))


def _columns(y: NDArray[Any]) -> Floats:
    return y.astype(np.float64).reshape(len(y), -1)


BOUNDS = ("auto", "collapsed", "elbo")
COLLAPSED_ROWS = 5000
REFINE_LR = 2e-2
