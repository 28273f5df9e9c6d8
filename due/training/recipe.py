"""How to train, as plain values: optimiser, rates, schedule, batches, epochs, precision."""

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR, OneCycleLR

from due.rows.checks import (
    NUMBER,
    argument,
    check_arguments,
    check_not_negative,
    check_positive,
    check_whole,
    one_of,
    or_none,
)
from due.rows.source import n_steps

OPTIMIZERS = ("adam", "adamw", "sgd")
SCHEDULES = ("constant", "cosine", "steps", "one_cycle")
PRECISIONS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
ALL = "all"
STEPS = 4000  # of a fit
MOST_ROWS = 10**9  # for which a fit is planned


def check_batch_size(name: str, value: Any) -> None:
    """Rows per step, or "all"."""
    if value != ALL:
        check_whole(name, value)


def check_milestones(name: str, value: Any) -> None:
    """Shares of the training."""
    if not all(isinstance(share, NUMBER) and 0 <= share <= 1 for share in value):
        raise ValueError(f"{name}={value!r} are not shares of the training in [0, 1]")


@dataclass(frozen=True, kw_only=True, repr=False)
class Recipe:
    """How a method is trained. A field that is None is left to whoever uses the recipe.

    Parameters
    ----------
    optimizer
        "adam", "adamw" or "sgd".
    lr, head_lr
        Learning rates of the network, and of everything else; `head_lr` None is `lr`.
    momentum
        Of SGD.
    weight_decay
        L2 penalty on every parameter (decoupled in "adamw").
    schedule
        "constant", "cosine" (to zero), "steps" (times `factor` at each of `milestones`) or
        "one_cycle".
    per
        "epoch" or "step": how often the schedule moves. "one_cycle" always moves per step.
    milestones, factor
        Of the schedule "steps"; milestones are shares of the training, such as (0.3, 0.6, 0.8).
    warm_up
        Steps over which the rates rise to their values. Adam's first steps move every weight by
        its whole rate, which can carry features so far from the inducing points that no gradient
        brings them back.
    batch_size
        Rows per step, or "all".
    epochs
        The most passes over the rows.
    patience
        Epochs without improvement on held-out rows after which training stops.
    precision
        "float32", "bf16" or "fp16": autocast of the forward pass. Factorisations stay in float64.
    refresh
        Steps between power iterations of the spectral norms, from step 100 on; before, and with 1,
        every step has one. In between σ follows the weights to first order, at almost no cost.
    accumulate
        Pieces into which a batch is cut, one forward and backward pass each: less memory for the
        same step.
    compile
        Run the forward pass through `torch.compile`.

    Examples
    --------
    >>> paper = Recipe(lr=1e-3, batch_size=100)
    >>> paper.over(Recipe(lr=5e-4, epochs=80)).epochs
    80
    """

    optimizer: str | None = argument(None, one_of(OPTIMIZERS))
    lr: float | None = argument(None, check_positive)
    head_lr: float | None = argument(None, check_positive)
    momentum: float | None = argument(None, check_not_negative)
    weight_decay: float | None = argument(None, check_not_negative)
    schedule: str | None = argument(None, one_of(SCHEDULES))
    per: str | None = argument(None, one_of(("epoch", "step")))
    milestones: tuple[float, ...] | None = argument(None, check_milestones)
    factor: float | None = argument(None, check_positive)
    warm_up: int | None = argument(None, check_not_negative)
    batch_size: int | str | None = argument(None, check_batch_size)
    epochs: int | None = argument(None, check_whole)
    patience: int | None = argument(None, or_none(check_whole))
    precision: str | None = argument(None, one_of(PRECISIONS))
    refresh: int | None = argument(None, check_whole)
    accumulate: int | None = argument(None, check_whole)
    compile: bool | None = None

    def over(self, other: "Recipe") -> "Recipe":
        """Its own values, and the other's where it has none."""
        return replace(other, **self.given())

    def given(self) -> dict[str, Any]:
        """The fields that are not None, as JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def complete(self) -> "Recipe":
        """Checked, and without any None but `patience`."""
        whole = self.over(DEFAULTS)
        whole = whole.over(Recipe(head_lr=whole.lr))
        check_arguments(whole)
        return whole

    def optimise(self, method: nn.Module) -> Optimizer:
        """The optimiser over the parameters of the network and those of everything else."""
        network, head = parameters_by_owner(method)
        rates = ((network, self.lr), (head, self.head_lr))
        groups = [{"params": params, "lr": lr} for params, lr in rates if params]
        shared: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay}
        if self.optimizer == "sgd":
            return torch.optim.SGD(groups, momentum=self.momentum or 0.0, **shared)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        return kind(groups, fused=True, **shared)

    def scheduler(self, optimizer: Optimizer, steps: int) -> LRScheduler | None:
        """The schedule over all epochs of so many steps, None if the rates are constant."""
        assert self.epochs and self.milestones is not None and self.factor
        length = self.epochs * (steps if self.moves_per_step else 1)
        if self.schedule == "cosine":
            return CosineAnnealingLR(optimizer, length)
        if self.schedule == "steps":
            marks = [round(share * length) for share in self.milestones]
            return MultiStepLR(optimizer, marks, self.factor)
        if self.schedule == "one_cycle":
            rates = [group["lr"] for group in optimizer.param_groups]
            return OneCycleLR(optimizer, rates, total_steps=length, cycle_momentum=False)
        return None

    def budgeted(self, n: int, total: float | None = None) -> "Recipe":
        """With batch size and epochs for n rows: about 4,000 steps, but 5 to 80 epochs.

        `total` is the sum of the rows' weights. Repetitions that are written as a weight make an
        epoch shorter; epochs and patience grow, up to 4,000 steps, so that as many steps are taken
        as if each repetition were a row.
        """
        if self.batch_size == ALL:
            return self.over(Recipe(epochs=80))
        N = max(n, math.ceil(min(total or 0, MOST_ROWS)))
        batch = self.rows_per_step or (64 if N <= 10_000 else 256 if N <= 100_000 else 1024)
        epochs = min(80, max(5, STEPS * batch // N))
        mine = self.over(Recipe(batch_size=batch, epochs=epochs))
        return mine._stretched(n_steps(n, batch), n_steps(N, batch))

    def _stretched(self, steps: int, wanted: int) -> "Recipe":
        """As many steps as with epochs of `wanted` ones, but no more than 4,000."""
        assert self.epochs is not None
        epochs = math.ceil(min(self.epochs * wanted, STEPS) / steps)
        if epochs <= self.epochs:
            return self
        patience = self.patience and math.ceil(self.patience * epochs / self.epochs)
        return replace(self, epochs=epochs, patience=patience)

    @property
    def moves_per_step(self) -> bool:
        """Whether the schedule moves after each step, not after each epoch."""
        return self.per == "step" or self.schedule == "one_cycle"

    @property
    def rows_per_step(self) -> int | None:
        """The batch size; None for all rows."""
        return None if self.batch_size == ALL or self.batch_size is None else int(self.batch_size)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The fields by name, as scikit-learn asks for them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __repr__(self) -> str:
        return f"Recipe({', '.join(f'{name}={value!r}' for name, value in self.given().items())})"


DEFAULTS = Recipe(
    optimizer="adam",
    lr=1e-3,
    weight_decay=0.0,
    momentum=0.0,
    schedule="constant",
    per="epoch",
    milestones=(0.3, 0.6, 0.8),
    factor=0.2,
    warm_up=0,
    batch_size=ALL,
    epochs=100,
    precision="float32",
    refresh=1,
    accumulate=1,
    compile=False,
)


def parameters_by_owner(method: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Those of the network `method.f`, and those of everything else, which learn at `head_lr`.

    A module inside the network keeps parameters out of it by `head_parameters()`.
    """
    network: Any = getattr(method, "f", method)
    of_head = {
        id(parameter)
        for module in network.modules()
        if hasattr(module, "head_parameters")
        for parameter in module.head_parameters()
    }
    weights = [p for p in network.parameters() if id(p) not in of_head]
    known = set(map(id, weights))
    return weights, [p for p in method.parameters() if id(p) not in known]
