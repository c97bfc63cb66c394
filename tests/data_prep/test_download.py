"""A download is complete and correct or does not exist, and resumes where it broke."""

import contextlib
import hashlib
import http.server
import re
import socket
import threading
import zipfile

import pytest

from data_prep import adult, movielens
from data_prep.__main__ import main
from data_prep.download import BLOCK_BYTES, download
from data_prep.output import DataPrepError

CONTENT = bytes(range(256)) * 4_000  # 1 MB
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.files` with Range; `server.drops` are the bytes after which answers break."""

    def do_GET(self):
        self.server.requests.append((self.path, self.headers.get("Range")))
        if self.server.failures:
            self.send_error(self.server.failures.pop(0))
            return
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked and self.server.ranges else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if asked and self.server.ranges else 200)
        if asked and self.server.ranges:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        stop = start + self.server.drops.pop(0) if self.server.drops else len(content)
        self.wfile.write(content[start:stop])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.requests = {"/a.zip": CONTENT}, []
    server.drops, server.failures, server.ranges = [], [], True
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_file_is_downloaded_once(server, tmp_path):
    for _ in range(2):
        path = download(server.url + "/a.zip", tmp_path / "a.zip", sha256=SHA256)
        assert path.read_bytes() == CONTENT
    assert server.requests == [("/a.zip", None)]
    assert [p.name for p in tmp_path.iterdir()] == ["a.zip"]


def test_a_download_resumes_where_the_connection_broke(server, tmp_path):
    server.drops = [4 * BLOCK_BYTES + 1, 6 * BLOCK_BYTES + 5]
    path = download(server.url + "/a.zip", tmp_path / "a.zip", sha256=SHA256, pause_s=0.01)
    assert path.read_bytes() == CONTENT
    starts = [asked for _, asked in server.requests]
    assert starts == [None, f"bytes={4 * BLOCK_BYTES}-", f"bytes={10 * BLOCK_BYTES}-"]


def test_a_download_restarts_if_the_server_does_not_support_range(server, tmp_path):
    server.ranges, server.drops = False, [300_000]
    path = download(server.url + "/a.zip", tmp_path / "a.zip", sha256=SHA256, pause_s=0.01)
    assert path.read_bytes() == CONTENT


def test_a_server_error_is_retried(server, tmp_path):
    server.failures = [503, 500]
    path = download(server.url + "/a.zip", tmp_path / "a.zip", sha256=SHA256, pause_s=0.01)
    assert path.read_bytes() == CONTENT


def test_a_later_run_resumes_a_broken_download(server, tmp_path):
    server.drops = [5 * BLOCK_BYTES, 0, 0]
    with pytest.raises(DataPrepError, match=r"broke after 327,680 bytes.*Run the same command"):
        download(server.url + "/a.zip", tmp_path / "a.zip", sha256=SHA256, attempts=2, pause_s=0.01)
    assert [p.name for p in tmp_path.iterdir()] == ["a.zip.part"]
    server.drops = []
    download(server.url + "/a.zip", tmp_path / "a.zip", sha256=SHA256)
    assert server.requests[-1] == ("/a.zip", "bytes=327680-")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_a_complete_part_file_is_checked_and_renamed(server, tmp_path):
    (tmp_path / "a.zip.part").write_bytes(CONTENT)
    assert download(server.url + "/a.zip", tmp_path / "a.zip", sha256=SHA256).exists()


def test_a_download_with_a_wrong_checksum_is_deleted(server, tmp_path):
    with pytest.raises(DataPrepError, match=r"sha256 is .*, expected 000"):
        download(server.url + "/a.zip", tmp_path / "a.zip", sha256="0" * 64)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("received", [0, 5 * BLOCK_BYTES])
def test_a_server_that_stays_unavailable_is_reported_with_its_code(server, tmp_path, received):
    (tmp_path / "a.zip.part").write_bytes(CONTENT[:received])
    server.failures = [503] * 9
    with pytest.raises(DataPrepError, match=r"a\.zip: the server answers HTTP 503") as raised:
        download(server.url + "/a.zip", tmp_path / "a.zip", sha256=SHA256, attempts=3, pause_s=0)
    assert "connection" not in str(raised.value)
    assert len(server.requests) == 3
    assert (tmp_path / "a.zip.part").exists() == (received > 0)


def test_an_existing_file_with_a_wrong_checksum_is_refused(server, tmp_path):
    (tmp_path / "a.zip").write_bytes(b"something else")
    with pytest.raises(DataPrepError, match="Delete it to fetch it again"):
        download(server.url + "/a.zip", tmp_path / "a.zip", sha256=SHA256)


def test_without_a_checksum_the_published_md5_is_compared(server, tmp_path):
    server.files["/a.zip.md5"] = f"MD5 (a.zip) = {hashlib.md5(CONTENT).hexdigest()}\n".encode()
    assert download(server.url + "/a.zip", tmp_path / "a.zip").exists()
    server.files["/b.zip"] = CONTENT
    server.files["/b.zip.md5"] = b"0" * 32 + b"  b.zip\n"
    with pytest.raises(DataPrepError, match="md5 is"):
        download(server.url + "/b.zip", tmp_path / "b.zip")


@pytest.mark.parametrize("code", [404, 403])
def test_an_http_error_is_reported_with_address_and_code(server, tmp_path, code):
    server.failures = [code] * 9
    with pytest.raises(DataPrepError, match=f"a.zip: the server answers HTTP {code}"):
        download(server.url + "/a.zip", tmp_path / "a.zip", sha256=SHA256)
    assert not list(tmp_path.iterdir())
    assert len(server.requests) == 1


@contextlib.contextmanager
def closed_port():
    """Yield a port on which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_missing_server_is_one_line_with_the_remedy(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with closed_port() as port:
        monkeypatch.setattr(movielens, "BASE_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setattr("data_prep.download.PAUSE_S", 0.01)
        assert main(["movielens", "--output", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "no connection" in error
    assert "--from" in error
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_an_archive_is_downloaded_and_unpacked_once(server, tmp_path, monkeypatch):
    archive = tmp_path / "made.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("ratings.csv", "movies.csv", "README.txt"):
            file.writestr(f"ml-latest-small/{name}", f"{name}\n")
    server.files["/ml-latest-small.zip"] = archive.read_bytes()
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setitem(movielens.SHA256, "ml-latest-small", digest)
    for _ in range(2):
        raw = movielens.fetch(tmp_path / "data", base_url=server.url)
        assert (raw / "ratings.csv").read_text() == "ratings.csv\n"
    assert len(server.requests) == 1
    assert movielens.fetch(tmp_path / "local", source=archive) == tmp_path / "local/raw"


def test_the_files_of_adult_are_downloaded_once_and_checked(server, tmp_path, monkeypatch):
    for name in adult.SHA256:
        server.files[f"/{name}"] = name.encode()
        digest = hashlib.sha256(name.encode()).hexdigest()
        monkeypatch.setitem(adult.SHA256, name, digest)
    for _ in range(2):
        folder = adult.fetch(tmp_path / "data", base_url=server.url)
        assert [(folder / name).read_text() for name in adult.SHA256] == list(adult.SHA256)
    assert len(server.requests) == 2
    monkeypatch.setitem(adult.SHA256, "adult.test", "0" * 64)
    with pytest.raises(DataPrepError, match=r"adult\.test"):
        adult.fetch(tmp_path / "data", base_url=server.url)


def test_a_damaged_archive_is_refused(tmp_path):
    (tmp_path / "bad.zip").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(DataPrepError, match="not an intact, unencrypted zip archive"):
        movielens.fetch(tmp_path / "data", source=tmp_path / "bad.zip")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("readme", "")
    with pytest.raises(DataPrepError, match=r"0 files named ratings\.csv"):
        movielens.fetch(tmp_path / "data", source=tmp_path / "other.zip")
    assert not (tmp_path / "data/raw").exists()
