"""Rows per second and peak memory of an ETL job, by Polars, pandas and tutorlib.

13 counts and 26 strings of click logs, both with nulls, become numbers and ids. Counts: nulls and
negative numbers as 0, log1p, mean 0 and standard deviation 1, as float32; ids of strings as int32,
1 for null, 2 for strings seen fewer than 15 times, from 3 on by falling frequency, ties by their
bytes.

All libraries learn from the same Parquet files (PyArrow's default settings, in the page cache) and
write the same values, which is checked in the first turn. Each turn runs in a fresh process: the
library is imported, then the memory in use is noted and the clock starts. Only anonymous memory
counts. Linux only. One core: `taskset -c 0 python -m benchmarks etl`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from benchmarks.data import IDS, NUMBERS, files_of, whole_folder
from benchmarks.measure import Benchmark, MemoryWatch, Way, claim, faster, in_fresh_process
from turns import Epoch

SCALE = 0.1  # of the real cardinalities: 5 million rows then hold as many distinct values as real
FREQ_THRESHOLD = 15  # as in data_prep
ROW_GROUP_ROWS, ROWS_PER_FILE = 131_072, 1_048_576
TITLES = {"polars": "Polars, streaming", "pandas": "pandas", "tutorlib": "tutorlib"}
BOUNDS = (
    ("clicks", TITLES["tutorlib"], TITLES["polars"], 1.1),
    ("clicks", TITLES["tutorlib"], TITLES["pandas"], 5.5),
)
MOST_BYTES = 2 * 10**9
TOLERANCE = 1e-5  # of numbers that are not integers


def raw_rows(folder: Path, rows: int, scale: float) -> list[str]:
    """Return the Parquet files that the job reads; writes them unless they exist.

    Rows are those of `data_prep synthetic criteo`, with the strings of the raw files.
    """
    from data_prep.synthetic_criteo import column_sizes, draw_block

    path, sizes = folder / f"clicks-{rows}-rows-scale-{scale:g}", column_sizes(scale)

    def blocks() -> Iterator[pa.RecordBatch]:
        left, number = rows, 0
        while left > 0:
            block = draw_block(0, 0, number, sizes).table.slice(0, left)
            left, number = left - len(block), number + 1
            yield from block.to_batches()

    def write(partial: Path) -> None:
        schema = draw_block(0, 0, 0, sizes).table.schema
        ds.write_dataset(
            blocks(), partial, schema=schema, format="parquet", max_rows_per_file=ROWS_PER_FILE,
            max_rows_per_group=ROW_GROUP_ROWS, min_rows_per_group=ROW_GROUP_ROWS,
        )  # fmt: skip

    if not path.exists():
        whole_folder(path, write)
    return files_of(path)


# ---- the job in each library --------------------------------------------------------------------


class Tutorlib:
    """The `Workflow` of `data_prep criteo`."""

    def __init__(self) -> None:
        from data_prep.criteo import make_workflow

        self._workflow = make_workflow(FREQ_THRESHOLD)

    def fit(self, files: list[str]) -> None:
        """Fit in one pass over the files."""
        self._workflow.fit(files)

    def transform(self, files: list[str], target: Path) -> None:
        """Transform in a second pass, on threads."""
        self._workflow.transform_to_parquet(files, target, row_group_rows=ROW_GROUP_ROWS)


class Polars:
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
            for name in NUMBERS
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
            for name in IDS
        ]
        learned = pl.collect_all([means, deviations, *vocabularies], engine="streaming")
        self._means, self._deviations = (frame.row(0, named=True) for frame in learned[:2])
        self._kinds = {frame.columns[0]: pl.Enum(frame.to_series()) for frame in learned[2:]}

    def transform(self, files: list[str], target: Path) -> None:
        """Stream all rows into one file."""
        pl, rows = self._pl, self._pl.scan_parquet(files)
        normalised = {
            name: ((count - self._means[name]) / self._deviations[name]).cast(pl.Float32)
            for name, count in self._counts().items()
        }
        ids = {}
        for name, kind in self._kinds.items():
            known = pl.col(name).cast(kind, strict=False).to_physical().cast(pl.Int32) + 3
            either = pl.when(pl.col(name).is_null()).then(1).otherwise(known.fill_null(2))
            ids[name] = either.cast(pl.Int32)
        target.mkdir()
        rows.select(**normalised, **ids, label="label").sink_parquet(
            target / "part.parquet", compression="lz4", row_group_size=ROW_GROUP_ROWS,
            engine="streaming",
        )  # fmt: skip


class Pandas:
    """pandas, which learns from one column and writes one file at a time, to fit into memory."""

    def __init__(self) -> None:
        import pandas

        self._pd = pandas

    def _logarithm(self, column: Any) -> Any:
        return np.log1p(column.fillna(0).clip(lower=0).astype("float64"))

    def fit(self, files: list[str]) -> None:
        """Read one column of all files after the other, and keep what was learned."""
        self._shift_scale, self._vocabularies = {}, {}
        for name in NUMBERS:
            column = self._logarithm(self._pd.read_parquet(files, columns=[name])[name])
            self._shift_scale[name] = column.mean(), column.std(ddof=0)
        for name in IDS:
            column = self._pd.read_parquet(files, columns=[name])[name]
            counts = column.value_counts().rename("count")
            counts = counts[counts >= FREQ_THRESHOLD].rename_axis("string").reset_index()
            ordered = counts.sort_values(["count", "string"], ascending=[False, True])
            self._vocabularies[name] = self._pd.Index(ordered["string"])

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
                use_byte_stream_split=[*NUMBERS, *IDS],
            )  # fmt: skip


JOBS: dict[str, Callable[[], Any]] = {"polars": Polars, "pandas": Pandas, "tutorlib": Tutorlib}


# ---- one process, and what it wrote -------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Task:
    """The task of one process."""

    library: str
    files: tuple[str, ...]
    rows: int
    target: str  # folder to write, which does not exist yet


def perform(task: Task) -> Epoch:
    """Perform a task and return what it took, without imports."""
    job = JOBS[task.library]()
    gc.collect()
    files, target, times = list(task.files), Path(task.target), [time.perf_counter()]
    cpu = time.process_time()
    with MemoryWatch() as watch:
        for work in (lambda: job.fit(files), lambda: job.transform(files, target)):
            work()
            times.append(time.perf_counter())
    values = {
        "fit_s": times[1] - times[0],
        "transform_s": times[2] - times[1],
        "cpu_s": time.process_time() - cpu,
        "peak_bytes": float(watch.peak_bytes),
        "written_bytes": float(sum(path.stat().st_size for path in target.glob("part*.parquet"))),
    }
    return Epoch(task.rows, elapsed_s=times[2] - times[0], values=values)


def check_equal(one: Path, other: Path, rows: int) -> None:
    """Check that two folders hold the same rows: equal ids, numbers equal to 1e-5.

    Equal ids of all rows mean equal vocabularies, because every value of one is in some row.
    """
    tables = [ds.dataset(files_of(folder)) for folder in (one, other)]
    for name in tables[0].schema.names:
        mine, theirs = (table.to_table(columns=[name])[name].to_numpy() for table in tables)
        if not len(mine) == len(theirs) == rows:
            lengths = f"{one.name} wrote {len(mine)} rows, {other.name} {len(theirs)}"
            raise ValueError(f"{name}: {lengths}, of {rows}")
        same = mine == theirs
        if mine.dtype.kind == "f":
            same = np.abs(mine - theirs) <= TOLERANCE
        if mine.dtype != theirs.dtype or not np.all(same):
            row = int(np.argmin(same))
            raise ValueError(
                f"column {name!r}: {one.name} wrote {mine[row]!r} in row {row}, {other.name} "
                f"{theirs[row]!r}; all libraries must write the same values"
            )


# ---- turns --------------------------------------------------------------------------------------


def clicks(arguments: argparse.Namespace) -> list[Way]:
    """Return the job in each library."""
    rows = arguments.rows
    files = tuple(raw_rows(arguments.data, rows, arguments.scale))
    folder = Path(tempfile.mkdtemp(dir=arguments.data, prefix="etl-"))
    compared: list[Path] = []  # what each library wrote in its first turn

    def epoch(library: str) -> Epoch:
        target = folder / library
        shutil.rmtree(target, ignore_errors=True)
        done = in_fresh_process(perform, Task(library, files, rows, str(target)))
        if target not in compared:
            compared.append(target)
            check_equal(compared[0], target, rows)
        return done

    remove = functools.partial(shutil.rmtree, folder, ignore_errors=True)
    return [
        Way(title, functools.partial(epoch, library), close=remove)
        for library, title in TITLES.items()
    ]


def claims(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the bounds of speed and of memory."""
    yield from faster(BOUNDS)(result)
    for entry in result["ways"]:
        if entry["name"] == TITLES["tutorlib"]:
            peaks = entry["values"]["peak_bytes"]
            yield claim("peak bytes of tutorlib", peaks, at_most=MOST_BYTES)


ETL = Benchmark(
    "etl",
    "rows/s and memory of fit and transform compared with Polars and pandas (5 minutes)",
    {"clicks": clicks},
    {
        "rows": (2_000_000, "rows"),
        "scale": (SCALE, "factor on the real cardinalities, above 0, at most 100"),
    },
    claims,
    repeat=3,
)
