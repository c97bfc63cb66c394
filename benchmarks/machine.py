"""The machine that a benchmark runs on: hardware and versions, fresh processes, their memory.

Nothing heavy is imported here: the fresh processes, whose memory is measured, import it too.
"""

from __future__ import annotations

import concurrent.futures
import importlib.metadata
import mmap
import multiprocessing
import platform
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tutorlib.memory import host_memory_bytes, usable_cores

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("tensorflow", "keras", "numpy", "pyarrow", "tutorlib")
SAMPLE_S = 0.003

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")


# ---- hardware and versions ----------------------------------------------------------------------


def hardware() -> dict[str, Any]:
    """Return the machine: cpu, cores that this process may use, memory_bytes, gpus, system."""
    return {
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "memory_bytes": host_memory_bytes(),
        "gpus": _gpus(),
        "system": platform.system(),
    }


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        if found:
            return " ".join(found[1].split())
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    """Return "NAME, MEMORY" of each NVIDIA GPU; an empty list without a driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def hardware_slug(machine: Mapping[str, Any]) -> str:
    """Return what `hardware` returned as part of a file name."""
    name = machine["gpus"][0].split(",")[0] if machine["gpus"] else machine["cpu"]
    name = re.sub(r"\((r|tm)\)", "", name.lower())
    return re.sub(r"[^a-z0-9.]+", "-", f"{name} {machine['cores']} cores").strip("-")


def describe_hardware(machine: Mapping[str, Any]) -> str:
    """Return what `hardware` returned in words, for a caption."""
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
    parts = [re.sub(r"\((R|TM)\)", "", machine["cpu"]), f"{machine['cores']} cores", memory]
    return ", ".join(parts + [gpu.split(",")[0] for gpu in machine["gpus"]])


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed libraries that figures depend on."""
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue  # a copied tutorlib is not installed
    return found


def commit() -> str | None:
    """Return the git commit of this code, with "+" after changes; None outside git."""
    if shutil.which("git") is None:
        return None

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(ROOT), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "--short=12", "HEAD")
    return None if head is None else head + ("+" if git("status", "--porcelain") else "")


# ---- fresh processes and their memory -----------------------------------------------------------


def in_fresh_process(work: Callable[[Task], Outcome], task: Task) -> Outcome:
    """Return `work(task)`, computed in a process that has done nothing else; all are pickled."""
    fresh = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=fresh) as pool:
        return pool.submit(work, task).result()


def require_linux() -> None:
    """Raise SystemExit where `resident_bytes` cannot be read."""
    if not Path("/proc/self/statm").is_file():
        raise SystemExit("benchmarks: memory is read from /proc/self/statm, which only Linux has")


def resident_bytes() -> tuple[int, int]:
    """Return the bytes of this process in memory: (anonymous, of memory-mapped files)."""
    resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * mmap.PAGESIZE, int(shared) * mmap.PAGESIZE


class MemoryWatch:
    """Samples the memory of this process from a thread while the `with` block runs.

    Attributes:
        before: (anonymous, mapped) bytes at the start; mapped are pages of files.
        peak: the maximum of each so far.
    """

    def __init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self.before = self.peak = resident_bytes()
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._end.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        now = resident_bytes()
        self.peak = max(self.peak[0], now[0]), max(self.peak[1], now[1])

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._sample()
