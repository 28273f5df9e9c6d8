"""Softmax classifier: p(y = t | x) = softmax(W f(x) + b)_t, trained by cross-entropy."""

from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from due.baselines.head_estimator import HeadEstimator
from due.baselines.losses import weighted_mean
from due.estimators.torch_classifier import EntropyClassifier
from due.estimators.torch_estimator import Extractor
from due.estimators.training import Data, Objective


class SoftmaxNetwork(nn.Module):
    """Features and a linear output: `model(x, y)` is the loss, `model.predict(x)` is p(y | x)."""

    def __init__(self, f: nn.Module, J: int, T: int) -> None:
        super().__init__()
        self.f, self.output = f, nn.Linear(J, T)

    def forward(
        self,
        x: Shaped[Tensor, "N ..."],
        y: Int[Tensor, " N"],
        weights: Float[Tensor, " N"] | None = None,
    ) -> Float[Tensor, ""]:
        """−mean_i w_i log p(y_i | x_i)."""
        return weighted_mean(self.losses(x, y), weights)

    def losses(self, x: Shaped[Tensor, "N ..."], y: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """−log p(y_i | x_i)."""
        return cross_entropy(self.output(self.f(x)), y, reduction="none")

    def predict(self, x: Shaped[Tensor, "N ..."]) -> Float[Tensor, "N T"]:
        """Class probabilities."""
        return torch.softmax(self.output(self.f(x)), -1)


class SoftmaxClassifier(EntropyClassifier, HeadEstimator):
    """The usual deep classifier, with the arguments and the training of `DUEClassifier`.

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
    classes_
        The labels, sorted.
    history_
        Loss and validation of each epoch.
    model_
        The trained `SoftmaxNetwork`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = SoftmaxClassifier(epochs=30, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    model_: SoftmaxNetwork
    frozen_: SoftmaxNetwork

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
        validation_fraction: float = 0.0,
        patience: int = 20,
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

    def _head(self, f: nn.Module, J: int) -> SoftmaxNetwork:
        return SoftmaxNetwork(f, J, self._T)

    def _objective(self, data: Data) -> Objective:
        return self._in_batches(len(data[0]), lr=2e-3)

    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        return self.model_.losses(x, y)

    def _probabilities(self, x: Tensor) -> Tensor:
        return self.frozen_.predict(x)
