import json
import lzma
import subprocess
import sys

import pytest

from due.experiments.journal import Journal, pack, packed, read_lines
from due.storage import StorageError

SETTINGS = {"version": 1}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table.jsonl"


def open_journal(path):
    return Journal(path, ("seed",), ("numbers",))


def add(path, *seeds, settings=SETTINGS):
    for seed in seeds:
        open_journal(path).add(settings, {"numbers": 10 * seed}, seed=seed)


def seeds_in(path):
    return [json.loads(line)["seed"] for line in path.read_text().splitlines()]


def test_a_line_is_found_by_its_key_and_settings_but_not_by_versions(path):
    add(path, 0, 1)
    add(path, 0, settings={"version": 2})
    lines = [{**line, "versions": {"due": "0.0.1"}} for line in read_lines(path)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    journal = open_journal(path)
    assert journal.find(SETTINGS, seed=1)["numbers"] == 10
    assert journal.find({"version": 2}, seed=0)["settings"] == {"version": 2}
    assert journal.find({"version": 2}, seed=1) is None
    assert journal.find(SETTINGS, seed=2) is None


def test_an_error_is_kept_and_is_not_a_result(path):
    journal = open_journal(path)
    journal.add(SETTINGS, {"error": "singular"}, seed=0)
    assert open_journal(path).lines == journal.lines
    assert journal.find(SETTINGS, seed=0) is None
    journal.add(SETTINGS, {"numbers": 1}, seed=0)
    assert open_journal(path).find(SETTINGS, seed=0)["numbers"] == 1


def test_half_a_line_at_the_end_is_ignored_and_cut_off(path):
    add(path, 0)
    whole = path.read_bytes()
    for half in (whole[:20], whole[:-1], b"x" * 200_000):
        path.write_bytes(whole + half)
        assert len(open_journal(path).lines) == 1
        add(path, 1)
        assert seeds_in(path) == [0, 1]
    path.write_bytes(whole[:30])
    assert open_journal(path).lines == []
    add(path, 2)
    assert seeds_in(path) == [2]


@pytest.mark.parametrize("damage", [b"{\n", b"\n", b"[1]\n", b'{"seed": 0}\n', b"\x00\xff\n"])
def test_other_damage_is_named_with_its_line(path, damage):
    add(path, 0)
    path.write_bytes(path.read_bytes() + damage + path.read_bytes())
    with pytest.raises(StorageError, match=r"table\.jsonl is damaged: line 2 .* delete that line"):
        open_journal(path)


def test_two_runs_may_write_to_one_journal(path):
    first, second = open_journal(path), open_journal(path)
    for seed in range(3):
        first.add(SETTINGS, {"numbers": 0}, seed=seed)
        second.add(SETTINGS, {"numbers": 0}, seed=10 + seed)
    assert seeds_in(path) == [0, 10, 1, 11, 2, 12]


def test_a_journal_that_cannot_be_written_is_named(tmp_path):
    journal = open_journal(tmp_path / "missing" / "table.jsonl")
    with pytest.raises(StorageError, match="cannot be written"):
        journal.add(SETTINGS, {"numbers": 0}, seed=0)
    assert journal.lines == []


def test_packed_lines_come_first_and_new_ones_go_to_the_plain_file(path):
    add(path, 0, 1)
    before = read_lines(path)
    assert pack(path) == 2
    assert path.read_bytes() == b"" and read_lines(path) == before
    path.unlink()  # as in a fresh clone
    add(path, 2)
    assert seeds_in(path) == [2]
    assert [line["seed"] for line in open_journal(path).lines] == [0, 1, 2]
    assert open_journal(path).find(SETTINGS, seed=0)["numbers"] == 0


def test_packing_again_keeps_each_line_once_and_leaves_out_half_a_line(path):
    add(path, 0)
    plain = path.read_bytes()
    pack(path)
    path.write_bytes(plain)  # as after a crash before the plain file was emptied
    add(path, 1)
    path.write_bytes(path.read_bytes() + b'{"seed": 2')
    command = [sys.executable, "-m", "due.experiments.journal", "pack", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{packed(path)}: 2 lines\n"
    lines = lzma.decompress(packed(path).read_bytes()).splitlines(keepends=True)
    assert lines[0] == plain and [json.loads(line)["seed"] for line in lines] == [0, 1]


def test_damage_is_not_packed_and_a_damaged_packed_file_is_named(path):
    add(path, 0)
    path.write_bytes(path.read_bytes() + b"{\n")
    with pytest.raises(StorageError, match="line 2"):
        pack(path)
    assert not packed(path).exists()
    packed(path).write_bytes(b"not xz")
    with pytest.raises(StorageError, match=r"table\.jsonl\.xz is damaged .* restore it"):
        open_journal(path)
    with pytest.raises(StorageError, match=r"nothing\.jsonl cannot be packed"):
        pack(path.with_name("nothing.jsonl"))
