"""What every estimator with a network shares: arguments, one call of `fit`, answers as numpy."""

import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from due.estimators.choice import Choosing, choose
from due.lipschitz import constrain
from due.methods.method import Method
from due.networks import FCResNet, ScaledInputs, check_precision, n_features
from due.predictor import Predictor
from due.rows.checks import (
    argument,
    at_once,
    check_device,
    check_flag,
    check_fraction,
    check_positive,
    check_rows,
    check_whole,
    or_none,
)
from due.rows.randomness import own_randomness, seeded, single_precision
from due.rows.scale import Floats, Scale, fit_input_scale
from due.rows.source import Rows, Table, n_steps, split
from due.storage import probe
from due.storage.estimator import Found, Memory, SavedEstimator, Tensors, recall_columns
from due.storage.limits import Limit
from due.storage.model import constrained, describe, load_state, rebuild
from due.training import Recipe, fit
from due.training.checkpointing import next_checkpoint
from due.training.recipe import ALL

Extractor = Callable[[torch.Size], nn.Module]
MOVED = {"gp_lr": "head_lr", "weight_decay": "weight_decay", "patience": "patience"}  # to `recipe`
BEFORE = {  # 0.1
    "calibration_fraction": 0.0,
    "column_scales": False,
    "shared_kernel": False,
    "shared_covariance": False,
    "inducing": "free",
    "noise": "constant",
    "tempered": False,
}
SEEN, FEWEST = 256, 20  # training rows on which a fit must show that it learned something
MANY = 10  # columns, of which some may not matter
CALIBRATION, ENOUGH = 0.1, 500  # share of the rows held out for p-values, if there are so many
estimator = dataclass(eq=False, repr=False, kw_only=True)


class Fitted:
    """Types of what `fit` leaves behind."""

    model_: Any  # the method as trained
    predictor_: Any  # as it predicts, from raw rows
    scale_: Scale
    y_scale_: Scale  # of regressors and effects
    classes_: NDArray[Any]  # of classifiers
    history_: dict[str, Any]
    row_shape_: tuple[int, ...]
    pixels_: bool | None  # whether rows are images of uint8
    feature_names_in_: NDArray[Any]
    n_features_in_: int


@estimator
class Trained(Fitted, SavedEstimator):
    """Abstract: a method trained by a recipe.

    Parameters
    ----------
    epochs, batch_size, lr
        The fields of `recipe` that are set most; None leaves them to it.
    recipe
        How to train, a `due.training.Recipe`; None takes the estimator's own. Its fields are
        reached as `recipe__patience` and so on by `set_params` and `GridSearchCV`.
    validation_fraction
        Share of the rows held out to choose the best epoch; 0 trains on all of them.
    random_state
        Seed of everything random in `fit`; prediction is deterministic.
    device
        Where to train and predict, such as "cpu" or "cuda".
    verbose
        Show a progress bar on a terminal.
    """

    epochs: int | None = argument(None, or_none(check_whole))
    batch_size: int | str | None = None
    lr: float | None = None
    recipe: Recipe | None = None
    validation_fraction: float = argument(0.0, check_fraction)
    random_state: Any = None
    device: str = argument("cpu", check_device)
    verbose: bool = argument(False, check_flag)

    @abstractmethod
    def _build(self, shape: torch.Size, T: int, n: int) -> Method:
        """The untrained method for n rows of this shape with T outputs; it may draw weights."""

    @abstractmethod
    def _default_recipe(self, n: int) -> Recipe:
        """For n rows."""

    @abstractmethod
    def _wrap(self, model: nn.Module) -> Predictor:
        """What answers from raw rows, around a method made ready to predict."""

    @abstractmethod
    def _explains(self, x: Tensor, y: Tensor) -> bool:
        """Whether it is better than a constant on these rows, in the units of training."""

    @abstractmethod
    def _learned(self) -> dict[str, Any]:
        """What was learned of y, as JSON."""

    @abstractmethod
    def _relearn(self, learned: dict[str, Any]) -> None:
        """Take up what `_learned` gave."""

    def set_params(self, **params: Any) -> Self:
        """Set arguments, also fields of the recipe, as in `set_params(recipe__lr=1e-3)`."""
        changes = {k[8:]: params.pop(k) for k in list(params) if k.startswith("recipe__")}
        super().set_params(**params)
        if changes:
            self.recipe = replace(self.recipe or Recipe(), **changes)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_")

    @torch.no_grad()
    def _ask(self, question: Callable[[Tensor], Any], rows: NDArray[Any]) -> Any:
        """`question(x)` over batches of raw rows; each of its outputs joined, as numpy."""
        whole: list[NDArray[Any]] = []
        size = at_once(rows.shape[1:])
        for start in range(0, len(rows), size):
            batch = self._tensor(rows[start : start + size])
            output = question(batch)
            parts = [output] if isinstance(output, Tensor) else list(output)
            if not whole:  # room for all rows at once: many small pieces would fragment memory
                whole = [np.empty((len(rows), *part.shape[1:])) for part in parts]
            for room, part in zip(whole, parts, strict=True):
                room[start : start + len(batch)] = part.cpu().numpy()
        return whole[0] if isinstance(output, Tensor) else tuple(whole)

    @torch.no_grad()
    def _ask_jointly(self, question: Callable[[Tensor], Any], rows: NDArray[Any]) -> Any:
        """`question(x)` of all rows at once, as numpy."""
        answers = question(self._tensor(rows))
        return tuple(part.cpu().numpy() for part in answers)

    def _tensor(self, rows: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.array(rows, order="C")).to(self.device)  # a copy of its own

    # storage

    @classmethod
    def _arguments(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """The recipe out of its fields; those that were arguments of their own once, into it."""
        names = cls._get_param_names()
        moved = {MOVED[k]: saved.pop(k) for k in list(saved) if k in MOVED and k not in names}
        recipe = {**moved, **(saved.pop("recipe", None) or {})}
        given = {k: v for k, v in recipe.items() if v is not None}
        if saved.get("probabilities") == "quasi":
            saved["probabilities"] = "exact"
        before = {name: value for name, value in BEFORE.items() if name in names}
        return {**before, **saved, "recipe": Recipe(**given) if given else None}

    def _memory(self) -> Memory:
        learned = {
            "row_shape": list(self.row_shape_),
            "pixels": getattr(self, "pixels_", None),
            "scale": self.scale_.as_lists(),
            "history": self.history_,
            **self._learned(),
        }
        return Memory(learned, {"model": describe(self.model_)}, self.model_.state_dict())

    def _recall(self, found: Found) -> None:
        saved = found.config["estimator"]
        self.row_shape_, self.pixels_ = tuple(saved["row_shape"]), saved.get("pixels")
        self.scale_ = Scale.from_lists(saved["scale"])
        recall_columns(self, saved["feature_names"], len(self.scale_.mean))
        self.history_ = saved["history"]
        self._relearn(saved)
        with own_randomness(0), single_precision(), Limit(found.tensors):
            model = self._rebuild(found.config["model"], found.tensors)
        self.model_ = model.to(self.device)
        self.predictor_ = self._wrap(self.model_.predictor()).to(self.device).eval()

    @abstractmethod
    def _rebuild(self, config: dict[str, Any], tensors: Tensors) -> Any:
        """The method that was saved."""


@estimator
class NetworkEstimator(Trained):
    """Abstract: a method on the features of a network that the user may give.

    Parameters
    ----------
    extractor
        Function from the shape of a row to an `nn.Module` that gives one feature vector per row;
        it predicts in float64. None builds an FC-ResNet: 4 layers; width = number of columns,
        clipped to [128, 1024].
    c
        Bound on the Lipschitz constant of each layer; below 1 a residual network is bi-Lipschitz,
        at 1 and above only its upper bound remains. None leaves the network free.
    scale_inputs
        Standardise the inputs; False takes X as it is, for those who have prepared it.
    warm_start
        Let `fit` go on from the last fit: its scaling and its method stay, whatever the arguments
        say now.
    """

    column_scales = False  # whether the default network learns a scale per column
    extractor: Extractor | None = field(default=None, kw_only=False)
    c: float | None = argument(0.95, or_none(check_positive))
    scale_inputs: bool = argument(True, check_flag)
    warm_start: bool = argument(False, check_flag)

    @abstractmethod
    def _method(self, f: nn.Module, J: int, T: int, n: int) -> Method:
        """The method on a network of J features, for T outputs and n rows."""

    @property
    @abstractmethod
    def _T(self) -> int:
        """Number of outputs."""

    def _build(self, shape: torch.Size, T: int, n: int) -> Method:
        f = self._network(shape, scaled=bool(self.column_scales and self._columns_may_fade))
        example = torch.zeros(2, *shape)
        J = n_features(f, example)
        if self.c is not None:
            how = "paired" if self.c <= 1 else "alone"
            constrain(f, self.c, example, batch_norm=how, batch_norm_momentum=0.1)
        return self._method(f, J, T, n)

    @property
    def _columns_may_fade(self) -> bool:
        """Many columns with units of their own; pixels share one."""
        std = self.scale_.std
        return std.ndim == 1 and len(std) >= MANY and len(np.unique(std)) > 1

    def _rebuild(self, config: dict[str, Any], tensors: Tensors) -> Method:
        shape = torch.Size(self.row_shape_)
        f = self._network(shape, scaled="f.raw" in tensors)
        if "gp" in config:
            return rebuild(config, tensors, f)
        J = n_features(f, torch.zeros(2, *shape))
        f = constrained(f, config["constraints"])
        return load_state(self._method(f, J, self._T, 1), tensors)

    def _network(self, shape: torch.Size, scaled: bool) -> nn.Module:
        f = build_network(default_extractor if self.extractor is None else self.extractor, shape)
        return (ScaledInputs(f, shape[0]) if scaled and self.extractor is None else f).eval()


class OnData:
    """Knows how far a row is from the training data; to be mixed into a `Trained`."""

    _ask: Callable[..., Any]
    predictor_: Any

    def ood_score(self, X: ArrayLike) -> Floats:
        """How far each row is from the training data, in [0, 1]: 0 on it, 1 where it says nothing.

        One minus the share of the prior variance of a GP that is gone once its values at (up to)
        1,000 training rows are known; see `due.gp.Reference`. It ranks rows; `ood_pvalue` says how
        unusual a score is.
        """
        rows = check_rows(self, X)
        return self._ask(self.predictor_.ood_score, rows)

    def ood_pvalue(self, X: ArrayLike) -> Floats:
        """How many rows like those of training are as foreign as each row, in (0, 1].

        A conformal p-value: of rows from the distribution of the training data, at most a share
        α has a p-value of α or less, whatever that distribution is. The rows it compares with had
        no part in training (`calibration_fraction`) or only chose the epoch.
        """
        rows = check_rows(self, X)
        if not len(self.predictor_.model.calibration):
            raise ValueError(
                "no rows were held out for p-values: fit with calibration_fraction=0.1, or with "
                f"{ENOUGH} rows or more"
            )
        return self._ask(self.predictor_.ood_pvalue, rows)

    def score_samples(self, X: ArrayLike) -> Floats:
        """−`ood_score(X)`: higher is more like the training data, as elsewhere in scikit-learn."""
        return -self.ood_score(X)


def build_network(extractor: Extractor, shape: torch.Size) -> nn.Module:
    """What the extractor makes for rows of this shape."""
    if isinstance(extractor, nn.Module):
        raise TypeError(
            "extractor is a network; give a function that builds one from the shape of a row, "
            "so that each fit starts anew"
        )
    f: Any = extractor(shape)
    if not isinstance(f, nn.Module):
        raise TypeError(
            f"extractor returned a {type(f).__name__}; it must be a function from the shape "
            "of a row to an nn.Module"
        )
    return f


def default_extractor(shape: torch.Size) -> nn.Module:
    """FC-ResNet: 4 layers; width = number of columns, clipped to [128, 1024].

    A narrower first layer would be blind to some directions, whatever the bound.
    """
    if len(shape) != 1:
        raise ValueError(
            f"rows have shape {tuple(shape)}; the default network takes vectors: flatten them or "
            "give an extractor, a function from the shape of a row to an nn.Module"
        )
    return FCResNet(shape[0], min(max(128, shape[0]), 1024), 4)


def learn_rows(
    estimator: Any, rows: Rows, y: Tensor, T: int, anew: bool, *, strata: Any = None, held: int = 0
) -> None:
    """Train on rows; the last `held` choose the epoch, or if 0 a fraction of all of them."""
    estimator.__dict__.pop("predictor_", None)  # should this fit fail, it is not fitted
    with seeded(estimator.random_state) as seed:
        if anew:
            plain = Scale.identity(rows.X.shape[1:])
            scale = fit_input_scale(rows.X, rows.weight) if estimator.scale_inputs else plain
            estimator.scale_ = scale
        weight = torch.as_tensor(rows.weight.astype(np.float32))
        weights = None if bool((weight == 1).all()) else weight
        table = Table(estimator.scale_.tensor(rows.X), y, weights)
        n = len(table)
        kept, watched = (
            torch.arange(n).split([n - held, held])
            if held
            else split(n, estimator.validation_fraction, strata, seed)
        )
        known, held_out = (table.part(kept), table.part(watched)) if len(watched) else (table, None)
        known, apart = _set_apart(estimator, known, held_out, seed)
        learn(estimator, known, held_out, T, anew, seed)
        if apart is not None:
            if getattr(estimator, "tempered", False):
                estimator.history_["temperature"] = estimator.model_.temper(apart)
                make_ready(estimator)
            estimator.model_.calibrate(apart, estimator.predictor_.model)
            estimator._proof = probe.take(estimator)


def _set_apart(
    estimator: Any, known: Table, held_out: Table | None, seed: int
) -> tuple[Table, Table | None]:
    """Rows to train on, and those whose OOD scores make p-values."""
    share = getattr(estimator, "calibration_fraction", 0.0)
    if share is None and held_out is not None:
        return known, held_out
    if share is None:
        share = CALIBRATION if len(known) >= ENOUGH else 0.0
    y = known.data[1]
    strata = None if y.is_floating_point() else y.numpy()
    kept, apart = split(len(known), share, strata, seed + 1)
    return (known.part(kept), known.part(apart)) if len(apart) else (known, None)


def learn(
    estimator: Any, known: Table, held_out: Table | None, T: int, anew: bool, seed: int
) -> None:
    """Train the estimator's method, or the best of its candidates by the held-out rows."""

    def train(one: Any) -> None:
        _learn(one, known, held_out, T, anew, seed)

    if anew and isinstance(estimator, Choosing):
        n = 0 if held_out is None else round(_total(held_out))
        choose(estimator, estimator._candidates(len(known)), train, seed, n)
    else:
        train(estimator)


def _learn(
    estimator: Any, known: Table, held_out: Table | None, T: int, anew: bool, seed: int
) -> None:
    """Build the estimator's method unless it goes on, train it, and make it ready to predict.

    Weights are drawn from the global generator, which is `seeded`.
    """
    n = len(known)
    total = _total(known)
    watched = held_out is not None and len(held_out) > 0
    recipe = _recipe(estimator, n, total, watched)
    if anew:
        estimator.row_shape_ = tuple(known.data[0].shape[1:])
        estimator.model_ = estimator._build(torch.Size(estimator.row_shape_), T, n)
        if getattr(estimator, "extractor", None) is not None:
            check_precision(estimator.model_.f, known.data[0][:2])
    model = estimator.model_.to(estimator.device)
    model.n_data = n
    recipe = replace(recipe, batch_size=ALL) if model.needs_all_rows else recipe
    file = next_checkpoint()
    history = fit(
        model,
        known,
        recipe,
        held_out=held_out,
        start=anew,
        seed=seed,
        checkpoint=file,
        checkpoint_every=None if file is None else n_steps(n, recipe.rows_per_step),
        progress=None if estimator.verbose else False,
    )
    gp = hasattr(model, "bound_name")
    more = {"bound": model.bound_name, "inducing": model.inducing} if gp else {}
    if (value := getattr(model, "held_out_loss", None)) is not None:
        more["held_out"] = value
    chosen = getattr(model, "chosen", {})
    estimator.history_ = {**more, **chosen, "rows": n, **asdict(history)}
    make_ready(estimator)
    x, y, *_ = known.some(SEEN, seed)
    if len(x) >= FEWEST and not estimator._explains(x, y):
        warnings.warn(
            "the fit learned nothing: on its own training rows it is no better than a constant. "
            "Train longer or at another learning rate, or look whether X says anything about y",
            stacklevel=4,
        )


def _total(table: Table) -> float:
    """Sum of the weights of its rows."""
    return float(table.data[2].sum()) if len(table.data) > 2 else len(table)


def make_ready(estimator: Any) -> None:
    """Give it what answers from raw rows, and the answers that a saved copy has to give again."""
    ready = estimator._wrap(estimator.model_.predictor())
    estimator.predictor_ = ready.to(estimator.device).eval()
    estimator._proof = probe.take(estimator)


def better_than_mean(mean: Floats, y: Floats) -> bool:
    """R² above 0 for at least one output; a constant one has nothing to explain."""
    spread = y.var(0)
    return bool((((y - mean) ** 2).mean(0) < spread).any() or not spread.any())


def _recipe(estimator: Any, n: int, total: float, watched: bool) -> Recipe:
    """The user's recipe with the arguments beside it, over the estimator's own for n rows."""
    default = estimator._default_recipe(n)
    beside = Recipe(epochs=estimator.epochs, batch_size=estimator.batch_size, lr=estimator.lr)
    if estimator.recipe is not None and not isinstance(estimator.recipe, Recipe):
        raise TypeError(
            f"recipe={estimator.recipe!r} is a {type(estimator.recipe).__name__}; give a "
            "due.training.Recipe, such as Recipe(patience=10)"
        )
    given = beside.over(estimator.recipe or Recipe()).over(default)
    recipe = given.budgeted(n, total)
    return recipe.over(Recipe(schedule="constant" if watched else "cosine")).complete()
