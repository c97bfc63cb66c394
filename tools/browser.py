"""Pages in a headless Chromium, for the checks that need a browser (`look_at_*.py`).

Chromium (`apt-get install chromium`, or any Chrome) is controlled through its DevTools protocol,
with tornado, which is installed with JupyterLab.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from tornado.websocket import websocket_connect

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
ROOT = Path(__file__).resolve().parent.parent
# All text of a page, including frames and shadow trees.
TEXT = """
(function text(node) {
  const inner = node.shadowRoot || node.contentDocument && node.contentDocument.body;
  const own = node.nodeType === Node.TEXT_NODE ? node.textContent : "";
  const children = [...node.childNodes, ...(inner ? [inner] : [])];
  return own + " " + children.map(text).join(" ");
})(document.body)
"""


class Page:
    """A page of a running Chromium.

    Args:
        connection: websocket connection to the DevTools of the page.
    """

    def __init__(self, connection) -> None:
        self._connection, self._number = connection, 0

    async def call(self, method: str, **parameters) -> dict:
        """Call a method of the DevTools protocol; return its result.

        Raises:
            RuntimeError: if Chromium reports an error.
        """
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        await self._connection.write_message(json.dumps(message))
        while True:
            answer = json.loads(await self._connection.read_message())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    async def evaluate(self, expression: str):
        """Return the value of a JavaScript expression; if it is a promise, wait for it.

        Raises:
            RuntimeError: if JavaScript throws an error.
        """
        found = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(found["result"].get("description", found["exceptionDetails"]))
        return found["result"].get("value")

    async def open(self, url: str) -> None:
        """Open a URL, even if it differs from the current one only after the #."""
        await self.call("Page.navigate", url="about:blank")
        await self.call("Page.navigate", url=url)

    async def shows(self, *awaited: str, seconds: float = 180.0) -> str:
        """Return the text of the page as soon as it contains all awaited strings.

        Raises:
            TimeoutError: if it does not within `seconds`.
        """
        end = time.monotonic() + seconds
        while True:
            await asyncio.sleep(1)
            text = " ".join(str(await self.evaluate(TEXT)).split())
            missing = [word for word in awaited if word not in text]
            if not missing:
                return text
            if time.monotonic() > end:
                raise TimeoutError(
                    f"the page does not show {missing}; its text ends: {text[-3000:]}"
                )

    async def picture(self, path: Path) -> None:
        """Save a screenshot three seconds from now, when the page has been drawn."""
        await asyncio.sleep(3)
        shot = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))
        print(f"picture: {path}")


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(command: list[str], address: str, **options):
    """Run a server during the block; the block starts when the server answers.

    Args:
        command: program and arguments.
        address: URL that answers when the server is ready.
        **options: passed on to `subprocess.Popen`.

    Raises:
        OSError: if the server ends, or does not answer within 60 s.
    """
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, **quiet, **options)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(address, timeout=10).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise
                time.sleep(0.5)
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextlib.asynccontextmanager
async def empty_page(width: int = 1500, height: int = 950):
    """Run a headless Chromium during the block; yield its `Page`.

    Raises:
        FileNotFoundError: if no Chromium is installed.
    """
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise FileNotFoundError(f"none of {BROWSERS} is on the PATH: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        port = free_port()
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu"]
        command += [f"--user-data-dir={profile}", f"--remote-debugging-port={port}"]
        command += [f"--window-size={width},{height}", "about:blank"]
        devtools = f"http://127.0.0.1:{port}/json"
        with running(command, f"{devtools}/version"):
            with urllib.request.urlopen(devtools) as answer:
                target = next(page for page in json.load(answer) if page["type"] == "page")
            address = target["webSocketDebuggerUrl"]
            connection = await websocket_connect(
                address, max_message_size=2**28, ping_interval=None
            )
            page = Page(connection)
            await page.call("Page.enable")
            await page.call("Emulation.setFocusEmulationEnabled", enabled=True)
            yield page
