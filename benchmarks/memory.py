"""Peak memory and speed of the loader, for data of 1 to 20 times its memory budget.

Each case runs in a fresh process, in turns: everything is imported and a few rows are read, then
the memory in use is noted, then epochs run while a thread samples it. Only anonymous memory counts
(heap and tensors), including the batch that the consumer holds; pages of memory-mapped files are
the system's cache and are reported separately. With --device gpu, the budget is of GPU memory, and
the GPU memory of the loader counts. Linux only.

The rows are Criteo-shaped. Larger data consists of hard links to the same files, so it takes no
more disk space. One case has all rows in one row group larger than the
budget, one has a multi-hot column.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import machine, measure
from benchmarks.data import Dataset, criteo_shape, linked, movielens_shape
from tutorlib.schema import Schema

SUMMARY = "peak memory and rows/s of the loader for data of 1 to 20 times its budget (5 minutes)"
SIZES = (1, 2, 5, 10, 20)  # of the data, in budgets
ROW_GROUP_SIZE = 2  # of the large row group, in budgets
MULTI_HOT_SIZE = 5  # of the multi-hot data, in budgets
CRITEO_ROW_BYTES = 40 * 4
MOVIELENS_ROW_BYTES = 4 * 4 + 3 * 4  # three numbers, the count of genres, three genres
ROW_GROUPS_PER_FILE = 3
WARM_ROWS, WARM_BATCH_SIZE = 1024, 256
STREAMED = 10  # budgets of data that each process reads at least
MOST_OVER, LEAST_SPEED = 0.1, 0.9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to a parser."""
    measure.add_numbers(
        parser,
        budget_mib=(256, "memory_budget in MiB"),
        batch_size=(65_536, "rows per batch"),
        row_group_rows=(131_072, "rows per row group"),
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=list(SIZES), metavar="N",
        help=f"sizes of the data, in budgets (default: {' '.join(map(str, SIZES))})",
    )  # fmt: skip
    measure.add_options(parser, "memory", repeat=5, repeated="processes for each case")


def run(arguments: argparse.Namespace) -> None:
    """Measure, print the table and write the JSON file."""
    machine.require_linux()
    cases = make_cases(arguments)
    runs: dict[str, list[Outcome]] = {case.name: [] for case in cases}
    for turn in range(arguments.repeat):
        for case in cases:
            outcome = machine.in_fresh_process(stream, case)
            runs[case.name].append(outcome)
            rate = case.rows / statistics.median(outcome.elapsed_s)
            share = outcome.peak_bytes / case.budget_bytes
            measured = f"{share:>8.2f} of the budget{rate:>14,.0f} rows/s"
            measure.show_turn(turn, arguments.repeat, case.name, measured)
    result = report(cases, runs, command=measure.command_line(arguments))
    print(table(result))
    measure.save(result, arguments.out)


# ---- one process --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """The task of one process."""

    name: str
    path: str  # folder of Parquet files
    warm_path: str  # folder of Parquet files with a few such rows
    schema: str  # the columns, as JSON
    rows: int
    data_bytes: int  # bytes of these rows in batches
    budget_bytes: int  # `memory_budget` of the loader
    batch_size: int
    epochs: int
    device: str  # "cpu" or "gpu"
    in_series: bool  # whether it is one of the sizes that are compared with each other


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one process measured."""

    before_bytes: int  # anonymous memory before the first epoch
    peak_bytes: int  # maximum increase of it; on a GPU peak GPU memory of the loader
    mapped_bytes: int  # maximum increase of pages of memory-mapped files
    planned_bytes: int  # peak memory that `describe()` predicts
    elapsed_s: tuple[float, ...]  # seconds of each epoch


def stream(case: Case) -> Outcome:
    """Run all epochs of a case and return the memory they took."""
    from benchmarks.device import Device
    from benchmarks.loader import consume
    from tutorlib.loader import KerasSequenceLoader

    device, schema = Device(case.device), Schema.from_json(case.schema)
    for _ in KerasSequenceLoader(
        case.warm_path, WARM_BATCH_SIZE, schema=schema, device=case.device
    ):
        pass  # TensorFlow and Arrow allocate what they keep, so that it counts as there before
    loader = KerasSequenceLoader(
        case.path, case.batch_size, schema=schema, memory_budget=case.budget_bytes,
        device=case.device,
    )  # fmt: skip
    device.count_loaders()
    gc.collect()
    elapsed_s = []
    with machine.MemoryWatch() as watch:
        for _ in range(case.epochs):
            started = time.perf_counter()
            rows = consume(loader)
            elapsed_s.append(time.perf_counter() - started)
            if rows != case.rows:
                raise ValueError(f"{case.path}: an epoch has {rows} rows, the files {case.rows}")
    on_gpu = (device.memory() or {}).get("rmm")
    return Outcome(
        before_bytes=watch.before[0],
        peak_bytes=on_gpu["peak"] if on_gpu else watch.peak[0] - watch.before[0],
        mapped_bytes=watch.peak[1] - watch.before[1],
        planned_bytes=loader.describe()["peak_bytes"],
        elapsed_s=tuple(elapsed_s),
    )


# ---- the cases ----------------------------------------------------------------------------------


def make_cases(arguments: argparse.Namespace) -> list[Case]:
    """Return the cases; writes their files unless they exist."""
    folder, group_rows = arguments.data, arguments.row_group_rows
    budget_bytes = arguments.budget_mib * 2**20
    rows = ROW_GROUPS_PER_FILE * group_rows
    huge_rows = ROW_GROUP_SIZE * budget_bytes // CRITEO_ROW_BYTES

    def case(name: str, data: Dataset, row_bytes: int, size: int, in_series: bool = False) -> Case:
        copies = max(1, round(size * budget_bytes / (data.rows * row_bytes)))
        return Case(
            name=name,
            path=str(linked(data.parquet, copies)),
            warm_path=str(data.valid(WARM_ROWS).parquet),
            schema=data.schema.to_json(),
            rows=copies * data.rows,
            data_bytes=copies * data.rows * row_bytes,
            budget_bytes=budget_bytes,
            batch_size=arguments.batch_size,
            epochs=max(1, STREAMED // size),
            device=arguments.device,
            in_series=in_series,
        )

    criteo = criteo_shape(folder, rows, row_group_rows=group_rows)
    huge = criteo_shape(folder, huge_rows, row_group_rows=huge_rows)
    movielens = movielens_shape(folder, rows, row_group_rows=group_rows)
    return [
        *(case(f"{n} x the budget", criteo, CRITEO_ROW_BYTES, n, True) for n in arguments.sizes),
        case("one row group of 2 x the budget", huge, CRITEO_ROW_BYTES, ROW_GROUP_SIZE),
        case("multi-hot, 5 x the budget", movielens, MOVIELENS_ROW_BYTES, MULTI_HOT_SIZE),
    ]


# ---- the report ---------------------------------------------------------------------------------


def report(
    cases: Sequence[Case], runs: Mapping[str, Sequence[Outcome]], *, command: str
) -> dict[str, Any]:
    """Return what was measured as JSON values: for each case, speed and memory of every process."""
    timings = [
        measure.Timing(
            case.name, case.rows, tuple(statistics.median(o.elapsed_s) for o in runs[case.name])
        )
        for case in cases
    ]
    some = cases[0]
    details = {name: getattr(some, name) for name in ("device", "budget_bytes", "batch_size")}
    result = measure.report("memory", timings, command=command, details=details)
    for entry, case in zip(result["candidates"], cases, strict=True):
        outcomes = [dataclasses.asdict(outcome) for outcome in runs[case.name]]
        entry |= {
            "data_bytes": case.data_bytes,
            "in_series": case.in_series,
            "peak_bytes": max(outcome["peak_bytes"] for outcome in outcomes),
            "planned_bytes": outcomes[0]["planned_bytes"],
            "processes": outcomes,
        }
    series = [entry for entry in result["candidates"] if entry["in_series"]]
    rates = [entry["rows_per_s"] for entry in series]
    result["over_budget"] = max(e["peak_bytes"] for e in series) / some.budget_bytes - 1
    result["slowest_to_fastest"] = min(rates) / max(rates)
    return result


def table(result: Mapping[str, Any]) -> str:
    """Return a report as text."""
    budget = result["budget_bytes"]
    shown = [
        {
            **entry,
            "mib": {name: entry[f"{name}_bytes"] / 2**20 for name in ("data", "planned", "peak")},
            "of_budget": entry["peak_bytes"] / budget,
            "mapped": max(outcome["mapped_bytes"] for outcome in entry["processes"]) / 2**20,
        }
        for entry in result["candidates"]
    ]
    columns = {
        "data MiB": "{mib[data]:,.0f}",
        "plan MiB": "{mib[planned]:,.0f}",
        "peak MiB": "{mib[peak]:,.0f}",
        "of budget": "{of_budget:.2f}",
        "mapped MiB": "{mapped:,.0f}",
        **measure.RATES,
    }
    over, speed = result["over_budget"], result["slowest_to_fastest"]
    peak = f"peak over budget in the series {over:+.0%}; required: at most {MOST_OVER:+.0%}"
    slowest = f"slowest of the series at {speed:.0%} of the fastest; required: at least "
    notes = [
        f"memory_budget {budget / 2**20:,.0f} MiB, batches of {result['batch_size']:,}",
        measure.met(over <= MOST_OVER, peak),
        measure.met(speed >= LEAST_SPEED, f"{slowest}{LEAST_SPEED:.0%}"),
    ]
    return measure.table({**result, "candidates": shown}, columns, notes)
