"""DUQ as an estimator: one kernel a class, and doubt where a row is near none of them."""

from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from due.baselines.duq_model import DUQ
from due.baselines.head_estimator import HeadEstimator
from due.estimators.checks import check_fraction, check_not_negative, check_positive, check_whole
from due.estimators.rows import Floats
from due.estimators.torch_classifier import TorchClassifier
from due.estimators.torch_estimator import Extractor
from due.estimators.training import Data, Objective


class DUQClassifier(TorchClassifier, HeadEstimator):
    """DUQ (van Amersfoort et al., 2020) with the arguments and training of `DUEClassifier`.

    Each class has a kernel K_c(x) = exp(−d_c(x)), d_c = mean((W_c f(x) − e_c)²) / 2σ², around a
    centroid e_c, a moving average over its rows. They are trained by binary cross-entropy, one
    class against the rest, with a two-sided penalty on the gradient of Σ_c K_c in x in place of
    the bound c. `uncertainty` is 1 − max_c K_c, as in the paper: 1 far from all centroids.

    K is no distribution over the classes. `predict_proba` is K normalised, K_c / Σ_c K_c: it has
    the paper's prediction as its largest, but a row far from all may have one close to 1.

    Parameters
    ----------
    extractor
        Function from the shape of a row to an `nn.Module` that gives one feature vector a row.
        None builds an FC-ResNet of 4 layers as wide as a row, but 128 to 1,024.
        The penalty wants each row's features to depend on that row only: no batch norm.
    c
        Bound on the Lipschitz constant of each layer of the extractor; None leaves it free.
    centroid_size
        Length of the centroids; None makes them as long as the features.
    sigma
        Length scale σ of the kernels; the authors take 0.1 for images, 0.3 for two moons.
    gamma
        Share of the old centroids that each training step keeps; the authors take 0.999 for
        images, where steps are many.
    penalty
        Weight of the gradient penalty; 0 leaves it out.
    epochs, batch_size
        None makes about 4,000 steps, in 5 to 80 epochs of batches of 64 (more for large data).
    lr
        Of Adam; None is 2e-3. Without validation it falls to 0 along a cosine.
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
        The trained `DUQ`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = DUQClassifier(epochs=30, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    >>> near, far = model.uncertainty([[0.0, 1.0], [9.0, 9.0]])
    >>> bool(far > near)
    True
    """

    model_: DUQ
    frozen_: DUQ

    def __init__(
        self,
        extractor: Extractor | None = None,
        *,
        c: float | None = None,
        centroid_size: int | None = None,
        sigma: float = 0.3,
        gamma: float = 0.99,
        penalty: float = 0.5,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
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
        self.centroid_size = centroid_size
        self.sigma = sigma
        self.gamma = gamma
        self.penalty = penalty
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

    def uncertainty(self, X: ArrayLike) -> Floats:
        """1 − max_c K_c(x), shape (N,): 0 on a centroid, 1 far from all of them."""
        return self._map(lambda x: -torch.expm1(-self._nearest(x)), X)

    def distance(self, X: ArrayLike) -> Floats:
        """min_c d_c(x) = −log max_c K_c(x), shape (N,).

        It ranks rows as `uncertainty` does, and goes on where that is 1 to the last digit.
        """
        return self._map(self._nearest, X)

    def _nearest(self, x: Tensor) -> Tensor:
        return self.frozen_.distance(x).amin(-1)

    def _probabilities(self, x: Tensor) -> Tensor:
        return torch.softmax(-self.frozen_.distance(x), -1)  # K / Σ K, also where all K are 0

    def _check_own_parameters(self) -> None:
        if self.centroid_size is not None:
            check_whole("centroid_size", self.centroid_size)
        check_positive("sigma", self.sigma)
        check_fraction("gamma", self.gamma)
        check_positive("gamma", self.gamma)  # at 0 a batch without a class would leave no centroid
        check_not_negative("penalty", self.penalty)

    def _head(self, f: nn.Module, J: int) -> DUQ:
        return DUQ(f, J, self._T, self.centroid_size, self.sigma, self.gamma, self.penalty)

    def _objective(self, data: Data) -> Objective:
        return self._in_batches(len(data[0]), lr=2e-3)

    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        return self.model_.losses(x, y)
