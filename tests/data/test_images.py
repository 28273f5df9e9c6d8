"""Image files in their official formats, whole, cut short and replaced."""

import gzip
import hashlib
import io
import tarfile

import numpy as np
import pytest
import torch
from scipy.io import savemat

from due.data import images
from due.data.download import DownloadError, find
from due.data.images import ImageFileError, load


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("DUE_DATA", str(tmp_path))
    for name in ("cifar10", "svhn", "mnist"):
        (tmp_path / name).mkdir()
    return tmp_path


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return gzip.compress(head + array.tobytes())


def test_cifar_is_read_channel_by_channel(folder):
    rows = np.zeros((10_000, 3073), np.uint8)
    rows[1, 0], rows[1, 1 + 1024 + 33] = 7, 200  # green, row 1, column 1
    (folder / "cifar10/test_batch.bin").write_bytes(rows.tobytes())
    x, y = load("cifar10", "test")
    assert x.shape == (10_000, 3, 32, 32) and x.dtype == torch.uint8
    assert y[1] == 7 and x[1, 1, 1, 1] == 200 and x.sum() == 200


def test_svhn_calls_zero_ten(folder):
    x = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 2), dtype=np.uint8)
    savemat(folder / "svhn/test_32x32.mat", {"X": x, "y": np.array([[10], [3]])})
    found = load("svhn", "test")
    assert found.y.tolist() == [0, 3]
    assert found.x[1, 2, 5, 6] == x[5, 6, 2, 1]


def test_idx_files(folder):
    x = np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28)
    (folder / "mnist/t10k-images-idx3-ubyte.gz").write_bytes(idx(x))
    (folder / "mnist/t10k-labels-idx1-ubyte.gz").write_bytes(idx(np.array([4, 2], np.uint8)))
    found = load("mnist", "test")
    assert found.y.tolist() == [4, 2]
    assert torch.equal(found.x[:, 0], torch.from_numpy(x))


@pytest.mark.parametrize("cut", [3, 100, 1000])
def test_a_damaged_file_is_named(folder, cut):
    x = np.zeros((2, 28, 28), np.uint8)
    (folder / "mnist/t10k-images-idx3-ubyte.gz").write_bytes(idx(x)[:cut])
    (folder / "mnist/t10k-labels-idx1-ubyte.gz").write_bytes(idx(np.array([4, 2, 3], np.uint8)))
    with pytest.raises(ImageFileError, match=r"t10k-images|2 images and 3 labels"):
        load("mnist", "test")
    (folder / "cifar10/test_batch.bin").write_bytes(bytes(cut))
    with pytest.raises(ImageFileError, match=f"test_batch.bin has {cut} bytes"):
        load("cifar10", "test")
    (folder / "svhn/test_32x32.mat").write_bytes(bytes(cut))
    with pytest.raises(ImageFileError, match=r"test_32x32.mat is damaged"):
        load("svhn", "test")


def test_unknown_names(folder):
    with pytest.raises(ValueError, match="unknown image set 'cifar'; the names are cifar10"):
        load("cifar", "test")
    with pytest.raises(ValueError, match="it is train or test"):
        load("cifar10", "validation")


@pytest.fixture
def archive(monkeypatch, tmp_path, site):
    """The archive of CIFAR-10, on a server of our own, with its own checksum."""
    served, address = site
    data, buffer = bytes(10_000 * 3073), io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        member = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    (served / "a.tar.gz").write_bytes(buffer.getvalue())
    monkeypatch.setattr(images, "CIFAR10", f"{address}/a.tar.gz")
    checksum = hashlib.sha1(buffer.getvalue()).hexdigest()
    monkeypatch.setattr(images, "CIFAR10_SHA1", f"sha1:{checksum}")
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "cache")
    return served / "a.tar.gz"


def test_the_archive_is_downloaded_once(archive):
    assert len(load("cifar10", "test").x) == 10_000
    archive.unlink()
    assert len(load("cifar10", "test").x) == 10_000


def test_a_download_cut_short_leaves_no_file(archive):
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DownloadError, match="cifar-10-binary"):
        load("cifar10", "test")
    archive.write_bytes(whole)
    assert len(load("cifar10", "test").x) == 10_000


def test_real_files():
    if find("cifar10/test_batch.bin") is None or find("mnist/t10k-images-idx3-ubyte.gz") is None:
        pytest.skip("the image sets are not under DUE_DATA")
    assert load("cifar10", "test").y.bincount().tolist() == [1000] * 10
    assert load("fashion-mnist", "train").y.bincount().tolist() == [6000] * 10
    assert load("mnist", "test").y.bincount().tolist()[:3] == [980, 1135, 1032]
