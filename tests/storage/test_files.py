import errno
import json
import os
import pickle
import resource
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from due.storage import StorageError, atomic_write, load, save
from due.storage import files as module

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]


def random_bits(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Any bits at all, NaN payloads and −0 included."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    size = torch.empty((), dtype=dtype).element_size()
    n = int(torch.tensor(shape).prod()) if shape else 1
    raw = torch.randint(0, 256, (n * size,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape
        assert bits(got[name]) == bits(tensor)


def files(path: Path) -> list[str]:
    return sorted(os.listdir(path))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        st.tuples(
            st.sampled_from(DTYPES),
            st.lists(st.integers(0, 4), max_size=4).map(tuple),
            st.integers(0, 2**31),
        ),
        max_size=4,
    )
)
def test_round_trip_keeps_every_bit(tmp_path, specification):
    tensors = {name: random_bits(*spec) for name, spec in specification.items()}
    save(tmp_path / "model", {}, tensors)
    _, got = load(tmp_path / "model")
    assert_same(got, tensors)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False).filter(lambda value: abs(value) < float("inf")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(json_values)
def test_config_comes_back_as_it_went(tmp_path, value):
    save(tmp_path / "model", {"value": value}, {})
    config, _ = load(tmp_path / "model")
    assert config["value"] == value
    assert json.loads((tmp_path / "model" / "config.json").read_text()) == config


def test_views_transposes_and_shared_memory(tmp_path):
    x = torch.randn(4, 3, requires_grad=True)
    tensors = {"x": x, "again": x, "turned": x.T, "part": x[1:3, ::2], "wide": x[:1].expand(5, 3)}
    save(tmp_path, {}, tensors)
    _, got = load(tmp_path)
    assert_same(got, {name: tensor.detach() for name, tensor in tensors.items()})
    got["x"].zero_()
    assert torch.equal(got["again"], x)


def test_config_is_signed(tmp_path):
    save(tmp_path / "a" / "b", {"kernel": "rbf", "format_version": 99}, {"x": torch.zeros(2)})
    config, _ = load(tmp_path / "a" / "b")
    assert config["format"] == "due" and config["format_version"] == 3
    assert config["torch_version"] == torch.__version__ and config["due_version"]
    save(tmp_path / "c", config, {})  # a loaded config can be saved again
    assert files(tmp_path / "c") == ["config.json", "model.safetensors"]


def test_the_header_is_the_truth_not_config_json(tmp_path):
    save(tmp_path, {"version": 1}, {})
    stale = (tmp_path / "config.json").read_bytes()
    save(tmp_path, {"version": 2}, {})
    (tmp_path / "config.json").write_bytes(stale)  # as if killed between the two
    assert load(tmp_path)[0]["version"] == 2
    (tmp_path / "config.json").unlink()
    assert load(tmp_path)[0]["version"] == 2


def test_what_a_killed_save_left_is_cleaned_by_the_next(tmp_path):
    save(tmp_path, {"version": 1}, {})
    for name in [".model.safetensors.tmp", ".config.json.tmp"]:
        (tmp_path / name).write_bytes(b"half" * 100_000)
    assert load(tmp_path)[0]["version"] == 1
    save(tmp_path, {"version": 2}, {"x": torch.ones(3)})
    assert files(tmp_path) == ["config.json", "model.safetensors"]
    assert load(tmp_path)[0]["version"] == 2


def test_permissions_follow_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        save(tmp_path / "model", {}, {})
    finally:
        os.umask(old)
    assert (tmp_path / "model" / "model.safetensors").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"a": {"b": [1, float("nan")]}}, r"config\['a'\]\['b'\]\[1\] is nan"),
        ({"c": float("inf")}, r"config\['c'\] is inf"),
        ({"f": print}, r"config\['f'\] is a builtin_function_or_method"),
        ({"t": torch.zeros(1)}, r"config\['t'\] is a Tensor"),
        ({"d": {1: 2}}, r"config\['d'\] has the key 1"),
    ],
)
def test_config_that_is_not_json_names_the_key(tmp_path, config, key):
    with pytest.raises(StorageError, match=key):
        save(tmp_path / "model", config, {})
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "tensor", [torch.eye(2).to_sparse(), torch.zeros(2, dtype=torch.complex128)]
)
def test_tensor_without_a_place_is_named(tmp_path, tensor):
    with pytest.raises(StorageError, match="'odd'"):
        save(tmp_path, {}, {"odd": tensor})
    with pytest.raises(StorageError, match="__metadata__"):
        save(tmp_path, {}, {"__metadata__": torch.zeros(1)})


def test_missing_model(tmp_path):
    with pytest.raises(StorageError, match="nowhere.*made by save"):
        load(tmp_path / "nowhere")
    with pytest.raises(StorageError, match=str(tmp_path)):
        load(tmp_path)


def test_saving_onto_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageError, match="file"):
        save(tmp_path / "file", {}, {})
    assert (tmp_path / "file").read_text() == "mine"


def test_truncation_at_every_length_is_seen(tmp_path):
    save(tmp_path, {"a": 1}, {"x": torch.arange(5)})
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    for length in [0, 1, 7, 8, 9, *range(20, len(whole), 17), len(whole) - 1]:
        file.write_bytes(whole[:length])
        with pytest.raises(StorageError, match=r"model\.safetensors"):
            load(tmp_path)


def test_a_flipped_bit_anywhere_in_the_data_is_seen(tmp_path):
    save(tmp_path, {}, {"x": torch.arange(5), "y": torch.zeros(3)})
    file = tmp_path / "model.safetensors"
    whole = bytearray(file.read_bytes())
    for i in range(1, 53):
        damaged = whole.copy()
        damaged[-i] ^= 4
        file.write_bytes(damaged)
        with pytest.raises(StorageError, match="checksum"):
            load(tmp_path)


def test_any_damage_is_a_storage_error_or_harmless(tmp_path):
    tensors = {"x": torch.arange(5)}
    save(tmp_path, {"a": 1}, tensors)
    file = tmp_path / "model.safetensors"
    whole = bytearray(file.read_bytes())
    for i in range(len(whole)):
        damaged = whole.copy()
        damaged[i] ^= 1
        file.write_bytes(damaged)
        try:
            _, got = load(tmp_path)
        except StorageError:
            continue
        assert bits(next(iter(got.values()))) == bits(tensors["x"])


def test_future_version_asks_for_an_upgrade(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FORMAT_VERSION", 4)
    save(tmp_path, {}, {})
    monkeypatch.undo()
    with pytest.raises(StorageError, match="version 4.*[Uu]pgrade due"):
        load(tmp_path)


@pytest.mark.parametrize(
    "header", [None, {"format": "pt"}, {"due": "no json"}, {"due": "[]"}, {"due": "{}"}]
)
def test_safetensors_of_others_are_refused(tmp_path, header):
    safetensors.torch.save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors", header)
    with pytest.raises(StorageError, match="not a model of due"):
        load(tmp_path)


class Malicious:
    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("dump", [pickle.dumps, lambda x: _torch_saved(x)], ids=["pickle", "torch"])
def test_pickle_is_never_run(tmp_path, dump):
    data = dump(Malicious(tmp_path / "ran"))
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(StorageError, match="no safetensors file"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(Malicious(tmp_path / "ran")))  # it would have
    assert (tmp_path / "ran").exists()


def _torch_saved(value: object) -> bytes:
    import io

    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("call", range(1, 4))
def test_full_disk_keeps_the_old_model(tmp_path, monkeypatch, call):
    """ENOSPC from each fsync of a save in turn, two before the commit, one after."""
    save(tmp_path, {"version": 1}, {"x": torch.ones(3)})
    calls = 0

    def fsync(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match=r"No space left.*Free some space") as caught:
        save(tmp_path, {"version": 2}, {"x": torch.full((3,), 2.0)})
    assert isinstance(caught.value.__cause__, OSError)
    assert files(tmp_path) == ["config.json", "model.safetensors"]
    config, tensors = load(tmp_path)
    assert torch.equal(tensors["x"], torch.full((3,), float(config["version"])))
    assert config["version"] == (1 if call < 3 else 2)


@contextmanager
def files_no_larger_than(limit: int):
    """The kernel refuses the write that passes `limit` (EFBIG), as it would on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_write_refused_by_the_kernel_keeps_the_old_model(tmp_path):
    save(tmp_path, {"version": 1}, {"x": torch.ones(3)})
    with files_no_larger_than(100_000), pytest.raises(StorageError, match="File too large"):
        save(tmp_path, {"version": 2}, {"x": torch.ones(100_000)})
    assert files(tmp_path) == ["config.json", "model.safetensors"]
    assert load(tmp_path)[0]["version"] == 1


def test_atomic_write_leaves_nothing_behind_on_failure(tmp_path):
    file = tmp_path / "file"
    atomic_write(file, lambda temporary: temporary.write_text("old"))

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write(file, fail)
    assert file.read_text() == "old" and files(tmp_path) == ["file"]


def test_writers_to_one_path_take_turns(tmp_path):
    """Twenty threads save different models: each load meets one of them whole."""

    def write(i: int) -> None:
        save(tmp_path, {"version": i}, {"x": torch.full((20_000,), i)})

    threads = [threading.Thread(target=write, args=(i,)) for i in range(20)]
    save(tmp_path, {"version": -1}, {"x": torch.full((20_000,), -1)})
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        config, tensors = load(tmp_path)
        assert (tensors["x"] == config["version"]).all()
    config, _ = load(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == config
    assert files(tmp_path) == ["config.json", "model.safetensors"]


@pytest.mark.slow
def test_kill_during_save_leaves_a_whole_model(tmp_path):
    script = Path(__file__).parents[1] / "kill" / "saving.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path / "model"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    kills, hits = map(int, done.stdout.split())
    assert kills >= 20 and hits >= 5  # hits: kills that met a half-written file
