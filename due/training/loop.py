"""`fit`: start a method, minimise method(x, y) by a recipe, choose the epoch, finish.

This is the only loop. It stops early on held-out rows, resumes from checkpoints to the same bits,
and takes all its randomness from `seed`.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from tqdm import tqdm

from due.lipschitz import SpectralNorm, converge
from due.methods.method import GoesOn, Method
from due.rows.randomness import own_randomness
from due.rows.source import Data, Source, draws, n_rows, n_steps
from due.storage import StorageError
from due.storage import checkpoint as checkpoints
from due.training.checks import (
    check_bound,
    check_labels,
    check_shares,
    check_sizes,
    check_source,
)
from due.training.distributed import Team, team
from due.training.recipe import PRECISIONS, Recipe

CHECKPOINT_SECONDS = 30.0
FAST_STEPS = 100  # at first weights move so fast that every step has its power iteration
LINEAR_ALGEBRA_ERRORS = (np.linalg.LinAlgError, torch._C._LinAlgError)  # type: ignore[attr-defined]


class DivergenceError(FloatingPointError):
    """The training loss is no longer finite."""


@dataclass
class History:
    """What each epoch brought; `best_epoch` counts from 0, None without held-out rows."""

    loss: list[float] = field(default_factory=list)  # mean over the rows of the epoch
    validation: list[float | None] = field(default_factory=list)  # None: it was not finite
    lr: list[float] = field(default_factory=list)  # of the network
    seconds: list[float] = field(default_factory=list)  # validation included
    best_epoch: int | None = None
    stopped_early: bool = False


@torch.enable_grad()
def fit(
    method: Method,
    source: Source,
    recipe: Recipe | None = None,
    *,
    held_out: Source | None = None,
    start: bool = True,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    progress: bool | None = None,
    after_epoch: Callable[[int], object] | None = None,
) -> History:
    """Train the method on the rows of a source, and leave it finished and in eval mode.

    Under `torchrun` each process takes its share of every batch, and all end with the same state.

    Parameters
    ----------
    recipe
        How to train; None takes the defaults.
    held_out
        Rows on which the best epoch is chosen, by the mean of `method.losses`; `recipe.patience`
        stops early. None trains for all epochs.
    start
        Let the method start from the rows (Algorithm 1); False goes on from where it is.
    checkpoint
        A file. If it exists, training goes on from it to the same bits as if it had never
        stopped.
    checkpoint_every
        Steps between checkpoints; None writes one every 30 seconds. The last is written at the end.
    progress
        A bar on stderr; None shows it only on a terminal.
    after_epoch
        Called with the number of epochs done, after each.
    """
    check_source(source, checkpoint_every)
    recipe = (recipe or Recipe()).complete()
    held_out = held_out if held_out is not None and len(held_out) else None
    device = next(method.parameters()).device
    steps = n_steps(len(source), recipe.rows_per_step)
    file = None if checkpoint is None else Path(checkpoint)
    peers = team(device)
    for rows in (source, held_out):
        if rows is not None:
            check_labels(method, rows)
    check_sizes(method, source)

    with own_randomness(seed, device), peers.explaining():
        if start and peers.leads:
            method.start(source, seed)
        elif start:  # all else that the start sets arrives with the parameters
            method.n_data = len(source)
        elif isinstance(method, GoesOn):
            method.go_on()
        optimizer = recipe.optimise(method)
        run = Run(method, recipe, optimizer, recipe.scheduler(optimizer, steps), peers, seed)
        check_bound(method, recipe, steps)
        check_shares(n_rows(len(source), recipe.rows_per_step, steps - 1), peers.ranks)
        loss_of = torch.compile(method) if recipe.compile else peers.wrap(method)
        settings = {} if file is None else _settings(run, source, held_out, seed)
    assert recipe.epochs is not None
    mine = source.share(peers.rank, peers.ranks) if peers.ranks > 1 else source
    progress = progress if peers.leads else False

    with (
        own_randomness(seed, device),
        peers.explaining(),
        _bar(progress, recipe.epochs * steps) as bar,
    ):
        if file is not None:
            here = peers.leads and file.exists()
            saved = checkpoints.read(file, settings, run.state()) if here else None
            if (saved := peers.agree(saved)) is not None:
                run.restore(saved)
                bar.update(run.steps)
        written = time.monotonic()

        while run.epoch < recipe.epochs and not run.history.stopped_early:
            began = time.monotonic() - run.seconds
            bar.set_description(f"epoch {run.epoch + 1}/{recipe.epochs}", refresh=False)
            method.train()
            for batch in mine.batches(recipe.rows_per_step, seed, run.epoch, run.step):
                if (
                    file is not None
                    and peers.leads
                    and _is_time(checkpoint_every, run.steps, written)
                ):
                    checkpoints.write(file, settings, run.state())
                    written = time.monotonic()
                n = n_rows(len(source), recipe.rows_per_step, run.step)
                run.advance(loss_of, tuple(part.to(device) for part in batch), n)
                run.seconds = time.monotonic() - began
                bar.update()

            run.close_epoch(len(source))
            if held_out is not None:
                run.judge(peers.agree(run.validate(source, held_out)))
            run.history.seconds.append(time.monotonic() - began)
            run.epoch, run.step, run.total, run.seconds = run.epoch + 1, 0, 0.0, 0.0
            bar.set_postfix(_latest(run.history))
            if after_epoch is not None:
                after_epoch(run.epoch)

        run.check_growth()
        run.keep_best()
        if not run.finished:
            converge(method)  # one power iteration per step runs a little behind
            run.finished = True
            if file is not None and peers.leads:
                checkpoints.write(file, settings, run.state())
        run.settle(source)
    with own_randomness(seed, device):
        method.finish(source, held_out, seed, _go_on)
    return run.history


def _go_on(method: Method, source: Source, **recipe: Any) -> None:
    """More training for `finish`, without a new start."""
    fit(method, source, Recipe(**recipe), start=False, progress=False)


@dataclass
class Run:
    """Where a training run stands: all that an exact resume needs."""

    method: Method
    recipe: Recipe
    optimizer: Optimizer
    schedule: LRScheduler | None
    peers: Team = Team()
    seed: int = 0
    history: History = field(default_factory=History)
    best: dict[str, Any] | None = None
    lowest: float = math.inf  # validation value of the best epoch
    epoch: int = 0
    step: int = 0  # within the epoch
    steps: int = 0  # since the beginning
    total: float = 0.0  # Σ of the losses of the epoch's rows
    seconds: float = 0.0  # spent on the epoch
    rate: float = 0.0  # of the network, in the last step
    moved: bool = False  # in fp16 the first steps may be skipped
    finished: bool = False
    first: float = 0.0  # loss of the first step

    def __post_init__(self) -> None:
        self.device = next(self.method.parameters()).device
        self.scaler = torch.amp.GradScaler(
            self.device.type, enabled=self.recipe.precision == "fp16"
        )

    def advance(self, loss_of: Callable[..., Tensor], batch: Data, n: int) -> None:
        """One step of the optimiser, on this process's part of a batch of n rows.

        The part is cut into `accumulate` pieces. Each counts by its share of the rows; over
        processes gradients are averaged, not summed.
        """
        self.optimizer.zero_grad()
        self._refresh_norms()
        if self.peers.ranks > 1:  # a function of the step, so that nothing of it needs saving
            torch.manual_seed(
                draws(self.seed, self.epoch, self.step, self.peers.rank).initial_seed()
            )
        pieces = max(
            1, min(self.recipe.accumulate or 1, len(batch[0]) // 2)
        )  # batch norm needs two
        parts = list(zip(*(part.tensor_split(pieces) for part in batch), strict=True))
        for i, part in enumerate(parts if pieces > 1 else [batch]):
            with (
                _held_norms(self.method) if i else nullcontext(),
                self.peers.quietly(loss_of) if i < pieces - 1 else nullcontext(),
            ):
                loss, value = self._loss(loss_of, part)
                share = len(part[0]) * self.peers.ranks / n
                self.scaler.scale(loss if share == 1 else loss * share).backward()
            self.total += value * len(part[0])
        if not self.steps:
            self.first = self.total / len(batch[0])
        self.rate = float(self.optimizer.param_groups[0]["lr"])
        scale = self.scaler.get_scale()
        with _warming_up(self.optimizer, self.recipe.warm_up or 0, self.steps):
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.moved |= self.scaler.get_scale() >= scale  # it falls when the step is skipped
        if self.recipe.moves_per_step:
            self._move_schedule()
        self.step += 1
        self.steps += 1

    def _refresh_norms(self) -> None:
        """Power iterations that are due, if the recipe has them less often than every step."""
        every = self.recipe.refresh or 1
        if every > 1 and (self.steps < FAST_STEPS or self.steps % every == 0):
            for norm in _norms(self.method):
                norm.refresh()

    def _loss(self, loss_of: Callable[..., Tensor], batch: Data) -> tuple[Tensor, float]:
        with _explaining(f"at epoch {self.epoch}, step {self.step}"):
            loss = self._call(loss_of, batch)
            value = loss.item()
            if not math.isfinite(value) and loss_of is not self.method:
                # a compiled graph cannot branch to more jitter, the plain method can
                loss = self._call(self.method, batch)
                value = loss.item()
        if not math.isfinite(value):
            raise DivergenceError(
                f"the training loss is {value} at epoch {self.epoch}, step {self.step}. {REMEDY}"
            )
        return loss, value

    def _call(self, loss_of: Callable[..., Tensor], batch: Data) -> Tensor:
        dtype = PRECISIONS[self.recipe.precision or "float32"]
        with nullcontext() if dtype is None else torch.autocast(self.device.type, dtype):
            return loss_of(*batch)

    def close_epoch(self, n: int) -> None:
        """Note the epoch's mean loss and rate, and move the schedule."""
        self.peers.align(self.method)  # batch norm has seen other rows in each process
        self.history.loss.append(self.peers.total(self.total) / n)
        self.history.lr.append(self.rate)
        if not self.recipe.moves_per_step:
            self._move_schedule()

    def _move_schedule(self) -> None:
        if self.schedule is not None and self.moved:
            self.schedule.step()

    @torch.no_grad()
    def settle(self, source: Source) -> None:
        """Eval mode, with what follows from the weights in closed form."""
        with _explaining(f"after epoch {self.epoch}"):
            self.method.eval().settle(source)

    @torch.no_grad()
    def validate(self, source: Source, held_out: Source) -> float:
        """Weighted mean of the losses of held-out rows, in eval mode."""
        self.settle(source)
        total, weight = 0.0, 0.0
        for part in held_out.chunks():
            x, y, *w = (tensor.to(self.device) for tensor in part)
            with _explaining(f"after epoch {self.epoch}"):
                loss = self.method.losses(x, y)
            share = w[0] if w else torch.ones_like(loss)
            total += float((share * loss).sum())
            weight += float(share.sum())
        return total / weight

    def judge(self, value: float) -> None:
        """Note the validation value of the epoch, keep the best state, stop after `patience`."""
        history = self.history
        history.validation.append(value if math.isfinite(value) else None)
        if value < self.lowest:  # never so for NaN
            self.lowest, history.best_epoch = value, self.epoch
            self.best = copy.deepcopy(self.method.state_dict())
        latest = -1 if history.best_epoch is None else history.best_epoch
        idle = len(history.validation) - 1 - latest
        history.stopped_early = self.recipe.patience is not None and idle >= self.recipe.patience

    def check_growth(self) -> None:
        """A loss that grew a thousandfold is finite, but nothing was learned."""
        history = self.history
        kept = -1 if history.best_epoch is None else history.best_epoch
        last = max(history.loss[kept], self.lowest if history.validation else -math.inf)
        if not last <= GROWN * (1 + abs(self.first)):
            raise DivergenceError(
                f"the loss grew from {self.first:.3g} in the first step to {last:.3g}. {REMEDY}"
            )

    def keep_best(self) -> None:
        """Put the state of the best epoch back."""
        if self.best is not None:
            self.method.load_state_dict(self.best)
        self.best = None

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "random": _random_state(self.device),
            "history": asdict(self.history),
            **{name: getattr(self, name) for name in _PLAIN},
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Stand where the checkpoint was written."""
        try:
            self._restore(saved)
        except (RuntimeError, ValueError, TypeError, KeyError) as error:
            raise StorageError(
                f"the checkpoint does not fit this run ({error}): delete it to train from the "
                "beginning"
            ) from error

    def _restore(self, saved: dict[str, Any]) -> None:
        constants = self._constants()
        self.method.load_state_dict(saved["method"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(saved["schedule"])
        if self._constants() != constants:
            raise ValueError("its optimizer or schedule is not that of the recipe")
        self.scaler.load_state_dict(saved["scaler"])
        _set_random_state(saved["random"], self.device)
        self.history = History(**saved["history"])
        for name in _PLAIN:
            setattr(self, name, saved[name])
        for parameter, state in self.optimizer.state.items():
            for name, value in state.items():
                if torch.is_tensor(value) and value.ndim and value.shape != parameter.shape:
                    raise ValueError(f"{name} has shape {tuple(value.shape)}")
        steps = [state["step"] for state in self.optimizer.state.values() if "step" in state]
        assert self.recipe.epochs is not None
        if not self.epoch <= self.recipe.epochs or any(step < 0 for step in steps):
            raise ValueError(f"it is at epoch {self.epoch} of {self.recipe.epochs}")

    def _constants(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """What the recipe says of optimizer and schedule, and no step changes."""
        groups = self.optimizer.param_groups
        schedule = {} if self.schedule is None else self.schedule.state_dict()
        return [_without(group, "params", "lr") for group in groups], _without(schedule, *_MOVING)


def _without(state: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in names}


_MOVING = ("last_epoch", "_step_count", "_last_lr")  # of a schedule
# as they are
_PLAIN = (
    "best",
    "lowest",
    "epoch",
    "step",
    "steps",
    "total",
    "seconds",
    "moved",
    "finished",
    "first",
)
GROWN = 1000.0
REMEDY = "Try a smaller learning rate, and look for NaN or huge values in the data."


@contextmanager
def _explaining(where: str) -> Iterator[None]:
    """A matrix that cannot be factorised is a divergence too."""
    try:
        yield
    except LINEAR_ALGEBRA_ERRORS as error:
        raise DivergenceError(f"the loss cannot be computed {where}: {error}. {REMEDY}") from error


def _norms(method: Method) -> list[SpectralNorm]:
    return [module for module in method.modules() if isinstance(module, SpectralNorm)]


@contextmanager
def _held_norms(method: Method) -> Iterator[None]:
    """One power iteration per step, not per piece: all pieces see the same weights."""
    norms = [norm for norm in _norms(method) if norm.training]
    for norm in norms:
        norm.training = False
    yield
    for norm in norms:
        norm.training = True


@contextmanager
def _warming_up(optimizer: Optimizer, warm_up: int, steps: int) -> Iterator[None]:
    """Within, the rates are a share of their values that rises over the first steps."""
    share = min(1.0, (steps + 1) / warm_up) if warm_up else 1.0
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] *= share
    yield
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _is_time(every: int | None, steps: int, written: float) -> bool:
    if every is None:
        return time.monotonic() - written >= CHECKPOINT_SECONDS
    return steps > 0 and steps % every == 0


def _bar(progress: bool | None, total: int) -> Any:
    # tqdm reads disable=None as "unless stderr is a terminal"
    return tqdm(total=total, unit="step", disable=None if progress is None else not progress)


def _latest(history: History) -> dict[str, str]:
    values: dict[str, list[Any]] = {"loss": history.loss, "validation": history.validation}
    return {name: f"{value[-1]:.4g}" for name, value in values.items() if value and value[-1]}


def _random_state(device: torch.device) -> list[Tensor]:
    if device.type == "cuda":
        return [torch.get_rng_state(), torch.cuda.get_rng_state(device)]
    return [torch.get_rng_state()]


def _set_random_state(state: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if device.type == "cuda" and len(state) == 2:
        torch.cuda.set_rng_state(state[1], device)


def _settings(run: Run, source: Source, held_out: Source | None, seed: int) -> dict[str, Any]:
    """What makes two runs the same run: recipe, data, shapes."""
    recipe = {name: repr(value) for name, value in run.recipe.given().items()}
    watched = {} if held_out is None else held_out.fingerprint()
    data = {**source.fingerprint(), **{f"held-out {name}": v for name, v in watched.items()}}
    state = {k: v for k, v in run.method.state_dict().items() if torch.is_tensor(v)}
    shapes = {f"shape of {name}": list(value.shape) for name, value in state.items()}
    return {"format": 3, "seed": seed, **recipe, **data, **shapes}
