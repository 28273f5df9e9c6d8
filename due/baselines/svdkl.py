"""SV-DKL as estimators: a one-dimensional GP on a grid for each feature, mixed linearly."""

from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor, nn

from due.baselines.head_estimator import HeadEstimator
from due.baselines.svdkl_model import POINTS, GridGP, SVDKLGaussian, SVDKLSoftmax
from due.estimators.checks import check_positive, check_whole
from due.estimators.rows import Floats
from due.estimators.torch_classifier import EntropyClassifier
from due.estimators.torch_estimator import Extractor
from due.estimators.torch_regressor import TorchRegressor
from due.estimators.training import Data, Objective

SMALLEST = 1e-30  # probability whose logarithm float32 still holds


class SVDKLEstimator(HeadEstimator):
    """Abstract: features are scaled to the grid by the range of the training rows."""

    n_grid: int
    gp_lr: float | None

    def _check_own_parameters(self) -> None:
        check_whole("n_grid", self.n_grid)
        if self.n_grid < POINTS + 2:
            raise ValueError(
                f"n_grid={self.n_grid} is too few to interpolate between: give at least "
                f"{POINTS + 2}"
            )
        if self.gp_lr is not None:
            check_positive("gp_lr", self.gp_lr)

    def _initialise(self, model: Any, X: Tensor) -> None:
        model.set_bounds(X)

    def _objective(self, data: Data) -> Objective:
        self.model_.n_data = len(data[0])  # rows: their weights do the rest
        objective = self._in_batches(
            len(data[0]), lr=2e-3, head_lr=self.gp_lr or 2e-2, bound="elbo"
        )
        return objective._replace(settle=lambda: self.model_.set_bounds(data[0]))

    def _predictor(self) -> nn.Module:
        frozen = super()._predictor()
        frozen.gp.freeze()  # type: ignore[operator, union-attr]
        return frozen


class SVDKLClassifier(EntropyClassifier, SVDKLEstimator):
    """SV-DKL (Wilson et al., 2016) with the arguments and the training of `DUEClassifier`.

    Each feature h_j has a GP g_j of its own, interpolated from a grid, and the logits are A g(h).
    The ELBO is trained, and `uncertainty` is the entropy of E[softmax(A g)], as in the DUE paper.
    The features are scaled to the grid by the range of the training rows, and clipped to it.
    Needs `pip install 'due[rivals]'`.

    Parameters
    ----------
    extractor
        Function from the shape of a row to an `nn.Module` that gives one feature vector a row.
        None builds an FC-ResNet of 4 layers as wide as a row, but 128 to 1,024.
    c
        Bound on the Lipschitz constant of each layer, with which the DUE paper compares; None
        leaves the network free, as Wilson et al. do.
    n_grid
        Points of each grid.
    epochs, batch_size
        None makes about 4,000 steps, in 5 to 80 epochs of batches of 64 (more for large data).
    lr, gp_lr
        Learning rates of Adam for the network, and for the GP; None is 2e-3 and 2e-2. Without
        validation they fall to 0 along a cosine.
    weight_decay
        L2 penalty of Adam, on every parameter.
    scale_inputs
        Standardise the inputs; False takes X as it is, for those who have prepared it.
    validation_fraction
        Share of the rows held out to choose the best epoch; 0 trains on all of them.
    patience
        Epochs without improvement on those rows after which training stops.
    warm_start
        Let `fit` go on from the last fit: its scaling and network stay.
    random_state
        Seed of everything random in `fit`; prediction is deterministic.
    device
        Where to train and predict, such as "cpu" or "cuda".
    verbose
        Show a progress bar on a terminal.

    Attributes
    ----------
    classes_
        The labels, sorted.
    history_
        Loss and validation of each epoch.
    model_
        The trained `SVDKLSoftmax`.

    Examples
    --------
    >>> from due.networks import FCResNet
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> def small(shape):
    ...     return FCResNet(shape[0], 8, 2)
    >>> model = SVDKLClassifier(small, n_grid=16, epochs=40, random_state=0)  # doctest: +SKIP
    >>> bool(model.fit(X, y).score(X, y) > 0.8)  # doctest: +SKIP
    True
    """

    model_: SVDKLSoftmax
    frozen_: SVDKLSoftmax

    def __init__(
        self,
        extractor: Extractor | None = None,
        *,
        c: float | None = 0.95,
        n_grid: int = 64,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        gp_lr: float | None = None,
        weight_decay: float = 0.0,
        scale_inputs: bool = True,
        validation_fraction: float = 0.0,
        patience: int = 20,
        warm_start: bool = False,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.extractor = extractor
        self.c = c
        self.n_grid = n_grid
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.gp_lr = gp_lr
        self.weight_decay = weight_decay
        self.scale_inputs = scale_inputs
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _head(self, f: nn.Module, J: int) -> SVDKLSoftmax:
        return SVDKLSoftmax(f, GridGP(J, self.n_grid), self._T, 1)

    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        probs = self.model_.predict(x).gather(-1, y[:, None])[:, 0]
        return -probs.clamp_min(SMALLEST).log()

    def _probabilities(self, x: Tensor) -> Tensor:
        return self.frozen_.predict(x)


class SVDKLRegressor(TorchRegressor, SVDKLEstimator):
    """SV-DKL (Wilson et al., 2016) for regression, with the arguments of `DUERegressor`.

    Each feature h_j has a GP g_j of its own, interpolated from a grid, and y = A g(h) + b + noise.
    The ELBO is trained, and `uncertainty` is the latent variance Σ_j A_j² Var[g_j]. The features
    are scaled to the grid by the range of the training rows, and clipped to it.
    Needs `pip install 'due[rivals]'`.

    Parameters
    ----------
    extractor
        Function from the shape of a row to an `nn.Module` that gives one feature vector a row.
        None builds an FC-ResNet of 4 layers as wide as a row, but 128 to 1,024.
    c
        Bound on the Lipschitz constant of each layer, with which the DUE paper compares; None
        leaves the network free, as Wilson et al. do.
    n_grid
        Points of each grid.
    epochs, batch_size
        None makes about 4,000 steps, in 5 to 80 epochs of batches of 64 (more for large data).
    lr, gp_lr
        Learning rates of Adam for the network, and for the GP; None is 2e-3 and 2e-2. Without
        validation they fall to 0 along a cosine.
    weight_decay
        L2 penalty of Adam, on every parameter.
    scale_inputs
        Standardise the inputs; False takes X as it is, for those who have prepared it.
    validation_fraction
        Share of the rows held out to choose the best epoch; 0 trains on all of them.
    patience
        Epochs without improvement on those rows after which training stops.
    warm_start
        Let `fit` go on from the last fit: its scaling and network stay.
    random_state
        Seed of everything random in `fit`; prediction is deterministic.
    device
        Where to train and predict, such as "cpu" or "cuda".
    verbose
        Show a progress bar on a terminal.

    Attributes
    ----------
    history_
        Loss and validation of each epoch.
    model_
        The trained `SVDKLGaussian`.

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

    model_: SVDKLGaussian
    frozen_: SVDKLGaussian

    def __init__(
        self,
        extractor: Extractor | None = None,
        *,
        c: float | None = 0.95,
        n_grid: int = 64,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        gp_lr: float | None = None,
        weight_decay: float = 0.0,
        scale_inputs: bool = True,
        validation_fraction: float = 0.2,
        patience: int = 30,
        warm_start: bool = False,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.extractor = extractor
        self.c = c
        self.n_grid = n_grid
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.gp_lr = gp_lr
        self.weight_decay = weight_decay
        self.scale_inputs = scale_inputs
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Mean of y, with the standard deviation of a new observation, noise included."""
        mean, std = self._observed(X)
        return (mean, std) if return_std else mean

    def uncertainty(self, X: ArrayLike) -> Floats:
        """Variance of the latent function, without noise, of the shape of `predict(X)`."""
        return self._latent_variance(X)

    def _head(self, f: nn.Module, J: int) -> SVDKLGaussian:
        return SVDKLGaussian(f, GridGP(J, self.n_grid), self._T, 1)

    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.model_.likelihood.expected_log_prob(*self.model_.latent(x), y)

    def _predictive(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.frozen_.predict(x)

    def _latent_variance(self, X: ArrayLike) -> Floats:
        var = self._map(lambda x: self.frozen_.latent(x).var, X)
        return self._shape(var * self.y_scale_.std**2)
