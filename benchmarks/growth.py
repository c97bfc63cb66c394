"""How the loader's cost grows: with rows, columns, row groups and files, one of them at a time.

Each case runs in a fresh process, in turns: everything is imported and a few rows are read, then a
loader is made and one epoch is read. Reported are the seconds until the first batch, counted from
before the loader is made, and until the last, both also as CPU time of all threads; the peak of
anonymous memory; and the bytes that the process asked the system for. A bound holds for the growth
from the second largest size to the largest: ten times the size may cost 10**1.1 times as much.
Linux only.

Series (--only): rows, Criteo-shaped; columns, of numbers and ids; row_groups, of 256 rows with 8
columns; files, of 1,024 rows with 8 columns. Many rows and many files are hard links to the same
files, so they take no more disk space and stay in the page cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import math
import re
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine, measure
from benchmarks.data import Dataset, criteo_shape, linked
from benchmarks.memory import WARM_ROWS
from tutorlib.columns import Chunk
from tutorlib.schema import Column, Schema

SUMMARY = "how start-up, rate, memory and bytes read grow with rows, columns and files (16 minutes)"
SIZES = {
    "rows": (1_048_576, 8_388_608, 67_108_864, 209_715_200),
    "columns": (10, 100, 500, 2_000),
    "row_groups": (10, 100, 1_000, 10_000, 50_000),
    "files": (1, 10, 100, 1_000, 20_000),
}
PART_ROWS = 1_048_576  # rows on disk; more are links to them
WIDE_ROWS, WIDE_ROW_GROUP_ROWS, WIDE_BATCH_SIZE = 65_536, 16_384, 8_192
ROW_GROUP_ROWS, FILE_ROWS, NARROW_COLUMNS = 256, 1_024, 8
CARDINALITY = 1_000
EXPONENT = 1.1  # largest of cost ~ size ** exponent
START_S = 2.0  # largest time to the first batch of the most files
BOUNDED = {
    "first_batch_cpu_s": "CPU time to the first batch",
    "epoch_cpu_s": "CPU time of an epoch",
    "peak_bytes": "peak memory",
    "read_bytes": "bytes read",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to a parser."""
    for name, sizes in SIZES.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, nargs="+", default=list(sizes), metavar="N",
            help=f"sizes of the series {name} (default: {' '.join(map(str, sizes))})",
        )  # fmt: skip
    measure.add_numbers(parser, batch_size=(65_536, "rows per batch, fewer for many columns"))
    measure.add_options(
        parser, "growth", repeat=3, repeated="processes for each case", sections=SIZES, device=False
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure, print the table and write the JSON file."""
    machine.require_linux()
    cases = make_cases(arguments)
    runs: dict[str, list[Outcome]] = {case.name: [] for case in cases}
    for turn in range(arguments.repeat):
        for case in cases:
            outcome = machine.in_fresh_process(read, case)
            runs[case.name].append(outcome)
            measured = f"{outcome.first_batch_s:>8.2f} s to the first batch"
            measured += f"{case.rows / outcome.epoch_s:>14,.0f} rows/s"
            measure.show_turn(turn, arguments.repeat, case.name, measured)
    result = report(cases, runs, measure.command_line(arguments))
    print(table(result))
    measure.save(result, arguments.out)


# ---- one process --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """The task of one process."""

    series: str
    size: int  # of what the series counts
    path: str  # folder of Parquet files
    warm_path: str  # folder of Parquet files with a few such rows
    schema: str  # the columns, as JSON
    rows: int
    batch_size: int

    @property
    def name(self) -> str:
        """Name of the candidate."""
        return f"{self.size:,} {self.series.replace('_', ' ')}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one process measured; all counts begin before the loader is made."""

    open_s: float  # seconds until the loader is made
    first_batch_s: float
    first_batch_cpu_s: float
    epoch_s: float
    epoch_cpu_s: float
    peak_bytes: int  # maximum increase of anonymous memory
    read_bytes: int  # bytes that the process read with system calls, also from the page cache


def read(case: Case) -> Outcome:
    """Make a loader, read an epoch and return what it cost."""
    from benchmarks.loader import consume
    from tutorlib.loader import KerasSequenceLoader

    schema = Schema.from_json(case.schema)
    for _ in KerasSequenceLoader(case.warm_path, WARM_ROWS // 4, schema=schema):
        pass  # imports and what TensorFlow and Arrow allocate once
    gc.collect()
    with machine.MemoryWatch() as watch:
        read_before, cpu, started = bytes_read(), time.process_time(), time.perf_counter()
        loader = KerasSequenceLoader(case.path, case.batch_size, schema=schema)
        open_s = time.perf_counter() - started
        batches = iter(loader)
        rows = consume([next(batches)])
        first_batch_s, first_cpu_s = time.perf_counter() - started, time.process_time() - cpu
        rows += consume(batches)
        epoch_s, epoch_cpu_s = time.perf_counter() - started, time.process_time() - cpu
        read_bytes = bytes_read() - read_before
    if rows != case.rows:
        raise ValueError(f"{case.path}: an epoch has {rows} rows, the files {case.rows}")
    peak_bytes = watch.peak[0] - watch.before[0]
    return Outcome(open_s, first_batch_s, first_cpu_s, epoch_s, epoch_cpu_s, peak_bytes, read_bytes)


def bytes_read() -> int:
    """Return the bytes that this process has read with system calls; mapped files do not count."""
    [found] = re.findall(r"^rchar: (\d+)$", Path("/proc/self/io").read_text(), re.MULTILINE)
    return int(found)


# ---- the cases ----------------------------------------------------------------------------------


def make_cases(arguments: argparse.Namespace) -> list[Case]:
    """Return the cases of the series asked for; writes their files unless they exist."""
    cases = []
    for series in arguments.only:
        for size in sorted(getattr(arguments, series)):
            data, copies = data_of(series, size, arguments.data)
            batch_size = WIDE_BATCH_SIZE if series == "columns" else arguments.batch_size
            warm = data.valid(WARM_ROWS).parquet
            path, rows = linked(data.parquet, copies), copies * data.rows
            schema = data.schema.to_json()
            cases.append(Case(series, size, str(path), str(warm), schema, rows, batch_size))
    return cases


def data_of(series: str, size: int, folder: Path) -> tuple[Dataset, int]:
    """Return the data set of a case, and how many times its files are read."""
    if series == "rows":
        part = min(size, PART_ROWS)
        return criteo_shape(folder, part), -(-size // part)
    if series == "columns":
        return flat_shape(folder, WIDE_ROWS, size, WIDE_ROW_GROUP_ROWS), 1
    if series == "row_groups":
        return flat_shape(folder, size * ROW_GROUP_ROWS, NARROW_COLUMNS, ROW_GROUP_ROWS), 1
    return flat_shape(folder, FILE_ROWS, NARROW_COLUMNS, FILE_ROWS), size


def flat_shape(folder: Path, rows: int, columns: int, row_group_rows: int) -> Dataset:
    """Return rows of a label, and numbers and ids in turn: `columns` in all, at least 2."""
    numbers = [f"number_{k}" for k in range((columns - 1) // 2)]
    ids = [f"id_{k}" for k in range(columns - 1 - len(numbers))]
    schema = Schema(
        [
            Column("label", "label", "int32"),
            *(Column(name, "continuous", "float32") for name in numbers),
            *(Column(name, "categorical", "int32", cardinality=CARDINALITY) for name in ids),
        ]
    )

    def make(count: int, rng: np.random.Generator) -> Chunk:
        made: dict[str, Any] = {"label": rng.integers(0, 2, count, np.int32)}
        made |= {name: rng.random(count, np.float32) for name in numbers}
        return Chunk(made | {n: rng.integers(0, CARDINALITY, count, np.int32) for n in ids})

    return Dataset(folder, f"flat-{columns}", schema, rows, make, row_group_rows)


# ---- the report ---------------------------------------------------------------------------------


def report(
    cases: Sequence[Case], runs: Mapping[str, Sequence[Outcome]], command: str
) -> dict[str, Any]:
    """Return what was measured as JSON values.

    Each candidate has its `series`, `size`, the median of each field of `Outcome`, and `processes`,
    those of each process. `growth` has the exponent of each bounded cost in each series, `start_up`
    the seconds to the first batch of the most files.
    """
    timings = [
        measure.Timing(case.name, case.rows, tuple(o.epoch_s for o in runs[case.name]))
        for case in cases
    ]
    result = measure.report("growth", timings, command=command)
    for entry, case in zip(result["candidates"], cases, strict=True):
        processes = [dataclasses.asdict(outcome) for outcome in runs[case.name]]
        medians = {k: statistics.median(p[k] for p in processes) for k in processes[0]}
        entry |= {"series": case.series, "size": case.size, "batch_size": case.batch_size}
        entry |= {**medians, "processes": processes}
    result["growth"] = list(growth(result["candidates"]))
    most = [entry for entry in result["candidates"] if entry["series"] == "files"][-1:]
    result["start_up"] = [
        {"name": e["name"], "seconds": e["first_batch_s"], "holds": e["first_batch_s"] < START_S}
        for e in most
    ]
    return result


def growth(entries: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """Yield the exponent of each bounded cost between the two largest sizes of each series."""
    by_series: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        by_series.setdefault(entry["series"], []).append(entry)
    for series, found in by_series.items():
        if len(found) < 2:
            continue
        smaller, larger = found[-2:]
        for cost in BOUNDED:
            quotient = max(larger[cost], 1e-9) / max(smaller[cost], 1e-9)
            exponent = math.log(quotient) / math.log(larger["size"] / smaller["size"])
            sizes = [smaller["size"], larger["size"]]
            yield {
                "series": series, "cost": cost, "sizes": sizes, "exponent": exponent,
                "holds": exponent <= EXPONENT,
            }  # fmt: skip


def table(result: Mapping[str, Any]) -> str:
    """Return a report as text."""
    shown = [
        {**e, "mib": e["peak_bytes"] / 2**20, "read": e["read_bytes"] / 2**20}
        for e in result["candidates"]
    ]
    columns = {
        "open s": "{open_s:.2f}",
        "first batch s": "{first_batch_s:.2f}",
        "its CPU s": "{first_batch_cpu_s:.2f}",
        "epoch s": "{epoch_s:.2f}",
        "its CPU s ": "{epoch_cpu_s:.2f}",
        "rows/s": "{rows_per_s:,.0f}",
        "peak MiB": "{mib:,.0f}",
        "read MiB": "{read:,.0f}",
    }
    notes = [
        measure.met(
            found["holds"],
            f"{BOUNDED[found['cost']]} grows with {found['series'].replace('_', ' ')} ** "
            f"{found['exponent']:.2f} from {found['sizes'][0]:,} to {found['sizes'][1]:,}; "
            f"required: at most {EXPONENT}",
        )
        for found in result["growth"]
    ]
    notes += [
        measure.met(
            found["holds"],
            f"first batch of {found['name']} after {found['seconds']:.2f} s; required: below "
            f"{START_S} s",
        )
        for found in result["start_up"]
    ]
    return measure.table({**result, "candidates": shown}, columns, notes)
