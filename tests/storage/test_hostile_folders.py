"""Folders from strangers, other processes and bad disks: refused with a reason, or harmless.

Every test here fails in commit 3d8e3da, but for those of what was right then: links to nowhere,
files of version 2, and networks that refuse made-up rows. Copies did not exist.
"""

import fcntl
import itertools
import json
import multiprocessing
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from fuzz.fuzzing import limited, peak
from numpy.testing import assert_array_equal

from due import DUEClassifier, DUERegressor
from due.baselines import SoftmaxClassifier
from due.networks import FCResNet
from due.storage import StorageError, altered, atomic, files, load, save
from due.storage.checkpoint import write

FAST = {"epochs": 1, "n_inducing": 4, "random_state": 0}


def small(shape, activation="relu"):
    return FCResNet(shape[0], 8, 1, activation=activation)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    model = DUEClassifier(small, **FAST).fit(X, np.array(["a", "b"])[(X[:, 0] > 0).astype(int)])
    path = tmp_path_factory.mktemp("saved")
    model.save(path)
    return path, X, model


def forged(saved, tmp_path, change):
    """The folder with another configuration or other tensors, and a checksum that is right."""
    config, tensors = load(saved[0])
    change(config, tensors)
    save(tmp_path, config, tensors)
    return tmp_path


def refused(path, match, kind=DUEClassifier, **given):
    with pytest.raises(StorageError, match=match) as caught, limited():
        kind.load(path, small, **given)
    assert peak() < 150  # MB
    return caught.value


# other processes


def _keep_saving(path):
    for i in itertools.count(1):
        save(path, {"version": i}, {"x": torch.full((1000 + i % 7,), i)})


def test_a_model_is_read_whole_while_others_save_it(tmp_path):
    """The path was opened twice: header of one save, tensors of another, in one load of 500."""
    save(tmp_path, {"version": 0}, {"x": torch.full((1000,), 0)})
    fork = multiprocessing.get_context("fork")
    other = fork.Process(target=_keep_saving, args=(tmp_path,), daemon=True)
    other.start()
    try:
        for _ in range(4000):
            config, tensors = load(tmp_path)
            assert (tensors["x"] == config["version"]).all()
    finally:
        other.kill()
        other.join()


def test_a_file_that_shrinks_while_it_is_read_does_not_end_the_process(tmp_path, monkeypatch):
    save(tmp_path, {}, {"x": torch.arange(100_000)})
    real = files._read_header

    def shrink(file, data):
        os.truncate(file, 100)
        return real(file, data)

    monkeypatch.setattr(files, "_read_header", shrink)
    assert torch.equal(load(tmp_path)[1]["x"], torch.arange(100_000))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "run.pt"])
def test_saving_follows_no_planted_link(tmp_path, name):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = tmp_path / "downloaded"
    folder.mkdir()
    for planted in (f".{name}.tmp", name):
        (folder / planted).symlink_to(precious)
        if name == "run.pt":
            write(folder / name, {}, {})
        else:
            save(folder, {}, {"x": torch.ones(2)})
        assert precious.read_text() == "mine"
        assert not (folder / name).is_symlink()
        (folder / name).unlink()


def test_a_planted_fifo_holds_nobody(tmp_path):
    os.mkfifo(tmp_path / ".model.safetensors.tmp")
    save(tmp_path, {"version": 1}, {})
    assert load(tmp_path)[0]["version"] == 1
    (tmp_path / "model.safetensors").unlink()
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(StorageError, match="no regular file"):
        load(tmp_path)


def test_a_stuck_writer_is_named_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "LOCK_SECONDS", 0.1)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(StorageError, match=r"another process has held .* for 0.1 seconds"):
            save(tmp_path, {}, {})
    finally:
        os.close(descriptor)
    save(tmp_path, {}, {})


def test_an_unreadable_file_is_not_called_damaged(tmp_path, monkeypatch):
    save(tmp_path, {}, {})

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match="may not be read by this user.*permissions") as caught:
        load(tmp_path)
    assert "damaged" not in str(caught.value)


# damage


def test_one_flipped_bit_anywhere_in_the_header_is_seen(saved, tmp_path):
    whole = (saved[0] / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    for place in range(0, end, 3):
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        (tmp_path / "model.safetensors").write_bytes(data)
        with pytest.raises(StorageError):
            load(tmp_path)


def test_a_file_of_version_2_is_still_held_to_its_checksum(tmp_path, monkeypatch):
    import safetensors.torch

    tensors = {"x": torch.arange(5.0)}
    config = {"format": "due", "format_version": 2, "crc32": files.checksum(tensors.values())}
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_file(tensors, file, {"due": json.dumps(config)})
    assert torch.equal(load(tmp_path)[1]["x"], tensors["x"])
    safetensors.torch.save_file({"x": torch.zeros(5)}, file, {"due": json.dumps(config)})
    with pytest.raises(StorageError, match="checksum"):
        load(tmp_path)


# forged configurations, whose checksum is right


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("row_shape", [10**7], "row_shape"),
        ("row_shape", [-1], "row_shape"),
        ("classes_dtype", "V8", "classes_dtype"),
        ("classes", ["a", "a"], "classes"),
        ("classes", ["a", "c"], "classes"),
        ("scale", {"mean": [0, 0, 0], "std": [1, -1, 1]}, r"scale\.std\[1\] is -1, not a finite"),
        ("scale", {"mean": [0, 0], "std": [1, 1, 1]}, "do not fit each other"),
        ("own", 1, r"estimator\.own is unknown"),
        ("params", {"n_inducing": -1}, "n_inducing=-1 is not a whole number"),
        ("params", {"scale_inputs": "no"}, "scale_inputs='no' is not True or False"),
        ("params", {"absent": 1}, "absent"),
    ],
    ids=str,
)
def test_a_field_that_breaks_its_rule_is_named(saved, tmp_path, field, value, match):
    def change(config, _):
        config["estimator"][field] = value

    refused(forged(saved, tmp_path, change), match)


def test_a_dtype_of_labels_takes_no_more_room_than_they_need(saved, tmp_path):
    def change(config, _):
        config["estimator"]["classes_dtype"] = "<U200000000"

    with limited():
        again = DUEClassifier.load(forged(saved, tmp_path, change), small)
    assert peak() < 150
    assert again.classes_.tolist() == ["a", "b"]


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model["gp"].update(T=10**9),
        lambda model: model["gp"].update(T=50_000),
        lambda model: model["likelihood"].update(T=10**9),
        lambda model: model["constraints"]["first"].update(in_shape=[10**9]),
        lambda model: model["constraints"]["first"].update(c=0.1),
        lambda model: model["gp"].update(kernel="matern12"),
        lambda model: model["gp"].update(jitter=-1.0),
        lambda model: model.pop("likelihood"),
    ],
)
def test_a_model_that_does_not_fit_its_weights_is_refused(saved, tmp_path, change):
    refused(forged(saved, tmp_path, lambda config, _: change(config["model"])), "cannot be loaded")


def test_a_network_of_absurd_depth_or_width_takes_no_memory(tmp_path):
    from due.gp import Gaussian, InducingGP
    from due.methods import DUE
    from due.storage import model as bare

    model = DUE(FCResNet(3, 8, 1), InducingGP(torch.randn(4, 8)), Gaussian()).eval()
    bare.save(model, tmp_path)
    config, tensors = load(tmp_path)
    for arguments in ({"depth": 10**7}, {"J": 10**6}, {"D": 10**10}, {"dropout": "x"}):
        config["model"]["network"]["arguments"] |= arguments
        save(tmp_path, config, tensors)
        with pytest.raises(StorageError, match=r"cannot be loaded"), limited():
            bare.load(tmp_path)
        assert peak() < 150


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_numbers_are_refused(saved, tmp_path, bad):
    def change(_, tensors):
        tensors["f.first.bias"][0] = bad

    refused(forged(saved, tmp_path, change), "f.first.bias has values that are NaN or infinite")


# the proof


def test_another_extractor_of_the_same_shapes_is_noticed(saved):
    def other(shape):
        return small(shape, "elu")

    with pytest.raises(StorageError, match=r"does not answer as it did.*extractor of `fit`"):
        DUEClassifier.load(saved[0], other)
    trusted = DUEClassifier.load(saved[0], other, verify=False)
    assert (trusted.predict_proba(saved[1]) != saved[2].predict_proba(saved[1])).any()


def test_a_network_that_refuses_made_up_rows_is_saved_all_the_same(tmp_path):
    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(4, 8)

        def forward(self, x):
            return self.table(x[:, 0].long()).flatten(1)

    X = np.arange(40)[:, None] % 4
    model = SoftmaxClassifier(lambda shape: Whole(), epochs=1, scale_inputs=False, random_state=0)
    model.fit(X, X[:, 0] > 1).save(tmp_path)
    again = SoftmaxClassifier.load(tmp_path, lambda shape: Whole())
    assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_no_row_of_the_data_is_in_the_proof(saved):
    rows = load(saved[0])[1]["probe.rows"].numpy()
    assert np.abs(rows[:, None] - saved[1]).max(-1).min() > 1e-3


def test_forged_answers_are_noticed_too(saved, tmp_path):
    def change(config, tensors):
        del config["probe"], tensors["probe.rows"]

    refused(forged(saved, tmp_path, change), "probe|answers")


# files that ride along


def test_more_parts_and_copies_ride_along(tmp_path):
    X = np.linspace(-1, 1, 30)[:, None]
    model = DUERegressor(**FAST).fit(X, X[:, 0])
    model.save(tmp_path, {"encoders": {"x": "number"}}, {"README.md": "# A model\n"})
    assert load(tmp_path)[0]["encoders"] == {"x": "number"}
    assert (tmp_path / "README.md").read_text() == "# A model\n"
    assert altered(tmp_path) == []
    (tmp_path / "README.md").write_text("# A better model\n")
    assert altered(tmp_path) == ["README.md"]
    assert_array_equal(DUERegressor.load(tmp_path).predict(X), model.predict(X))


@pytest.mark.parametrize("name", ["../up", "/root", "model.safetensors", ".hidden", "a/b"])
def test_a_copy_stays_in_its_folder(tmp_path, name):
    with pytest.raises(StorageError, match="cannot be named"):
        save(tmp_path / "folder", {}, {}, {name: "text"})
    assert not (tmp_path / "up").exists()


def test_new_files_have_names_that_cannot_be_guessed(tmp_path):
    seen = set()
    for _ in range(3):
        with atomic.replaced(tmp_path, "file") as (new,):
            seen.add(new.name)
            assert stat.S_ISREG(new.lstat().st_mode)
    assert len(seen) == 3 and sorted(map(Path, os.listdir(tmp_path))) == [Path("file")]
