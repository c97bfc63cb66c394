"""Everything that is to be measured on a host with a GPU, in steps, each with a JSON file.

A step whose file is there is not done again: so the run goes on where it ended, in commands of a
few minutes. Each kind of step has a limit of seconds, and one is begun only if so many are left, so
give seven minutes or more, which a lesson may take. A step that fails, or goes on beyond its limit,
leaves a file with its error and the next one is done; it is tried again the next time, after all
others. `--device cpu` rehearses all of it on a CPU, with few rows.

    python -m benchmarks gpu-host --minutes 9        # as many steps as nine minutes hold
    python -m benchmarks gpu-host --list             # what is done, what is left
    python -m benchmarks gpu-report FOLDER           # what came of it, so far

The step `backend` finds out whether TensorFlow does arithmetic on the GPU; if not, all steps after
it are measured with Keras on JAX. `--backend` says it by hand.
Does not belong here: what a step measures (`gpu_steps.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.gpu_data import BACKENDS, ROOT, Settings
from benchmarks.gpu_steps import kind_of, names
from tutorlib.storage import written_whole

SUMMARY = "all that is to be measured on a host with a GPU, step by step (an hour; see --list)"
KEPT_CHARACTERS = 3000  # of what a step that failed has said, on each of stdout and stderr


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to a parser."""
    parser.add_argument(
        "--device", choices=("gpu", "cpu"), default="gpu",
        help="gpu, or cpu for a rehearsal with few rows (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--backend", choices=BACKENDS,
        help="Keras's backend (default: what the step 'backend' finds)",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="STEP",
        help="steps, or patterns such as 'train-dlrm-*' (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--minutes", type=float,
        help="be done in so many minutes; a step is begun only if its limit fits (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path,
        help="folder of the JSON files (default: benchmarks/results/gpu-host-MACHINE; of a "
        "rehearsal, in the folder of work)",
    )  # fmt: skip
    parser.add_argument(
        "--data", type=Path, help="folder of the rows (default: build/gpu-host/data)"
    )
    parser.add_argument(
        "--work", type=Path, help="folder of traces and notebooks (default: build/gpu-host)"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="TAR",
        help="file for the JSON files, notebooks and pages so far, to be carried home",
    )  # fmt: skip
    parser.add_argument("--recon", type=Path, help="script with questions to the host, if any")
    parser.add_argument("--rows", type=int, help="rows of each data set, in place of the default")
    parser.add_argument("--list", action="store_true", help="show the steps, and do nothing")


def run(arguments: argparse.Namespace) -> None:
    """Do the steps that are left."""
    settings = settings_of(arguments)
    out = arguments.out or default_out(settings)
    chosen = choose(names(settings), arguments.only)
    if arguments.list:
        print("\n".join(f"{state(out, name):<8}{name}" for name in chosen))
        return
    Path(settings.work).mkdir(parents=True, exist_ok=True)
    limit_s = None if arguments.minutes is None else 60 * arguments.minutes

    def do(name: str, step_s: float) -> dict[str, Any]:
        chosen_backend = arguments.backend or backend_of(out)
        return perform(name, dataclasses.replace(settings, backend=chosen_backend), step_s)

    limits = {name: kind_of(name).limit_s for name in chosen}
    outcomes = do_steps(limits, out, do, limit_s, facts=where(settings))
    if arguments.keep is not None:
        keep(arguments.keep, out, Path(settings.work))
    done = sum(state(out, name) == "done" for name in chosen)
    print(f"{done} of {len(chosen)} steps are done: {out}")
    if not all(outcomes.values()):
        raise SystemExit(f"failed: {', '.join(name for name, ok in outcomes.items() if not ok)}")


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return what is to be measured, as the command line says."""
    changes: dict[str, Any] = {"device": arguments.device}
    for name in ("data", "work", "recon"):
        if getattr(arguments, name) is not None:
            changes[name] = str(getattr(arguments, name).absolute())
    if arguments.rows is not None:
        changes["rows"] = arguments.rows
    return Settings.tiny(**changes) if arguments.device == "cpu" else Settings(**changes)


def default_out(settings: Settings) -> Path:
    """Return the folder of the JSON files: among the results only if a GPU was measured."""
    name = f"gpu-host-{measure.hardware_slug(measure.hardware())}"
    return measure.RESULTS / name if settings.device == "gpu" else Path(settings.work) / "rehearsal"


def keep(path: Path, out: Path, work: Path) -> None:
    """Write all that is small into one file: the JSON files, the lessons that were run."""
    with written_whole(path) as partial, tarfile.open(partial, "w:xz") as archive:
        for file in sorted(out.glob("*.json")):
            archive.add(file, f"{out.name}/{file.name}")
        for file in sorted((work / "lessons").glob("*.*")):
            archive.add(file, f"lessons/{file.name}")


def backend_of(out: Path) -> str:
    """Return the backend that the step of that name has chosen; TensorFlow before it is done."""
    chosen = out / "backend.json"
    if not chosen.is_file():
        return BACKENDS[0]
    return json.loads(chosen.read_text(encoding="utf-8"))["result"]["backend"]


def choose(steps: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the steps that a pattern fits, in order.

    Raises:
        SystemExit: if a pattern fits none.

    Example:
        >>> choose(["data", "loader-columns", "loader-stacked"], ["loader-*"])
        ['loader-columns', 'loader-stacked']
    """
    idle = [pattern for pattern in patterns if not fnmatch.filter(steps, pattern)]
    if idle:
        raise SystemExit(f"benchmarks: {idle} fit no step of {', '.join(steps)}")
    return [step for step in steps if any(fnmatch.fnmatch(step, p) for p in patterns)]


def state(out: Path, name: str) -> str:
    """Return "done", "failed" or "left" of a step."""
    if (out / f"{name}.json").is_file():
        return "done"
    return "failed" if (out / f"{name}.failed.json").is_file() else "left"


def do_steps(
    steps: Mapping[str, float],
    out: Path,
    perform: Callable[[str, float], Mapping[str, Any]],
    limit_s: float | None = None,
    *,
    facts: Mapping[str, Any] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, bool]:
    """Do the steps that have no file yet, and write one for each; last, those that failed before.

    Args:
        steps: {name: seconds that it may take}.
        out: folder of the files.
        perform: does a step, given its name and these seconds; what it returns goes into the file.
            An error of it goes into a file of another name.
        limit_s: seconds for all; a step that may take more than what is left of them is not begun.
        facts: what each file says besides, such as the machine.
        clock: function that returns seconds.

    Returns:
        {step: whether it went well} of those that were done now.
    """
    outcomes, waiting, begun = {}, [], clock()
    for name in sorted(steps, key=lambda name: state(out, name) == "failed"):
        if state(out, name) == "done":
            continue
        if limit_s is not None and steps[name] > limit_s - (clock() - begun):
            waiting.append(name)
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        started = clock()
        try:
            result = {"result": perform(name, steps[name])}
        except Exception as error:  # whatever it is: the next step may do better
            result = {"error": f"{type(error).__name__}: {error}"}
        outcomes[name] = "result" in result
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        record = {"step": name, "date": date, "elapsed_s": round(clock() - started, 1)}
        record |= {**(facts or {}), **result}
        failed = out / f"{name}.failed.json"
        target = out / f"{name}.json" if outcomes[name] else failed
        with written_whole(target) as partial:
            partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        if outcomes[name]:
            failed.unlink(missing_ok=True)
        print(f"  {summary(record)}", file=sys.stderr, flush=True)
    if waiting:
        print(f"no time was left for {', '.join(waiting)}", file=sys.stderr, flush=True)
    return outcomes


def perform(name: str, settings: Settings, limit_s: float) -> dict[str, Any]:
    """Do a step in a process of its own, and return what it gives.

    What it says goes into files in the folder of work, so that it is there however it ends.

    Raises:
        RuntimeError: if it fails or takes too long, with the ends of what it said.
    """
    command = [sys.executable, "-m", "benchmarks.gpu_steps", name]
    command += [json.dumps(dataclasses.asdict(settings)), str(limit_s)]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, "KERAS_BACKEND": settings.backend}
    environment |= {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
    if settings.backend == "jax":
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the loader has a part of the GPU
    said, errors = (Path(settings.work) / "said" / f"{name}.{kind}" for kind in ("out", "err"))
    said.parent.mkdir(parents=True, exist_ok=True)
    with (
        said.open("w") as out,
        errors.open("w") as err,
        subprocess.Popen(
            command, stdout=out, stderr=err, cwd=ROOT, env=environment, process_group=0
        ) as process,
    ):
        try:
            process.wait(limit_s)
            ended = f"exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"more than {limit_s:.0f} s"
        finally:
            end(process.pid)
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in (said, errors)]
    lines = [line for line in texts[0].splitlines() if line.startswith("RESULT ")]
    if process.returncode or not lines:
        ends = [text[-KEPT_CHARACTERS:] for text in texts]
        raise RuntimeError(f"{ended}; at the end of stdout: {ends[0]}; of stderr: {ends[1]}")
    return json.loads(lines[-1].removeprefix("RESULT "))


def end(step: int) -> None:
    """End a step, the leader of a group, and all that it has started: nothing may keep its memory.

    A notebook's kernel is in a group of its own; it is found as a child of a child.
    """
    started = [step]
    for parent in started:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it has ended by itself
                started += map(int, children.read_text().split())
    with contextlib.suppress(ProcessLookupError):
        os.killpg(step, signal.SIGKILL)
    for process in started[1:]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def where(settings: Settings) -> dict[str, Any]:
    """Return the device asked for, the machine and the versions: what figures belong to."""
    facts = {"device": settings.device, "hardware": measure.hardware()}
    return {**facts, "versions": measure.versions(), "commit": measure.commit()}


def summary(record: Mapping[str, Any]) -> str:
    """Return a step's file in a line."""
    if "error" in record:
        return f"failed after {record['elapsed_s']:,.0f} s: {record['error'][-300:]}"
    keys = ("backend", "rows_per_s", "samples_per_s", "step_ms", "valid_loss", "idle_share")
    keys += ("counts", "collected", "headline", "missing_packages", "missing_for_gpu")
    found = {key: record["result"][key] for key in keys if key in record["result"]}
    figures = ", ".join(
        f"{key} {value:,.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in found.items()
    )
    return f"{record['elapsed_s']:,.0f} s{': ' * bool(figures)}{figures}"
