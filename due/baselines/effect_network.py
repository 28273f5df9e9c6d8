"""What the networks for treatment effects share: people → scaled tensors → training → outcomes.

A network says two things of a batch: `network(x, t, y)` is the loss, `network.predict(x, t)` is
E[y | x, t], all in standard units.
"""

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor, nn

from due import archive
from due.estimators.checks import check_fraction, check_not_negative, check_positive, check_whole
from due.estimators.effects import EffectEstimator, Study
from due.estimators.rows import Floats, Scale, fit_covariate_scale, fit_scale
from due.estimators.saved import Found, Memory, SavedEstimator, column_names, recall_columns
from due.estimators.training import PREDICT_ROWS, seeded
from due.lipschitz import converge, fold
from due.train import train

People = tuple[Tensor, Tensor, Tensor]  # x (N, D), t (N,), y (N,)


class EffectNetwork(EffectEstimator, SavedEstimator):
    """Abstract: a network with dropout, trained by Adam until the validation loss stays behind."""

    dropout: float
    lr: float
    weight_decay: float | None
    batch_size: int
    epochs: int
    patience: int
    validation_fraction: float
    random_state: Any
    device: str
    verbose: bool

    _fitted = "frozen_"
    model_: nn.Module
    frozen_: nn.Module
    scale_: Scale
    y_scale_: Scale
    history_: dict[str, Any]

    @abstractmethod
    def _network(self, X: Tensor) -> nn.Module:
        """An untrained network for people like X, (N, D), which are scaled."""

    def _fit(self, study: Study, validation: Study | None) -> None:
        check_training(self)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.scale_, self.y_scale_ = fit_scales(study.join(validation))
        if validation is None:
            study, validation = study.hold_out(self.validation_fraction, seed)
        known = as_tensors(study, self.scale_, self.y_scale_)
        held_out = as_tensors(validation, self.scale_, self.y_scale_)
        self.model_ = seeded(lambda: self._network(known[0]), seed).to(self.device)
        self.history_ = self._train(known, held_out, seed)
        self._freeze()

    def _freeze(self) -> None:
        self.frozen_ = fold(self.model_).requires_grad_(False).double().eval()

    def _memory(self) -> Memory:
        return Memory(what_is_known(self), {}, self.model_.state_dict())

    def _recall(self, found: Found) -> None:
        recall_known(self, found.config["estimator"])
        D = len(self.scale_.mean)
        network = seeded(lambda: self._network(torch.zeros(2, D)), 0)
        self.model_ = archive.load_state(network, found.tensors).to(self.device)
        self._freeze()

    def _train(self, known: People, held_out: People, seed: int) -> dict[str, Any]:
        model, watch = self.model_, len(held_out[0]) > 0
        x, t, y = (part.to(self.device) for part in held_out)
        decay = self.weight_decay
        if decay is None:
            decay = 0.5 * (1 - self.dropout) / len(known[0])
        history = train(
            model,
            known,
            optimizer=torch.optim.Adam(
                model.parameters(), lr=self.lr, weight_decay=decay, fused=True
            ),
            epochs=self.epochs,
            batch_size=self.batch_size,
            validation=(lambda: self._validate((x, t, y))) if watch else None,
            patience=self.patience if watch else None,
            seed=seed,
            progress=None if self.verbose else False,
        )
        converge(model)  # one power iteration a step is near enough to judge an epoch by
        return {"rows": len(known[0]), **history.as_dict()}

    def _validate(self, held_out: People) -> float:
        """What an epoch is judged by, in eval mode and without gradients."""
        return float(self.model_(*held_out))

    @torch.no_grad()
    def _outcomes(self, X: Floats) -> Floats:
        parts = [self._both(X[i : i + PREDICT_ROWS]) for i in range(0, len(X), PREDICT_ROWS)]
        return self.y_scale_.inverse(np.concatenate(parts))

    def _both(self, X: Floats) -> Floats:
        """Both arms in one pass over twice the rows: under dropout each has its own masks."""
        x = torch.as_tensor(self.scale_(X), dtype=torch.float64, device=self.device)
        t = torch.arange(2, dtype=x.dtype, device=x.device).repeat_interleave(len(x))
        y = self.frozen_.predict(torch.cat([x, x]), t)  # type: ignore[operator]
        return y.reshape(2, len(x)).T.cpu().numpy()


def fit_scales(study: Study) -> tuple[Scale, Scale]:
    """Of the covariates, and of the outcomes as a column."""
    return fit_covariate_scale(study.X), fit_scale(study.y[:, None], np.ones(len(study.y)))


def as_tensors(study: Study, scale: Scale, y_scale: Scale) -> People:
    """Scaled, in float32."""
    x, y = scale(study.X), y_scale(study.y[:, None])[:, 0]
    return (
        torch.as_tensor(x, dtype=torch.float32),
        torch.as_tensor(study.t, dtype=torch.float32),
        torch.as_tensor(y, dtype=torch.float32),
    )


def what_is_known(estimator: Any) -> dict[str, Any]:
    """Columns, scales and history, as JSON."""
    return {
        "feature_names": column_names(estimator),
        "scale": estimator.scale_.as_lists(),
        "y_scale": estimator.y_scale_.as_lists(),
        "history": getattr(estimator, "history_", None),
    }


def recall_known(estimator: Any, saved: dict[str, Any]) -> None:
    """Take up what `what_is_known` gave."""
    estimator.scale_ = Scale.from_lists(saved["scale"])
    estimator.y_scale_ = Scale.from_lists(saved["y_scale"])
    recall_columns(estimator, saved["feature_names"], len(estimator.scale_.mean))
    if saved["history"] is not None:
        estimator.history_ = saved["history"]


def check_training(estimator: Any) -> None:
    """Raise at the first argument of a network's training that makes no sense."""
    for name in ("epochs", "batch_size", "patience", "width", "latent", "components"):
        check_whole(name, getattr(estimator, name, 1))
    check_positive("lr", estimator.lr)
    decay = getattr(estimator, "weight_decay", None)
    if decay is not None:
        check_not_negative("weight_decay", decay)
    for name in ("dropout", "validation_fraction"):
        check_fraction(name, getattr(estimator, name, 0.0))
