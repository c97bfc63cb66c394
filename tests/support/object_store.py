"""An S3 server in a process of its own, with faults that a test asks for.

`python -m tests.support.object_store FOLDER` serves the folders in FOLDER as buckets and prints its
port. A POST to /-/ sets the faults.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]


class ObjectStore:
    """A running server.

    Attributes:
        folder: whose folders are the buckets.
        port: of 127.0.0.1.
        environment: variables with which a process finds the server.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def fail(self, **fault) -> None:
        """Set the fault of the requests to come, none without arguments.

        Args:
            fault: `first`: how many requests fail, of those with `method` and `key` (a part of the
                path); `how`: their HTTP status.
        """
        body = json.dumps(fault).encode()
        urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/", body, timeout=10).close()


@contextlib.contextmanager
def object_store(folder: Path):
    """Run a server of the buckets in a folder during the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.object_store", str(folder)],
        stdout=subprocess.PIPE,
        cwd=TREE,
        text=True,
    )
    try:
        yield ObjectStore(folder, int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


def serve(folder: Path) -> None:
    import localbucket

    settings, lock = {}, threading.Lock()

    class Handler(localbucket.S3Handler):
        data_root = folder
        disable_nagle_algorithm = True
        wbufsize = 65536

        def log_message(self, *_):
            pass

        def fault(self):
            with lock:
                fits = (
                    settings.get("first", 0) > 0
                    and settings.get("key", "") in self.path
                    and self.command == settings.get("method", self.command)
                )
                if fits:
                    settings["first"] -= 1
            return settings["how"] if fits else None

        def _dispatch(self, action):
            if self.path == "/-/":
                new = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    settings.clear()
                    settings.update(new)
                return self._send(200, b"")
            fault = self.fault()
            if fault:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                codes = {403: "AccessDenied", 500: "InternalError", 503: "SlowDown"}
                code = codes[fault]
                self._send_error(localbucket.S3Error(fault, code, f"a {code} that was asked for"))
            else:
                super()._dispatch(action)

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_):
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        print(server.server_port, flush=True)
        parent = os.getppid()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        while os.getppid() == parent:  # ends with the test, however that ends
            time.sleep(0.5)


if __name__ == "__main__":
    serve(Path(sys.argv[1]).resolve())
