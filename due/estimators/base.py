"""What the estimators share: rows → scaled tensors → network, GP, training → a frozen model."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from due import archive, storage
from due.estimators.rows import Floats, Rows, Scale, fit_input_scale
from due.frozen import FrozenDUE, freeze
from due.gp import InducingGP, Likelihood, Reference, features, initialise
from due.gp.kernels import KINDS
from due.lipschitz import constrain, converge
from due.model import DUE
from due.networks import FCResNet
from due.train import train

INITIAL_POINTS = 1000  # p of Algorithm 1
PREDICT_ROWS = 2048  # at once
WARM_UP = 20  # steps
MOST_HELD_OUT = 10_000
NUMBER = int | float | np.number
Extractor = Callable[[torch.Size], nn.Module]
Estimator = TypeVar("Estimator", bound="DUEEstimator")


class Targets(NamedTuple):
    """y as the model wants it: class codes (N,) or standardised values (N, T)."""

    y: Tensor
    T: int
    strata: NDArray[Any] | None


class Objective(NamedTuple):
    """What is minimised, and how where the user does not say."""

    name: str
    loss: nn.Module
    batch_size: int | None
    epochs: int
    lr: float
    gp_lr: float
    settle: Callable[[], object]  # puts the model in order before it predicts


class DUEEstimator(BaseEstimator):
    """Abstract: `DUEClassifier` and `DUERegressor` say what y is and which bound to train."""

    extractor: Extractor | None
    c: float | None
    n_inducing: int
    kernel: str
    epochs: int | None
    batch_size: int | None
    lr: float | None
    gp_lr: float | None
    weight_decay: float
    scale_inputs: bool
    validation_fraction: float
    patience: int
    warm_start: bool
    random_state: Any
    device: str
    verbose: bool

    model_: DUE
    frozen_: FrozenDUE
    reference_: Reference
    scale_: Scale
    history_: dict[str, Any]
    row_shape_: tuple[int, ...]
    feature_names_in_: NDArray[Any]
    n_features_in_: int

    @abstractmethod
    def _likelihood(self, T: int) -> Likelihood: ...

    @abstractmethod
    def _start(self, gp: InducingGP, h: Tensor, y: Tensor) -> None: ...

    @abstractmethod
    def _objective(self, model: DUE, data: tuple[Tensor, ...]) -> Objective: ...

    @abstractmethod
    def _absorb(self, data: tuple[Tensor, ...]) -> None: ...

    @abstractmethod
    def _learned(self) -> dict[str, Any]: ...

    @abstractmethod
    def _relearn(self, learned: dict[str, Any]) -> None: ...

    # training

    @property
    def _continues(self) -> bool:
        return self.warm_start and self.__sklearn_is_fitted__()

    def _validate(self, X: ArrayLike, y: ArrayLike, **of_y: bool) -> tuple[Floats, NDArray[Any]]:
        """Parameters and data checked; a fit that goes on wants rows as they were."""
        self._check_parameters()
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

    def _fit(self, rows: Rows, targets: Targets, held_out: int = 0) -> None:
        """Train; the last `held_out` rows choose the epoch, or if 0 a fraction of all of them."""
        anew = not self._continues
        self.__dict__.pop("frozen_", None)  # should this fit fail, the estimator is not fitted
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if anew:
            self.scale_ = self._input_scale(rows)
        X = torch.as_tensor(self.scale_(rows.X).astype(np.float32))
        weight = torch.as_tensor(rows.weight.astype(np.float32))
        plain = (X, targets.y)
        data = plain if bool((weight == 1).all()) else (*plain, weight)
        fitted, watched = (
            torch.arange(len(X)).split([len(X) - held_out, held_out])
            if held_out
            else split(len(X), self.validation_fraction, targets.strata, seed)
        )
        known = tuple(part[fitted] for part in data) if len(watched) else data
        if anew:
            self.row_shape_ = tuple(X.shape[1:])
            self.model_ = self._build(known[0], known[1], targets.T, seed)
        self.model_.to(self.device).n_data = len(known[0])  # rows: their weights do the rest
        self.history_ = self._train(known, tuple(part[watched] for part in data), seed)
        self._absorb(data)
        h, _ = features(self.model_.f, known[0].to(self.device), INITIAL_POINTS, seed)
        self._freeze(h)

    def _input_scale(self, rows: Rows) -> Scale:
        if self.scale_inputs:
            return fit_input_scale(rows.X, rows.weight)
        return Scale(np.zeros(rows.X.shape[1:]), np.ones(rows.X.shape[1:]))

    def _build(self, X: Tensor, y: Tensor, T: int, seed: int) -> DUE:
        """Algorithm 1 up to its loop: features, inducing points, length scale."""
        f = self._network(seed).eval()
        if self.c is not None:
            constrain(f, self.c, X[:2])
        h, picked = features(f, X, INITIAL_POINTS, seed)
        if h.ndim != 2 or len(h) != len(picked):
            raise ValueError(
                f"the extractor gives features of shape {tuple(h.shape)} for {len(picked)} rows; "
                "it must return one vector for each row, shape (N, J)"
            )
        Z, lengthscale = initialise(h, min(self.n_inducing, len(h)), seed)
        gp = InducingGP(Z, T, lengthscale, self.kernel)
        self._start(gp, h, y[picked])
        return DUE(f, gp, self._likelihood(T), len(X))

    def _train(
        self, data: tuple[Tensor, ...], held_out: tuple[Tensor, ...], seed: int
    ) -> dict[str, Any]:
        model, watch = self.model_, len(held_out[0]) > 0
        objective = self._objective(model, data)
        epochs = self.epochs or objective.epochs
        optimizer = self._optimizer(objective)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)

        history = train(
            objective.loss,
            data,
            optimizer=optimizer,
            epochs=epochs,
            batch_size=objective.batch_size,
            schedule=None if watch else falling,
            validation=(lambda: mean_loss(model, held_out)) if watch else None,
            patience=self.patience if watch else None,
            before_validation=objective.settle,
            seed=seed,
            progress=None if self.verbose else False,
        )
        if self.c is not None:
            converge(model.f)
            objective.settle()
        return {"bound": objective.name, "rows": len(data[0]), **history.as_dict()}

    def _optimizer(self, objective: Objective) -> torch.optim.Optimizer:
        model = self.model_
        weights = [p for p in model.f.parameters() if p.ndim > 0]
        scales = [p for p in model.f.parameters() if p.ndim == 0]  # as those of the kernel
        head = [*model.gp.parameters(), *model.likelihood.parameters(), *scales]
        groups: list[dict[str, Any]] = [
            {"params": weights, "lr": self.lr or objective.lr},
            {"params": head, "lr": self.gp_lr or objective.gp_lr},
        ]
        optimizer = torch.optim.Adam(groups, weight_decay=self.weight_decay, fused=True)
        warm_up(optimizer, WARM_UP)
        return optimizer

    def _network(self, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            f = (self.extractor or default_extractor)(torch.Size(self.row_shape_))
        if not isinstance(f, nn.Module):
            raise TypeError(
                f"extractor returned a {type(f).__name__}; it must be a function from the shape "
                "of a row to an nn.Module"
            )
        return f

    def _freeze(self, reference: Tensor) -> None:
        """Make ready to predict, in float64: a row's answer must not depend on its batch."""
        self.frozen_ = freeze(self.model_).double()
        self.reference_ = Reference(reference, self.model_.gp.kernel)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "frozen_")

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
        for name in ("n_inducing", "epochs", "batch_size", "patience"):
            value: Any = getattr(self, name)
            free = value is None and name in ("epochs", "batch_size")
            if not free and not (isinstance(value, int | np.integer) and value >= 1):
                raise ValueError(f"{name}={value!r} is not a whole number of at least 1")
        for name in ("c", "lr", "gp_lr"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, NUMBER) and 0 < value < math.inf):
                raise ValueError(f"{name}={value!r} is not a number above 0")
        decay: Any = self.weight_decay
        if not (isinstance(decay, NUMBER) and 0 <= decay < math.inf):
            raise ValueError(f"weight_decay={decay!r} is not a number of at least 0")
        fraction: Any = self.validation_fraction
        if not (isinstance(fraction, NUMBER) and 0 <= fraction < 1):
            raise ValueError(
                f"validation_fraction={fraction!r} is not in [0, 1); 0.2 holds out a fifth of the "
                "rows, 0 none"
            )
        if self.kernel not in KINDS:
            raise ValueError(f"kernel={self.kernel!r} is not one of {', '.join(KINDS)}")

    # storage

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to the directory `path`: `config.json` and safetensors."""
        storage.save(path, *self._state())

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        check_is_fitted(self)
        params = {name: _plain(value) for name, value in self.get_params(deep=False).items()}
        extractor, seed = params.pop("extractor"), params.pop("random_state")
        estimator = {
            "name": type(self).__name__,
            "params": {**params, "random_state": seed if isinstance(seed, int) else None},
            "own_extractor": extractor is not None,
            "row_shape": list(self.row_shape_),
            "feature_names": getattr(self, "feature_names_in_", np.array([])).tolist(),
            "scale": self.scale_.as_lists(),
            "history": self.history_,
            **self._learned(),
        }
        config = {"estimator": estimator, "model": archive.describe(self.model_)}
        return config, {**self.model_.state_dict(), "reference": self.reference_.H}

    @classmethod
    def load(
        cls: type[Estimator],
        path: str | Path,
        extractor: Extractor | None = None,
        device: str | None = None,
    ) -> Estimator:
        """The estimator saved at `path`; one with an extractor of its own needs it again here.

        `device` is where it predicts from now on; None is where it was trained.
        """
        return cls._restore(path, *storage.load(path), extractor, device)

    @classmethod
    def _restore(
        cls: type[Estimator],
        path: str | Path,
        config: dict[str, Any],
        tensors: dict[str, Tensor],
        extractor: Extractor | None,
        device: str | None,
    ) -> Estimator:
        saved = config.get("estimator", {})
        check_saved(path, saved, cls.__name__, extractor)
        self = cls(extractor, **saved["params"])
        self.device = device or self.device
        self.row_shape_ = tuple(saved["row_shape"])
        self.n_features_in_ = self.row_shape_[0]
        if saved["feature_names"]:
            self.feature_names_in_ = np.array(saved["feature_names"], dtype=object)
        self.scale_ = Scale.from_lists(saved["scale"])
        self.history_ = saved["history"]
        self._relearn(saved)
        reference = tensors.pop("reference").to(self.device)
        model = archive.rebuild(config["model"], tensors, self._network())
        self.model_ = model.to(self.device)
        self._freeze(reference)
        return self

    # prediction

    def ood_score(self, X: ArrayLike) -> Floats:
        """How far each row is from the training data, in [0, 1]: 0 on it, 1 where it says nothing.

        One minus the share of the GP's prior variance that is gone once its values at (up to)
        1,000 training rows are known; see `due.gp.Reference`.
        """
        return self._map(lambda frozen, x: 1 - self.reference_(frozen.f(x)), X)

    def score_samples(self, X: ArrayLike) -> Floats:
        """−`ood_score(X)`: higher is more like the training data, as elsewhere in scikit-learn."""
        return -self.ood_score(X)

    def _checked(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        rows: Floats = validate_data(self, X, dtype=np.float64, allow_nd=True, reset=False)
        self._check_shape(rows)
        return rows

    def _batches(self, rows: Floats) -> Iterator[Tensor]:
        for start in range(0, len(rows), PREDICT_ROWS):
            part = self.scale_(rows[start : start + PREDICT_ROWS])
            yield torch.as_tensor(part, device=self.device)

    @torch.no_grad()
    def _map(
        self, function: Callable[[FrozenDUE, Tensor], Tensor | tuple[Tensor, ...]], X: ArrayLike
    ) -> Any:
        """`function(frozen, x)` over batches of rows; each of its outputs joined, as numpy."""
        rows = self._checked(X)
        whole: list[NDArray[Any]] = []
        for i, batch in enumerate(self._batches(rows)):
            output = function(self.frozen_, batch)
            parts = [output] if isinstance(output, Tensor) else output
            if not whole:  # room for all rows at once: many small pieces would fragment memory
                whole = [np.empty((len(rows), *part.shape[1:])) for part in parts]
            for room, part in zip(whole, parts, strict=True):
                room[i * PREDICT_ROWS :][: len(batch)] = part.cpu().numpy()
        return whole[0] if isinstance(output, Tensor) else tuple(whole)


def stochastic(model: DUE, n: int, batch_size: int | None, lr: float, gp_lr: float) -> Objective:
    """The ELBO in batches, for about 4,000 steps but in 5 to 80 epochs."""
    return Objective("elbo", model, *budget(n, batch_size), lr, gp_lr, lambda: None)


def budget(n: int, batch_size: int | None) -> tuple[int, int]:
    """Batch size (unless given) and epochs for n rows."""
    batch = batch_size or (64 if n <= 10_000 else 256 if n <= 100_000 else 1024)
    return batch, min(80, max(5, 4000 * batch // n))


def warm_up(optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Let the learning rates rise to their values over the first steps.

    Adam's first steps move every weight by its whole rate, and together they can carry the
    features so far from the inducing points that no gradient is left to bring them back.
    """
    groups, steps_taken, rates = optimizer.param_groups, count(1), list[float]()

    def lower(*_: Any) -> None:
        share = min(1.0, next(steps_taken) / steps)
        rates[:] = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] *= share

    def restore(*_: Any) -> None:
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate

    optimizer.register_step_pre_hook(lower)
    optimizer.register_step_post_hook(restore)


def check_saved(
    path: str | Path, saved: dict[str, Any], name: str, extractor: Extractor | None
) -> None:
    """What was saved is a `name`, and its extractor is at hand."""
    if saved.get("name") != name:
        raise storage.StorageError(
            f"{path} holds {saved.get('name', 'no estimator')}, not a {name}: load it with the "
            "class that saved it"
        )
    if saved["own_extractor"] and extractor is None:
        raise storage.StorageError(
            f"{path} was fitted with an extractor of its own: pass the same function as "
            "extractor=, for a file never says what code to run"
        )


def check_weight(sample_weight: ArrayLike | None, X: Floats) -> Floats | None:
    """Finite weights, none negative and not all zero."""
    if sample_weight is None:
        return None
    weight: Floats = _check_sample_weight(sample_weight, X, dtype=np.float64)
    if weight.min() < 0:
        raise ValueError(
            f"Negative values in sample_weight, such as {weight.min():g}: a weight counts how "
            "often a row is repeated"
        )
    if not weight.any():
        raise ValueError("sample_weight is zero everywhere: no row is left to learn from")
    return weight


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


def split(n: int, fraction: float, strata: NDArray[Any] | None, seed: int) -> tuple[Tensor, Tensor]:
    """Row numbers to train on and to hold out, each class in both in its share."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(n)
    if strata is not None:
        place = np.empty(n)
        for value in np.unique(strata):
            rows = order[strata[order] == value]
            place[rows] = (np.arange(len(rows)) + generator.random()) / len(rows)
            place[rows[-1]] = 1.0  # the last row of a class stays to be learned from
        order = np.argsort(place, kind="stable")
    held = min(int(fraction * n), MOST_HELD_OUT)
    return torch.as_tensor(np.sort(order[held:])), torch.as_tensor(np.sort(order[:held]))


def mean_loss(model: DUE, data: tuple[Tensor, ...]) -> float:
    """−mean E_q[log p(y)] over rows, in batches."""
    device = model.gp.Z.device
    total, weight = 0.0, 0.0
    for start in range(0, len(data[0]), PREDICT_ROWS):
        x, y, *w = (part[start : start + PREDICT_ROWS].to(device) for part in data)
        log_prob = model.expected_log_prob(x, y)
        share = w[0] if w else torch.ones_like(log_prob)
        total -= float((share * log_prob).sum())
        weight += float(share.sum())
    return total / weight


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value  # a grid search gives np.int64
