"""What the loader costs: memory within a budget, and how costs grow with the data.

Each turn runs in a fresh process: everything is imported and a few rows are read, then a loader is
made and epochs are read. Reported are the seconds until the first batch, counted from before the
loader is made, the seconds of an epoch, both also as CPU time of all threads; the peak of anonymous
memory (heap and tensors), including the batch that the consumer holds; and the bytes that the
process asked the system for. Linux only.

`memory` reads data of 1 to 20 times its budget, one row group of twice the budget, and lists.
`growth` lets rows, columns, row groups or files grow, one of them at a time: ten times the size may
cost 10**1.1 times as much. Larger data consists of hard links to the same files, so it takes no
more disk space and stays in the page cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.data import Dataset, criteo_shape, files_of, flat_shape, linked, movielens_shape
from benchmarks.measure import Benchmark, Epoch, MemoryWatch, Way, claim, in_fresh_process
from tutorlib import Schema

WARM_ROWS = 1024
ROW_BYTES = {"criteo": 40 * 4, "lists": 4 * 4 + 3 * 4}  # three numbers, their count, three genres
MULTI_HOT_SIZE, LARGE_ROW_GROUP = 5, 2  # budgets
ROW_GROUPS_PER_FILE = 3
STREAMED = 10  # budgets of data that each process reads at least
OVER_BUDGET, SLOWEST = 1.1, 0.9  # targets

SIZES = {
    "rows": [1_048_576, 8_388_608, 67_108_864, 209_715_200],
    "columns": [10, 100, 500, 2_000],
    "row_groups": [10, 100, 1_000, 10_000, 50_000],
    "files": [1, 10, 100, 1_000, 20_000],
}
PART_ROWS = 1_048_576  # rows on disk; more are links to them
WIDE_ROWS, WIDE_ROW_GROUP_ROWS, WIDE_BATCH_SIZE = 65_536, 16_384, 8_192
ROW_GROUP_ROWS, FILE_ROWS, NARROW_COLUMNS = 256, 1_024, 8
EXPONENT = 1.1  # largest of cost ~ size ** exponent
START_S = 2.0  # largest time to the first batch of the most files
GROWING = ("first_batch_cpu_s", "epoch_cpu_s", "peak_bytes", "read_bytes")


# ---- one process --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Task:
    """The task of one process."""

    path: str  # folder of Parquet files
    warm_path: str  # folder of Parquet files with a few such rows
    schema: str  # the columns, as JSON
    rows: int
    batch_size: int
    epochs: int = 1
    budget_bytes: int | None = None


def read_epochs(task: Task) -> Epoch:
    """Make a loader, read epochs and return what they cost."""
    from benchmarks.readers import consume
    from tutorlib import KerasSequenceLoader

    schema = Schema.from_json(task.schema)
    for _ in KerasSequenceLoader(files_of(Path(task.warm_path)), WARM_ROWS // 4, schema=schema):
        pass  # TensorFlow and Arrow allocate what they keep, so that it counts as there before
    gc.collect()
    budget = {} if task.budget_bytes is None else {"memory_budget": task.budget_bytes}
    seconds, first_batch, values = [], (0.0, 0.0), {}
    with MemoryWatch() as watch:
        bytes_before = bytes_read()
        began, cpu_began = time.perf_counter(), time.process_time()
        files = files_of(Path(task.path))
        loader = KerasSequenceLoader(files, task.batch_size, schema=schema, **budget)
        for epoch in range(task.epochs):
            started, cpu_started = time.perf_counter(), time.process_time()
            batches = iter(loader)
            rows = consume([next(batches)]).rows
            if epoch == 0:
                first_batch = time.perf_counter() - began, time.process_time() - cpu_began
            rows += consume(batches).rows
            seconds.append(time.perf_counter() - started)
            values["epoch_cpu_s"] = time.process_time() - cpu_started
            if rows != task.rows:
                raise ValueError(f"{task.path}: an epoch has {rows} rows, the files {task.rows}")
        values["read_bytes"] = float(bytes_read() - bytes_before)
    values |= {"first_batch_s": first_batch[0], "first_batch_cpu_s": first_batch[1]}
    values["peak_bytes"] = float(watch.peak_bytes)
    return Epoch(task.rows, elapsed_s=statistics.median(seconds), values=values)


def bytes_read() -> int:
    """Return the bytes that this process has read with system calls; mapped files do not count."""
    [found] = re.findall(r"^rchar: (\d+)$", Path("/proc/self/io").read_text(), re.MULTILINE)
    return int(found)


def _way(name: str, data: Dataset, copies: int, batch_size: int, **more: Any) -> Way:
    task = Task(
        str(linked(data.parquet, copies)), str(data.valid(WARM_ROWS).parquet),
        data.schema.to_json(), copies * data.rows, batch_size, **more,
    )  # fmt: skip
    return Way(name, functools.partial(in_fresh_process, read_epochs, task))


# ---- memory -------------------------------------------------------------------------------------


def _of_budgets(
    arguments: argparse.Namespace, name: str, data: Dataset, shape: str, size: int
) -> Way:
    budget_bytes = arguments.budget_mib * 2**20
    copies = max(1, round(size * budget_bytes / (data.rows * ROW_BYTES[shape])))
    epochs = max(1, STREAMED // size)
    return _way(name, data, copies, arguments.batch_size, epochs=epochs, budget_bytes=budget_bytes)


def series(arguments: argparse.Namespace) -> list[Way]:
    """Return Criteo-shaped data of several sizes."""
    group_rows = arguments.row_group_rows
    data = criteo_shape(arguments.data, ROW_GROUPS_PER_FILE * group_rows, row_group_rows=group_rows)
    return [
        _of_budgets(arguments, f"loader, {size} x the budget", data, "criteo", size)
        for size in arguments.sizes
    ]


def special(arguments: argparse.Namespace) -> list[Way]:
    """Return a row group larger than the budget, and lists."""
    rows = LARGE_ROW_GROUP * arguments.budget_mib * 2**20 // ROW_BYTES["criteo"]
    huge = criteo_shape(arguments.data, rows, row_group_rows=rows)
    group_rows = arguments.row_group_rows
    lists_rows = ROW_GROUPS_PER_FILE * group_rows
    lists = movielens_shape(arguments.data, lists_rows, row_group_rows=group_rows)
    one = f"loader, one row group of {LARGE_ROW_GROUP} x the budget"
    many = f"loader, lists, {MULTI_HOT_SIZE} x the budget"
    return [
        _of_budgets(arguments, one, huge, "criteo", LARGE_ROW_GROUP),
        _of_budgets(arguments, many, lists, "lists", MULTI_HOT_SIZE),
    ]


def memory_claims(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield that the peak of the series follows the budget, and the speed does not the size."""
    budget_bytes = result["options"]["budget_mib"] * 2**20
    entries = [entry for entry in result["ways"] if entry["section"] == "series"]
    for entry in entries:
        shares = [peak / budget_bytes for peak in entry["values"]["peak_bytes"]]
        yield claim(f"{entry['name']}: peak / budget", shares, at_most=OVER_BUDGET)
    if entries:
        speeds = [entry["rows_per_s"] for entry in entries]
        yield claim("slowest / fastest size", [min(speeds) / max(speeds)], at_least=SLOWEST)


MEMORY = Benchmark(
    "memory",
    "peak memory and rows/s of the loader for data of 1 to 20 times its budget (5 minutes)",
    {"series": series, "special": special},
    {
        "budget_mib": (256, "memory_budget in MiB"),
        "batch_size": (65_536, "rows per batch"),
        "row_group_rows": (131_072, "rows per row group"),
        "sizes": ([1, 2, 5, 10, 20], "sizes of the data, in budgets"),
    },
    memory_claims,
    warmup=0,
)


# ---- growth -------------------------------------------------------------------------------------


def data_of(name: str, size: int, folder: Path) -> tuple[Dataset, int]:
    """Return the data set of a size of a series, and how many times its files are read."""
    if name == "rows":
        part = min(size, PART_ROWS)
        return criteo_shape(folder, part), -(-size // part)
    if name == "columns":
        return flat_shape(folder, WIDE_ROWS, size, WIDE_ROW_GROUP_ROWS), 1
    if name == "row_groups":
        return flat_shape(folder, size * ROW_GROUP_ROWS, NARROW_COLUMNS, ROW_GROUP_ROWS), 1
    return flat_shape(folder, FILE_ROWS, NARROW_COLUMNS, FILE_ROWS), size


def _growing(name: str) -> Callable[[argparse.Namespace], list[Way]]:
    """Return the section of a series."""

    def section(arguments: argparse.Namespace) -> list[Way]:
        ways = []
        for size in sorted(getattr(arguments, name)):
            data, copies = data_of(name, size, arguments.data)
            batch_size = WIDE_BATCH_SIZE if name == "columns" else arguments.batch_size
            way = _way(f"{size:,} {name.replace('_', ' ')}", data, copies, batch_size)
            ways.append(dataclasses.replace(way, facts={"size": size}))
        return ways

    return section


def growth_claims(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the exponent of each cost between the two largest sizes of a series, and the start."""
    for series in result["options"]:
        entries = [entry for entry in result["ways"] if entry["section"] == series]
        if len(entries) < 2:
            continue
        smaller, larger = entries[-2:]
        times = larger["size"] / smaller["size"]
        for cost in GROWING:
            pairs = zip(smaller["values"][cost], larger["values"][cost], strict=True)
            yield claim(
                f"{cost} from {smaller['name']} to {larger['name']}, as a power of the size",
                [math.log(max(b, 1e-9) / max(a, 1e-9)) / math.log(times) for a, b in pairs],
                at_most=EXPONENT,
            )
        if series == "files":
            waits = larger["values"]["first_batch_s"]
            yield claim(f"seconds to the first batch of {larger['name']}", waits, at_most=START_S)


GROWTH = Benchmark(
    "growth",
    "how start-up, rate, memory and bytes read grow with rows, columns and files (16 minutes)",
    {name: _growing(name) for name in SIZES},
    {
        **{name: (sizes, f"sizes of the series {name}") for name, sizes in SIZES.items()},
        "batch_size": (65_536, "rows per batch, fewer for many columns"),
    },
    growth_claims,
    repeat=3,
    warmup=0,
)
