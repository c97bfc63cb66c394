"""Rows per second and peak memory of the ETL of the click logs, by tutorlib, Polars and pandas.

All three learn from the same Parquet files of raw rows and write the same values
(`etl_jobs.py`), which is checked once. They take turns, each time in a fresh process: everything is
imported, then the memory in use is noted and the clock started; what counts is anonymous memory.
Files are in the page cache. Linux only.

The rows are those of `data_prep synthetic criteo`, as Parquet with the texts as they are in the
raw files: PyArrow's defaults, dictionary and snappy.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import importlib.metadata
import importlib.util
import multiprocessing
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from tqdm import tqdm

from benchmarks import etl_jobs, measure
from benchmarks.data import FOLDER
from benchmarks.etl_jobs import JOBS, Outcome, Task
from data_prep.synthetic_criteo import BLOCK_ROWS, block_to_arrow, column_sizes, draw_block
from tutorlib.parquet import ParquetSink

SUMMARY = "rows/s and memory of fit and transform beside Polars and pandas (15 minutes)"
SCALE = 0.1  # of the real cardinalities: of 5 million rows as many values differ as in real ones
ROWS_PER_FILE = 1_048_576
TITLES = {"tutorlib": "tutorlib", "polars": "Polars, streaming", "pandas": "pandas"}
MOST_BYTES = 2 * 10**9
TOLERANCE = 1e-5  # of normalised values


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to a parser."""
    parser.add_argument("--rows", type=int, default=5_000_000, help="(default: %(default)s)")
    parser.add_argument(
        "--scale", type=float, default=SCALE,
        help="of the real cardinalities, (0, 100] (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", choices=tuple(JOBS), default=list(JOBS), metavar="JOB",
        help=f"some of {', '.join(JOBS)} (default: all)",
    )  # fmt: skip
    measure.add_options(parser, "etl", repeat=5, repeated="processes for each job", folder=FOLDER)


def run(arguments: argparse.Namespace) -> None:
    """Measure, print the table and write the JSON file."""
    if not Path("/proc/self/statm").is_file():
        raise SystemExit("benchmarks: memory is read from /proc/self/statm, which only Linux has")
    if arguments.repeat < 1:
        raise SystemExit(f"benchmarks: --repeat must be at least 1, got {arguments.repeat}")
    absent = [name for name in arguments.only if not is_here(name)]
    for name in absent:
        print(f"not measured: {TITLES[name]}. To have it: pip install {name}")
    jobs = [name for name in arguments.only if name not in absent]
    files = raw_rows(arguments.data, arguments.rows, arguments.scale)
    with tempfile.TemporaryDirectory(dir=arguments.data, prefix="etl-") as folder:
        outcomes = in_turns(jobs, files, Path(folder), arguments.rows, arguments.repeat)
    result = report(
        outcomes,
        arguments.rows,
        command=f"python -m benchmarks etl --rows {arguments.rows} --scale {arguments.scale} "
        f"--repeat {arguments.repeat}",
        facts={
            "scale": arguments.scale,
            "freq_threshold": etl_jobs.FREQ_THRESHOLD,
            "raw_bytes": sum(Path(file).stat().st_size for file in files),
            "not_measured": absent,
        },
    )
    print(table(result))
    print(f"written to {measure.save(result, arguments.out)}")


def is_here(job: str) -> bool:
    """Return whether the library of a job is installed."""
    return importlib.util.find_spec(job) is not None


def raw_rows(folder: Path, rows: int, scale: float) -> tuple[str, ...]:
    """Return the Parquet files of raw rows, which are made where they are not there yet."""
    path = folder / f"criteo-raw-{rows}-rows-scale-{scale:g}"
    if not path.exists():
        sizes = column_sizes(scale)
        starts = tqdm(range(0, rows, BLOCK_ROWS), unit=" blocks", desc="raw rows", disable=None)
        with ParquetSink(
            path,
            row_group_rows=etl_jobs.ROW_GROUP_ROWS,
            rows_per_file=ROWS_PER_FILE,
            encoding="default",
        ) as sink:
            for number, start in enumerate(starts):
                block = block_to_arrow(draw_block(0, 0, number, sizes))
                sink.write(block.slice(0, min(BLOCK_ROWS, rows - start)))
    return tuple(str(file) for file in sorted(path.glob("*.parquet")))


def in_turns(
    jobs: Sequence[str], files: tuple[str, ...], folder: Path, rows: int, repeat: int
) -> dict[str, list[Outcome]]:
    """Run the jobs turn by turn, each in a fresh process.

    A first turn, which does not count, brings the files into the page cache; what it writes is
    compared.

    Raises:
        ValueError: if two jobs wrote other values.
    """
    outcomes: dict[str, list[Outcome]] = {name: [] for name in jobs}
    for turn in range(repeat + 1):
        with tempfile.TemporaryDirectory(dir=folder) as written:
            for name in jobs:
                target = Path(written) / name
                outcome = in_fresh_process(Task(name, files, str(target)))
                label = f"turn {turn}/{repeat}" if turn else "warm-up"
                print(
                    f"{label:>10}  {TITLES[name]:<20}"
                    f"{rows / sum(outcome.elapsed_s):>14,.0f} rows/s"
                    f"{max(outcome.peak_bytes) / 1e6:>10,.0f} MB",
                    file=sys.stderr, flush=True,
                )  # fmt: skip
                if turn:
                    outcomes[name].append(outcome)
                elif name != jobs[0]:
                    check_equal(Path(written) / jobs[0], target, rows)
    return outcomes


def in_fresh_process(task: Task) -> Outcome:
    """Do a task in a process that has done nothing else."""
    fresh = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=fresh) as pool:
        return pool.submit(etl_jobs.run, task).result()


def check_equal(one: Path, other: Path, rows: int) -> None:
    """Raise ValueError unless two folders hold the same rows: ids equal, numbers to 1e-5.

    Equal ids of all rows mean equal vocabularies, for every value of one stands in some row.
    """
    tables = [ds.dataset(sorted(folder.glob("part*.parquet"))) for folder in (one, other)]
    for name in ("label", *etl_jobs.COUNTS, *etl_jobs.TEXTS):
        mine, theirs = (column_of(table, name) for table in tables)
        if not len(mine) == len(theirs) == rows:
            raise ValueError(f"{name}: {one.name} wrote {len(mine)} rows, {other.name} "
                             f"{len(theirs)}, of {rows}")  # fmt: skip
        same = mine == theirs
        if name in etl_jobs.COUNTS:
            same = np.abs(mine - theirs) <= TOLERANCE
        if mine.dtype != theirs.dtype or not same.all():
            row = int(np.argmin(same))
            raise ValueError(
                f"column {name!r}: {one.name} wrote {mine[row]!r} in row {row}, {other.name} "
                f"{theirs[row]!r}; they must do the same job"
            )


def column_of(table: ds.Dataset, name: str) -> np.ndarray:
    """Return a column of all files, in order."""
    column = table.to_table(columns=[name])[name]
    return pa.concat_arrays(column.chunks).to_numpy(zero_copy_only=False)


def report(
    outcomes: Mapping[str, Sequence[Outcome]],
    rows: int,
    *,
    command: str,
    facts: Mapping[str, Any],
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
        claims=[measure.Claim(ours, 0.8, other=polars), measure.Claim(ours, 5, other=pandas)],
        facts=facts,
    )
    for entry, (name, found) in zip(result["candidates"], outcomes.items(), strict=True):
        for step, place in (("fit", 0), ("transform", 1)):
            timing = measure.Timing(step, rows, tuple(o.elapsed_s[place] for o in found))
            entry[step] = timing.to_dict()
        entry["peak_bytes"] = max(max(outcome.peak_bytes) for outcome in found)
        entry["processes"] = [dataclasses.asdict(outcome) for outcome in found]
        result["versions"][name] = importlib.metadata.version(name)
    return result


def table(result: Mapping[str, Any]) -> str:
    """Return a report as text."""
    lines = [
        f"{result['candidates'][0]['rows']:,} rows, median (least to most) of rows/s",
        f"{'':<20}{'fit + transform':>38}{'fit':>12}{'transform':>12}{'ratio':>8}"
        f"{'CPU s':>8}{'peak MB':>9}",
    ]
    for entry in result["candidates"]:
        rates = (entry["rows_per_s"], entry["min_rows_per_s"], entry["max_rows_per_s"])
        cpu_s = np.median([sum(process["cpu_s"]) for process in entry["processes"]])
        lines.append(
            f"{entry['name']:<20}" + "{:>14,.0f} ({:,.0f} to {:,.0f})".format(*rates).rjust(38)
            + f"{entry['fit']['rows_per_s']:>12,.0f}{entry['transform']['rows_per_s']:>12,.0f}"
            f"{entry['ratio']:>8.2f}{cpu_s:>8.1f}{entry['peak_bytes'] / 1e6:>9,.0f}"
        )  # fmt: skip
    lines += [f"ratio: to {result['baseline']}; CPU s: of all threads", ""]
    lines += [measure.claim_line(claim) for claim in result["claims"]]
    for entry in result["candidates"]:
        if entry["name"] == TITLES["tutorlib"]:
            said = "met" if entry["peak_bytes"] <= MOST_BYTES else "not met"
            lines.append(
                f"{said:<9}{entry['name']}: {entry['peak_bytes'] / 1e6:,.0f} MB above the started "
                f"interpreter; to be at most {MOST_BYTES / 1e6:,.0f} MB"
            )
    return "\n".join([*lines, "", measure.describe_hardware(result["hardware"])])
