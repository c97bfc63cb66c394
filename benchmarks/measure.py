"""Measuring: candidates turn by turn in one process, and a report that says where and with what.

A figure alone says little: machines differ, and the same machine differs from minute to minute. So
all candidates run in turns (A B C A B C ...), what counts is their ratio, and the report keeps
every single value. Does not belong here: what is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tutorlib.memory import host_memory_bytes

RESULTS = Path(__file__).resolve().parent / "results"
LIBRARIES = ("tensorflow", "keras", "numpy", "pyarrow", "tutorlib")


def add_options(
    parser: argparse.ArgumentParser,
    name: str,
    *,
    repeat: int,
    repeated: str,
    folder: Path | None = None,
) -> None:
    """Add the options that benchmarks have in common: `--repeat`, `--data` and `--out`.

    Args:
        parser: of one benchmark.
        name: of the benchmark.
        repeat: how often, if nothing is said.
        repeated: what is repeated, for the help.
        folder: where its data is kept; None for a benchmark without any.
    """
    parser.add_argument(
        "--repeat", type=int, default=repeat, help=f"{repeated} (default: %(default)s)"
    )
    if folder is not None:
        parser.add_argument(
            "--data", type=Path, default=folder,
            help="folder where the rows are kept for the next run (default: build/benchmarks)",
        )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, help=f"JSON file (default: benchmarks/results/{name}-MACHINE.json)"
    )


@dataclasses.dataclass(frozen=True)
class Timing:
    """How long one candidate took, in every turn.

    Args:
        name: of the candidate.
        rows: rows that it went through in one turn.
        elapsed_s: seconds of each turn, in order, without the warm-up.
    """

    name: str
    rows: int
    elapsed_s: tuple[float, ...]

    @property
    def rates(self) -> list[float]:
        """Rows per second of each turn."""
        return [self.rows / elapsed_s for elapsed_s in self.elapsed_s]

    @property
    def rows_per_s(self) -> float:
        """Median of the turns."""
        return statistics.median(self.rates)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values: median, least, most of the rates, and all seconds."""
        return {
            "name": self.name,
            "rows": self.rows,
            "rows_per_s": self.rows_per_s,
            "min_rows_per_s": min(self.rates),
            "max_rows_per_s": max(self.rates),
            "elapsed_s": list(self.elapsed_s),
        }


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a measurement is to show.

    Args:
        name: of the candidate.
        bound: at least so many rows/s; beside another, at least so many times its rate.
        other: candidate that it is compared with, turn by turn.
        of: "rows_per_s", or "elapsed_s" where `bound` is a multiple of the other's time, at most.

    Example:
        >>> ours, theirs = Timing("ours", 9, (1.0, 1.0)), Timing("theirs", 9, (3.0, 2.0))
        >>> Claim("ours", 2.0, other="theirs").check({"ours": ours, "theirs": theirs})["median"]
        2.5
    """

    name: str
    bound: float
    other: str | None = None
    of: str = "rows_per_s"

    def check(self, timings: Mapping[str, Timing]) -> dict[str, Any] | None:
        """Return the values of all turns, their median, and whether it holds; None if not measured.

        With another candidate a value is the quotient of the two in one turn, so that what slows
        the machine down for a while does not count.
        """
        if self.name not in timings or (self.other is not None and self.other not in timings):
            return None
        values = self._values(timings[self.name])
        if self.other is not None:
            others = self._values(timings[self.other])
            values = [a / b for a, b in zip(values, others, strict=True)]
        median = statistics.median(values)
        holds = median >= self.bound if self.of == "rows_per_s" else median <= self.bound
        return {**dataclasses.asdict(self), "median": median, "values": values, "holds": holds}

    def _values(self, timing: Timing) -> list[float]:
        return timing.rates if self.of == "rows_per_s" else list(timing.elapsed_s)


def turns(
    candidates: Mapping[str, Callable[[], int]],
    *,
    repeat: int = 5,
    warmup: int = 1,
    synchronise: Callable[[], Any] | None = None,
    afterwards: Mapping[str, Callable[[], Any]] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    progress: bool = True,
) -> list[Timing]:
    """Time the candidates turn by turn: A B C, A B C, ...

    Args:
        candidates: {name: function without arguments that does the work and returns the rows}.
        repeat: turns that count, at least 1.
        warmup: turns before them that do not.
        synchronise: called before each reading of the clock; waits for the device to finish.
        afterwards: {name: function called after its time has been taken}, to end what a candidate
            has left running.
        clock: function that returns seconds and never goes back.
        progress: print a line on stderr for each turn.

    Returns:
        A `Timing` for each candidate, in order.

    Raises:
        ValueError: if `repeat` is below 1 or `warmup` below 0; if a candidate goes through no rows
            or not through the same number each turn.

    Example:
        >>> [fast] = turns({"range": lambda: len(range(10))}, repeat=3, progress=False)
        >>> fast.rows, len(fast.elapsed_s)
        (10, 3)
    """
    if repeat < 1 or warmup < 0:
        raise ValueError(f"need repeat >= 1 and warmup >= 0, got {repeat=}, {warmup=}")
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    rows: dict[str, int] = {}
    for turn in range(-warmup, repeat):
        for name, candidate in candidates.items():
            if synchronise is not None:
                synchronise()
            started = clock()
            done = candidate()
            if synchronise is not None:
                synchronise()
            elapsed_s = clock() - started
            if afterwards is not None and name in afterwards:
                afterwards[name]()
            if done < 1 or rows.setdefault(name, done) != done:
                raise ValueError(
                    f"candidate {name!r} went through {done} rows in turn {turn}, before through "
                    f"{rows.get(name)}; each turn must do the same work, at least one row"
                )
            if turn >= 0:
                seconds[name].append(elapsed_s)
            if progress:
                label = f"turn {turn + 1}/{repeat}" if turn >= 0 else "warm-up"
                rate = f"{done / elapsed_s:>14,.0f} rows/s"
                print(f"{label:>10}  {name:<50}{rate}", file=sys.stderr, flush=True)
    return [Timing(name, rows[name], tuple(values)) for name, values in seconds.items()]


def report(
    benchmark: str,
    timings: Sequence[Timing],
    *,
    command: str,
    baseline: str | None = None,
    claims: Sequence[Claim] = (),
    facts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what was measured, on what, with what and when, as JSON values.

    Args:
        benchmark: its name.
        timings: what `turns` returned.
        command: how to do it again.
        baseline: candidate that all others are divided by; None for the first.
        claims: what is to be shown; those about candidates that were not measured are left out.
        facts: whatever else belongs to the figures: rows, bytes, batch size.
    """
    by_name = {timing.name: timing for timing in timings}
    baseline = timings[0].name if baseline is None else baseline
    return {
        "benchmark": benchmark,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "hardware": hardware(),
        "versions": versions(),
        "commit": commit(),
        **(facts or {}),
        "baseline": baseline,
        "candidates": [
            {**timing.to_dict(), "ratio": timing.rows_per_s / by_name[baseline].rows_per_s}
            for timing in timings
        ],
        "claims": [found for claim in claims if (found := claim.check(by_name)) is not None],
    }


def save(result: Mapping[str, Any], path: str | os.PathLike[str] | None = None) -> Path:
    """Write a report as JSON, whole or not at all, and return where.

    Args:
        result: what `report` returned.
        path: target; None for `benchmarks/results/NAME-MACHINE.json`, which replaces the last run
            of that benchmark on such a machine.
    """
    slug = hardware_slug(result["hardware"])
    target = Path(path) if path is not None else RESULTS / f"{result['benchmark']}-{slug}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    try:
        partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def table(result: Mapping[str, Any]) -> str:
    """Return a report as tables of text: rows/s (median, least, most) and ratios; the claims."""
    lines = [f"{'':<50}{'rows/s':>12}{'least':>12}{'most':>12}{'ratio':>9}{'rows':>12}"]
    for entry in result["candidates"]:
        rates = (entry["rows_per_s"], entry["min_rows_per_s"], entry["max_rows_per_s"])
        cells = "".join(f"{rate:>12,.0f}" for rate in rates)
        lines.append(f"{entry['name']:<50}{cells}{entry['ratio']:>9.3g}{entry['rows']:>12,}")
    lines.append(f"ratio: to {result['baseline']}")
    if result["claims"]:
        lines.append("")
        lines += [claim_line(claim) for claim in result["claims"]]
    return "\n".join([*lines, "", describe_hardware(result["hardware"])])


def claim_line(claim: Mapping[str, Any]) -> str:
    """Return a claim that was checked as one line.

    Example:
        >>> ours, theirs = Timing("ours", 90, (1.0,)), Timing("theirs", 10, (1.0,))
        >>> claim_line(Claim("ours", 10, other="theirs").check({"ours": ours, "theirs": theirs}))
        'not met  ours: 9 (9 to 9) times the rate of theirs; to be at least 10'
    """
    what = "rate" if claim["of"] == "rows_per_s" else "time"
    least, most = min(claim["values"]), max(claim["values"])
    if claim["other"] is None:
        value = f"{claim['median']:,.0f} ({least:,.0f} to {most:,.0f}) rows/s"
    else:
        value = f"{claim['median']:,.3g} ({least:,.3g} to {most:,.3g})"
        value += f" times the {what} of {claim['other']}"
    bound = f"at {'least' if what == 'rate' else 'most'} {claim['bound']:,.12g}"
    return f"{'met' if claim['holds'] else 'not met':<9}{claim['name']}: {value}; to be {bound}"


# ---- where and with what ------------------------------------------------------------------------


def hardware() -> dict[str, Any]:
    """Return the machine: cpu, cores that this process may use, memory_bytes, gpus."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
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
    """Return "NAME, MEMORY" of each NVIDIA GPU, an empty list where there is no driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def hardware_slug(machine: Mapping[str, Any]) -> str:
    """Return a machine as part of a file name.

    Example:
        >>> hardware_slug({"cpu": "Intel(R) Xeon(R) CPU @ 2.20GHz", "cores": 2, "gpus": []})
        'intel-xeon-cpu-2.20ghz-2-cores'
    """
    name = machine["gpus"][0].split(",")[0] if machine["gpus"] else machine["cpu"]
    name = re.sub(r"\((r|tm)\)", "", name.lower())
    return re.sub(r"[^a-z0-9.]+", "-", f"{name} {machine['cores']} cores").strip("-")


def describe_hardware(machine: Mapping[str, Any]) -> str:
    """Return a machine in words, for a caption.

    Example:
        >>> describe_hardware({"cpu": "A CPU", "cores": 2, "memory_bytes": 2**34, "gpus": []})
        'A CPU, 2 cores, 16 GiB'
    """
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
    parts = [re.sub(r"\((R|TM)\)", "", machine["cpu"]), f"{machine['cores']} cores", memory]
    return ", ".join(parts + [gpu.split(",")[0] for gpu in machine["gpus"]])


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that the figures depend on."""
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue  # a copied tutorlib is not installed
    return found


def commit() -> str | None:
    """Return the git commit of this code, with "+" if files are changed; None outside git."""
    if shutil.which("git") is None:
        return None

    def git(*arguments: str) -> str | None:
        root = Path(__file__).resolve().parent
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "--short=12", "HEAD")
    return None if head is None else head + ("+" if git("status", "--porcelain") else "")
