"""CIFAR-10, SVHN, MNIST and Fashion-MNIST as uint8 images, read from their official files.

CIFAR-10 comes in its binary version, so that no pickle is read. "digits" and "negatives" come with
scikit-learn and need no file.
"""

import gzip
import math
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int, UInt8
from scipy.io import loadmat
from sklearn.datasets import load_digits
from torch import Tensor

from due.data.download import fetch, find

CIFAR10 = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR10_SHA1 = "sha1:fab780a1e191a7eda0f345501ccd62d20f7ed891"
SVHN = "http://ufldl.stanford.edu/housenumbers"
IDX = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist",
    "fashion-mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
}
MD5 = {
    "svhn/train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "svhn/test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
    "mnist/train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "mnist/train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "mnist/t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "mnist/t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    "fashion-mnist/train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "fashion-mnist/train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "fashion-mnist/t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "fashion-mnist/t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}


class Images(NamedTuple):
    """Images as they are stored, and their classes."""

    x: UInt8[Tensor, "N C H W"]
    y: Int[Tensor, " N"]


class ImageFileError(ValueError):
    """A data file is not what its name says."""


def load(name: str, part: str) -> Images:
    """The part "train" or "test" of the set `name`, one of `NAMES`."""
    if name not in READERS:
        raise ValueError(f"unknown image set {name!r}; the names are {', '.join(NAMES)}")
    if part not in ("train", "test"):
        raise ValueError(f"unknown part {part!r} of {name}; it is train or test")
    return READERS[name](name, part)


def _cifar10(name: str, part: str) -> Images:
    names = ["test_batch.bin"] if part == "test" else [f"data_batch_{i}.bin" for i in range(1, 6)]
    rows = np.concatenate([_cifar10_rows(file) for file in names])
    return _images(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0])


def _cifar10_rows(name: str) -> np.ndarray:
    """One byte of class and 3 × 32 × 32 of image per row."""
    path = find(f"cifar10/{name}")
    data = path.read_bytes() if path is not None else _from_archive(name)
    if len(data) != 10_000 * 3073:
        raise ImageFileError(
            f"cifar10/{name} has {len(data)} bytes instead of 30,730,000; it is damaged or is not "
            "the binary version of CIFAR-10: replace it"
        )
    return np.frombuffer(data, np.uint8).reshape(-1, 3073)


def _from_archive(name: str) -> bytes:
    archive = fetch("cifar10/cifar-10-binary.tar.gz", CIFAR10, CIFAR10_SHA1)
    try:
        with tarfile.open(archive) as tar:
            member = tar.extractfile(f"cifar-10-batches-bin/{name}")
            if member is None:
                raise ImageFileError(f"{archive} has no file {name}; replace it")
            return member.read()
    except (tarfile.TarError, KeyError, EOFError, OSError, zlib.error) as error:
        raise _damaged(archive, error) from error


def _svhn(name: str, part: str) -> Images:
    path = _file("svhn", f"{part}_32x32.mat", SVHN)
    try:
        content = loadmat(path)
        x, y = content["X"], content["y"]
    except Exception as error:  # scipy raises many kinds for a damaged file
        raise _damaged(path, error) from error
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.shape[3] != len(y):
        raise _damaged(path, f"shape {x.shape} for {len(y)} labels")
    return _images(x.transpose(3, 2, 0, 1), y.reshape(-1) % 10)  # the files say 10 for 0


def _idx(name: str, part: str) -> Images:
    prefix = "t10k" if part == "test" else part
    x = _idx_array(_file(name, f"{prefix}-images-idx3-ubyte.gz", IDX[name]), rank=3)
    y = _idx_array(_file(name, f"{prefix}-labels-idx1-ubyte.gz", IDX[name]), rank=1)
    if len(x) != len(y):
        raise ImageFileError(f"{name} has {len(x)} images and {len(y)} labels for {part}")
    return _images(x[:, None], y)


def _idx_array(path: Path, rank: int) -> np.ndarray:
    """0, 0, type (8: unsigned byte), rank, then the sizes as big-endian int32, then the bytes."""
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, gzip.zlib.error) as error:  # type: ignore[attr-defined]
        raise _damaged(path, error) from error
    sizes = np.frombuffer(data[4 : 4 + 4 * rank], ">i4").tolist()
    if data[:4] != bytes([0, 0, 8, rank]) or len(data) != 4 + 4 * rank + math.prod(sizes):
        raise _damaged(path, "it is not an IDX file of bytes")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(sizes)


def _file(folder: str, file: str, url: str) -> Path:
    name = f"{folder}/{file}"
    return fetch(name, f"{url}/{file}", f"md5:{MD5[name]}")


def _images(x: np.ndarray, y: np.ndarray) -> Images:
    return Images(torch.from_numpy(x.copy()), torch.from_numpy(y.astype(np.int64)))


def _damaged(path: Path, why: object) -> ImageFileError:
    return ImageFileError(f"{path} is damaged ({why}): delete it, so that it is fetched again")


def _digits(name: str, part: str) -> Images:
    """8 × 8 digits that come with scikit-learn, twice as large, or their negatives."""
    digits = load_digits()
    chosen = slice(1200) if part == "train" else slice(1200, None)
    x = np.round(digits.images[chosen] * (255 / 16)).astype(np.uint8)
    x = x.repeat(2, axis=1).repeat(2, axis=2)[:, None]
    return _images(255 - x if name == "negatives" else x, digits.target[chosen])


READERS: dict[str, Callable[[str, str], Images]] = {
    "cifar10": _cifar10,
    "svhn": _svhn,
    "mnist": _idx,
    "fashion-mnist": _idx,
    "digits": _digits,
    "negatives": _digits,
}
NAMES = tuple(READERS)
