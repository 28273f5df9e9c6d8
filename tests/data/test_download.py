import hashlib
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from due.data.download import DownloadError, data_dir, fetch, find

CONTENT = b"985 rows"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NAME = "set/file.bin"


@pytest.fixture(autouse=True)
def no_data(monkeypatch):
    monkeypatch.delenv("DUE_DATA", raising=False)


def test_downloads_once_then_reads_the_cache(site, tmp_path):
    folder, address = site
    (folder / "f").write_bytes(CONTENT)

    path = fetch(NAME, f"{address}/f", SHA256, cache=tmp_path / "cache")
    (folder / "f").unlink()
    again = fetch(NAME, f"{address}/f", SHA256, cache=tmp_path / "cache")

    assert path == again == tmp_path / "cache" / NAME
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256"])
def test_other_published_checksums_serve(site, tmp_path, algorithm):
    folder, address = site
    (folder / "f").write_bytes(CONTENT)
    checksum = f"{algorithm}:{hashlib.new(algorithm, CONTENT).hexdigest()}"
    assert fetch(NAME, f"{address}/f", checksum, cache=tmp_path / "c").read_bytes() == CONTENT


def test_a_corrupted_download_is_refused_and_not_kept(site, tmp_path):
    folder, address = site
    (folder / "f").write_bytes(CONTENT + b"!")
    with pytest.raises(DownloadError, match="does not match the known hash"):
        fetch(NAME, f"{address}/f", SHA256, cache=tmp_path / "cache")
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []


class HangsUp(BaseHTTPRequestHandler):
    """Promises more than it sends."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:4])
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        pass


def test_a_connection_cut_short_is_said_and_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), HangsUp) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        with pytest.raises(DownloadError, match="4 bytes read, 4 more expected"):
            address = f"http://127.0.0.1:{server.server_port}/f"
            fetch(NAME, address, SHA256, cache=tmp_path / "cache")
        server.shutdown()
        thread.join()
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_no_space_left_is_said_with_the_folder(site, tmp_path, monkeypatch):
    folder, address = site
    (folder / "f").write_bytes(CONTENT)
    full = tmp_path / "full"

    @contextmanager
    def on_a_full_disk(path):
        full.symlink_to("/dev/full")
        yield str(full)
        full.unlink()

    monkeypatch.setattr("pooch.core.temporary_file", on_a_full_disk)
    with pytest.raises(DownloadError, match=rf"No space left(.|\n)*free space in {tmp_path}/cache"):
        fetch(NAME, f"{address}/f", SHA256, cache=tmp_path / "cache")
    monkeypatch.undo()
    monkeypatch.delenv("DUE_DATA", raising=False)
    assert fetch(NAME, f"{address}/f", SHA256, cache=tmp_path / "cache").read_bytes() == CONTENT


def test_a_corrupted_cache_is_downloaded_again(site, tmp_path):
    folder, address = site
    (folder / "f").write_bytes(CONTENT)
    cached = tmp_path / "cache" / NAME
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"half of it")
    assert fetch(NAME, f"{address}/f", SHA256, cache=tmp_path / "cache").read_bytes() == CONTENT


def test_a_missing_file_names_address_and_remedy(site, tmp_path):
    _, address = site
    with pytest.raises(DownloadError, match="404") as error:
        fetch(NAME, f"{address}/gone", SHA256, cache=tmp_path / "cache")
    assert f"{address}/gone" in str(error.value)
    assert f"put it at FOLDER/{NAME} and set the environment variable DUE_DATA" in str(error.value)


def test_without_network_the_remedy_is_named(tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        closed = server.server_port  # nobody listens once the block ends
    with pytest.raises(DownloadError, match="DUE_DATA=FOLDER"):
        fetch(NAME, f"http://127.0.0.1:{closed}/f", SHA256, cache=tmp_path / "cache")


def test_due_data_comes_first_and_is_taken_as_it_is(monkeypatch, tmp_path):
    own = tmp_path / NAME
    own.parent.mkdir()
    own.write_bytes(b"a part of the set")
    monkeypatch.setenv("DUE_DATA", str(tmp_path))
    assert fetch(NAME, "http://127.0.0.1:1/unused", SHA256, cache=tmp_path / "cache") == own
    assert find(NAME) == own
    assert find("set/other.bin") is None


def test_what_due_data_lacks_is_downloaded_to_the_cache(site, monkeypatch, tmp_path):
    folder, address = site
    (folder / "f").write_bytes(CONTENT)
    (tmp_path / "own").mkdir()
    monkeypatch.setenv("DUE_DATA", str(tmp_path / "own"))
    path = fetch(NAME, f"{address}/f", SHA256, cache=tmp_path / "cache")
    assert path == tmp_path / "cache" / NAME
    assert list((tmp_path / "own").iterdir()) == []


def test_data_dir_is_none_when_unset_or_empty(monkeypatch):
    assert data_dir() is None
    assert find(NAME) is None
    monkeypatch.setenv("DUE_DATA", "")
    assert data_dir() is None


def test_a_wrong_due_data_is_said_at_once(monkeypatch, tmp_path):
    monkeypatch.setenv("DUE_DATA", str(tmp_path / "typo"))
    with pytest.raises(NotADirectoryError, match="DUE_DATA is not a folder: .*typo"):
        fetch(NAME, "http://127.0.0.1:1/unused", SHA256)
