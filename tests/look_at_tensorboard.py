"""Optional: open lesson 03's logs in TensorBoard with headless Chromium, and take pictures.

    python tests/look_at_tensorboard.py [--log-dir logs/03_gpu_native] [--output build/tensorboard]

No part of the tests: it needs a Chromium (`apt-get install chromium`, or any Chrome), and somebody
to look at the pictures. It fails if TensorBoard does not show the scalars that lesson 03 writes, or
if the profile plugin does not show the trace. Chromium is driven by its DevTools protocol, over
tornado, which comes with JupyterLab.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import shutil
import socket
import subprocess
import sys
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
    """A page of a Chromium that runs with a port for its DevTools."""

    def __init__(self, connection) -> None:
        self._connection, self._number = connection, 0

    async def call(self, method: str, **parameters) -> dict:
        """Call a method of the DevTools protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        await self._connection.write_message(json.dumps(message))
        while True:
            answer = json.loads(await self._connection.read_message())
            if answer.get("id") == self._number:
                return answer["result"]

    async def evaluate(self, expression: str):
        """Return the value of a JavaScript expression."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
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
def running(command: list[str], address: str):
    """Run a program that serves `address`, from when it answers to the end of the block."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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


# Chooses a tool of the profile plugin, which lives in a frame: opens the list, then clicks on it.
CHOOSE = """
(function (name) {
  const frames = [...document.querySelectorAll("iframe")];
  const root = document.querySelector("tf-tensorboard, tb-webapp");
  const all = (node) => [...node.querySelectorAll("*")].flatMap(
    (child) => [child, ...(child.shadowRoot ? all(child.shadowRoot) : [])]);
  const inner = [...frames, ...all(document).filter((node) => node.tagName === "IFRAME")];
  for (const frame of inner) {
    const page = frame.contentDocument;
    const option = [...page.querySelectorAll("mat-option")].find(
      (node) => node.textContent.includes(name));
    if (option) { option.click(); return true; }
    const list = [...page.querySelectorAll("mat-form-field")].find(
      (node) => node.textContent.includes("Overview Page"));
    if (list) (list.querySelector("mat-select, .mat-mdc-select-trigger") || list).click();
  }
  return false;
})("Trace Viewer")
"""


async def look(devtools: str, board: str, output: Path) -> None:
    """Open scalars and trace, check that they show what they should, and take pictures."""
    with urllib.request.urlopen(f"{devtools}/json") as answer:
        target = next(page for page in json.load(answer) if page["type"] == "page")
    connection = await websocket_connect(
        target["webSocketDebuggerUrl"], max_message_size=2**28, ping_interval=None
    )
    page = Page(connection)
    await page.call("Page.enable")
    await page.open(f"{board}/#scalars")
    await page.shows("samples_per_s", "epoch_samples_per_s", "epoch_loss")
    await page.picture(output / "scalars.png")
    await page.open(f"{board}/#profile")
    text = await page.shows("Performance Summary", "Input Time")
    if "No step marker observed" in text:
        raise RuntimeError("the profile plugin did not find the steps of the trace")
    await page.picture(output / "overview.png")
    while not await page.evaluate(CHOOSE):
        await asyncio.sleep(1)
    await page.shows("tf_Compute")
    await page.picture(output / "trace_viewer.png")


def main() -> int:
    """Run the check; 0 if all was shown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log-dir", type=Path, default=ROOT / "logs" / "03_gpu_native")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "tensorboard")
    options = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        parser.error(f"none of {BROWSERS} is on the PATH")
    if not list(options.log_dir.glob("**/plugins/profile/*")):
        parser.error(f"no trace in {options.log_dir}: run `make tutorial LESSONS=03` first")
    options.output.mkdir(parents=True, exist_ok=True)
    ports = free_port(), free_port()
    board, devtools = (f"http://127.0.0.1:{port}" for port in ports)
    tensorboard = [str(Path(sys.executable).with_name("tensorboard")), "--host", "127.0.0.1"]
    tensorboard += ["--logdir", str(options.log_dir), "--port", str(ports[0])]
    with tempfile.TemporaryDirectory() as profile, contextlib.ExitStack() as stack:
        chromium = [browser, "--headless=new", "--no-sandbox", "--disable-gpu"]
        chromium += [f"--user-data-dir={profile}", f"--remote-debugging-port={ports[1]}"]
        chromium += ["--window-size=1500,950", "about:blank"]
        stack.enter_context(running(tensorboard, board))
        stack.enter_context(running(chromium, f"{devtools}/json/version"))
        asyncio.run(look(devtools, board, options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
