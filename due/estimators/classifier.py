"""Classifiers: labels of any type as codes 0 … T − 1, and back; and DUE as one of them."""

from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor, nn

from due.estimators.network import NetworkEstimator, OnData, estimator, learn_rows
from due.gp import InducingGP, Softmax
from due.gp.initialise import inducing
from due.gp.kernels import KINDS
from due.gp.likelihoods import METHODS
from due.methods.due import DUE, INDUCING, PLACEMENTS
from due.predictor import ClassPredictor
from due.rows.categories import indicators, warn_of_codes
from due.rows.checks import (
    argument,
    check_classes,
    check_flag,
    check_fraction,
    check_rows,
    check_training,
    check_whole,
    one_of,
    or_none,
)
from due.rows.scale import Floats
from due.rows.source import canonical
from due.storage.atomic import StorageError
from due.training import Recipe

WIDE = 4096  # bytes of a label
COLUMNS = 50  # with scales of their own, which then learn faster
MANY = 32  # classes, which share a covariance by default


class ClassUncertainty(NamedTuple):
    """Each of shape (N,), in nats where it is an entropy."""

    entropy: Floats  # of the predicted probabilities
    aleatoric: Floats  # expected entropy: what no more data would remove
    epistemic: Floats  # the difference, the mutual information of label and latent function
    latent_variance: Floats  # mean over classes; no sign of a foreign row, see docs/estimators.md
    ood_score: Floats  # in [0, 1], 1 far from the data


@estimator
class Classifier(ClassifierMixin, NetworkEstimator):
    """Abstract: a `NetworkEstimator` of class probabilities."""

    _recipe = _wide = Recipe(lr=2e-3, warm_up=20, patience=20)

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on rows X with labels y of any type; a weight counts as so many repetitions."""
        inputs, labels, weight, anew = check_training(self, X, y, sample_weight)
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
        check_classes(classes, None if anew else self.classes_)
        self.classes_ = classes
        rows = canonical(inputs, codes, weight)
        if anew:
            warn_of_codes(self, rows.X, indicators(rows.y))
        learn_rows(self, rows, torch.as_tensor(rows.y), len(classes), anew, strata=rows.y)
        return self

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Class probabilities, shape (N, T), in the order of `classes_`."""
        rows = check_rows(self, X)
        return self._ask(self.predictor_.probabilities, rows)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable label of each row."""
        codes = self.predict_proba(X).argmax(-1)
        return self.classes_[codes]

    def uncertainty(self, X: ArrayLike) -> Floats:
        """How uncertain each row is, shape (N,): the entropy, or the score the method has."""
        rows = check_rows(self, X)
        return self._ask(self.predictor_.uncertainty, rows)

    def _default_recipe(self, n: int) -> Recipe:
        scaled = self.column_scales and self.extractor is None and self._columns_may_fade
        return self._wide if scaled and len(self.scale_.std) >= COLUMNS else self._recipe

    def _explains(self, x: Tensor, y: Tensor) -> bool:
        p = self._ask(self.predictor_.probabilities, self.scale_.inverse(x.double().numpy()))
        codes = y.numpy()
        share = np.bincount(codes, minlength=p.shape[1]) / len(codes)
        right = np.mean(p.argmax(1) == codes)
        likelihood = np.log(p[np.arange(len(p)), codes].clip(1e-300)).mean()
        plain = np.sum(share * np.log(share.clip(1e-300)))
        return bool(right > share.max() + (0.25 / len(p)) ** 0.5 or likelihood > plain + 0.01)

    def _wrap(self, model: nn.Module) -> ClassPredictor:
        return ClassPredictor(model, self.scale_)

    @property
    def _T(self) -> int:
        return len(self.classes_)

    def _learned(self) -> dict[str, Any]:
        return {"classes": self.classes_.tolist(), "classes_dtype": self.classes_.dtype.str}

    def _relearn(self, learned: dict[str, Any]) -> None:
        self.classes_ = _labels(learned["classes"], learned["classes_dtype"])


def _labels(values: list[Any], dtype: str) -> NDArray[Any]:
    """The labels of a file, in the dtype they had; a width that none of them needs is not taken."""
    given, plain = np.dtype(dtype), np.array(values)
    if given.kind not in "OUSbiuf":
        raise StorageError(f"its field estimator.classes_dtype is {dtype!r}, not one of labels")
    if given.kind in "US" and given.itemsize > max(plain.dtype.itemsize, WIDE):
        given = plain.dtype
    labels = np.array(values, dtype=given)
    if len(labels) < 2 or len(set(values)) < len(values) or labels.tolist() != values:
        raise StorageError(f"its fields estimator.classes and classes_dtype ({dtype}) do not agree")
    return labels


@estimator
class DUEClassifier(OnData, Classifier):
    """Deep network with distance-keeping features and a GP on top; uncertainty in one pass.

    By default it trains for 80 epochs of batches of 64 (fewer beyond 3,000 rows, so as to take
    about 4,000 steps), with Adam at rates of 5e-4 for the network and 5e-3 for the GP that fall to
    zero along a cosine; with scales of 50 columns or more the latter is 1e-2. Of 500 rows or more
    a tenth is held out, for `ood_pvalue` and for the temperature.

    Parameters
    ----------
    n_inducing
        Number of inducing points (at most the number of distinct rows). None takes 50, or one
        per class up to 100.
    kernel
        "rbf", "matern12", "matern32", "matern52" or "rq".
    shared_kernel
        One length scale and output scale for all classes: as good in our measurements, and one
        Cholesky factor instead of one per class. False has one of each per class, as the paper.
    shared_covariance
        With a shared kernel, one covariance of q(U) for all classes, which makes a thousand of
        them affordable. False has one per class, as the paper, and is better calibrated. None
        shares it from 32 classes on.
    inducing
        Inducing points "free" in feature space, as the paper has them, "tied" to the features of
        training rows, or "refreshed" from these every 10 steps; see `due.DUE`.
    placement
        Which rows those are, by "kmeans" or "greedy" conditional variance.
    column_scales
        Let the default network learn a scale per column of 10 or more, so that columns which do
        not matter fade. Columns that share a unit, such as pixels, and inputs that are not
        standardised keep theirs.
    samples
        Random samples of the training loss, 10 as in the paper; None integrates it exactly, which
        takes longer and gives the same accuracy and calibration. Predictions are always exact,
        unless `probabilities` says otherwise.
    calibration_fraction
        Share of the rows held out for `ood_pvalue`. None takes the rows that choose the epoch, or
        without them a tenth of 500 rows or more.
    tempered
        Divide f by one temperature, under which the rows held out for `ood_pvalue` are most
        probable: without it, probabilities are too cautious. Needs such rows.
    warm_start_q
        Start q(U) at the posterior of GP regression on the labels instead of N(0, I).
    probabilities
        "exact", "monte_carlo" (the paper's 32 samples) or "mean_field".
    extractor, c, epochs, batch_size, lr, recipe, validation_fraction, scale_inputs, warm_start, \
random_state, device, verbose
        As in `Classifier`, `NetworkEstimator` and `Trained`, the classes it is built on.

    Attributes
    ----------
    classes_
        The labels, sorted.
    history_
        Loss and validation of each epoch, the bound that was trained, and the `temperature`.
    model_, predictor_
        The `due.DUE` behind it, and what predicts from raw rows.

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

    n_inducing: int | None = argument(None, or_none(check_whole))
    kernel: str = argument("rbf", one_of(KINDS))
    shared_kernel: bool = argument(True, check_flag)
    shared_covariance: bool | None = argument(None, or_none(check_flag))
    inducing: str = argument("free", one_of(INDUCING))
    placement: str = argument("kmeans", one_of(PLACEMENTS))
    column_scales: bool = argument(True, check_flag)
    samples: int | None = argument(10, or_none(check_whole))
    calibration_fraction: float | None = argument(None, or_none(check_fraction))
    tempered: bool = argument(True, check_flag)
    warm_start_q: bool = argument(True, check_flag)
    probabilities: str = argument("exact", one_of(METHODS))
    _recipe = Recipe(lr=5e-4, head_lr=5e-3, warm_up=20, patience=20)
    _wide = Recipe(lr=5e-4, head_lr=1e-2, warm_up=20, patience=20)

    def uncertainty_details(self, X: ArrayLike) -> ClassUncertainty:
        """Entropy with its two parts, the latent variance and the OOD score."""
        rows = check_rows(self, X)
        answers = self._ask(lambda x: self.predictor_(x)[1:6], rows)
        return ClassUncertainty(*answers)

    def _method(self, f: nn.Module, J: int, T: int, n: int) -> DUE:
        M = self.n_inducing or min(100, max(50, T))
        Z = torch.zeros(inducing(M, n), J)
        one_S = T >= MANY if self.shared_covariance is None else self.shared_covariance
        one_S = self.shared_kernel and one_S
        shared = {"shared_kernel": self.shared_kernel, "shared_covariance": one_S}
        gp = InducingGP(Z, T, kernel=self.kernel, **shared)
        softmax = Softmax(T, self.probabilities, self.samples)
        where: dict[str, Any] = {"inducing": self.inducing, "placement": self.placement}
        return DUE(f, gp, softmax, n, warm=self.warm_start_q, **where)
