"""The lessons as steps of `gpu-host`: run by papermill with a profile, kept small.

Does not belong here: how a lesson is run (`notebooks/run.py`), what it says.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_data import ROOT, Settings, for_lessons
from benchmarks.gpu_training import idle_share, timeline

LESSONS = {
    "02": "02_cpu_native",
    "03": "03_gpu_native",
    "04": "04_gpu_accelerated",
    "05": "05_mixed_precision",
    "06": "06_multihot_movielens",
}
TRACES = {"03": {"native": ""}, "04": {"native": "native", "loader": "loader"}}
LARGEST_OUTPUT = 200_000  # characters of an output of a kept notebook: a figure takes 50,000


def data(settings: Settings) -> dict[str, int]:
    """Make the data that the lessons read."""
    folder = Path(settings.data) / "lessons"
    return for_lessons(folder, settings.lesson_rows, settings.ratings)


def lesson(number: str, settings: Settings) -> dict[str, Any]:
    """Run a lesson; return its headline, seconds, where it is kept, and what its traces hold.

    Raises:
        RuntimeError: if a cell fails, with what `notebooks/run.py` says of it.
    """
    data(settings)
    name, kept = LESSONS[number], Path(settings.work) / "lessons"
    logs = Path(settings.work) / "logs" / name
    given = {"DATA_DIR": Path(settings.data) / "lessons", "LOG_DIR": logs}
    given |= {"MODEL_DIR": Path(settings.work) / "models", "TENSORBOARD": "false"}
    command = [sys.executable, str(ROOT / "notebooks" / "run.py"), number]
    command += ["--profile", settings.profile, "--output", str(kept)]
    for parameter in sorted(_parameters(name) & given.keys()):
        command += ["-p", f"{parameter}={given[parameter]}"]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done, said = passing_on(command, {"PYTHONPATH": os.pathsep.join(paths)})
    notebook = kept / f"{name}.ipynb"
    if notebook.is_file():
        shrink(notebook)
    found = re.search(rf"^{name} +([\d.]+)  (.*)$", said, re.MULTILINE)
    if done or found is None:
        raise RuntimeError(f"exit code {done}: {said[-2500:]}")
    return {
        "lesson": name,
        "profile": settings.profile,
        "headline": found[2],
        "seconds": float(found[1]),
        "notebook": f"lessons/{notebook.name}",
        "notebook_bytes": notebook.stat().st_size,
        "traces": {kind: _traced(logs / part) for kind, part in TRACES.get(number, {}).items()},
    }


def passing_on(
    command: Sequence[str],
    environment: dict[str, str] | None = None,
    folder: str | os.PathLike[str] = ROOT,
) -> tuple[int, str]:
    """Run a command and return its exit code and all that it says.

    That is passed on line by line: of a step that is ended for its time, it is what is known.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        cwd=folder, env={**os.environ, **(environment or {})},
    ) as process:  # fmt: skip
        said = []
        for line in process.stdout or ():
            print(line, end="", flush=True)
            said.append(line)
    return process.returncode, "".join(said)


def code(name: str, tag: str | None = None) -> str:
    """Return the code of a lesson, or of its cells that are tagged so."""
    content = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    if tag is not None:
        cells = [cell for cell in cells if tag in cell["metadata"].get("tags", [])]
    return "\n".join("".join(cell["source"]) for cell in cells)


def shrink(notebook: Path) -> int:
    """Leave out outputs that are too large, in a notebook and its page; return how many."""
    page = notebook.with_suffix(".html")
    content = json.loads(notebook.read_text(encoding="utf-8"))
    dropped = 0
    for cell in content["cells"]:
        for output in cell.get("outputs", []):
            size = len(json.dumps(output))
            if size > LARGEST_OUTPUT:
                output.clear()
                output |= {"output_type": "stream", "name": "stdout"}
                output["text"] = f"[an output of {size:,} characters is left out]\n"
                dropped += 1
    if dropped:
        notebook.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        if page.is_file():
            from nbconvert import HTMLExporter

            page.write_text(HTMLExporter().from_filename(str(notebook))[0], encoding="utf-8")
    return dropped


def _parameters(name: str) -> set[str]:
    """Return the names in the cell of a lesson that is tagged `parameters`."""
    return set(re.findall(r"^([A-Z_]+) =", code(name, "parameters"), re.MULTILINE))


def _traced(folder: Path) -> dict[str, Any]:
    """Return of a trace what a figure is drawn from, and the idle share."""
    from tutorlib.profiling import read_trace

    found = read_trace(folder)
    shares = {"idle_share": idle_share(found), "waiting_share": found.wait_share}
    return {"traced": found.device.name, **shares, "timeline": timeline(found)}
