"""Run a function in a forked process with limits on memory and time, and judge how it ended."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Arrow reserves a page's size before it reads the page: two sizes of 31 bits, of which it touches
# only what the file holds. More than that is a number that nobody has checked.
RESERVED_BYTES = 1 << 32
KEPT_CHARACTERS = 8000  # of a message and of a traceback
Outcome = dict[str, Any]  # what the process says of its end; {} if it could not


def run_limited(work: Callable[[], Any], seconds: float, memory_bytes: int) -> Outcome:
    """Return how `work()` ended: {"ended": "works", "raised", "hangs" or "crashes", ...}.

    Args:
        work: called in a fork of this process, which must have one thread.
        seconds: limit of processor time; three times as much of elapsed time.
        memory_bytes: memory that it may touch beyond that of this process.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _perform(work, writing, int(seconds), memory_bytes)
    os.close(writing)
    answer, ends = b"", time.monotonic() + 3 * seconds
    while select.select([reading], [], [], max(0.0, ends - time.monotonic()))[0]:
        part = os.read(reading, 1 << 16)
        answer += part
        if not part:
            break
    else:
        os.kill(child, signal.SIGKILL)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if answer:
        return json.loads(answer)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number in (signal.SIGKILL, signal.SIGXCPU):
        return {"ended": "hangs", "message": f"more than {seconds:g} s", "where": ""}
    what = f"signal {number}" if number else f"exit status {os.waitstatus_to_exitcode(status)}"
    return {"ended": "crashes", "message": what, "where": ""}


def _perform(work: Callable[[], Any], answers: int, seconds: int, memory_bytes: int) -> None:
    """Do the work, write the outcome as JSON, and end this process."""
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        space = address_space_bytes() + memory_bytes + RESERVED_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
        before = _peak_bytes()
        outcome = _outcome(work)
        if _peak_bytes() - before > memory_bytes:
            outcome["memory"] = True
        os.write(answers, json.dumps(outcome).encode())
    finally:
        os._exit(1)


def address_space_bytes() -> int:
    """Return the bytes of address space that this process takes (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _outcome(work: Callable[[], Any]) -> Outcome:
    try:
        work()
    except BaseException as error:
        return {
            "ended": "raised",
            "kinds": [kind.__name__ for kind in type(error).__mro__],
            "message": "\n".join([str(error), *getattr(error, "__notes__", [])])[:KEPT_CHARACTERS],
            "memory": any(isinstance(each, MemoryError) for each in _chain(error)),
            "where": _where(error),
            "traceback": traceback.format_exc()[-KEPT_CHARACTERS:],
        }
    return {"ended": "works", "memory": False, "where": ""}


def _chain(error: BaseException | None) -> Iterable[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _where(error: BaseException) -> str:
    """Return the innermost function of this project that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if Path(f.filename).is_relative_to(ROOT)]
    last = (ours or frames)[-1]
    return f"{Path(last.filename).name}, {last.name}"


def fault(outcome: Outcome, allowed: Iterable[type], names: Iterable[str]) -> str:
    """Return what is wrong with an outcome, "" if nothing is.

    Args:
        outcome: from `run_limited`.
        allowed: kinds of errors that are documented.
        names: of files and folders, one of which an error must name.
    """
    if outcome["ended"] not in ("works", "raised"):
        return f"{outcome['ended']}: {outcome['message']}"
    if outcome["memory"]:
        return "memory beyond the limit"
    if outcome["ended"] == "works":
        return ""
    kind = outcome["kinds"][0]
    if not {each.__name__ for each in allowed} & set(outcome["kinds"]):
        return f"raw {kind}"
    if not any(name in outcome["message"] for name in names):
        return f"{kind} that names no file"
    return ""
