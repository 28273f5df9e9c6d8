"""What every estimator with a network shares: rows → scaled tensors → training → a frozen model."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from due.estimators.checks import (
    check_columns,
    check_fraction,
    check_not_negative,
    check_positive,
    check_whole,
)
from due.estimators.rows import Floats, Rows, Scale, fit_input_scale
from due.estimators.saved import (
    Found,
    Memory,
    SavedEstimator,
    Tensors,
    column_names,
    recall_columns,
)
from due.estimators.training import (
    PREDICT_ROWS,
    Data,
    Objective,
    budget,
    mean_loss,
    seeded,
    split,
    warm_up,
)
from due.lipschitz import constrain, converge
from due.networks import FCResNet
from due.train import train

WARM_UP = 20  # steps
Extractor = Callable[[torch.Size], nn.Module]


class TorchEstimator(SavedEstimator):
    """Abstract: a model on the features f(x) of a network, trained by Adam.

    Its model is an `nn.Module` with the network in `f`. A subclass says what else it is made of
    (`_build`), what is minimised (`_objective`), and how it is saved (`_describe`, `_rebuild`);
    `TorchClassifier` and `TorchRegressor` say what y is.
    """

    extractor: Extractor | None
    c: float | None
    epochs: int | None
    batch_size: int | None
    lr: float | None
    weight_decay: float
    scale_inputs: bool
    validation_fraction: float
    patience: int
    warm_start: bool
    random_state: Any
    device: str
    verbose: bool

    model_: Any  # as trained
    frozen_: Any  # as it predicts
    scale_: Scale
    history_: dict[str, Any]
    row_shape_: tuple[int, ...]
    feature_names_in_: NDArray[Any]
    n_features_in_: int

    # what y is

    @property
    @abstractmethod
    def _T(self) -> int:
        """Number of outputs: of classes, or of columns of y."""

    @abstractmethod
    def _learned(self) -> dict[str, Any]:
        """What was learned of y, as JSON."""

    @abstractmethod
    def _relearn(self, learned: dict[str, Any]) -> None:
        """Take up what `_learned` gave."""

    # what the model is

    def _check_own_parameters(self) -> None:
        """Raise at the first parameter beyond the common ones that makes no sense, if any."""

    @abstractmethod
    def _build(self, f: nn.Module, X: Tensor, y: Tensor, seed: int) -> nn.Module:
        """The untrained model on the network f, bounded and in eval mode; X is scaled.

        Global draws come from the seed.
        """

    @abstractmethod
    def _objective(self, data: Data) -> Objective:
        """What training on these rows minimises."""

    @abstractmethod
    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss of each row, (N,), whose mean over rows held out chooses the epoch."""

    def _complete(self, known: Data, held_out: Data, seed: int) -> None:
        """What follows training, if anything: statistics of rows `known` to it, and of others."""

    @abstractmethod
    def _predictor(self) -> nn.Module:
        """`model_` made ready to predict, in float64: a row must not depend on its batch."""

    @abstractmethod
    def _describe(self) -> tuple[dict[str, Any], Tensors]:
        """What `_rebuild` needs: JSON, and the state of the model."""

    @abstractmethod
    def _rebuild(self, f: nn.Module, config: dict[str, Any], tensors: Tensors) -> nn.Module:
        """The model of `_describe` on a network as it was before training, not yet bounded."""

    # training

    @property
    def _continues(self) -> bool:
        return self.warm_start and self.__sklearn_is_fitted__()

    def _validate(self, X: ArrayLike, y: ArrayLike, **of_y: bool) -> tuple[Floats, NDArray[Any]]:
        """Parameters and data checked; a fit that goes on wants rows as they were."""
        self._check_parameters()
        check_columns(X)
        rows, target = validate_data(
            self,
            X,
            y,
            dtype=np.float64,
            allow_nd=True,
            ensure_min_samples=2,
            reset=not self._continues,
            **of_y,
        )
        if self._continues:
            self._check_shape(rows)
        return rows, target

    def _fit(
        self, rows: Rows, y: Tensor, strata: NDArray[Any] | None = None, held_out: int = 0
    ) -> None:
        """Train; the last `held_out` rows choose the epoch, or if 0 a fraction of all of them."""
        anew = not self._continues
        self.__dict__.pop("frozen_", None)  # should this fit fail, the estimator is not fitted
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if anew:
            self.scale_ = self._input_scale(rows)
        data = self._tensors(rows, y)
        fitted, watched = (
            torch.arange(len(y)).split([len(y) - held_out, held_out])
            if held_out
            else split(len(y), self.validation_fraction, strata, seed)
        )
        known = tuple(part[fitted] for part in data) if len(watched) else data
        if anew:
            self.row_shape_ = tuple(data[0].shape[1:])
            self.model_ = seeded(lambda: self._start(known, seed), seed)
        self.model_.to(self.device)
        unseen = tuple(part[watched] for part in data)
        self.history_ = self._train(known, unseen, seed)
        self._complete(known, unseen, seed)
        self.frozen_ = self._predictor()

    def _input_scale(self, rows: Rows) -> Scale:
        if self.scale_inputs:
            return fit_input_scale(rows.X, rows.weight)
        return Scale(np.zeros(rows.X.shape[1:]), np.ones(rows.X.shape[1:]))

    def _tensors(self, rows: Rows, y: Tensor) -> Data:
        X = torch.as_tensor(self.scale_(rows.X).astype(np.float32))
        weight = torch.as_tensor(rows.weight.astype(np.float32))
        return (X, y) if bool((weight == 1).all()) else (X, y, weight)

    def _start(self, known: Data, seed: int) -> nn.Module:
        X, y, *_ = known
        f = self._network().eval()
        if self.c is not None:
            constrain(f, self.c, X[:2])
        return self._build(f, X, y, seed)

    def _train(self, data: Data, held_out: Data, seed: int) -> dict[str, Any]:
        watch = len(held_out[0]) > 0
        objective = self._objective(data)
        optimizer = self._optimizer(objective)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, objective.epochs)

        history = train(
            objective.loss,
            data,
            optimizer=optimizer,
            epochs=objective.epochs,
            batch_size=objective.batch_size,
            schedule=None if watch else falling,
            validation=(lambda: mean_loss(self._losses, held_out, self.device)) if watch else None,
            patience=self.patience if watch else None,
            before_validation=objective.settle,
            seed=seed,
            progress=None if self.verbose else False,
        )
        if self.c is not None:
            converge(self.model_.f)
            objective.settle()
        name = {} if objective.bound is None else {"bound": objective.bound}
        return {**name, "rows": len(data[0]), **history.as_dict()}

    def _in_batches(
        self, n: int, *, lr: float, head_lr: float | None = None, bound: str | None = None
    ) -> Objective:
        """The model's own loss in batches; the rates are for those who gave none."""
        batch_size, epochs = budget(n, self.batch_size)
        rate = self.lr or lr
        return Objective(
            self.model_, batch_size, self.epochs or epochs, rate, head_lr or rate, bound=bound
        )

    def _optimizer(self, objective: Objective) -> torch.optim.Optimizer:
        weights = [p for p in self.model_.f.parameters() if p.ndim > 0]
        theirs = set(map(id, weights))  # scalars of the network learn as those of the kernel do
        head = [p for p in self.model_.parameters() if id(p) not in theirs]
        groups: list[dict[str, Any]] = [
            {"params": weights, "lr": objective.lr},
            {"params": head, "lr": objective.head_lr},
        ]
        optimizer = torch.optim.Adam(groups, weight_decay=self.weight_decay, fused=True)
        warm_up(optimizer, WARM_UP)
        return optimizer

    def _network(self) -> nn.Module:
        f = (self.extractor or default_extractor)(torch.Size(self.row_shape_))
        if not isinstance(f, nn.Module):
            raise TypeError(
                f"extractor returned a {type(f).__name__}; it must be a function from the shape "
                "of a row to an nn.Module"
            )
        return f

    def _check_shape(self, rows: Floats) -> None:
        if rows.shape[1:] != self.row_shape_:
            raise ValueError(
                f"rows of X have shape {rows.shape[1:]}, but {type(self).__name__} was fitted on "
                f"rows of shape {self.row_shape_}"
            )

    def _check_parameters(self) -> None:
        if isinstance(self.extractor, nn.Module):
            raise TypeError(
                "extractor is a network; give a function that builds one from the shape of a row, "
                "so that each fit starts anew"
            )
        for name in ("epochs", "batch_size"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name))
        check_whole("patience", self.patience)
        for name in ("c", "lr"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_not_negative("weight_decay", self.weight_decay)
        check_fraction("validation_fraction", self.validation_fraction)
        self._check_own_parameters()

    # storage

    def _memory(self) -> Memory:
        model, tensors = self._describe()
        learned = {
            "row_shape": list(self.row_shape_),
            "feature_names": column_names(self),
            "scale": self.scale_.as_lists(),
            "history": self.history_,
            **self._learned(),
        }
        return Memory(learned, {"model": model}, tensors)

    def _recall(self, found: Found) -> None:
        saved = found.config["estimator"]
        self.row_shape_ = tuple(saved["row_shape"])
        recall_columns(self, saved["feature_names"], self.row_shape_[0])
        self.scale_ = Scale.from_lists(saved["scale"])
        self.history_ = saved["history"]
        self._relearn(saved)
        model = seeded(
            lambda: self._rebuild(self._network(), found.config["model"], found.tensors), 0
        )
        self.model_ = model.to(self.device)
        self.frozen_ = self._predictor()

    # prediction

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "frozen_")

    def _checked(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        check_columns(X)
        rows: Floats = validate_data(self, X, dtype=np.float64, allow_nd=True, reset=False)
        self._check_shape(rows)
        return rows

    def _batches(self, rows: Floats) -> Iterator[Tensor]:
        for start in range(0, len(rows), PREDICT_ROWS):
            part = self.scale_(rows[start : start + PREDICT_ROWS])
            yield torch.as_tensor(part, device=self.device)

    @torch.no_grad()
    def _map(self, function: Callable[[Tensor], Tensor | tuple[Tensor, ...]], X: ArrayLike) -> Any:
        """`function(x)` over batches of scaled rows; each of its outputs joined, as numpy."""
        rows = self._checked(X)
        whole: list[NDArray[Any]] = []
        for i, batch in enumerate(self._batches(rows)):
            output = function(batch)
            parts = [output] if isinstance(output, Tensor) else output
            if not whole:  # room for all rows at once: many small pieces would fragment memory
                whole = [np.empty((len(rows), *part.shape[1:])) for part in parts]
            for room, part in zip(whole, parts, strict=True):
                room[i * PREDICT_ROWS :][: len(batch)] = part.cpu().numpy()
        return whole[0] if isinstance(output, Tensor) else tuple(whole)


def default_extractor(shape: torch.Size) -> nn.Module:
    """FC-ResNet of 4 layers as wide as a row, but 128 to 1,024.

    A narrower first layer would be blind to some directions, whatever the bound.
    """
    if len(shape) != 1:
        raise ValueError(
            f"rows have shape {tuple(shape)}; the default network takes vectors: flatten them or "
            "give an extractor, a function from the shape of a row to an nn.Module"
        )
    return FCResNet(shape[0], min(max(128, shape[0]), 1024), 4)
