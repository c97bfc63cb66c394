"""A download is complete and correct or does not exist, and resumes where it broke."""

import hashlib
import http.server
import re
import threading
import zipfile

import pytest

from data_prep import adult, download, movielens
from data_prep.__main__ import main
from data_prep.download import BLOCK_BYTES
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
    monkeypatch.setattr(download, "PAUSE_S", 0.01)
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


def fetch(server, folder, sha256=SHA256):
    return download.download(server.url + "/a.zip", folder / "a.zip", sha256)


def test_a_file_is_downloaded_once(server, tmp_path):
    for _ in range(2):
        assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/a.zip", None)]
    assert [p.name for p in tmp_path.iterdir()] == ["a.zip"]


OUTAGES = {
    "the connection breaks twice": {"drops": [4 * BLOCK_BYTES + 1, 6 * BLOCK_BYTES + 5]},
    "and the server does not support Range": {"drops": [300_000], "ranges": False},
    "the server fails twice": {"failures": [503, 500]},
}


@pytest.mark.parametrize("outage", OUTAGES)
def test_a_download_survives_an_outage(server, tmp_path, outage):
    vars(server).update({k: v if k == "ranges" else [*v] for k, v in OUTAGES[outage].items()})
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    if "twice" in outage and "drops" in OUTAGES[outage]:  # it resumes where it stopped
        starts = [asked for _, asked in server.requests]
        assert starts == [None, f"bytes={4 * BLOCK_BYTES}-", f"bytes={10 * BLOCK_BYTES}-"]


def test_a_later_run_resumes_a_broken_download(server, tmp_path):
    server.drops = [5 * BLOCK_BYTES, 0, 0, 0]
    with pytest.raises(DataPrepError, match=r"after 327,680 bytes, which are kept in .*part"):
        fetch(server, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.zip.part"]
    server.drops = []
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == ("/a.zip", "bytes=327680-")
    (tmp_path / "a.zip").rename(tmp_path / "a.zip.part")
    assert fetch(server, tmp_path).exists()  # a complete part is checked and renamed


@pytest.mark.parametrize("received", [0, 5 * BLOCK_BYTES])
@pytest.mark.parametrize(("code", "requests"), [(503, 4), (404, 1), (403, 1)])
def test_an_http_error_is_reported_with_address_and_code(
    server, tmp_path, received, code, requests
):
    (tmp_path / "a.zip.part").write_bytes(CONTENT[:received])
    server.failures = [code] * 9
    with pytest.raises(DataPrepError, match=rf"a\.zip: the server answers HTTP {code}"):
        fetch(server, tmp_path)
    assert len(server.requests) == requests
    assert (tmp_path / "a.zip.part").exists() == (received > 0)


def test_a_wrong_checksum_is_refused(server, tmp_path):
    with pytest.raises(DataPrepError, match=r"sha256 is .*, expected 000"):
        fetch(server, tmp_path, "0" * 64)
    assert not list(tmp_path.iterdir())
    (tmp_path / "a.zip").write_bytes(b"something else")
    with pytest.raises(DataPrepError, match="Delete it to fetch it again"):
        fetch(server, tmp_path)


def test_a_missing_server_is_one_line_with_the_remedy(server, tmp_path, monkeypatch, capsys):
    server.server_close()  # nothing listens there any more
    monkeypatch.setattr(movielens, "BASE_URL", server.url)
    assert main(["movielens", "--output", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "no connection" in error
    assert "--from" in error
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_archives_and_files_are_downloaded_checked_and_unpacked_once(server, tmp_path, monkeypatch):
    archive = tmp_path / "made.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("ratings.csv", "movies.csv", "README.txt"):
            file.writestr(f"ml-latest-small/{name}", f"{name}\n")
    server.files = {f"/{name}": name.encode() for name in adult.SHA256}
    server.files["/ml-latest-small.zip"] = archive.read_bytes()
    for room in (movielens, adult):
        monkeypatch.setattr(room, "BASE_URL", server.url)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in server.files.items()}
    monkeypatch.setitem(movielens.SHA256, "ml-latest-small", digests["/ml-latest-small.zip"])
    monkeypatch.setattr(adult, "SHA256", {name: digests[f"/{name}"] for name in adult.SHA256})
    for _ in range(2):
        raw = download.fetch(tmp_path / 'ml', None, urls, movielens.FILES)
        assert (raw / "ratings.csv").read_text() == "ratings.csv\n"
        folder = adult.fetch(tmp_path / "adult", None)
        assert [(folder / name).read_text() for name in adult.SHA256] == list(adult.SHA256)
    assert len(server.requests) == 3
