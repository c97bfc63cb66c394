"""Rows per second and peak memory of ETL jobs, by tutorlib, Polars and pandas.

The main job is that of the click logs (`etl_clicks`); `--also` adds ids of lists and statistics by
key (`etl_ratings`). All libraries learn from the same Parquet files and write the same values,
which is checked once. They take turns, each time in a fresh process: the library is imported, then
the memory in use is noted and the clock starts. Only anonymous memory counts. Files are in the page
cache. `--growth` repeats the main job with tutorlib, for other numbers of rows, on one core and on
two. Linux only.

Input files have PyArrow's default settings: dictionary, Snappy, no page checksums.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib.metadata
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from benchmarks import etl_ratings, machine, measure
from benchmarks.etl_clicks import (
    FREQ_THRESHOLD,
    ROW_GROUP_ROWS,
    ROWS_PER_FILE,
    PandasJob,
    PolarsJob,
    TutorlibJob,
    clicks,
)

SUMMARY = "rows/s and memory of fit and transform compared with Polars and pandas (9 minutes)"
SCALE = 0.1  # of the real cardinalities: 5 million rows then hold as many distinct values as real
TITLES = {"tutorlib": "tutorlib", "polars": "Polars, streaming", "pandas": "pandas"}
MOST_BYTES = 2 * 10**9
TOLERANCE = 1e-5  # of numbers that are not integers


JOBS: dict[str, dict[str, Any]] = {
    "clicks": {"tutorlib": TutorlibJob, "polars": PolarsJob, "pandas": PandasJob},
    "lists": {
        "tutorlib": etl_ratings.TutorlibLists,
        "polars": etl_ratings.PolarsLists,
        "pandas": etl_ratings.PandasLists,
    },
    "statistics": {
        "tutorlib": etl_ratings.TutorlibStatistics,
        "polars": etl_ratings.PolarsStatistics,
        "pandas": etl_ratings.PandasStatistics,
    },
}
ALSO = ("lists", "statistics")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to a parser."""
    measure.add_numbers(
        parser,
        rows=(2_000_000, "rows"),
        scale=(SCALE, "factor on the real cardinalities, above 0, at most 100"),
    )
    parser.add_argument(
        "--also", nargs="*", choices=ALSO, default=list(ALSO), metavar="JOB",
        help=f"further jobs: {', '.join(ALSO)} (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--growth", nargs="*", type=int, default=[1_000_000, 4_000_000, 16_000_000, 50_000_000],
        metavar="ROWS",
        help="numbers of rows for the main job on one core and on two (default: %(default)s)",
    )  # fmt: skip
    measure.add_options(
        parser, "etl", repeat=3, repeated="processes for each job", sections=TITLES, device=False
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure, print the tables and write the JSON file."""
    machine.require_linux()
    if arguments.repeat < 1:
        raise SystemExit(f"benchmarks: --repeat must be at least 1, got {arguments.repeat}")
    absent = [name for name in arguments.only if not is_installed(name)]
    for name in absent:
        print(f"not measured: {TITLES[name]}: not installed here; pip install {name}")
    libraries = [name for name in arguments.only if name not in absent]
    results = {}
    for job in ("clicks", *arguments.also):
        files = raw_rows(arguments.data, job, arguments.rows, arguments.scale)
        tasks = [Task(job, library, files) for library in libraries]
        with tempfile.TemporaryDirectory(dir=arguments.data, prefix="etl-") as folder:
            outcomes = in_turns(tasks, Path(folder), arguments.rows, arguments.repeat)
        details: dict[str, Any] = {"raw_bytes": sum(Path(file).stat().st_size for file in files)}
        if job == "clicks":
            details |= {"scale": arguments.scale, "freq_threshold": FREQ_THRESHOLD}
            details |= {"not_measured": absent}
        command = measure.command_line(arguments)
        results[job] = report(outcomes, arguments.rows, command=command, details=details)
        print(f"{job}\n{table(results[job])}\n")
    grown = [
        measure_growth(arguments.data, rows, cores, arguments.scale)
        for rows in arguments.growth for cores in (1, 2)
    ]  # fmt: skip
    for entry in grown:
        print("{rows:>12,} rows, {cores} core: {rows_per_s:>10,.0f} rows/s, {peak_bytes:>14,} bytes"
              .format(**entry))  # fmt: skip
    result = results.pop("clicks")
    measure.save({**result, "also": results, "growth": grown}, arguments.out)


def is_installed(library: str) -> bool:
    """Return whether a library is installed."""
    return importlib.util.find_spec(library) is not None


def raw_rows(folder: Path, job: str, rows: int, scale: float) -> tuple[str, ...]:
    """Return the Parquet files that a job reads; writes them unless they exist."""
    if job == "clicks":
        path = folder / f"criteo-raw-{rows}-rows-scale-{scale:g}-no-checksums"
        if not path.exists():
            clicks(path, rows, scale)
    else:
        path = folder / f"ratings-raw-{rows}-rows"
        if not path.exists():
            etl_ratings.ratings(path, rows, ROW_GROUP_ROWS, ROWS_PER_FILE)
    return tuple(str(file) for file in sorted(path.glob("*.parquet")))


def measure_growth(folder: Path, rows: int, cores: int, scale: float) -> dict[str, Any]:
    """Return what the main job takes tutorlib for so many rows on so many cores."""
    files = raw_rows(folder, "clicks", rows, scale)
    for file in files:
        Path(file).read_bytes()  # into the page cache
    with tempfile.TemporaryDirectory(dir=folder, prefix="etl-") as written:
        task = Task("clicks", "tutorlib", files, f"{written}/rows", cores)
        outcome = machine.in_fresh_process(perform, task)
    elapsed_s = sum(outcome.elapsed_s)
    found = {"rows": rows, "cores": cores, "rows_per_s": rows / elapsed_s}
    return {**found, **dataclasses.asdict(outcome), "peak_bytes": max(outcome.peak_bytes)}


# ---- one process --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Task:
    """The task of one process."""

    job: str  # key of `JOBS`
    library: str
    files: tuple[str, ...]
    target: str = ""  # folder to write, which does not exist yet
    cores: int | None = None  # that the process may use; None for all


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one process measured; in each pair `fit` comes first, then `transform`."""

    elapsed_s: tuple[float, float]  # seconds
    cpu_s: tuple[float, float]  # CPU seconds of all threads
    peak_bytes: tuple[int, int]  # maximum anonymous memory above that after the imports
    written_bytes: int  # size of the files


def perform(task: Task) -> Outcome:
    """Perform a task and return what it took, without imports."""
    if task.cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: task.cores])
    job = JOBS[task.job][task.library]()
    gc.collect()
    files, target = list(task.files), Path(task.target)
    with machine.MemoryWatch() as watch:
        before = watch.before[0]
        fit_s, fit_cpu_s = _timed(lambda: job.fit(files))
        fit_peak, watch.peak = watch.peak[0] - before, (0, 0)
        transform_s, transform_cpu_s = _timed(lambda: job.transform(files, target))
    written = [path.stat().st_size for path in target.glob("part*.parquet")]
    return Outcome(
        (fit_s, transform_s),
        (fit_cpu_s, transform_cpu_s),
        (fit_peak, watch.peak[0] - before),
        sum(written),
    )


def _timed(work: Callable[[], None]) -> tuple[float, float]:
    """Return (seconds, CPU seconds of all threads)."""
    started, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - cpu


# ---- turns and report ---------------------------------------------------------------------------


def in_turns(
    tasks: Sequence[Task], folder: Path, rows: int, repeat: int
) -> dict[str, list[Outcome]]:
    """Run tasks of one job turn by turn, each in a fresh process; return {library: outcomes}.

    The first turn does not count: it brings the files into the page cache, and its output is
    compared. Output goes to `folder`, from which it is removed after each turn.
    """
    outcomes: dict[str, list[Outcome]] = {task.library: [] for task in tasks}
    for turn in range(-1, repeat):
        with tempfile.TemporaryDirectory(dir=folder) as written:
            for task in tasks:
                target = Path(written) / task.library
                task = dataclasses.replace(task, target=str(target))
                outcome = machine.in_fresh_process(perform, task)
                rate, peak = rows / sum(outcome.elapsed_s), max(outcome.peak_bytes) / 1e6
                measured = f"{rate:>14,.0f} rows/s{peak:>10,.0f} MB"
                measure.show_turn(turn, repeat, f"{task.job}: {TITLES[task.library]}", measured)
                if turn >= 0:
                    outcomes[task.library].append(outcome)
                elif task.library != tasks[0].library:
                    check_equal(Path(written) / tasks[0].library, target, rows)
    return outcomes


def check_equal(one: Path, other: Path, rows: int) -> None:
    """Check that two folders hold the same rows: equal ids, numbers equal to 1e-5.

    Equal ids of all rows mean equal vocabularies, because every value of one is in some row.
    """
    tables = [ds.dataset(sorted(folder.glob("part*.parquet"))) for folder in (one, other)]
    for name in tables[0].schema.names:
        columns = [table.to_table(columns=[name])[name].combine_chunks() for table in tables]
        if not len(columns[0]) == len(columns[1]) == rows:
            raise ValueError(f"{name}: {one.name} wrote {len(columns[0])} rows, {other.name} "
                             f"{len(columns[1])}, of {rows}")  # fmt: skip
        for mine, theirs in _values(*columns):
            close = mine.dtype.kind == "f" and len(mine) == len(theirs)
            same = np.abs(mine - theirs) <= TOLERANCE if close else mine == theirs
            if mine.dtype != theirs.dtype or not np.all(same):
                row = int(np.argmin(same))
                raise ValueError(
                    f"column {name!r}: {one.name} wrote {mine[row]!r} in row {row}, {other.name} "
                    f"{theirs[row]!r}; all libraries must write the same values"
                )


def _values(mine: Any, theirs: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return two Arrow columns as NumPy arrays to compare; of lists, the lengths and the values."""
    if not hasattr(mine, "flatten") or not pa.types.is_nested(mine.type):
        return [(mine.to_numpy(zero_copy_only=False), theirs.to_numpy(zero_copy_only=False))]
    lengths = [pc.list_value_length(column).cast(pa.int64()) for column in (mine, theirs)]
    return [*_values(*lengths), *_values(mine.flatten(), theirs.flatten())]


def report(
    outcomes: Mapping[str, Sequence[Outcome]],
    rows: int,
    *,
    command: str,
    details: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what was measured as JSON values: rates of both steps together and of each."""
    timings = [
        measure.Timing(TITLES[name], rows, tuple(sum(o.elapsed_s) for o in found))
        for name, found in outcomes.items()
    ]
    ours, polars, pandas = TITLES.values()
    result = measure.report(
        "etl",
        timings,
        command=command,
        baseline=polars if "polars" in outcomes else None,
        claims=[measure.Claim(ours, 1.1, other=polars), measure.Claim(ours, 5.5, other=pandas)],
        details=details,
    )
    for entry, (name, found) in zip(result["candidates"], outcomes.items(), strict=True):
        for number, step in enumerate(("fit", "transform")):
            timing = measure.Timing(step, rows, tuple(o.elapsed_s[number] for o in found))
            entry[step] = timing.to_dict()
        entry["peak_bytes"] = max(max(outcome.peak_bytes) for outcome in found)
        entry["processes"] = [dataclasses.asdict(outcome) for outcome in found]
        result["versions"][name] = importlib.metadata.version(name)
    return result


def table(result: Mapping[str, Any]) -> str:
    """Return a report as text."""
    shown, notes = [], ["rows/s: of fit and transform together; CPU s: of all threads"]
    for entry in result["candidates"]:
        cpu_s = float(np.median([sum(process["cpu_s"]) for process in entry["processes"]]))
        shown.append({**entry, "cpu_s": cpu_s, "peak_mb": entry["peak_bytes"] / 1e6})
        if entry["name"] == TITLES["tutorlib"]:
            text = f"{entry['name']}: {entry['peak_bytes'] / 1e6:,.0f} MB above the interpreter "
            text += f"after its imports; required: at most {MOST_BYTES / 1e6:,.0f} MB"
            notes.append(measure.met(entry["peak_bytes"] <= MOST_BYTES, text))
    columns = {
        **measure.RATES,
        "fit": "{fit[rows_per_s]:,.0f}",
        "transform": "{transform[rows_per_s]:,.0f}",
        **measure.RATIO,
        "CPU s": "{cpu_s:.1f}",
        "peak MB": "{peak_mb:,.0f}",
    }
    return measure.table({**result, "candidates": shown}, columns, notes)
