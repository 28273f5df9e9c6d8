"""The plain network for regression: y | x ~ N(μ, σ²), with μ and log σ² linear in f(x)."""

from math import log, pi
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from numpy.typing import ArrayLike
from torch import Tensor, nn

from due.baselines.head_estimator import HeadEstimator
from due.baselines.losses import weighted_mean
from due.estimators.rows import Floats
from due.estimators.torch_estimator import Extractor
from due.estimators.torch_regressor import TorchRegressor
from due.estimators.training import Data, Objective
from due.gp import Normal

LOG_VARIANCE = log(1e-6), log(1e6)  # in units of Var[y]: σ² neither closes in on a row nor blows up


class GaussianNetwork(nn.Module):
    """Features and a linear output: `model(x, y)` is the loss, `model.predict(x)` is μ and σ²."""

    def __init__(self, f: nn.Module, J: int, T: int) -> None:
        super().__init__()
        self.f, self.output = f, nn.Linear(J, 2 * T)

    def forward(
        self,
        x: Shaped[Tensor, "N ..."],
        y: Float[Tensor, "N T"],
        weights: Float[Tensor, " N"] | None = None,
    ) -> Float[Tensor, ""]:
        """−mean_i w_i log p(y_i | x_i)."""
        return weighted_mean(self.losses(x, y), weights)

    def losses(self, x: Shaped[Tensor, "N ..."], y: Float[Tensor, "N T"]) -> Float[Tensor, " N"]:
        """−log p(y_i | x_i) = ½ Σ_t (log 2π + log σ_t² + (y_t − μ_t)² / σ_t²)."""
        mean, log_var = self._moments(x)
        return 0.5 * (log(2 * pi) + log_var + (y - mean).square() * (-log_var).exp()).sum(-1)

    def predict(self, x: Shaped[Tensor, "N ..."]) -> Normal:
        """Mean and variance of a new observation."""
        mean, log_var = self._moments(x)
        return Normal(mean, log_var.exp())

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_var = self.output(self.f(x)).chunk(2, -1)
        return mean, log_var.clamp(*LOG_VARIANCE)


class NetworkRegressor(TorchRegressor, HeadEstimator):
    """The usual deep regressor, trained by the likelihood of N(μ(x), σ²(x)).

    It has the arguments and the training of `DUERegressor`. σ² is noise: of what it does not know
    far from the data a single network says nothing. `DeepEnsemble(NetworkRegressor(), 10)` does,
    by how far its members differ.

    Parameters
    ----------
    extractor
        Function from the shape of a row to an `nn.Module` that gives one feature vector a row.
        None builds an FC-ResNet of 4 layers as wide as a row, but 128 to 1,024.
    c
        Bound on the Lipschitz constant of each layer of the extractor; None leaves it free.
    epochs, batch_size
        None makes about 4,000 steps, in 5 to 80 epochs of batches of 64 (more for large data).
    lr
        Of Adam; without validation it falls to 0 along a cosine.
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
        The trained `GaussianNetwork`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 200)[:, None]
    >>> model = NetworkRegressor(epochs=60, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> bool(model.score(X, np.sin(X[:, 0])) > 0.9)
    True
    """

    model_: GaussianNetwork
    frozen_: GaussianNetwork

    def __init__(
        self,
        extractor: Extractor | None = None,
        *,
        c: float | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float = 2e-3,
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
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.scale_inputs = scale_inputs
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Mean of y, with the standard deviation σ(x) of a new observation."""
        mean, std = self._observed(X)
        return (mean, std) if return_std else mean

    def uncertainty(self, X: ArrayLike) -> Floats:
        """σ²(x), of the shape of `predict(X)`: the variance of the noise, all it has to offer.

        It is no variance of the latent function, and may be small where there are no data.
        """
        return np.square(self._observed(X)[1])

    def _head(self, f: nn.Module, J: int) -> GaussianNetwork:
        return GaussianNetwork(f, J, self._T)

    def _objective(self, data: Data) -> Objective:
        return self._in_batches(len(data[0]), lr=2e-3)

    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        return self.model_.losses(x, y)

    def _predictive(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.frozen_.predict(x)
