"""DDU as an estimator: a softmax network, and doubt where its features have a small density."""

from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from due.baselines.ddu_model import DDU
from due.baselines.head_estimator import HeadEstimator
from due.estimators.rows import Floats
from due.estimators.torch_classifier import TorchClassifier
from due.estimators.torch_estimator import Extractor
from due.estimators.training import Data, Objective
from due.metrics import entropy


class DDUClassifier(TorchClassifier, HeadEstimator):
    """DDU (Mukhoti et al., 2023) with the arguments and the training of `DUEClassifier`.

    A softmax network on distance-keeping features z = f(x). A last pass over the training rows
    fits a Gaussian with full covariance to the features of each class. `uncertainty` is minus
    the log-density of the features, −log Σ_c π_c N(z; μ_c, Σ_c), which tells of rows far from
    all classes; it is no probability and may be negative. `entropy` of the softmax tells of
    classes that overlap.

    Parameters
    ----------
    extractor
        Function from the shape of a row to an `nn.Module` that gives one feature vector a row.
        None builds an FC-ResNet of 4 layers as wide as a row, but 128 to 1,024.
    c
        Bound on the Lipschitz constant of each layer; below 1 a residual network is bi-Lipschitz,
        at 1 and above only its upper bound remains. None leaves the network free.
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
        The trained `DDU`; `model_.density.jitter` was added to each class's covariance, which
        with fewer rows than features is singular.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(200, centers=3, random_state=0)
    >>> model = DDUClassifier(epochs=30, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.85)
    True
    >>> near, far = model.uncertainty([[1.0, 4.0], [50.0, 50.0]])
    >>> bool(far > near)
    True
    """

    model_: DDU
    frozen_: DDU

    def __init__(
        self,
        extractor: Extractor | None = None,
        *,
        c: float | None = 0.95,
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
        """−log Σ_c π_c N(f(x); μ_c, Σ_c), shape (N,)."""
        return self._map(lambda x: -self.frozen_.log_density(x), X)

    def entropy(self, X: ArrayLike) -> Floats:
        """Entropy −Σ_c p_c log p_c of the softmax, shape (N,): what more data would not remove."""
        return entropy(self.predict_proba(X))

    def _probabilities(self, x: Tensor) -> Tensor:
        return self.frozen_.predict(x)

    def _head(self, f: nn.Module, J: int) -> DDU:
        return DDU(f, J, self._T)

    def _objective(self, data: Data) -> Objective:
        return self._in_batches(len(data[0]), lr=2e-3)

    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.model_.output(self.model_.f(x)), y, reduction="none")

    def _complete(self, known: Data, held_out: Data, seed: int) -> None:
        x, y, *weights = known
        self.model_.set_density(x, y, weights[0] if weights else None)
