"""A training run on disk: written all or nothing, read without pickle's code, refused if other.

The file is what `torch.save` writes, followed by `MARK` and the SHA-256 of all before it.
"""

import hashlib
import io
import math
import zipfile
from pathlib import Path
from typing import Any

import torch

from due.storage.atomic import StorageError, atomic_write
from due.storage.files import read_once

MARK = b"due sha256"
EMPTY = "[0]"  # shape of a tensor that only the end of training fills


def write(file: Path, settings: dict[str, Any], state: dict[str, Any]) -> None:
    """Put the run in place of what the file holds."""
    buffer = io.BytesIO()
    torch.save({"settings": settings, **state}, buffer)
    seal = MARK + hashlib.sha256(buffer.getbuffer()).digest()
    buffer.write(seal)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, lambda temporary: temporary.write_bytes(buffer.getbuffer()))
    except OSError as error:
        raise StorageError(
            f"could not write the checkpoint {file}: {error}. The one before it is whole: "
            "free some space or check the permissions, then call fit again to go on."
        ) from error


def read(file: Path, settings: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """The run in the file, which must have the same settings and the form of a `fresh` one."""
    data = read_once(file)
    try:
        archive = _checked(data)
        saved = dict(torch.load(io.BytesIO(archive), map_location="cpu", weights_only=True))
        was = dict(saved.pop("settings"))
    except Exception as error:  # torch.load raises many kinds
        raise StorageError(
            f"the checkpoint {file} cannot be read ({type(error).__name__}). It is damaged or "
            "not a checkpoint of due: delete it to train from the beginning."
        ) from error
    changes = [
        f"{name} was {was.get(name, 'absent')}, is {settings.get(name, 'absent')}"
        for name in {**was, **settings}
        if str(was.get(name, "absent")) != str(settings.get(name, "absent"))
        and (name in was or str(settings[name]) != EMPTY)  # what an earlier version had not
    ]
    if changes:
        raise StorageError(
            f"the checkpoint {file} is of another run: {'; '.join(changes)}. "
            "Use the same settings to go on, or delete it to train from the beginning."
        )
    try:
        _check_state(saved, fresh)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StorageError(
            f"the checkpoint {file} cannot be read: {error}. It was changed: delete it to train "
            "from the beginning."
        ) from error
    return saved


def _check_state(saved: dict[str, Any], fresh: dict[str, Any]) -> None:
    """What training makes longer or fills is checked apart from what keeps its form."""
    if saved.keys() != fresh.keys():
        raise ValueError(f"it has {sorted(saved)}")
    for name in fresh.keys() - {"method", "best", "optimizer", "history"}:
        _check_like(saved[name], fresh[name], name)
    for name in ("method", "best") if saved["best"] is not None else ("method",):
        saved[name] = {**_unfilled(fresh["method"]), **saved[name]}
        _check_like(_without_G(saved[name]), _without_G(fresh["method"]), name)
    groups = fresh["optimizer"]["param_groups"]
    _check_like(saved["optimizer"]["param_groups"], groups, "optimizer")
    for number, state in saved["optimizer"]["state"].items():
        for name, value in state.items():
            if type(number) is not int or not _is_state(name, value):
                raise ValueError(f"{name} of optimizer state {number!r} is not finite")
    if len({tuple(sorted(state)) for state in saved["optimizer"]["state"].values()}) > 1:
        raise ValueError("the optimizer knows other things of some parameters than of others")
    _check_history(saved)


def _unfilled(state: dict[str, Any]) -> dict[str, Any]:
    """Tensors that only the end of training fills; an earlier version may lack some."""
    return {
        name: part for name, part in state.items() if torch.is_tensor(part) and not part.numel()
    }


def _without_G(state: dict[str, Any]) -> dict[str, Any]:
    """Without what spectral norms keep between two refreshes, which is there or not."""
    return {name: value for name, value in state.items() if name.split(".")[-1] != "G"}


def _is_state(name: str, value: Any) -> bool:
    if value is None:
        return name == "momentum_buffer"  # of SGD before its first step
    return bool(torch.isfinite(value).all())


def _check_history(saved: dict[str, Any]) -> None:
    history, epochs = saved["history"], saved["epoch"]
    lists = {name: history[name] for name in ("loss", "validation", "lr", "seconds")}
    for name, values in lists.items():
        numbers = all(value is None or isinstance(value, float) for value in values)
        lengths = (0, epochs) if name == "validation" else (epochs,)
        if not isinstance(values, list) or not numbers or len(values) not in lengths:
            raise ValueError(f"history.{name} is not one number per epoch")
    best = history["best_epoch"]
    judged = len(history["validation"])
    if not (best is None or (type(best) is int and 0 <= best < judged)):
        raise ValueError(f"history.best_epoch is {best!r}")
    if saved["lowest"] != (math.inf if best is None else history["validation"][best]):
        raise ValueError(f"lowest is {saved['lowest']!r}, not the value of the best epoch")
    if type(history["stopped_early"]) is not bool or len(history) != len(lists) + 2:
        raise ValueError("history has other fields")


def _check_like(value: Any, like: Any, where: str) -> None:
    """Of the same form: types, keys, lengths, shapes; numbers count upwards and are not NaN."""
    if isinstance(like, torch.Tensor):
        same = isinstance(value, torch.Tensor) and value.shape == like.shape
        if not same or value.dtype != like.dtype or not _is_finite(value, like):
            raise ValueError(f"{where} is not a finite {like.dtype} of shape {tuple(like.shape)}")
    elif isinstance(like, dict):
        if not isinstance(value, dict) or value.keys() != like.keys():
            raise ValueError(f"{where} has other fields")
        for name, part in like.items():
            _check_like(value[name], part, f"{where}.{name}")
    elif isinstance(like, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(like):
            raise ValueError(f"{where} has another length")
        for i, part in enumerate(like):
            _check_like(value[i], part, f"{where}[{i}]")
    elif isinstance(like, float) or (type(like) is int and type(value) is float):
        if type(value) not in (int, float) or value != value:
            raise ValueError(f"{where} is {value!r}")
    elif type(value) is not type(like) or (type(like) is int and value < 0):
        raise ValueError(f"{where} is {value!r}")


def _is_finite(value: torch.Tensor, like: torch.Tensor) -> bool:
    """Or infinite where a fresh one is, as a bound of a parameter may be."""
    finite = torch.isfinite(value)
    return bool(finite.all()) or bool((finite | (value == like.cpu())).all())


def _checked(data: bytes) -> bytes:
    """The archive without its seal; nothing in it may take more memory than the file itself."""
    end = len(data) - len(MARK) - 32
    if end < 0 or data[end : end + len(MARK)] != MARK:
        raise ValueError("no checksum")
    archive = data[:end]
    if hashlib.sha256(archive).digest() != data[-32:]:
        raise ValueError("wrong checksum")
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in opened.infolist()):
            raise zipfile.BadZipFile("compressed")
    return archive
