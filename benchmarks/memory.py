"""Does the loader stay within its memory budget, however much data it streams, and at what speed.

Every case runs in a fresh process, in turns: everything is imported and a few rows have gone
through, then the memory in use is noted, then epochs run while a thread samples it. What counts is
anonymous memory (heap and tensors), the batch that the consumer holds included; pages of
memory-mapped files are the system's cache and are reported beside it. Linux only.

The rows are Criteo-shaped; larger data is more names (hard links) for the same files, so that the
disk does not have to hold twenty times the budget. One case has all rows in a row group larger than
the budget, one has a multi-hot column.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import multiprocessing
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure, memory_epochs
from benchmarks.data import FOLDER, Dataset, criteo_shape, movielens_shape
from tutorlib.storage import written_whole

SUMMARY = "peak memory and rows/s of the loader for data of 1 to 20 times its budget (5 minutes)"
SIZES = (1, 2, 5, 10, 20)  # of the data, in budgets
ROW_GROUP_SIZE = 2  # of the one row group, in budgets
MULTI_HOT_SIZE = 5
CRITEO_ROW_BYTES = 40 * 4
MOVIELENS_ROW_BYTES = 4 * 4 + 3 * 4  # three numbers, the count of genres, three genres
ROW_GROUPS_PER_FILE = 3
WARM_ROWS = 1024
STREAMED = 10  # budgets of data that go through each process at least
MOST_OVER, LEAST_SPEED = 0.1, 0.9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to a parser."""
    parser.add_argument(
        "--budget-mib", type=int, default=256, help="memory_budget (default: %(default)s MiB)"
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=list(SIZES), metavar="N",
        help=f"data, in budgets (default: {' '.join(map(str, SIZES))})",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=int, default=65_536, help="rows of a batch (default: %(default)s)"
    )
    parser.add_argument(
        "--row-group-rows", type=int, default=131_072, help="(default: %(default)s)"
    )
    measure.add_options(
        parser, "memory", repeat=5, repeated="processes for each case", folder=FOLDER
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure, print the table and write the JSON file."""
    if not Path("/proc/self/statm").is_file():
        raise SystemExit("benchmarks: memory is read from /proc/self/statm, which only Linux has")
    budget_bytes = arguments.budget_mib * 2**20
    found = make_cases(arguments, budget_bytes)
    runs: dict[str, list[memory_epochs.Outcome]] = {case.name: [] for case in found}
    for turn in range(arguments.repeat):
        for case in found:
            outcome = in_fresh_process(case)
            runs[case.name].append(outcome)
            print(
                f"turn {turn + 1}/{arguments.repeat}  {case.name:<32}"
                f"{outcome.peak_bytes / budget_bytes:>8.2f} of the budget"
                f"{case.rows / statistics.median(outcome.elapsed_s):>14,.0f} rows/s",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    sizes = " ".join(map(str, arguments.sizes))
    result = report(
        found,
        runs,
        command=f"python -m benchmarks memory --budget-mib {arguments.budget_mib} --sizes {sizes} "
        f"--batch-size {arguments.batch_size} --row-group-rows {arguments.row_group_rows} "
        f"--repeat {arguments.repeat}",
    )
    print(table(result))
    print(f"written to {measure.save(result, arguments.out)}")


def make_cases(arguments: argparse.Namespace, budget_bytes: int) -> list[memory_epochs.Case]:
    """Return the cases; their files are made where they are not there yet."""
    folder, group_rows = arguments.data, arguments.row_group_rows
    rows = ROW_GROUPS_PER_FILE * group_rows
    huge_rows = ROW_GROUP_SIZE * budget_bytes // CRITEO_ROW_BYTES
    criteo, huge, few_criteo = (
        criteo_shape(folder, number, row_group_rows=size)
        for number, size in ((rows, group_rows), (huge_rows, huge_rows), (WARM_ROWS, WARM_ROWS))
    )
    movielens = movielens_shape(folder, rows, row_group_rows=group_rows)
    few_movielens = movielens_shape(folder, WARM_ROWS, row_group_rows=WARM_ROWS)

    def case(
        name: str, data: Dataset, few: Dataset, size: int, in_series: bool = False
    ) -> memory_epochs.Case:
        row_bytes = CRITEO_ROW_BYTES if few is few_criteo else MOVIELENS_ROW_BYTES
        copies = max(1, round(size * budget_bytes / (data.rows * row_bytes)))
        return memory_epochs.Case(
            name=name,
            path=str(linked(data, copies)),
            warm_path=str(linked(few, 1)),
            schema=data.schema.to_json(),
            rows=copies * data.rows,
            data_bytes=copies * data.rows * row_bytes,
            budget_bytes=budget_bytes,
            batch_size=arguments.batch_size,
            epochs=max(1, STREAMED // size),
            in_series=in_series,
        )

    return [
        *(case(f"{n} x the budget", criteo, few_criteo, n, True) for n in arguments.sizes),
        case("one row group of 2 x the budget", huge, few_criteo, ROW_GROUP_SIZE),
        case("multi-hot, 5 x the budget", movielens, few_movielens, MULTI_HOT_SIZE),
    ]


def linked(data: Dataset, copies: int) -> Path:
    """Return a folder in which every file of the data stands `copies` times, under other names."""
    path = data.folder / f"linked-{copies}"
    if not path.exists():
        with written_whole(path) as partial:
            partial.mkdir()
            for copy in range(copies):
                for file in data.source.files:
                    os.link(file, partial / f"{copy:05d}_{Path(file).name}")
    return path


def in_fresh_process(case: memory_epochs.Case) -> memory_epochs.Outcome:
    """Go through the epochs of a case in a process that has done nothing else."""
    fresh = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=fresh) as pool:
        return pool.submit(memory_epochs.run, case).result()


def report(
    cases: Sequence[memory_epochs.Case],
    runs: Mapping[str, Sequence[memory_epochs.Outcome]],
    *,
    command: str,
) -> dict[str, Any]:
    """Return what was measured as JSON values, for each case speed and memory of every process."""
    timings = [
        measure.Timing(
            case.name, case.rows, tuple(statistics.median(o.elapsed_s) for o in runs[case.name])
        )
        for case in cases
    ]
    facts = {"budget_bytes": cases[0].budget_bytes, "batch_size": cases[0].batch_size}
    result = measure.report("memory", timings, command=command, facts=facts)
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
    result["over_budget"] = max(e["peak_bytes"] for e in series) / facts["budget_bytes"] - 1
    result["slowest_to_fastest"] = min(rates) / max(rates)
    return result


def table(result: Mapping[str, Any]) -> str:
    """Return a report as text."""
    budget = result["budget_bytes"]
    lines = [
        f"memory_budget {budget / 2**20:,.0f} MiB, batches of {result['batch_size']:,}",
        f"{'':<32}{'data MiB':>10}{'plan MiB':>10}{'peak MiB':>10}{'of budget':>11}"
        f"{'mapped MiB':>12}{'rows/s':>13}{'least':>12}{'most':>12}",
    ]
    for entry in result["candidates"]:
        mapped = max(outcome["mapped_bytes"] for outcome in entry["processes"])
        numbers = (entry["data_bytes"], entry["planned_bytes"], entry["peak_bytes"])
        rates = (entry["rows_per_s"], entry["min_rows_per_s"], entry["max_rows_per_s"])
        lines.append(
            f"{entry['name']:<32}"
            + "".join(f"{number / 2**20:>10,.0f}" for number in numbers)
            + f"{entry['peak_bytes'] / budget:>11.2f}{mapped / 2**20:>12,.0f}"
            + "{:>13,.0f}{:>12,.0f}{:>12,.0f}".format(*rates)
        )
    over, speed = result["over_budget"], result["slowest_to_fastest"]
    said = {True: "met", False: "not met"}
    lines += [
        "",
        f"{said[over <= MOST_OVER]:<9}peak over budget in the series {over:+.0%}, to be at most "
        f"{MOST_OVER:+.0%}",
        f"{said[speed >= LEAST_SPEED]:<9}slowest of the series at {speed:.0%} of the fastest, to "
        f"be at least {LEAST_SPEED:.0%}",
        measure.describe_hardware(result["hardware"]),
    ]
    return "\n".join(lines)
