"""A saved model is a directory: `model.safetensors`, config and all, and `config.json` to read.

The replacement of `model.safetensors` is the one moment at which a save takes effect, and the
config in its header is the one that `load` believes, so a process killed at any time leaves a
whole model, the old or the new. Nothing is pickled: a model from a stranger cannot run code.
"""

import json
import math
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

if sys.platform != "win32":
    import fcntl

FORMAT_VERSION = (
    2  # 1: before recipes and methods; still read, see `due.storage.estimator.upgraded`
)


class StorageError(ValueError):
    """A file of ours could not be written or read; the message has the path and the remedy."""


def save(path: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a model to the directory `path`, in place of the one it may hold.

    `config` is plain JSON (a tuple comes back as a list). The keys `format`, `format_version`,
    `due_version`, `torch_version` and `crc32` are ours and are set anew.
    """
    path = Path(path)
    _check_json(config)
    plain = {name: _plain(name, tensor) for name, tensor in tensors.items()}
    full = {**config, **_signature(plain)}
    text = json.dumps(full, indent=2, allow_nan=False)

    def write(copy: Path) -> None:  # config.json gets its room on the disk before the commit
        copy.write_text(text + "\n", encoding="utf-8")
        data = safetensors.torch.save(plain, metadata={"due": text})
        atomic_write(path / "model.safetensors", lambda file: file.write_bytes(data))

    try:
        path.mkdir(parents=True, exist_ok=True)
        atomic_write(path / "config.json", write)
    except OSError as error:
        raise StorageError(
            f"could not save to {path}: {error}. A model that was there is whole. "
            "Free some space, check the permissions, or save elsewhere."
        ) from error


def load(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors (on the CPU) of the model in the directory `path`."""
    file = Path(path) / "model.safetensors"
    if not file.is_file():
        raise StorageError(f"no model in {path}: {file} is missing. Give a directory made by save.")
    try:
        with safe_open(file, framework="pt") as opened:
            config = _read_config(file, opened.metadata())
            # clones: a tensor mapped to the file would die with it
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise StorageError(
            f"{file} cannot be read: {error}. It is damaged or no safetensors file: "
            "copy it again from its source, or save the model anew."
        ) from error
    if config.get("crc32") != checksum(tensors[name] for name in sorted(tensors)):
        raise StorageError(f"{file} is damaged: its checksum is wrong. Copy it again.")
    return config, tensors


def atomic_write(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then put it in place of `path`: all of it or nothing.

    The temporary file has a fixed name, so that what a killed process left is overwritten by the
    next write; writers to the same `path` take turns. `write` must keep the file it is given.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with _held(temporary):
        try:
            write(temporary)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    _sync_directory(path.parent)


def checksum(tensors: Iterable[Tensor]) -> int:
    """CRC-32 of the bytes of the tensors, one after the other."""
    crc = 0
    for tensor in tensors:
        data = tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8)
        crc = zlib.crc32(data.numpy().data, crc)
    return crc


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold `path` against other writers; the lock dies with the process."""
    if sys.platform == "win32":  # which lets nobody replace an open file
        yield
        return
    while True:
        with path.open("ab") as file:
            with suppress(OSError):  # some network file systems know no locks
                fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_at(file.fileno(), path):  # its writer put it in place while we waited
                continue
            yield
            return


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _sync_directory(path: Path) -> None:
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _signature(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {
        "format": "due",
        "format_version": FORMAT_VERSION,
        "due_version": _version(),
        "torch_version": str(torch.__version__),
        "crc32": checksum(tensors[name] for name in sorted(tensors)),
    }


def _version() -> str:
    try:
        return metadata.version("due")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "unknown"


def _read_config(file: Path, header: dict[str, str] | None) -> dict[str, Any]:
    try:
        config = json.loads((header or {})["due"])
        version = config["format_version"]
        newer = version > FORMAT_VERSION
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(
            f"{file} is a safetensors file, but not a model of due: its header has no config of "
            "ours. Give a directory made by save."
        ) from error
    if newer:
        raise StorageError(
            f"{file} has format version {version}, this due {_version()} reads up to "
            f"{FORMAT_VERSION}. Upgrade due: pip install --upgrade due."
        )
    return dict(config)


def _plain(name: str, tensor: Tensor) -> Tensor:
    """The tensor on the CPU, contiguous, sharing memory with no other."""
    if name == "__metadata__":
        raise StorageError("a tensor cannot be named '__metadata__': safetensors keeps that name.")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.dtype == torch.complex128:
        raise StorageError(
            f"tensor {name!r} ({tensor.dtype}, {tensor.layout}) has no place in a safetensors "
            "file. Make it dense and of a plain dtype."
        )
    return tensor.detach().cpu().resolve_neg().clone(memory_format=torch.contiguous_format)


def _check_json(value: object, where: str = "config") -> None:
    """Raise with the key of the first value that JSON would refuse or change."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise StorageError(f"{where} has the key {key!r}: JSON keys are strings.")
            _check_json(item, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _check_json(item, f"{where}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise StorageError(f"{where} is {value}: JSON has no such number. Use None or a string.")
    elif value is not None and not isinstance(value, str | int | float):
        raise StorageError(
            f"{where} is a {type(value).__name__}, which JSON cannot hold. Convert it to a number, "
            "a string, a list or a dict, or save it as a tensor."
        )
