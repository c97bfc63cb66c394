"""Open the logs of lesson 03 in TensorBoard with a headless Chromium, and save screenshots.

    python tools/look_at_tensorboard.py [--log-dir logs/03_gpu_native] [--output build/tensorboard]

It fails if TensorBoard does not show the scalars that lesson 03 logs, or if the profile plugin does
not show the trace. It is not part of the tests, because it needs a Chromium (`browser.py`) and
somebody who looks at the screenshots.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from browser import ROOT, empty_page, free_port, running

# Chooses a tool of the profile plugin, which is inside a frame: opens the list, then clicks.
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


async def look(board: str, output: Path) -> None:
    """Check that TensorBoard shows the scalars and the trace, and save screenshots."""
    async with empty_page() as page:
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
    """Run the check; return 0 if everything was shown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log-dir", type=Path, default=ROOT / "logs" / "03_gpu_native")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "tensorboard")
    options = parser.parse_args()
    if not list(options.log_dir.glob("**/plugins/profile/*")):
        parser.error(f"no trace in {options.log_dir}: run `make tutorial LESSONS=03` first")
    options.output.mkdir(parents=True, exist_ok=True)
    port = free_port()
    board = f"http://127.0.0.1:{port}"
    command = [str(Path(sys.executable).with_name("tensorboard")), "--host", "127.0.0.1"]
    command += ["--logdir", str(options.log_dir), "--port", str(port)]
    with running(command, board):
        asyncio.run(look(board, options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
