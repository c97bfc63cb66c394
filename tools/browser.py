"""Pages in a headless Chromium, for the checks that need somebody to look (`look_at_*.py`).

Chromium (`apt-get install chromium`, or any Chrome) is driven by its DevTools protocol, over
tornado, which comes with JupyterLab. Does not belong here: what a page is to show.
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
# All text of a page, also of what stands in frames and in shadow trees.
TEXT = """
(function text(node) {
  const inner = node.shadowRoot || node.contentDocument && node.contentDocument.body;
  const own = node.nodeType === Node.TEXT_NODE ? node.textContent : "";
  const children = [...node.childNodes, ...(inner ? [inner] : [])];
  return own + " " + children.map(text).join(" ");
})(document.body)
"""


class Page:
    """The page of a Chromium that runs with a port for its DevTools."""

    def __init__(self, connection) -> None:
        self._connection, self._number = connection, 0

    async def call(self, method: str, **parameters) -> dict:
        """Call a method of the DevTools protocol and return its result.

        Raises:
            RuntimeError: if Chromium refuses it.
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
        """Return the value of a JavaScript expression; of a promise, once it is kept.

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
        """Open a URL, also one that differs from the last one behind its # only."""
        await self.call("Page.navigate", url="about:blank")
        await self.call("Page.navigate", url=url)

    async def shows(self, *awaited: str, seconds: float = 180.0) -> str:
        """Return the page's text, once it contains all the words that are awaited.

        Raises:
            TimeoutError: if it does not.
        """
        end = time.monotonic() + seconds
        while True:
            await asyncio.sleep(1)
            text = " ".join(str(await self.evaluate(TEXT)).split())
            missing = [word for word in awaited if word not in text]
            if not missing:
                return text
            if time.monotonic() > end:
                raise TimeoutError(f"the page shows no {missing}, but: {text[-3000:]}")

    async def picture(self, path: Path) -> None:
        """Save what the page shows, after it has had time to draw."""
        await asyncio.sleep(3)
        shot = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))
        print(f"picture: {path}")


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(command: list[str], address: str, **options):
    """Run a program that serves `address`, from when it answers to the end of the block.

    Args:
        command: the program and its arguments.
        address: URL that answers once it is ready.
        options: for `subprocess.Popen`.
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
    """Start a headless Chromium of its own and give its `Page`, until the end of the block.

    Raises:
        FileNotFoundError: if there is none.
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
