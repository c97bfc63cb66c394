"""What memory the loader takes within a budget.

Each turn runs in a fresh process: everything is imported and a few rows are read, then a loader is
made and epochs are read. Reported are the seconds of an epoch and the peak of anonymous memory
(heap and tensors) above what the process had before, including the batch that the consumer holds.
Linux only.

"series" reads data of 1 to 20 times the budget, in copies of the same files; "drawn" reads layouts
that a seed draws: numbers, as columns and stacked, in row groups of 500 rows up to 0.9 budgets, on
one to four threads.
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

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import copied, criteo_shape, files_of
from benchmarks.measure import Benchmark, MemoryWatch, Way, claim, in_fresh_process
from turns import Epoch

MIB = 2**20
WARM_ROWS = 1024
CRITEO_ROW_BYTES = 40 * 4
ROW_GROUPS_PER_FILE = 3
STREAMED = 10  # budgets of data that each process of the series reads at least
EPOCHS = 5  # of drawn layouts
DRAWN_BYTES = 1.5  # of data, in budgets; two row groups at least
ALLOWED_BUDGETS, ALLOWED_BYTES = 1.5, 64 * MIB  # docs/promises.md
SLOWEST = 0.9  # target


# ---- one process --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Task:
    """The task of one process: the files, a few such rows, and the arguments of the loader."""

    files: list[str]
    warm_files: list[str]
    rows: int
    epochs: int
    arguments: dict[str, Any]


def read_epochs(task: Task) -> Epoch:
    """Make a loader, read epochs and return what they cost."""
    from benchmarks.readers import consume
    from tutorlib import KerasSequenceLoader

    warm = {**task.arguments, "batch_size": WARM_ROWS // 4, "memory_budget": None}
    for _ in KerasSequenceLoader(task.warm_files, **warm):
        pass  # TensorFlow and Arrow allocate what they keep, so that it counts as there before
    gc.collect()
    seconds = []
    with MemoryWatch() as watch:
        loader = KerasSequenceLoader(task.files, **task.arguments)
        for _ in range(task.epochs):
            started = time.perf_counter()
            rows = consume(loader).rows
            seconds.append(time.perf_counter() - started)
            if rows != task.rows:
                raise ValueError(f"{task.files}: an epoch has {rows} rows, the files {task.rows}")
        planned = loader.describe()["peak_bytes"]
        loader.close()
    values = {
        "peak_bytes": watch.peak_bytes,
        "idle_bytes": watch.now_bytes,  # when the loader is closed
        "planned_bytes": planned,
    }
    return Epoch(task.rows, elapsed_s=statistics.median(seconds), values=values)


# ---- data of many sizes -------------------------------------------------------------------------


def series(arguments: argparse.Namespace) -> list[Way]:
    """Return Criteo-shaped data of several sizes."""
    group_rows, budget_bytes = arguments.row_group_rows, arguments.budget_mib * MIB
    data = criteo_shape(arguments.data, ROW_GROUPS_PER_FILE * group_rows, row_group_rows=group_rows)
    ways = []
    for size in arguments.sizes:
        copies = max(1, round(size * budget_bytes / (data.rows * CRITEO_ROW_BYTES)))
        task = Task(
            files_of(copied(data.parquet, copies)),
            files_of(data.valid(WARM_ROWS).parquet),
            copies * data.rows,
            max(1, STREAMED // size),
            {
                "batch_size": arguments.batch_size,
                "schema": data.schema,
                "memory_budget": budget_bytes,
            },
        )
        name = f"loader, {size} x the budget"
        work = functools.partial(in_fresh_process, read_epochs, task)
        ways.append(Way(name, work, facts={"budget_bytes": budget_bytes}))
    return ways


# ---- drawn layouts ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Layout:
    """Files of numbers, and how they are read."""

    row_group_rows: int
    row_groups: int
    columns: dict[str, str]  # {name: type}
    dictionaries: bool
    arguments: dict[str, Any]  # of the loader

    @property
    def words(self) -> str:
        """What a report calls it."""
        columns = f"{len(self.columns)} columns in {self.row_groups:,} row groups"
        given = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        return f"{columns} of {self.row_group_rows:,} rows, {given}"


def drawn(seed: int, most_mib: int = 512) -> Layout:
    """Return a layout that a seed draws, with a budget of 32 MiB to `most_mib`."""
    random = np.random.default_rng([seed, 29])
    budget = int(32 * MIB * (most_mib / 32) ** random.random())
    kinds = random.choice(["int32", "float32", "int64"], int(random.integers(2, 60)))
    columns = {f"{kind[0]}{number}": str(kind) for number, kind in enumerate(kinds)}
    columns |= {"f": "float32", "label": "float32"}
    row_bytes = sum(np.dtype(kind).itemsize for kind in columns.values())
    largest = 0.9 * budget / row_bytes
    rows = int(500 * (largest / 500) ** random.random())
    groups = max(2, int(DRAWN_BYTES * budget / (rows * row_bytes)))
    arguments = {
        "batch_size": int(random.choice([256, 1024, 4096])),
        "label_names": ["label"],
        "batch_layout": str(random.choice(["columns", "stacked"])),
        "shuffle": bool(random.random() < 0.8),
        "threads": int(random.integers(1, 5)),
        "memory_budget": budget,
    }
    return Layout(rows, groups, columns, bool(random.random() < 0.5), arguments)


def growth(layout: Layout, folder: Path) -> Epoch:
    """Write the files of a layout unless they are there, and read them in a fresh process."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name, groups, rows in (
        ("warm", 1, WARM_ROWS),
        ("data", layout.row_groups, layout.row_group_rows),
    ):
        path = folder / f"{name}.parquet"
        if path.exists():
            continue
        columns = {}
        for column, kind in layout.columns.items():
            is_float = kind == "float32"
            values = random.random(rows, "f4") if is_float else random.integers(1, 99, rows, kind)
            columns[column] = values
        table = pa.table(columns)
        with pq.ParquetWriter(
            path, table.schema, use_dictionary=layout.dictionaries, compression="none"
        ) as writer:
            for _ in range(groups):
                writer.write_table(table, rows)
    task = Task(
        [str(folder / "data.parquet")],
        [str(folder / "warm.parquet")],
        layout.row_groups * layout.row_group_rows,
        EPOCHS,
        layout.arguments,
    )
    return in_fresh_process(read_epochs, task)


def allowed_bytes(budget_bytes: int) -> float:
    """Return by how many bytes a process may grow: the promise."""
    return ALLOWED_BUDGETS * budget_bytes + ALLOWED_BYTES


def layouts(arguments: argparse.Namespace) -> list[Way]:
    """Return drawn layouts."""
    ways = []
    for seed in range(arguments.layouts):
        layout = drawn(seed)
        work = functools.partial(growth, layout, arguments.data / "drawn" / str(seed))
        budget_bytes = layout.arguments["memory_budget"]
        ways.append(Way(f"{seed}: {layout.words}", work, facts={"budget_bytes": budget_bytes}))
    return ways


def memory_claims(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield that memory grows by no more than is promised, and speed does not follow the size."""
    for section in ("series", "drawn"):
        entries = [entry for entry in result["ways"] if entry["section"] == section]
        shares = [
            max(entry["values"]["peak_bytes"]) / allowed_bytes(entry["budget_bytes"])
            for entry in entries
        ]
        if shares:
            worst = [max(shares)]
            yield claim(f"{section}: largest growth / what is allowed", worst, at_most=1)
    speeds = [entry["rows_per_s"] for entry in result["ways"] if entry["section"] == "series"]
    if speeds:
        yield claim("slowest / fastest size", [min(speeds) / max(speeds)], at_least=SLOWEST)


MEMORY = Benchmark(
    "memory",
    "peak memory and rows/s of the loader within a budget, for many sizes and drawn layouts",
    {"series": series, "drawn": layouts},
    {
        "budget_mib": (256, "memory_budget of the series in MiB"),
        "batch_size": (65_536, "rows per batch of the series"),
        "row_group_rows": (131_072, "rows per row group of the series"),
        "sizes": ([1, 2, 5, 10, 20], "sizes of the data of the series, in budgets"),
        "layouts": (20, "layouts to draw"),
    },
    memory_claims,
    warmup=0,
)
