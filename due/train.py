"""The one loop: θ ← θ − step(∇ model(*batch)), with schedule, early stopping and exact resume."""

import copy
import io
import math
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from tqdm import tqdm

from due.storage import StorageError, atomic_write, checksum

CHECKPOINT_SECONDS = 30.0
LINEAR_ALGEBRA_ERRORS = (np.linalg.LinAlgError, torch._C._LinAlgError)  # type: ignore[attr-defined]


class DivergenceError(FloatingPointError):
    """The training loss is no longer finite."""


@dataclass
class History:
    """What each epoch brought; `best_epoch` counts from 0, None if no validation was finite."""

    loss: list[float] = field(default_factory=list)  # mean over the rows of the epoch
    validation: list[float] = field(default_factory=list)  # empty without validation
    lr: list[float] = field(default_factory=list)  # of the first parameter group
    seconds: list[float] = field(default_factory=list)  # validation included
    best_epoch: int | None = None
    stopped_early: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON: a validation value that is not finite becomes None."""
        values = [value if math.isfinite(value) else None for value in self.validation]
        return {**asdict(self), "validation": values}


def train(
    model: nn.Module,
    data: tuple[Tensor, ...],
    *,
    optimizer: Optimizer,
    epochs: int,
    batch_size: int | None = None,
    schedule: LRScheduler | None = None,
    validation: Callable[[], float] | None = None,
    patience: int | None = None,
    before_validation: Callable[[], object] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    compile: bool = False,
) -> History:
    """Minimise `model(*batch)` over the rows of `data`; leave the model in eval mode.

    All chance comes from `seed`; the caller's random state is neither read nor changed.

    Parameters
    ----------
    data
        Tensors with one row per datum, such as (x, y) or (x, y, weights). They stay where they
        are; each batch is moved to the model's device.
    optimizer, schedule
        Over the model's parameters; the schedule is stepped once per epoch.
    batch_size
        None takes all rows at once. A last batch of a single row joins the one before it.
    validation
        Called in eval mode without gradients after each epoch; lower is better. The best epoch's
        weights and buffers are restored at the end.
    patience
        Stop after so many epochs without improvement. NaN is no improvement.
    before_validation
        Called just before each validation and once at the end, on the weights that are kept: the
        place to put q(U) at its optimum or to converge power iterations.
    checkpoint
        A file. If it exists, training goes on from it to the same bits as if it had never
        stopped; if its run had finished, the result is returned at once.
    checkpoint_every
        Steps between checkpoints; None writes one every 30 seconds. The last is written at the end.
    progress
        A bar on stderr; None shows it only on a terminal.
    compile
        Run the training steps through `torch.compile`. A resumed run compiles anew, so it may
        differ in the last bits.
    """
    _check(data, epochs, batch_size, validation, patience, checkpoint_every)
    N, device = len(data[0]), next(model.parameters()).device
    loss_of = torch.compile(model) if compile else model
    file = None if checkpoint is None else Path(checkpoint)
    settings: dict[str, Any] = {"format": 1, "seed": seed, "epochs": epochs}
    settings |= {"batch_size": batch_size, "patience": patience}
    settings |= _fingerprint(model, data, optimizer, schedule)
    run = _Run(model, optimizer, schedule, settings)

    with _own_randomness(seed, device), _bar(progress, epochs * _n_steps(N, batch_size)) as bar:
        if file is not None and file.exists():
            run.read(file)
            bar.update(run.steps)
        written = time.monotonic()

        while run.epoch < epochs and not run.history.stopped_early:
            began = time.monotonic() - run.seconds
            bar.set_description(f"epoch {run.epoch + 1}/{epochs}", refresh=False)
            model.train()
            for batch in _batches(data, batch_size, seed, run.epoch, run.step):
                if file is not None and _is_time(checkpoint_every, run.steps, written):
                    run.write(file)
                    written = time.monotonic()
                run.advance(loss_of, tuple(tensor.to(device) for tensor in batch))
                run.seconds = time.monotonic() - began
                bar.update()

            run.history.loss.append(run.total / N)
            run.history.lr.append(float(optimizer.param_groups[0]["lr"]))
            if schedule is not None:
                schedule.step()
            if validation is not None:
                run.judge(_validate(model, before_validation, validation))
                run.history.stopped_early = patience is not None and run.idle >= patience
            run.history.seconds.append(time.monotonic() - began)
            run.epoch, run.step, run.total, run.seconds = run.epoch + 1, 0, 0.0, 0.0
            bar.set_postfix(_latest(run.history))

        model.eval()
        if not run.finished:
            run.finish(before_validation)
            if file is not None:
                run.write(file)
    return run.history


@dataclass
class _Run:
    """Where a training run stands: all that an exact resume needs."""

    model: nn.Module
    optimizer: Optimizer
    schedule: LRScheduler | None
    settings: dict[str, Any]
    history: History = field(default_factory=History)
    best: dict[str, Any] | None = None
    epoch: int = 0
    step: int = 0  # within the epoch
    steps: int = 0  # since the beginning
    total: float = 0.0  # Σ of the losses of the epoch's rows
    seconds: float = 0.0  # spent on the epoch
    finished: bool = False

    @property
    def idle(self) -> int:
        """Epochs since the best one."""
        best = -1 if self.history.best_epoch is None else self.history.best_epoch
        return len(self.history.validation) - 1 - best

    def advance(self, loss_of: Callable[..., Tensor], batch: tuple[Tensor, ...]) -> None:
        def closure() -> float:
            self.optimizer.zero_grad()
            loss = self._loss(loss_of, batch)
            value = loss.item()
            if not math.isfinite(value) and loss_of is not self.model:
                # a compiled graph cannot branch to more jitter, the plain model can
                loss = self._loss(self.model, batch)
                value = loss.item()
            if not math.isfinite(value):
                raise DivergenceError(
                    f"the training loss is {value} at epoch {self.epoch}, step {self.step}. "
                    "Try a smaller learning rate, and look for NaN or huge values in the data."
                )
            loss.backward()
            return value

        self.total += self.optimizer.step(closure) * len(batch[0])
        self.step += 1
        self.steps += 1

    def _loss(self, loss_of: Callable[..., Tensor], batch: tuple[Tensor, ...]) -> Tensor:
        try:
            return loss_of(*batch)
        except LINEAR_ALGEBRA_ERRORS as error:
            raise DivergenceError(
                f"the loss cannot be computed at epoch {self.epoch}, step {self.step}: {error}. "
                "Try a smaller learning rate, and look for NaN or huge values in the data."
            ) from error

    def judge(self, value: float) -> None:
        """Note the validation value of the epoch, and keep its state if it is the best so far."""
        history = self.history
        best = math.inf if history.best_epoch is None else history.validation[history.best_epoch]
        history.validation.append(value)
        if value < best:  # never so for NaN
            history.best_epoch = self.epoch
            self.best = copy.deepcopy(self.model.state_dict())

    def finish(self, before_validation: Callable[[], object] | None) -> None:
        if self.best is not None:
            self.model.load_state_dict(self.best)
        if before_validation is not None:
            with torch.no_grad():
                before_validation()
        self.best, self.finished = None, True

    def write(self, file: Path) -> None:
        buffer = io.BytesIO()
        torch.save(self._state(), buffer)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(file, lambda temporary: temporary.write_bytes(buffer.getbuffer()))
        except OSError as error:
            raise StorageError(
                f"could not write the checkpoint {file}: {error}. The one before it is whole: "
                "free some space or check the permissions, then call train again to go on."
            ) from error

    def read(self, file: Path) -> None:
        try:
            with zipfile.ZipFile(file) as archive:  # torch.load itself checks no checksum
                if archive.testzip() is not None:
                    raise zipfile.BadZipFile("wrong checksum")
            saved = torch.load(file, map_location="cpu", weights_only=True)
            settings = saved.pop("settings")
        except Exception as error:  # torch.load raises many kinds
            raise StorageError(
                f"the checkpoint {file} cannot be read ({type(error).__name__}). It is damaged or "
                "not a checkpoint of due: delete it to train from the beginning."
            ) from error
        _compare(file, settings, self.settings)
        self.model.load_state_dict(saved.pop("model"))
        self.optimizer.load_state_dict(saved.pop("optimizer"))
        if self.schedule is not None:
            self.schedule.load_state_dict(saved.pop("schedule"))
        _set_random_state(saved.pop("random"), next(self.model.parameters()).device)
        self.history = History(**saved.pop("history"))
        for name in _PLAIN:
            setattr(self, name, saved[name])

    def _state(self) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "random": _random_state(next(self.model.parameters()).device),
            "history": asdict(self.history),
            **{name: getattr(self, name) for name in _PLAIN},
        }


_PLAIN = ("best", "epoch", "step", "steps", "total", "seconds", "finished")  # fields saved as is


def _n_steps(N: int, batch_size: int | None) -> int:
    """Batches in an epoch; one row left over makes none of its own, for batch norm needs two."""
    if batch_size is None:
        return 1
    return max(1, N // batch_size + (N % batch_size > 1))


def _batches(
    data: tuple[Tensor, ...], batch_size: int | None, seed: int, epoch: int, start: int
) -> Iterator[tuple[Tensor, ...]]:
    """Batches `start`, `start` + 1, … of an epoch whose order is drawn from (seed, epoch)."""
    N = len(data[0])
    if batch_size is None:
        yield data
        return
    mixed = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(int(mixed[0])))
    last = _n_steps(N, batch_size) - 1
    for step in range(start, last + 1):
        stop = N if step == last else (step + 1) * batch_size
        rows = order[step * batch_size : stop].to(data[0].device)
        yield tuple(tensor[rows] for tensor in data)


@torch.no_grad()
def _validate(
    model: nn.Module, before: Callable[[], object] | None, validation: Callable[[], float]
) -> float:
    model.eval()
    if before is not None:
        before()
    return float(validation())


def _is_time(every: int | None, steps: int, written: float) -> bool:
    if every is None:
        return time.monotonic() - written >= CHECKPOINT_SECONDS
    return steps > 0 and steps % every == 0


def _bar(progress: bool | None, total: int) -> Any:
    # tqdm reads disable=None as "unless stderr is a terminal"
    return tqdm(total=total, unit="step", disable=None if progress is None else not progress)


def _latest(history: History) -> dict[str, str]:
    values = {"loss": history.loss, "validation": history.validation}
    return {name: f"{value[-1]:.4g}" for name, value in values.items() if value}


@contextmanager
def _own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Global draws (dropout, sampling) come from `seed` inside, and are untouched outside."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _random_state(device: torch.device) -> list[Tensor]:
    if device.type == "cuda":
        return [torch.get_rng_state(), torch.cuda.get_rng_state(device)]
    return [torch.get_rng_state()]


def _set_random_state(state: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if device.type == "cuda" and len(state) == 2:
        torch.cuda.set_rng_state(state[1], device)


def _fingerprint(
    model: nn.Module, data: tuple[Tensor, ...], optimizer: Optimizer, schedule: LRScheduler | None
) -> dict[str, Any]:
    """What makes two runs the same run, beside their numbers: data, shapes and optimiser."""
    groups = optimizer.param_groups  # a schedule moves lr and keeps the first one as initial_lr
    state = {name: value for name, value in model.state_dict().items() if torch.is_tensor(value)}
    return {
        "optimizer": type(optimizer).__name__,
        "lr": [float(group.get("initial_lr", group["lr"])) for group in groups],
        "optimizer's settings": [_plain_settings(group, "lr", "initial_lr") for group in groups],
        "schedule": type(schedule).__name__,
        "schedule's settings": _plain_settings(vars(schedule)) if schedule else {},
        **{f"data[{i}]": _describe(tensor) for i, tensor in enumerate(data)},
        **{f"shape of {name}": list(value.shape) for name, value in state.items()},
    }


def _plain_settings(values: dict[str, Any], *moving: str) -> dict[str, str]:
    """The numbers, switches and words among `values`, but not what training itself changes."""
    moving = (*moving, "last_epoch", "_step_count", "_is_initial", "_get_lr_called_within_step")
    kinds = (bool, int, float, str, tuple)
    return {k: repr(v) for k, v in values.items() if k not in moving and isinstance(v, kinds)}


def _describe(tensor: Tensor) -> str:
    """Shape, dtype and a checksum over a thousand rows or more: other data are another run."""
    rows = tensor[:: max(1, len(tensor) // 1000)]
    return f"{list(tensor.shape)} {tensor.dtype} crc32 {checksum([rows]):08x}"


def _compare(file: Path, was: dict[str, Any], now: dict[str, Any]) -> None:
    changes = [
        f"{name} was {was.get(name, 'absent')}, is {now.get(name, 'absent')}"
        for name in {**was, **now}
        if was.get(name, "absent") != now.get(name, "absent")
    ]
    if changes:
        raise StorageError(
            f"the checkpoint {file} is of another run: {'; '.join(changes)}. "
            "Use the same settings to go on, or delete it to train from the beginning."
        )


def _check(
    data: tuple[Tensor, ...],
    epochs: int,
    batch_size: int | None,
    validation: Callable[[], float] | None,
    patience: int | None,
    checkpoint_every: int | None,
) -> None:
    lengths = [len(tensor) for tensor in data]
    if not lengths or len(set(lengths)) > 1 or lengths[0] == 0:
        raise ValueError(f"data have {lengths} rows; give tensors of the same length, not empty.")
    counts = {
        "epochs": epochs,
        "batch_size": batch_size,
        "patience": patience,
        "checkpoint_every": checkpoint_every,
    }
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name} is {count}; it must be at least 1.")
    if patience is not None and validation is None:
        raise ValueError("patience needs something to watch: give validation too.")
