"""What memory the loader takes within a budget.

Each turn runs in a fresh process: everything is imported and a few rows are read, then a loader is
made and epochs are read. Reported are the seconds until the first batch, counted from before the
loader is made, those of an epoch, and the peak of anonymous memory (heap and tensors), including
the batch that the consumer holds. Linux only.

Data of 1 to 20 times the budget, one row group of twice the budget, and lists. Larger data consists
of copies of the same files.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.data import Dataset, copied, criteo_shape, files_of, movielens_shape
from benchmarks.measure import Benchmark, Epoch, MemoryWatch, Way, claim, in_fresh_process
from tutorlib import Schema

WARM_ROWS = 1024
ROW_BYTES = {"criteo": 40 * 4, "lists": 4 * 4 + 3 * 4}  # three numbers, their count, three genres
MULTI_HOT_SIZE, LARGE_ROW_GROUP = 5, 2  # budgets
ROW_GROUPS_PER_FILE = 3
STREAMED = 10  # budgets of data that each process reads at least
OVER_BUDGET, SLOWEST = 1.1, 0.9  # targets


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
    seconds, values = [], {}
    with MemoryWatch() as watch:
        began = time.perf_counter()
        files = files_of(Path(task.path))
        loader = KerasSequenceLoader(files, task.batch_size, schema=schema, **budget)
        for epoch in range(task.epochs):
            started = time.perf_counter()
            batches = iter(loader)
            rows = consume([next(batches)]).rows
            if epoch == 0:
                values["first_batch_s"] = time.perf_counter() - began
            rows += consume(batches).rows
            seconds.append(time.perf_counter() - started)
            if rows != task.rows:
                raise ValueError(f"{task.path}: an epoch has {rows} rows, the files {task.rows}")
    values["peak_bytes"] = float(watch.peak_bytes)
    return Epoch(task.rows, elapsed_s=statistics.median(seconds), values=values)


def _way(name: str, data: Dataset, copies: int, batch_size: int, **more: Any) -> Way:
    task = Task(
        str(copied(data.parquet, copies)), str(data.valid(WARM_ROWS).parquet),
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
