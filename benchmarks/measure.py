"""Measuring: ways to do the same work take turns; a report says on what, with what and when.

A single figure says little: machines differ, and one machine differs from minute to minute. So the
ways of a section take turns (A B C, A B C, ...), the ratio of two ways in the same turn counts,
turns go on while a way is unsteady, and the report keeps every value.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import datetime
import importlib.metadata
import json
import math
import mmap
import multiprocessing
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from turns import Epoch, two_digits
from tutorlib.gpu import limit_tensorflow_memory, missing_for_gpu
from tutorlib.memory import host_memory_bytes, usable_cores

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DATA = ROOT / "build" / "benchmarks"
LIBRARIES = ("tensorflow", "keras", "numpy", "pyarrow", "polars", "pandas")
# What no report's command has:
OF_ONE_MACHINE = ("run", "command", "benchmark", "data", "out", "environments")
STEADY = 0.15  # largest spread of the rates of a steady way
SAMPLE_S = 0.003  # between two looks at a process's memory

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")


# ---- what a benchmark is ------------------------------------------------------------------------


def nothing() -> None:
    """Do nothing."""


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to do the work of a section."""

    name: str
    epoch: Callable[[], int | Epoch]  # does the work once; an int is its rows
    before: Callable[[], Any] = nothing  # starts what it needs, before the clock of each turn
    after: Callable[[], Any] = nothing  # stops what it has left running, after the clock
    close: Callable[[], Any] = nothing  # called after the last turn
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # for the report; its
    # "values" are shown beside those of the turns


class Failed(RuntimeError):
    """What a way raises in its turn to be left out; the message says why."""


@dataclasses.dataclass(frozen=True)
class Absent:
    """A way that this machine cannot measure."""

    name: str
    why: str


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What is measured: ways, rows and turns; `run` does the rest.

    Args:
        name: name of the command and of the report.
        summary: what it measures and for how many minutes, for `--help`.
        sections: {section: function of the options that returns its ways}. The ways of a section
            take turns; the first is the baseline of its ratios.
        options: {option: (default, help)}; a default that is a list takes several values, a tuple
            is a choice of words, the default first.
        claims: function of a report that returns what it should show, made with `claim`.
        repeat: turns that count, at least; a section goes on while one of its ways is unsteady.
        most: turns at most.
        warmup: turns before them that do not count.
        device: whether it has `--device`, to compute on a GPU.
    """

    name: str
    summary: str
    sections: Mapping[str, Callable[[argparse.Namespace], Sequence[Way | Absent]]]
    options: Mapping[str, tuple[Any, str]]
    claims: Callable[[Mapping[str, Any]], Iterable[dict[str, Any]]] = lambda result: ()
    repeat: int = 5
    most: int = 13
    warmup: int = 1
    device: bool = False


def add_options(parser: argparse.ArgumentParser, benchmark: Benchmark) -> None:
    """Add the options of a benchmark to the parser of its command."""
    options = dict(benchmark.options)
    options["repeat"] = benchmark.repeat, "turns"
    options["most"] = benchmark.most, "turns of a section with an unsteady way"
    options["data"] = DATA, "folder where rows are kept for the next run"
    if benchmark.device:
        options["device"] = ("cpu", "gpu"), "cpu hides all GPUs; gpu makes batches and trains there"
    for name, (default, text) in options.items():
        several = isinstance(default, list | tuple)
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            default=default[0] if isinstance(default, tuple) else default,
            type=type(default[0] if several else default),
            nargs="+" if isinstance(default, list) else None,
            choices=default if isinstance(default, tuple) else None,
            help=f"{text} (default: %(default)s)",
        )
    sections = list(benchmark.sections)
    parser.add_argument(
        "--only", nargs="+", choices=sections, default=sections, metavar="SECTION",
        help=f"measure only these: {', '.join(sections)} (default: all)",
    )  # fmt: skip
    file = f"benchmarks/results/{benchmark.name}-MACHINE.json"
    parser.add_argument("--out", type=Path, help=f"JSON file (default: {file})")
    parser.set_defaults(benchmark=benchmark)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure a benchmark, print its tables, write its JSON file and return the report."""
    benchmark: Benchmark = arguments.benchmark
    if arguments.repeat < 1:
        raise SystemExit(f"benchmarks: --repeat must be at least 1, got {arguments.repeat}")
    device = getattr(arguments, "device", "cpu")
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before TensorFlow looks for a GPU
    synchronise = waiting_for(device) if benchmark.device else nothing
    result: dict[str, Any] = {
        "benchmark": benchmark.name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command_line(arguments),
        "hardware": hardware(),
        "versions": versions(LIBRARIES),
        "commit": commit(),
        "device": device,
        "options": {n: getattr(arguments, n) for n in benchmark.options if n != "environments"},
        "not_measured": {},
        "ways": [],
    }
    for section in arguments.only:
        ways = benchmark.sections[section](arguments)
        result["not_measured"] |= {way.name: way.why for way in ways if isinstance(way, Absent)}
        here = [way for way in ways if isinstance(way, Way)]
        try:
            entries = turns(
                here, repeat=arguments.repeat, most=arguments.most, warmup=benchmark.warmup,
                synchronise=synchronise,
            )  # fmt: skip
        finally:
            for way in here:
                way.close()
        result["not_measured"] |= {e["name"]: e["why"] for e in entries if "why" in e}
        result["ways"] += [{"section": section, **e} for e in entries if "why" not in e]
    result["claims"] = list(benchmark.claims(result))
    print(table(result))
    print(f"written to {save(result, arguments.out)}")
    return result


def command_line(arguments: argparse.Namespace) -> str:
    """Return the command that repeats a run, without the paths of this machine."""
    words = ["python", "-m", "benchmarks", arguments.benchmark.name]
    for name, value in vars(arguments).items():
        if name not in OF_ONE_MACHINE and value is not None:
            words.append(f"--{name.replace('_', '-')}")
            words += map(str, value if isinstance(value, list) else [value])
    return " ".join(words)


def waiting_for(device: str) -> Callable[[], Any]:
    """Return the function that waits for a device; share a GPU's memory with the loader before.

    Call it before anything else looks for a GPU.
    """
    if device == "gpu" and (missing := missing_for_gpu()):
        raise SystemExit(f"benchmarks: --device gpu needs a GPU, cuDF and CuPy, but {missing}")
    import tensorflow as tf

    if device == "gpu":
        limit_tensorflow_memory()
    return tf.test.experimental.sync_devices


# ---- turns --------------------------------------------------------------------------------------


def say(line: str) -> None:
    """Print a line to stderr at once."""
    print(line, file=sys.stderr, flush=True)


def turns(
    ways: Sequence[Way],
    *,
    repeat: int = 5,
    most: int = 0,
    warmup: int = 1,
    synchronise: Callable[[], Any] = nothing,
    clock: Callable[[], float] = time.perf_counter,
    say: Callable[[str], Any] = say,
) -> list[dict[str, Any]]:
    """Measure ways turn by turn: A B C, A B C, ...; return an entry of the report for each.

    Args:
        ways: what takes turns; the first is the baseline of the ratios.
        repeat: turns that count, at least 1.
        most: further turns follow, up to so many, while the rates of a way are unsteady.
        warmup: turns before them that do not count, at least 0.
        synchronise: called before each reading of the clock, to wait for the device.
        clock: monotonic clock, in seconds.
        say: called with a line of text after each epoch.

    Raises:
        ValueError: if a way does no rows, or other rows than in the turn before.
    """
    entries: list[dict[str, Any]] = [
        {"name": way.name, "rows": None, "elapsed_s": [], "warmup_s": []} for way in ways
    ]
    for turn in range(-warmup, max(repeat, most)):
        if turn >= repeat and not any(unsteady(rates(e)) for e in entries if "why" not in e):
            break
        for way, entry in zip(ways, entries, strict=True):
            if "why" in entry:
                continue
            try:
                way.before()
                synchronise()
                started = clock()
                done = way.epoch()
                synchronise()
                elapsed_s = clock() - started
                way.after()
            except Failed as failed:
                entry["why"] = str(failed)
                continue
            epoch = done if isinstance(done, Epoch) else Epoch(done)
            if epoch.elapsed_s is not None:
                elapsed_s = epoch.elapsed_s
            if epoch.rows < 1 or entry["rows"] not in (None, epoch.rows):
                raise ValueError(
                    f"{way.name!r} did {epoch.rows} rows in turn {turn + 1}, before it "
                    f"{entry['rows']}; every turn must do the same rows, at least one"
                )
            entry["rows"] = epoch.rows
            entry["elapsed_s" if turn >= 0 else "warmup_s"].append(elapsed_s)
            if turn >= 0:
                for name, value in epoch.values.items():
                    entry.setdefault("values", {}).setdefault(name, []).append(value)
            label = f"turn {turn + 1}" if turn >= 0 else "warm-up"
            say(f"{label:>10}  {way.name:<50}{epoch.rows / elapsed_s:>14,.0f} rows/s")
    kept = [entry for entry in entries if "why" not in entry]
    for way, entry in zip(ways, entries, strict=True):
        if "why" in entry:
            continue
        entry["rows_per_s"] = statistics.median(rates(entry))
        entry["ratio"] = statistics.median(ratios(entry, kept[0]))
        entry["values"] = {**way.facts.get("values", {}), **entry.get("values", {})}
        entry.update({name: fact for name, fact in way.facts.items() if name != "values"})
    return entries


def rates(entry: Mapping[str, Any]) -> list[float]:
    """Return the rows per second of each turn of an entry."""
    return [entry["rows"] / elapsed_s for elapsed_s in entry["elapsed_s"]]


def ratios(entry: Mapping[str, Any], other: Mapping[str, Any]) -> list[float]:
    """Return how many times as fast one entry is as another, turn by turn.

    What slows the machine down for a while cancels out.
    """
    return [ours / theirs for ours, theirs in zip(rates(entry), rates(other), strict=True)]


# ---- claims, the report as text and as a file ---------------------------------------------------


def claim(
    text: str,
    values: Sequence[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> dict[str, Any]:
    """Return a claim for the report: what should hold of the median of some values, if anything."""
    median = statistics.median(values)
    said = {"claim": text, "values": list(values), "median": median}
    if at_least is not None:
        return {**said, "at_least": at_least, "holds": median >= at_least}
    if at_most is not None:
        return {**said, "at_most": at_most, "holds": median <= at_most}
    return said


def faster(
    bounds: Iterable[tuple[str, str, str, float | None]],
) -> Callable[[Mapping[str, Any]], list[dict[str, Any]]]:
    """Return the function for `Benchmark.claims` of (section, way, other, least ratio)."""

    def claims(result: Mapping[str, Any]) -> list[dict[str, Any]]:
        entries = {(entry["section"], entry["name"]): entry for entry in result["ways"]}
        return [
            claim(
                f"{section}: {way} / {other}",
                ratios(entries[section, way], entries[section, other]),
                at_least=least,
            )
            for section, way, other, least in bounds
            if (section, way) in entries and (section, other) in entries
        ]

    return claims


UNITS = {  # by the end of a value's name
    "_bytes": lambda value: f"{value / 2**20:,.0f} MiB",
    "_share": lambda value: f"{value:.0%}",
    "_s": lambda value: f"{value:,.2f} s",
    "_rows": two_digits,
    "": lambda value: f"{value:,.4g}",
}


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval that holds the median of endless turns, with a confidence of 90 %.

    It is the sign test's: no distribution is assumed. Of fewer than 8 turns it is their range,
    which is less sure of fewer than 5; of 13 turns it is the 4th to the 10th value.
    """
    count, outside, below = len(values), 0, 1
    while 20 * (below + math.comb(count, outside + 1)) <= 2**count:
        outside += 1
        below += math.comb(count, outside)
    return sorted(values)[outside], sorted(values)[-1 - outside]


def spread(values: Sequence[float]) -> float:
    """Return the width of that interval as a share of the median."""
    least, most = bounds(values)
    return (most - least) / statistics.median(values)


def unsteady(values: Sequence[float]) -> bool:
    """Return whether the bounds of the median are more than 15 % of it apart."""
    return spread(values) > STEADY


def measured(claimed: Mapping[str, Any]) -> str:
    """Return the median of a claim's values and its bounds, without exponents."""
    values = claimed["values"]
    middle, least, most = (
        f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
        for value in (claimed["median"], *bounds(values))
    )
    range_ = f" ({least} to {most}{', unsteady' * unsteady(values)})"
    return middle + range_ * (len(values) > 1)


def reached(claimed: Mapping[str, Any]) -> str:
    """Return whether a claim holds, in words; nothing without a target."""
    return {True: "reached", False: "missed", None: ""}[claimed.get("holds")]


def target(claimed: Mapping[str, Any]) -> str:
    """Return the target of a claim in words; nothing without one."""
    bounds = {"at_least": "at least", "at_most": "at most"}
    return "".join(f"{word} {claimed[key]:g}" for key, word in bounds.items() if key in claimed)


def table(result: Mapping[str, Any]) -> str:
    """Return a report as text: a table for each section, the claims, and the machine."""
    lines = []
    for section in dict.fromkeys(entry["section"] for entry in result["ways"]):
        entries = [entry for entry in result["ways"] if entry["section"] == section]
        names = list(dict.fromkeys(name for e in entries for name in e.get("values", ())))
        rows = [[section, "rows/s", "from", "to", "spread", "ratio", "turns", "rows", *names]]
        for entry in entries:
            numbers = [entry["rows_per_s"], *bounds(rates(entry))]
            range_ = f"{spread(rates(entry)):.0%}{' (!)' * unsteady(rates(entry))}"
            cells = [*(f"{number:,.0f}" for number in numbers), range_, f"{entry['ratio']:.3g}"]
            rows.append([entry["name"], *cells, str(len(entry["elapsed_s"])), f"{entry['rows']:,}"])
            for name in names:
                said = next(said for end, said in UNITS.items() if name.endswith(end))
                values = entry.get("values", {}).get(name)
                rows[-1].append(said(statistics.median(values)) if values else "")
        widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
        for first, *cells in rows:
            padded = (f"{c:>{width}}" for c, width in zip(cells, widths[1:], strict=True))
            lines.append(f"{first:<{widths[0]}}" + "".join(padded))
        lines.append("")
    if shaky := sum(unsteady(rates(entry)) for entry in result["ways"]):
        lines.append(f"(!) {shaky} ways vary by more than {STEADY:.0%}: measure again, undisturbed")
    lines += [f"not measured: {name}: {why}" for name, why in result["not_measured"].items()]
    for claimed in result["claims"]:
        bound = f"; target: {target(claimed)}" if "holds" in claimed else ""
        lines.append(f"{reached(claimed):<9}{claimed['claim']}: {measured(claimed)}{bound}")
    return "\n".join([*lines, describe_hardware(result["hardware"])])


def save(result: Mapping[str, Any], path: Path | None = None) -> Path:
    """Write a report as JSON, whole or not at all; return its path.

    Without `path` it replaces the previous run of that benchmark on such a machine.
    """
    name = f"{result['benchmark']}-{hardware_slug(result['hardware'])}.json"
    target = RESULTS / name if path is None else path
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return partial.replace(target)


# ---- the machine --------------------------------------------------------------------------------


def hardware() -> dict[str, Any]:
    """Return the machine: cpu, cores that this process may use, memory_bytes, gpus, system."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    gpus = []
    if shutil.which("nvidia-smi") is not None:
        query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
        gpus = done.stdout.strip().splitlines() if done.returncode == 0 else []
    return {
        "cpu": " ".join(found[1].split()) if found else platform.machine(),
        "cores": usable_cores(),
        "memory_bytes": host_memory_bytes(),
        "gpus": gpus,
        "system": platform.system(),
    }


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


def versions(libraries: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of those libraries that are installed."""
    found = {"python": platform.python_version()}
    for library in libraries:
        try:
            found[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Return the git commit of this code, with "+" after changes; None outside git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # git is not installed
        return None
    return done.stdout.strip() or None


# ---- fresh processes and their memory -----------------------------------------------------------


def in_fresh_process(work: Callable[[Task], Outcome], task: Task) -> Outcome:
    """Return `work(task)`, computed in a process that has done nothing else; all are pickled."""
    fresh = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=fresh) as pool:
        return pool.submit(work, task).result()


class MemoryWatch:
    """Samples the anonymous memory of this process, heap and tensors, while the block runs.

    Pages of memory-mapped files do not count: they are the system's cache. Linux only.

    Attributes:
        before_bytes: bytes at the start.
        peak_bytes: largest increase so far.
        now_bytes: increase at the end of the block.
    """

    def __init__(self) -> None:
        if not Path("/proc/self/statm").is_file():
            raise SystemExit("benchmarks: memory is read from /proc/self/statm: Linux only")
        self.before_bytes = self.peak_bytes = self.now_bytes = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)

    def _sample(self) -> None:
        resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
        self.now_bytes = (int(resident) - int(shared)) * mmap.PAGESIZE - self.before_bytes
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)

    def _watch(self) -> None:
        while not self._end.wait(SAMPLE_S):
            self._sample()

    def __enter__(self) -> MemoryWatch:
        self._sample()
        self.before_bytes, self.peak_bytes = self.peak_bytes, 0
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._sample()


class GpuWatch:
    """Samples how busy the first GPU is while the block runs, as its driver reports it.

    Attributes:
        busy_share: mean over the block of the share of time in which a kernel was at work; nan if
            the block is shorter than a sample.
    """

    def __init__(self) -> None:
        self.busy_share = math.nan

    def __enter__(self) -> GpuWatch:
        query = "--query-gpu=utilization.gpu"
        command = ["nvidia-smi", "-i", "0", query, "--format=csv,noheader,nounits", "-lms", "50"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it has begun
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        said, _rest = self._process.communicate()
        samples = [int(line) for line in said.split("\n") if line.strip().isdigit()]
        if samples:
            self.busy_share = statistics.fmean(samples) / 100
