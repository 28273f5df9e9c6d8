"""Softmax classifier: p(y = t | x) = softmax(W f(x) + b)_t, trained by cross-entropy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from due.estimators.base import (
    PREDICT_ROWS,
    Extractor,
    budget,
    check_weight,
    default_extractor,
    split,
)
from due.estimators.rows import Floats, Rows, Scale, canonical, fit_input_scale
from due.lipschitz import constrain, converge, fold
from due.metrics import entropy
from due.train import train


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
        loss = cross_entropy(self.output(self.f(x)), y, reduction="none")
        return loss.mean() if weights is None else (weights * loss).mean()

    def predict(self, x: Shaped[Tensor, "N ..."]) -> Float[Tensor, "N T"]:
        """Class probabilities."""
        return torch.softmax(self.output(self.f(x)), -1)


class SoftmaxClassifier(ClassifierMixin, BaseEstimator):
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
    validation_fraction
        Share of the rows held out to choose the best epoch; 0 trains on all of them.
    patience
        Epochs without improvement on those rows after which training stops.
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

    classes_: NDArray[Any]
    model_: SoftmaxNetwork
    frozen_: SoftmaxNetwork
    scale_: Scale
    history_: dict[str, Any]
    n_features_in_: int

    def __init__(
        self,
        extractor: Extractor | None = None,
        *,
        c: float | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float = 2e-3,
        validation_fraction: float = 0.0,
        patience: int = 20,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.extractor = extractor
        self.c = c
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "SoftmaxClassifier":
        """Train on rows X with labels y of any type; a weight counts as so many repetitions."""
        rows, labels = validate_data(
            self, X, y, dtype=np.float64, allow_nd=True, ensure_min_samples=2
        )
        check_classification_targets(labels)
        weight = check_weight(sample_weight, rows)
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"y has one class only, {classes.tolist()[0]!r}; "
                "a classifier needs rows of two classes"
            )
        self.classes_ = classes
        self._fit(canonical(rows, codes, weight))
        return self

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Class probabilities, shape (N, T), in the order of `classes_`."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, allow_nd=True, reset=False)
        return np.concatenate(
            [
                self._probabilities(rows[start : start + PREDICT_ROWS])
                for start in range(0, len(rows), PREDICT_ROWS)
            ]
        )

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable label of each row."""
        codes = self.predict_proba(X).argmax(-1)
        return self.classes_[codes]

    def uncertainty(self, X: ArrayLike) -> Floats:
        """Entropy −Σ_c p_c log p_c of the predicted probabilities, shape (N,)."""
        return entropy(self.predict_proba(X))

    def _fit(self, rows: Rows) -> None:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.scale_ = fit_input_scale(rows.X, rows.weight)
        X = torch.as_tensor(self.scale_(rows.X), dtype=torch.float32)
        weight = torch.as_tensor(rows.weight / rows.weight.mean(), dtype=torch.float32)
        y = torch.as_tensor(rows.y)
        data = (X, y) if bool((weight == 1).all()) else (X, y, weight)
        kept, held_out = split(len(X), self.validation_fraction, rows.y, seed)
        self.model_ = self._build(X[kept], seed).to(self.device)
        self.history_ = self._train(
            tuple(part[kept] for part in data),
            tuple(part[held_out].to(self.device) for part in data),
            seed,
        )
        self.frozen_ = fold(self.model_).requires_grad_(False).double().eval()

    def _build(self, X: Tensor, seed: int) -> SoftmaxNetwork:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            f = (self.extractor or default_extractor)(X.shape[1:]).eval()
            if self.c is not None:
                f = constrain(f, self.c, X[:2])
            with torch.no_grad():
                J = f(X[:2]).shape[-1]
            return SoftmaxNetwork(f, J, len(self.classes_))

    def _train(
        self, data: tuple[Tensor, ...], held_out: tuple[Tensor, ...], seed: int
    ) -> dict[str, Any]:
        model, watch = self.model_, len(held_out[0]) > 0
        validation: Callable[[], float] | None = (
            (lambda: model(*held_out).item()) if watch else None
        )
        batch_size, epochs = budget(len(data[0]), self.batch_size)
        epochs = self.epochs or epochs
        optimizer = torch.optim.Adam(model.parameters(), lr=self.lr, fused=True)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
        history = train(
            model,
            data,
            optimizer=optimizer,
            epochs=epochs,
            batch_size=batch_size,
            schedule=None if watch else falling,
            validation=validation,
            patience=self.patience if watch else None,
            before_validation=lambda: converge(model.f),
            seed=seed,
            progress=None if self.verbose else False,
        )
        return {"rows": len(data[0]), **history.as_dict()}

    @torch.no_grad()
    def _probabilities(self, rows: Floats) -> Floats:
        x = torch.as_tensor(self.scale_(rows), dtype=torch.float64, device=self.device)
        probs = self.frozen_.predict(x).cpu().numpy()
        return probs / probs.sum(-1, keepdims=True)
