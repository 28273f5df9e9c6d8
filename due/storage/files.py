"""A saved model is a directory: `model.safetensors`, config and all, and `config.json` to read.

The replacement of `model.safetensors` is the one moment at which a save takes effect, and the
config in its header is the one that `load` believes, so a process killed at any time leaves a
whole model, the old or the new. Nothing is pickled: a model from a stranger cannot run code. The
header also has a SHA-256 of the whole file, config and names included, in which the digits of the
sum itself count as zeros. Versions 1 and 2 had a CRC-32 of the tensors alone.
"""

import hashlib
import json
import math
import os
import stat
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from due.storage.atomic import StorageError, replaced

FORMAT_VERSION = 3  # 1: before recipes and methods; 2: its checksum did not cover the config
FILE = "model.safetensors"
LARGEST_HEADER = 100_000_000  # bytes, as in safetensors itself
SUM = '"sha256":"%s"'
BLANK = "0" * 64


def save(
    path: str | Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    copies: Mapping[str, str] | None = None,
) -> None:
    """Write a model to the directory `path`, in place of the one it may hold.

    `config` is plain JSON (a tuple comes back as a list). The keys `format`, `format_version`,
    `due_version`, `torch_version` and `copies` are ours and are set anew. `copies` are more files
    for people to read, such as a model card, by name; `altered` tells which were changed later.
    """
    path, copies = Path(path), copies or {}
    _check_json(config)
    _check_names(copies)
    plain = {name: _plain(name, tensor) for name, tensor in tensors.items()}
    files = {name: text.encode() for name, text in copies.items()}
    full = {**config, **_signature(files)}
    text = _readable(full)
    data = _sealed(safetensors.torch.save(plain, metadata={"due": text, "sha256": BLANK}))
    files = {FILE: data, "config.json": f"{text}\n".encode(), **files}
    try:
        path.mkdir(parents=True, exist_ok=True)
        with replaced(path, *files) as new:
            for file, content in zip(new, files.values(), strict=True):
                file.write_bytes(content)
    except OSError as error:
        raise StorageError(
            f"could not save to {path}: {error}. A model that was there is whole. "
            "Free some space, check the permissions, or save elsewhere."
        ) from error


def load(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors (on the CPU) of the model in the directory `path`."""
    file = Path(path) / FILE
    data = read_once(file, f"no model in {path}: {file} is missing. Give a directory made by save.")
    config, digest = _read_header(file, data)
    if digest is not None and digest != _digest(data, digest):
        raise _damaged(file)
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, KeyError, AssertionError, ValueError, RuntimeError) as error:
        raise _unreadable(file, error) from error
    if digest is None and config.pop("crc32", None) != checksum(
        tensors[name] for name in sorted(tensors)
    ):
        raise _damaged(file)
    return config, tensors


def altered(path: str | Path) -> list[str]:
    """Names of the model's `copies` that are missing or no longer as `save` wrote them."""
    path = Path(path)
    config, _ = load(path)
    sums = dict(config.get("copies", {}))
    _check_names(sums)
    return [
        name
        for name, digest in sums.items()
        if not (path / name).is_file() or _sha256(read_once(path / name)) != digest
    ]


def read_once(file: Path, missing: str = "") -> bytes:
    """All bytes of a regular file, from one descriptor: it may be replaced meanwhile."""
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a FIFO would wait
        with open(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StorageError(f"{file} is no regular file. Give one that was saved.")
            return opened.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StorageError(missing or f"{file} is missing") from error
    except PermissionError as error:
        raise StorageError(
            f"{file} may not be read by this user ({error.strerror}): change its permissions, or "
            "run as its owner."
        ) from error
    except OSError as error:
        raise _unreadable(file, error) from error


def checksum(tensors: Iterable[Tensor]) -> int:
    """CRC-32 of the bytes of the tensors, one after the other."""
    crc = 0
    for tensor in tensors:
        data = tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8)
        crc = zlib.crc32(data.numpy().data, crc)
    return crc


def _sealed(data: bytes) -> bytes:
    """The file with its sum in place of the zeros."""
    blank = (SUM % BLANK).encode()
    place = data.index(blank)  # quotes inside names and the config are escaped: there is no other
    seal = (SUM % _sha256(data)).encode()
    return b"".join((data[:place], seal, data[place + len(blank) :]))


def _digest(data: bytes, digest: str) -> str | None:
    """The sum of a file in which `digest` counts as zeros; None if it is not there once."""
    seal, end = (SUM % digest).encode(), 8 + int.from_bytes(data[:8], "little")
    place = data.find(seal, 8, end)
    if place < 0 or data.find(seal, place + 1, end) >= 0:
        return None
    whole, view = hashlib.sha256(), memoryview(data)
    for part in (view[:place], (SUM % BLANK).encode(), view[place + len(seal) :]):
        whole.update(part)
    return whole.hexdigest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _readable(config: Mapping[str, Any], inside: int = 1) -> str:
    """JSON with a line for each field, also of the fields inside the outermost ones."""
    space = "  " * (1 - inside)
    fields = (
        f"{space}  {json.dumps(name)}: "
        + (
            _readable(value, inside - 1)
            if inside and isinstance(value, Mapping) and value
            else json.dumps(value, allow_nan=False)
        )
        for name, value in config.items()
    )
    return "{\n" + ",\n".join(fields) + f"\n{space}}}"


def _signature(copies: dict[str, bytes]) -> dict[str, Any]:
    sums = {"copies": {name: _sha256(data) for name, data in copies.items()}}
    return {
        "format": "due",
        "format_version": FORMAT_VERSION,
        "due_version": _version(),
        "torch_version": str(torch.__version__),
        **(sums if copies else {}),
    }


@cache
def _version() -> str:
    try:
        return metadata.version("due")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "unknown"


def _read_header(file: Path, data: bytes) -> tuple[dict[str, Any], str | None]:
    """The config, and the sum of the whole file if its version has one."""
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(len(data) - 8, LARGEST_HEADER):
        raise _unreadable(file, f"a header of {length} bytes in a file of {len(data)}")
    try:
        header = json.loads(data[8 : 8 + length])["__metadata__"]
    except (KeyError, TypeError):
        header = {}
    except (ValueError, RecursionError) as error:
        raise _unreadable(file, error) from error
    try:
        config = json.loads(header["due"], parse_constant=_refuse)
        version = config["format_version"]
        newer = version > FORMAT_VERSION
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StorageError(
            f"{file} is a safetensors file, but not a model of due: its header has no config of "
            "ours. Give a directory made by save."
        ) from error
    if newer:
        raise StorageError(
            f"{file} has format version {version}, this due {_version()} reads up to "
            f"{FORMAT_VERSION}. Upgrade due: pip install --upgrade due."
        )
    if version not in range(1, FORMAT_VERSION + 1):
        raise _damaged(file)
    return dict(config), None if version < 3 else str(header.get("sha256"))


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number in JSON")


def _damaged(file: Path) -> StorageError:
    return StorageError(f"{file} is damaged: its checksum is wrong. Copy it again.")


def _unreadable(file: Path, reason: object) -> StorageError:
    return StorageError(
        f"{file} cannot be read: {reason}. It is damaged or no safetensors file: "
        "copy it again from its source, or save the model anew."
    )


def _check_names(copies: Mapping[str, str]) -> None:
    for name in copies:
        if name in (FILE, "config.json") or name.startswith(".") or Path(name).name != name:
            raise StorageError(f"a copy cannot be named {name!r}: give the name of a new file")


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
