"""DUE as a scikit-learn classifier."""

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from due.estimators.base import DUEEstimator
from due.estimators.rows import Floats
from due.estimators.torch_classifier import EntropyClassifier
from due.estimators.torch_estimator import Extractor
from due.estimators.training import Data, Objective
from due.gp import InducingGP, Softmax, warm_start
from due.gp.likelihoods import METHODS


class ClassUncertainty(NamedTuple):
    """Each of shape (N,), in nats where it is an entropy."""

    entropy: Floats  # of the predicted probabilities
    aleatoric: Floats  # expected entropy: what no more data would remove
    epistemic: Floats  # the difference, the mutual information of label and latent function
    latent_variance: Floats  # mean over classes
    ood_score: Floats  # in [0, 1], 1 far from the data


class DUEClassifier(EntropyClassifier, DUEEstimator):
    """Deep network with distance-keeping features and a GP on top; uncertainty in one pass.

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
    epochs, batch_size
        None is 80 epochs of batches of 64; for large data larger batches and fewer epochs, at
        least 5, so as to take about 4,000 steps.
    lr, gp_lr
        Learning rates of Adam for the network, and for the GP; None is 5e-4 and 5e-3.
    weight_decay
        L2 penalty of Adam, on every parameter.
    scale_inputs
        Standardise the inputs; False takes X as it is, for those who have prepared it.
    validation_fraction
        Share of the rows held out to choose the best epoch. 0 trains on all of them, with a
        learning rate that falls to zero.
    patience
        Epochs without improvement after which training stops, if rows are held out.
    warm_start_q
        Start q(U) at the posterior of GP regression on the labels instead of N(0, I).
    probabilities
        "quasi" (deterministic, accurate), "monte_carlo" (the paper's 32 samples) or "mean_field".
    warm_start
        Let `fit` go on from the last fit: its scaling, network, kernel, inducing points and
        way to probabilities stay, whatever the parameters say now.
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
        Loss and validation of each epoch, and the bound that was trained.
    model_
        The `due.DUE` behind it.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = DUEClassifier(epochs=30, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    >>> near, far = model.uncertainty([[0.0, 1.0], [9.0, 9.0]])
    >>> bool(far > near)
    True
    """

    def __init__(
        self,
        extractor: Extractor | None = None,
        *,
        c: float | None = 0.95,
        n_inducing: int = 100,
        kernel: str = "rbf",
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        gp_lr: float | None = None,
        weight_decay: float = 0.0,
        scale_inputs: bool = True,
        validation_fraction: float = 0.0,
        patience: int = 20,
        warm_start_q: bool = True,
        probabilities: str = "quasi",
        warm_start: bool = False,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.extractor = extractor
        self.c = c
        self.n_inducing = n_inducing
        self.kernel = kernel
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.gp_lr = gp_lr
        self.weight_decay = weight_decay
        self.scale_inputs = scale_inputs
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.warm_start_q = warm_start_q
        self.probabilities = probabilities
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def uncertainty_details(self, X: ArrayLike) -> ClassUncertainty:
        """Entropy with its two parts, the latent variance and the OOD score."""
        total = self.uncertainty(X)
        aleatoric, variance = self._map(self._expected_entropy, X)
        epistemic = np.maximum(total - aleatoric, 0)
        return ClassUncertainty(total, aleatoric, epistemic, variance, self.ood_score(X))

    def _probabilities(self, x: Tensor) -> Tensor:
        """E[softmax(f)]."""
        mean, var = self.frozen_.latent(x)
        # its sums cancel, those of the integral do not: float32 will do
        return self._softmax.predictive(mean.float(), var.float()).double()

    def _expected_entropy(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = self.frozen_.latent(x)
        return self._softmax.expected_entropy(mean, var), var.mean(-1)

    @property
    def _softmax(self) -> Softmax:
        return cast(Softmax, self.frozen_.likelihood)

    def _check_own_parameters(self) -> None:
        self._check_gp_parameters()
        if self.probabilities not in METHODS:
            raise ValueError(
                f"probabilities={self.probabilities!r} is not one of {', '.join(METHODS)}"
            )

    def _absorb(self, known: Data, held_out: Data) -> None:
        """Held-out rows chose the epoch; q(U) has no closed form that could take them in."""

    def _likelihood(self) -> Softmax:
        return Softmax(self._T, self.probabilities)

    def _start_q(self, gp: InducingGP, h: Tensor, y: Tensor) -> None:
        if self.warm_start_q:
            warm_start(gp, h, y)

    def _bound(self, data: Data) -> Objective:
        return self._in_batches(len(data[0]), lr=5e-4, head_lr=self.gp_lr or 5e-3, bound="elbo")
