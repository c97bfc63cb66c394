"""Run benchmarks, tests and lessons on a GPU host, in steps that resume in a later run.

A step is a command: a benchmark with `--device gpu`, a test file with `-m gpu`, or a lesson. It
leaves a JSON file, and a step that has its file is not run again, so the run resumes where it
ended. Each step has a time limit and starts only if that much time is left; give at least seven
minutes, the limit of a lesson. A step that fails or exceeds its limit leaves a file with its error;
the next run tries it again, after all others. The steps that matter most come first.

    python -m benchmarks gpu-host --minutes 9        # as many steps as fit into nine minutes
    python -m benchmarks gpu-host --list             # what is done, failed or left
    python -m benchmarks gpu-report FOLDER           # tables of the results so far

The step `environment` finds out whether TensorFlow computes on the GPU; if not, all steps after it
run with Keras on JAX. `--backend` overrides it. `--device cpu` rehearses all steps on a CPU, with
few rows.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fnmatch
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, measure
from benchmarks.gpu_steps import BACKENDS, Settings, Step, steps_of
from tutorlib.storage import new_file

SUMMARY = "benchmarks, tests and lessons on a GPU host, step by step (an hour; see --list)"
KEPT_CHARACTERS = 6000  # of the output of a step that failed
GRACE_S = 5  # for a traceback, after the time limit
PR_SET_PDEATHSIG = 1  # Source: man 2 prctl


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to a parser."""
    device = "gpu, or cpu for a rehearsal with few rows"
    measure.add_choices(parser, device=(("gpu", "cpu"), device))
    parser.add_argument(
        "--backend", choices=BACKENDS,
        help="Keras's backend (default: what the step 'environment' finds)",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="STEP",
        help="steps, or patterns such as 'train-dlrm-*' (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--minutes", type=float,
        help="time for all steps; a step starts only if its limit fits (default: no limit)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path,
        help="folder of the JSON files (default: benchmarks/results/gpu-host-MACHINE; of a "
        "rehearsal, WORK/rehearsal)",
    )  # fmt: skip
    work = machine.ROOT / "build" / "gpu-host"
    parser.add_argument(
        "--work", type=Path, default=work,
        help="folder of logs, traces and notebooks (default: build/gpu-host)",
    )  # fmt: skip
    parser.add_argument("--data", type=Path, help="folder of the rows (default: WORK/data)")
    parser.add_argument("--list", action="store_true", help="show the steps and run none")


def run(arguments: argparse.Namespace) -> None:
    """Run the steps that are left."""
    work = arguments.work.absolute()
    settings = Settings(arguments.device, work, (arguments.data or work / "data").absolute())
    out = arguments.out or default_out(settings)
    steps = choose(steps_of(settings), arguments.only)
    if arguments.list:
        print("\n".join(f"{state(out, name):<8}{name}" for name in steps))
        return

    def perform(name: str, limit_s: float) -> dict[str, Any]:
        backend = arguments.backend or backend_of(out)
        return perform_step(steps[name], settings, out, backend, limit_s)

    limit_s = None if arguments.minutes is None else 60 * arguments.minutes
    limits = {name: step.limit_s for name, step in steps.items()}
    outcomes = do_steps(limits, out, perform, limit_s, details=where(settings))
    done = sum(state(out, name) == "done" for name in steps)
    print(f"{done} of {len(steps)} steps are done: {out}")
    if not all(outcomes.values()):
        raise SystemExit(f"failed: {', '.join(name for name, ok in outcomes.items() if not ok)}")


def default_out(settings: Settings) -> Path:
    """Return the folder of the JSON files: among the results only if they are of a GPU."""
    name = f"gpu-host-{machine.hardware_slug(machine.hardware())}"
    return measure.RESULTS / name if settings.device == "gpu" else settings.work / "rehearsal"


def choose(steps: Mapping[str, Step], patterns: Sequence[str]) -> dict[str, Step]:
    """Return the steps that match a pattern, in order."""
    idle = [pattern for pattern in patterns if not fnmatch.filter(steps, pattern)]
    if idle:
        raise SystemExit(f"benchmarks: {idle} match no step of {', '.join(steps)}")
    return {n: s for n, s in steps.items() if any(fnmatch.fnmatch(n, p) for p in patterns)}


def state(out: Path, name: str) -> str:
    """Return "done", "failed" or "left" for a step."""
    if (out / f"{name}.json").is_file():
        return "done"
    return "failed" if (out / f"{name}.failed.json").is_file() else "left"


def backend_of(out: Path) -> str:
    """Return the backend that the step `environment` chose; TensorFlow before it is done."""
    chosen = out / "environment.json"
    if not chosen.is_file():
        return BACKENDS[0]
    return json.loads(chosen.read_text(encoding="utf-8"))["result"]["backend"]


def where(settings: Settings) -> dict[str, Any]:
    """Return device, machine and versions, to which the figures of each step belong."""
    details = {"device": settings.device, "hardware": machine.hardware()}
    return {**details, "versions": machine.versions(), "commit": machine.commit()}


# ---- all steps ----------------------------------------------------------------------------------


def do_steps(
    limits: Mapping[str, float],
    out: Path,
    perform: Callable[[str, float], Mapping[str, Any]],
    limit_s: float | None = None,
    *,
    details: Mapping[str, Any] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, bool]:
    """Run the steps that have no file yet, those that failed before last; write a file for each.

    Returns:
        {name: whether it succeeded} of the steps that ran.
    """
    outcomes, waiting, begun = {}, [], clock()
    for name in sorted(limits, key=lambda name: state(out, name) == "failed"):
        if state(out, name) == "done":
            continue
        if limit_s is not None and limits[name] > limit_s - (clock() - begun):
            waiting.append(name)
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        started, record = clock(), {"step": name, "date": measure.now(), **(details or {})}
        try:
            record["result"] = perform(name, limits[name])
        except Exception as error:  # of any kind: the next step may succeed
            record["error"] = f"{type(error).__name__}: {error}"
        record["elapsed_s"] = round(clock() - started, 1)
        outcomes[name] = "result" in record
        failed = out / f"{name}.failed.json"
        with new_file(out / f"{name}.json" if outcomes[name] else failed) as partial:
            partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        if outcomes[name]:
            failed.unlink(missing_ok=True)
        print(f"  {summary(record)}", file=sys.stderr, flush=True)
    if waiting:
        print(f"no time was left for {', '.join(waiting)}", file=sys.stderr, flush=True)
    return outcomes


def summary(record: Mapping[str, Any]) -> str:
    """Return a step's file in a line."""
    if "error" in record:
        return f"failed after {record['elapsed_s']:,.0f} s: {record['error'][-300:]}"
    result = record["result"]
    shown = ("backend", "missing_for_gpu", "counts", "collected", "headline")
    said = [f"{key} {result[key]}" for key in shown if key in result]
    said += [f"{e['name']} {e['rows_per_s']:,.0f} rows/s" for e in result.get("candidates", ())]
    return f"{record['elapsed_s']:,.0f} s{': ' * bool(said)}{'; '.join(said)}"


# ---- one step -----------------------------------------------------------------------------------


def perform_step(
    step: Step, settings: Settings, out: Path, backend: str, limit_s: float
) -> dict[str, Any]:
    """Run the commands of a step and return its result."""
    if step.after and state(out, step.after) != "done":
        raise RuntimeError(f"not run: it needs the step {step.after!r}, which is not done")
    environment = {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **os.environ,
        "KERAS_BACKEND": BACKENDS[0] if "-cpu-native-" in step.name else backend,
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(machine.ROOT), os.getenv("PYTHONPATH")])),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # leaves JAX's loader a part of the GPU
    }
    ends, output = time.perf_counter() + limit_s, ""
    for number, command in enumerate(step.commands):
        log = settings.work / "logs" / f"{step.name}-{number}.txt"
        code = run_limited(command, ends - time.perf_counter(), log, environment)
        output += log.read_text(encoding="utf-8", errors="replace")
        if code is None or (step.codes and code not in step.codes):
            ended = f"exit code {code}" if code is not None else f"more than {limit_s:.0f} s"
            raise RuntimeError(f"{ended}; the end of its output: {output[-KEPT_CHARACTERS:]}")
    return step.read(output)


def run_limited(
    command: Sequence[str], limit_s: float, log: Path, environment: Mapping[str, str]
) -> int | None:
    """Run a command with its output in a file; end it and all it has started with this process.

    After its time limit a Python program first writes where it is (`faulthandler`).

    Returns:
        Its exit code, None if it exceeded the limit.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None)
    linux = sys.platform == "linux"
    started: list[int] = []
    with (
        log.open("w") as out,
        subprocess.Popen(
            list(command), stdout=out, stderr=subprocess.STDOUT, cwd=machine.ROOT,
            env=dict(environment), process_group=0,
            preexec_fn=(lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)) if linux else None,
        ) as process,
    ):  # fmt: skip
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            started = descendants(process.pid)
            process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            return None
        finally:
            for end, pid in [(os.killpg, process.pid), *((os.kill, pid) for pid in started)]:
                with contextlib.suppress(ProcessLookupError):
                    end(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and theirs: kernels, readers, pools."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                found += map(int, children.read_text().split())
    return found[1:]
