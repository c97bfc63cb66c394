"""Rows per second and peak memory of the ETL of the click logs, by tutorlib, Polars and pandas.

All three learn from the same Parquet files of raw rows and write the same values, which is checked
once (`Job` says which). They take turns, each time in a fresh process: the library is imported,
then the memory in use is noted and the clock starts. Only anonymous memory counts. Files are in the
page cache. Linux only.

The rows are those of `data_prep synthetic criteo`, as Parquet with the strings of the raw files and
PyArrow's default settings: dictionary and Snappy.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib.metadata
import importlib.util
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from tqdm import tqdm

from benchmarks import machine, measure
from data_prep.synthetic_criteo import BLOCK_ROWS, block_to_arrow, column_sizes, draw_block
from tutorlib.parquet import ParquetSink

SUMMARY = "rows/s and memory of fit and transform compared with Polars and pandas (15 minutes)"
SCALE = 0.1  # of the real cardinalities: 5 million rows then hold as many distinct values as real
FREQ_THRESHOLD = 15  # as in data_prep
ROW_GROUP_ROWS = 131_072
ROWS_PER_FILE = 1_048_576
COUNTS = [f"I{i}" for i in range(1, 14)]
STRINGS = [f"C{i}" for i in range(1, 27)]
TITLES = {"tutorlib": "tutorlib", "polars": "Polars, streaming", "pandas": "pandas"}
MOST_BYTES = 2 * 10**9
TOLERANCE = 1e-5  # of normalised values


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to a parser."""
    measure.add_numbers(
        parser,
        rows=(5_000_000, "rows"),
        scale=(SCALE, "factor on the real cardinalities, above 0, at most 100"),
    )
    measure.add_options(
        parser, "etl", repeat=5, repeated="processes for each job", sections=JOBS, device=False
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure, print the table and write the JSON file."""
    machine.require_linux()
    if arguments.repeat < 1:
        raise SystemExit(f"benchmarks: --repeat must be at least 1, got {arguments.repeat}")
    absent = [name for name in arguments.only if not is_installed(name)]
    for name in absent:
        print(f"not measured: {TITLES[name]}: not installed here; pip install {name}")
    jobs = [name for name in arguments.only if name not in absent]
    files = raw_rows(arguments.data, arguments.rows, arguments.scale)
    with tempfile.TemporaryDirectory(dir=arguments.data, prefix="etl-") as folder:
        outcomes = in_turns(jobs, files, Path(folder), arguments.rows, arguments.repeat)
    details = {
        "scale": arguments.scale,
        "freq_threshold": FREQ_THRESHOLD,
        "raw_bytes": sum(Path(file).stat().st_size for file in files),
        "not_measured": absent,
    }
    command = measure.command_line(arguments)
    result = report(outcomes, arguments.rows, command=command, details=details)
    print(table(result))
    measure.save(result, arguments.out)


def is_installed(job: str) -> bool:
    """Return whether the library of a job is installed."""
    return importlib.util.find_spec(job) is not None


def raw_rows(folder: Path, rows: int, scale: float) -> tuple[str, ...]:
    """Return the Parquet files of raw rows; writes them unless they exist."""
    path = folder / f"criteo-raw-{rows}-rows-scale-{scale:g}"
    if not path.exists():
        sizes = column_sizes(scale)
        starts = tqdm(range(0, rows, BLOCK_ROWS), unit=" blocks", desc="raw rows", disable=None)
        with ParquetSink(
            path, row_group_rows=ROW_GROUP_ROWS, rows_per_file=ROWS_PER_FILE, encoding="default"
        ) as sink:
            for number, start in enumerate(starts):
                block = block_to_arrow(draw_block(0, 0, number, sizes))
                sink.write(block.slice(0, min(BLOCK_ROWS, rows - start)))
    return tuple(str(file) for file in sorted(path.glob("*.parquet")))


# ---- one process --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Task:
    """The task of one process."""

    job: str  # key of `JOBS`
    files: tuple[str, ...]
    target: str  # folder to write, which does not exist yet


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one process measured; in each pair `fit` comes first, then `transform`."""

    elapsed_s: tuple[float, float]  # seconds
    cpu_s: tuple[float, float]  # CPU seconds of all threads
    peak_bytes: tuple[int, int]  # maximum anonymous memory above that after the imports
    written_bytes: int  # size of the files


def perform(task: Task) -> Outcome:
    """Perform a task and return what it took, without imports."""
    job = JOBS[task.job]()
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


# ---- the jobs -----------------------------------------------------------------------------------


class Job(ABC):
    """The ETL in one library, which the constructor imports.

    It learns from raw rows, 13 counts and 26 strings of 8 hex digits, both with nulls, then writes
    rows ready for training. All jobs write the same values: counts with nulls and negative numbers
    as 0, log1p, mean 0 and standard deviation 1, as float32; ids of the strings as int32, 1 for
    null, 2 for strings seen fewer than `FREQ_THRESHOLD` times, from 3 on by falling frequency, ties
    by their bytes.
    """

    @abstractmethod
    def fit(self, files: list[str]) -> None:
        """Learn means, standard deviations and vocabularies from files of raw rows."""

    @abstractmethod
    def transform(self, files: list[str], target: Path) -> None:
        """Write the rows of the files, in order, as `target/part*.parquet`."""


class TutorlibJob(Job):
    """The `Workflow` of `data_prep criteo`."""

    def __init__(self) -> None:
        from data_prep.criteo import make_workflow

        self._workflow = make_workflow(FREQ_THRESHOLD)

    def fit(self, files: list[str]) -> None:
        """Fit in one pass over the files."""
        self._workflow.fit(files, progress=False)

    def transform(self, files: list[str], target: Path) -> None:
        """Transform in a second pass, on threads."""
        self._workflow.transform_to_parquet(
            files, target, row_group_rows=ROW_GROUP_ROWS, progress=False
        )


class PolarsJob(Job):
    """Lazy frames on Polars' streaming engine, the fastest of several variants that were tried.

    Ids come from a cast to an Enum of the vocabulary: `replace_strict` was slower and took three
    times the memory, 26 joins were slower still. One query per vocabulary, collected together, was
    faster than one query with `value_counts` of all columns. Polars writes no byte-stream split.
    """

    def __init__(self) -> None:
        import polars

        self._pl = polars

    def _counts(self) -> dict[str, Any]:
        """Return log1p of each count, float64, by name."""
        return {
            name: self._pl.col(name).fill_null(0).clip(0).cast(self._pl.Float64).log1p()
            for name in COUNTS
        }

    def fit(self, files: list[str]) -> None:
        """Collect means, standard deviations, and the frequent strings of each column in order."""
        pl, rows, counts = self._pl, self._pl.scan_parquet(files), self._counts()
        means = rows.select(**{name: count.mean() for name, count in counts.items()})
        deviations = rows.select(**{name: count.std(ddof=0) for name, count in counts.items()})
        vocabularies = [
            rows.drop_nulls(name)
            .group_by(name)
            .len()
            .filter(pl.col("len") >= FREQ_THRESHOLD)
            .sort("len", name, descending=[True, False])
            .select(name)
            for name in STRINGS
        ]
        found = pl.collect_all([means, deviations, *vocabularies], engine="streaming")
        self._means, self._deviations = (frame.row(0, named=True) for frame in found[:2])
        self._kinds = {frame.columns[0]: pl.Enum(frame.to_series()) for frame in found[2:]}

    def transform(self, files: list[str], target: Path) -> None:
        """Stream all rows into one file."""
        pl, rows = self._pl, self._pl.scan_parquet(files)
        target.mkdir()
        normalised = {
            name: ((count - self._means[name]) / self._deviations[name]).cast(pl.Float32)
            for name, count in self._counts().items()
        }
        ids = {
            name: pl.when(pl.col(name).is_null())
            .then(1)
            .otherwise(
                (pl.col(name).cast(kind, strict=False).to_physical().cast(pl.Int32) + 3)
                .fill_null(2)
            )
            .cast(pl.Int32)
            for name, kind in self._kinds.items()
        }  # fmt: skip
        rows.select(**normalised, **ids, label="label").sink_parquet(
            target / "part.parquet", compression="lz4", row_group_size=ROW_GROUP_ROWS,
            engine="streaming",
        )  # fmt: skip


class PandasJob(Job):
    """pandas, which learns from one column and writes one file at a time, to fit into memory."""

    def __init__(self) -> None:
        import pandas

        self._pd = pandas

    def _logarithm(self, column: Any) -> Any:
        return np.log1p(column.fillna(0).clip(lower=0).astype("float64"))

    def fit(self, files: list[str]) -> None:
        """Read one column of all files after the other, and keep what was learned."""
        self._shift_scale, self._vocabularies = {}, {}
        for name in COUNTS:
            column = self._logarithm(self._column(files, name))
            self._shift_scale[name] = column.mean(), column.std(ddof=0)
        for name in STRINGS:
            counts = self._column(files, name).value_counts().rename("count")
            counts = counts[counts >= FREQ_THRESHOLD].rename_axis("string").reset_index()
            ordered = counts.sort_values(["count", "string"], ascending=[False, True])
            self._vocabularies[name] = self._pd.Index(ordered["string"])

    def _column(self, files: list[str], name: str) -> Any:
        return self._pd.read_parquet(files, columns=[name])[name]

    def transform(self, files: list[str], target: Path) -> None:
        """Read, transform and write one file after the other."""
        target.mkdir()
        for number, file in enumerate(files):
            rows, made = self._pd.read_parquet(file), {}
            for name, (shift, scale) in self._shift_scale.items():
                made[name] = ((self._logarithm(rows[name]) - shift) / scale).astype("float32")
            for name, vocabulary in self._vocabularies.items():
                ids = vocabulary.get_indexer(rows[name]) + 3
                ids[ids == 2] = np.where(rows[name].isna(), 1, 2)[ids == 2]
                made[name] = ids.astype("int32")
            made["label"] = rows["label"]
            self._pd.DataFrame(made).to_parquet(
                target / f"part_{number:05d}.parquet", index=False, compression="lz4",
                row_group_size=ROW_GROUP_ROWS, use_dictionary=["label"],
                use_byte_stream_split=[*COUNTS, *STRINGS],
            )  # fmt: skip


JOBS: dict[str, type[Job]] = {"tutorlib": TutorlibJob, "polars": PolarsJob, "pandas": PandasJob}


# ---- turns and report ---------------------------------------------------------------------------


def in_turns(
    jobs: Sequence[str], files: tuple[str, ...], folder: Path, rows: int, repeat: int
) -> dict[str, list[Outcome]]:
    """Run the jobs turn by turn, each in a fresh process.

    The first turn does not count: it brings the files into the page cache, and its output is
    compared. Output goes to `folder`, from which it is removed after each turn.
    """
    outcomes: dict[str, list[Outcome]] = {name: [] for name in jobs}
    for turn in range(-1, repeat):
        with tempfile.TemporaryDirectory(dir=folder) as written:
            for name in jobs:
                target = Path(written) / name
                outcome = machine.in_fresh_process(perform, Task(name, files, str(target)))
                rate, peak = rows / sum(outcome.elapsed_s), max(outcome.peak_bytes) / 1e6
                measured = f"{rate:>14,.0f} rows/s{peak:>10,.0f} MB"
                measure.show_turn(turn, repeat, TITLES[name], measured)
                if turn >= 0:
                    outcomes[name].append(outcome)
                elif name != jobs[0]:
                    check_equal(Path(written) / jobs[0], target, rows)
    return outcomes


def check_equal(one: Path, other: Path, rows: int) -> None:
    """Check that two folders hold the same rows: equal ids, numbers equal to 1e-5.

    Equal ids of all rows mean equal vocabularies, because every value of one is in some row.
    """
    tables = [ds.dataset(sorted(folder.glob("part*.parquet"))) for folder in (one, other)]
    for name in ("label", *COUNTS, *STRINGS):
        mine, theirs = (_column(table, name) for table in tables)
        if not len(mine) == len(theirs) == rows:
            raise ValueError(f"{name}: {one.name} wrote {len(mine)} rows, {other.name} "
                             f"{len(theirs)}, of {rows}")  # fmt: skip
        same = np.abs(mine - theirs) <= TOLERANCE if name in COUNTS else mine == theirs
        if mine.dtype != theirs.dtype or not same.all():
            row = int(np.argmin(same))
            raise ValueError(
                f"column {name!r}: {one.name} wrote {mine[row]!r} in row {row}, {other.name} "
                f"{theirs[row]!r}; all jobs must write the same values"
            )


def _column(table: ds.Dataset, name: str) -> np.ndarray:
    column = table.to_table(columns=[name])[name]
    return pa.concat_arrays(column.chunks).to_numpy(zero_copy_only=False)


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
        claims=[measure.Claim(ours, 0.8, other=polars), measure.Claim(ours, 5, other=pandas)],
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
