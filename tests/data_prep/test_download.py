"""A download is complete and correct or does not exist."""

import hashlib
import http.server
import threading
import zipfile

import pytest

from data_prep import download, movielens
from data_prep.output import DataPrepError

CONTENT = bytes(range(256)) * 4_000  # 1 MB
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.files`; of the path "/cut" only the half."""

    def do_GET(self):
        self.server.requests.append(self.path)
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // (1 + (self.path == "/cut"))])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.requests = {"/a.zip": CONTENT, "/cut": CONTENT}, []
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_file_is_downloaded_once(server, tmp_path):
    for _ in range(2):
        path = download.download(f"{server.url}/a.zip", tmp_path / "a.zip", SHA256)
        assert path.read_bytes() == CONTENT
    assert server.requests == ["/a.zip"]
    path.write_bytes(b"something else")
    with pytest.raises(DataPrepError, match="Delete it to fetch it again"):
        download.download(f"{server.url}/a.zip", path, SHA256)


@pytest.mark.parametrize(
    ("name", "sha256", "message"),
    [
        ("a.zip", "0" * 64, r"a\.zip: sha256 is .*, expected 000"),
        ("missing", SHA256, "missing: no download .*404.*--from"),
        ("cut", SHA256, r"cut: .*(sha256 is|no download)"),
    ],
)
def test_what_is_not_whole_is_refused_by_its_address(server, tmp_path, name, sha256, message):
    with pytest.raises(DataPrepError, match=message):
        download.download(f"{server.url}/{name}", tmp_path / name, sha256)
    assert not list(tmp_path.iterdir())


def test_an_archive_is_downloaded_checked_and_unpacked_once(server, tmp_path):
    archive = tmp_path / "made.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in movielens.FILES:
            file.writestr(f"ml/{name}", f"{name}\n")
    server.files["/ml.zip"] = archive.read_bytes()
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    for _ in range(2):
        url = f"{server.url}/ml.zip"
        raw = download.fetch(tmp_path / "ml", None, url, digest, movielens.FILES)
        assert (raw / "ratings.csv").read_text() == "ratings.csv\n"
    assert len(server.requests) == 1
