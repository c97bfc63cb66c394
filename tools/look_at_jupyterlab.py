"""Run a lesson in JupyterLab with a headless Chromium, and save screenshots.

    python tools/look_at_jupyterlab.py [--lesson 04_gpu_accelerated] [--output build/jupyterlab]

It fails unless "Run All Cells" runs every cell without an error, every `plt.show()` gives a
picture, and the page draws every picture and table of the executed notebook. JupyterLab runs as
with `make lab`, but with a token, on a copy of the lesson, and with default settings. It is not
part of the tests, because it needs a Chromium (`browser.py`), data (`make data`), some minutes, and
somebody who looks at the screenshots.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from browser import ROOT, Page, empty_page, free_port, running

DEFAULT_OUTPUT = ROOT / "build" / "jupyterlab"
READY = """
(async () => {
  const panel = window.jupyterapp?.shell.currentWidget;
  if (!panel?.sessionContext) return false;
  await Promise.all([panel.revealed, panel.context.ready, panel.sessionContext.ready]);
  return panel.sessionContext.session?.kernel?.status === "idle";
})()
"""
RUN_AND_SAVE = """
(async () => {
  await window.jupyterapp.commands.execute("notebook:run-all-cells");
  await window.jupyterapp.commands.execute("docmanager:save");
})()
"""
# JupyterLab draws only the cells in view.
SHOW_CELL = """
(async (number) => {
  const notebook = window.jupyterapp.shell.currentWidget.content;
  notebook.activeCellIndex = number;
  await notebook.scrollToItem(number, "start");
  await new Promise((done) => setTimeout(done, 500));
  const outputs = [...notebook.widgets[number].node.querySelectorAll(".jp-OutputArea-output")];
  const all = (what) => outputs.flatMap((node) => [...node.querySelectorAll(what)]);
  return {
    pictures: all("img").filter((image) => image.naturalWidth > 0).length,
    tables: all("table").filter((table) => table.offsetHeight > 0).length,
  };
})(%d)
"""


async def look(address: str, copy: Path, output: Path, seconds: float) -> list[str]:
    """Run all cells and save screenshots; return a list of faults."""
    async with empty_page(height=1200) as page:
        await page.open(address)
        async with at_most(120, "to open the notebook and start its kernel"):
            while not await page.evaluate(READY):
                await asyncio.sleep(1)
        await page.picture(output / "opened.png")
        async with at_most(seconds, "to run all cells (--seconds)"):
            await page.evaluate(RUN_AND_SAVE)
        return await compare(page, nbformat.read(copy, as_version=4).cells, output)


@contextlib.asynccontextmanager
async def at_most(seconds: float, what: str):
    """Raise a TimeoutError that says `what` if the block takes longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TimeoutError(f"JupyterLab took more than {seconds:.0f} s {what}") from None


async def compare(page: Page, cells: list, output: Path) -> list[str]:
    """Return the faults of the saved cells and the differences from what the page shows."""
    faults = []
    for number, cell in enumerate(cells):
        if cell.cell_type != "code":
            continue
        drawn = await page.evaluate(SHOW_CELL % number)
        held = {
            "pictures": sum("image/png" in data for data in displayed(cell)),
            "tables": sum("<table" in data.get("text/html", "") for data in displayed(cell)),
        }
        where = f"cell {number}, [{cell.execution_count}]"
        if cell.execution_count is None:
            faults.append(f"{where} did not run")
        if drawn != held:
            faults.append(f"{where} has {held}, but the page shows {drawn}")
        if "plt.show()" in cell.source and not held["pictures"]:
            faults.append(f"{where} calls plt.show() but has no picture")
        for error in (each for each in cell.outputs if each.output_type == "error"):
            faults.append(f"{where} failed: {error.ename}: {error.evalue}")
        for said in (each for each in cell.outputs if each.get("name") == "stderr"):
            print(f"{where}, stderr: {said.text.strip()[:500]}")
        if held["pictures"]:
            await page.picture(output / f"cell_{number}.png")
    for name, number in (("end", len(cells) - 1), ("top", 0)):
        await page.evaluate(SHOW_CELL % number)
        await page.picture(output / f"{name}.png")
    return faults


def displayed(cell) -> list[dict]:
    """Return the MIME bundles of a cell's outputs."""
    return [each.data for each in cell.outputs if "data" in each]


@contextlib.contextmanager
def copied(lesson: Path):
    """Yield a copy of a lesson, with the data where the lesson expects it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary) / "notebooks"
        folder.mkdir()
        (folder.parent / "data").symlink_to(ROOT / "data")
        yield Path(shutil.copy(lesson, folder))


@contextlib.contextmanager
def jupyterlab(folder: Path, settings: Path):
    """Run JupyterLab in a folder during the block; yield (address, token)."""
    port, token = free_port(), secrets.token_hex(16)
    programs = Path(sys.executable).parent
    command = [str(programs / "jupyter"), "lab", "--no-browser", "--allow-root"]
    command += [f"--port={port}", "--ServerApp.port_retries=0", "--expose-app-in-browser"]
    command += [f"--IdentityProvider.token={token}"]
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "JUPYTER_CONFIG_DIR": str(settings),
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),  # as in the Makefile
    }
    address = f"http://127.0.0.1:{port}"
    with running(command, f"{address}/api", cwd=folder, env=environment):
        yield address, token


def main() -> int:
    """Run the check; return 0 if everything was shown, else print the faults and return 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--lesson", default="04_gpu_accelerated", help="name of the lesson (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="a new folder")
    parser.add_argument(
        "--seconds",
        type=float,
        default=900,
        help="time limit for all cells, seconds (default: %(default)s)",
    )
    options = parser.parse_args()
    lesson = ROOT / "notebooks" / f"{options.lesson}.ipynb"
    if not lesson.is_file():
        parser.error(f"no such lesson: {lesson.relative_to(ROOT)}")
    if options.output.exists() and options.output != DEFAULT_OUTPUT:
        parser.error(f"{options.output} exists already: choose a new folder")
    shutil.rmtree(DEFAULT_OUTPUT, ignore_errors=True)
    options.output.mkdir(parents=True)
    with copied(lesson) as copy, tempfile.TemporaryDirectory() as settings:
        with jupyterlab(copy.parent, Path(settings)) as (address, token):
            url = f"{address}/lab/tree/{copy.name}?token={token}"
            faults = asyncio.run(look(url, copy, options.output, options.seconds))
        shutil.copy(copy, options.output)
    print("\n".join(faults) or f"{lesson.stem}: every cell ran, every picture and table is shown")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
