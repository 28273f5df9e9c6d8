"""Files as they come from elsewhere."""

import gzip

import numpy as np
import pandas as pd
import pytest

from due.tables.encoder import TableEncoder
from due.tables.reading import chunks, read
from due.tables.writing import escaped, write

from .frames import text


def written(tmp_path, content, name="data.csv"):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def test_cells_come_as_they_are_in_the_file(tmp_path):
    file = written(tmp_path, 'a,b\n007,"x, y"\n1.50,\n')
    assert read(file).to_dict("list") == {"a": ["007", "1.50"], "b": ["x, y", ""]}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_bom_and_utf_16_are_understood(tmp_path, encoding):
    file = written(tmp_path, "größe,b\n1,2\n".encode(encoding))
    assert list(read(file).columns) == ["größe", "b"]


def test_another_encoding_has_to_be_named(tmp_path):
    file = written(tmp_path, "größe,b\n1,ü\n".encode("cp1252"))
    with pytest.raises(ValueError, match="not utf-8: byte 0xf6 at place 2.*cp1252"):
        read(file)
    assert read(file, encoding="cp1252")["b"].tolist() == ["ü"]
    with pytest.raises(ValueError, match="encoding 'klingon' is not known"):
        read(file, encoding="klingon")


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_is_found(tmp_path, people, separator):
    file = written(tmp_path, text(people, sep=separator))
    assert read(file).shape == people.shape


def test_semicolons_and_decimal_commas(tmp_path, people):
    numbers = people[["x", "z", "age"]]
    file = written(tmp_path, text(numbers, sep=";", decimal=","))
    encoder = TableEncoder().fit(read(file))
    plain = TableEncoder().fit(numbers)
    np.testing.assert_allclose(encoder.transform(read(file)), plain.transform(numbers), rtol=1e-12)
    three = written(tmp_path, "a;b\n1.234;x\n5.678;y\n")  # no comma in sight
    assert read(three).attrs["decimal"] == "."


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a,b\n", "no rows"),
        ("a,a\n1,2\n", "two columns named 'a'"),
        ("1,2\n3,4\n", "holds numbers"),
        ("a,b\n1,2\n3,4,5\n", "line 3"),
        (b"PK\x03\x04....", "spreadsheet or an archive"),
        (b"a,b\n\0\0,1\n", "no text"),
    ],
)
def test_what_is_no_table_is_refused_with_a_reason(tmp_path, content, error):
    with pytest.raises(ValueError, match=error):
        read(written(tmp_path, content))


def test_files_that_are_not_there(tmp_path):
    written(tmp_path, "a\n1\n", "sales.csv")
    with pytest.raises(FileNotFoundError, match="did you mean 'sales.csv'"):
        read(tmp_path / "sale.csv")
    with pytest.raises(IsADirectoryError):
        read(tmp_path)


def test_compressed_files_and_parquet(tmp_path, people):
    plain = read(written(tmp_path, text(people)))
    packed = written(tmp_path, gzip.compress(text(people).encode()), "data.csv.gz")
    pd.testing.assert_frame_equal(read(packed), plain)
    with pytest.raises(ValueError, match="cannot be unpacked"):
        read(written(tmp_path, gzip.compress(text(people).encode())[:-50], "cut.csv.gz"))
    people.to_parquet(tmp_path / "data.parquet")
    pd.testing.assert_frame_equal(read(tmp_path / "data.parquet"), people, check_dtype=False)
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "data.parquet").read_bytes()[:-9])
    with pytest.raises(ValueError, match="cannot be read"):
        read(tmp_path / "cut.parquet")


@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
def test_chunks_are_the_whole(tmp_path, people, name):
    file = tmp_path / name
    if name.endswith("csv"):
        people.to_csv(file, index=False)
    else:
        people.to_parquet(file)
    parts = list(chunks(file, 100))
    assert [len(part) for part in parts] == [100, 100, 40]
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), read(file))


def test_a_table_with_long_lines_comes_in_smaller_chunks(tmp_path):
    file = written(tmp_path, "a,b\n" + f"1,{'x' * 100_000}\n" * 200)
    assert max(len(part) for part in chunks(file)) < 50


def test_what_a_spreadsheet_would_run_gets_an_apostrophe(tmp_path):
    frame = pd.DataFrame({"=cmd": ["=1+1", "-5", "ok", "@x", "+a"], "n": [-1, 2, 3, 4, 5]})
    write(tmp_path / "out.csv", [escaped(frame)])
    assert (tmp_path / "out.csv").read_text().splitlines() == [
        "'=cmd,n", "'=1+1,-1", "-5,2", "ok,3", "'@x,4", "'+a,5",
    ]  # fmt: skip


def test_a_failing_write_leaves_the_file_that_was_there(tmp_path):
    file = written(tmp_path, "before", "out.csv")

    def frames():
        yield pd.DataFrame({"a": [1]})
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        write(file, frames())
    assert file.read_text() == "before" and not list(tmp_path.glob(".*.tmp"))
