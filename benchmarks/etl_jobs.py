"""The ETL of the click logs, three times: by tutorlib, written in Polars, written in pandas.

Each job learns from raw rows (13 counts with nulls, 26 texts of 8 hex digits with nulls), then
writes them ready for training, and gives the same values: counts with nulls and negative ones as 0,
log1p, mean 0 and deviation 1, as float32; of the texts ids as int32: 1 for null, 2 for those seen
fewer than `FREQ_THRESHOLD` times, from 3 on by falling frequency, equal ones by their bytes. A job
runs in a process of its own, so that nothing heavy is imported before its `__init__`.
Does not belong here: which processes run, and what is made of the outcome (`etl.py`).
"""

from __future__ import annotations

import dataclasses
import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.memory_epochs import MemoryWatch

FREQ_THRESHOLD = 15  # as data_prep has it
ROW_GROUP_ROWS = 131_072
COUNTS = [f"I{i}" for i in range(1, 14)]
TEXTS = [f"C{i}" for i in range(1, 27)]


@dataclasses.dataclass(frozen=True)
class Task:
    """What a process is to do.

    Args:
        job: name of the job in `JOBS`.
        files: Parquet files of raw rows.
        target: folder that does not exist yet, for the rows ready for training.
    """

    job: str
    files: tuple[str, ...]
    target: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What it took; of each pair the first is that of `fit`, the second that of `transform`.

    Args:
        elapsed_s: seconds.
        cpu_s: seconds of all threads.
        peak_bytes: the most anonymous memory beyond what there was after the imports.
        written_bytes: of the files.
    """

    elapsed_s: tuple[float, float]
    cpu_s: tuple[float, float]
    peak_bytes: tuple[int, int]
    written_bytes: int


def run(task: Task) -> Outcome:
    """Do a task; imports are not counted."""
    job = JOBS[task.job]()
    gc.collect()
    target = Path(task.target)
    with MemoryWatch() as watch:
        before = watch.before[0]
        fit_s, fit_cpu_s = _timed(lambda: job.fit(list(task.files)))
        fit_peak, watch.peak = watch.peak[0] - before, (0, 0)
        transform_s, transform_cpu_s = _timed(lambda: job.transform(list(task.files), target))
    written = [path.stat().st_size for path in target.glob("part*.parquet")]
    return Outcome(
        (fit_s, transform_s),
        (fit_cpu_s, transform_cpu_s),
        (fit_peak, watch.peak[0] - before),
        sum(written),
    )


def _timed(work: Callable[[], None]) -> tuple[float, float]:
    """Return (seconds, seconds of all threads) that some work takes."""
    started, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - cpu


class Job(ABC):
    """The ETL in one library; the constructor imports it."""

    @abstractmethod
    def fit(self, files: list[str]) -> None:
        """Learn means, deviations and vocabularies from raw rows."""

    @abstractmethod
    def transform(self, files: list[str], target: Path) -> None:
        """Write the rows, in order, as `target/part*.parquet`."""


class TutorlibJob(Job):
    """A `Workflow`, as `data_prep` makes it for the click logs."""

    def __init__(self) -> None:
        from data_prep.criteo import make_workflow

        self._workflow = make_workflow(FREQ_THRESHOLD)

    def fit(self, files: list[str]) -> None:
        """One pass over the files."""
        self._workflow.fit(files, progress=False)

    def transform(self, files: list[str], target: Path) -> None:
        """A second pass, on threads."""
        self._workflow.transform_to_parquet(
            files, target, row_group_rows=ROW_GROUP_ROWS, progress=False
        )


class PolarsJob(Job):
    """Lazy frames on the streaming engine, the fastest of several ways that were tried.

    Ids come from a cast to an Enum of the vocabulary: `replace_strict` was slower and took three
    times the memory, and 26 joins slower still. One query for each vocabulary, collected together,
    was faster than `value_counts` of all columns in one. Polars writes no byte-stream split.
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
        """Collect means, deviations, and the frequent values of each column in order."""
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
            for name in TEXTS
        ]
        found = pl.collect_all([means, deviations, *vocabularies], engine="streaming")
        self._means, self._deviations = (frame.row(0, named=True) for frame in found[:2])
        self._kinds = {frame.columns[0]: pl.Enum(frame.to_series()) for frame in found[2:]}

    def transform(self, files: list[str], target: Path) -> None:
        """Stream the rows into one file."""
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
    """A column at a time to learn, a file at a time to write, so that it fits into memory."""

    def __init__(self) -> None:
        import numpy
        import pandas
        import pyarrow.parquet  # noqa: F401, with which pandas reads and writes

        self._pd, self._np = pandas, numpy

    def _logarithm(self, column: Any) -> Any:
        return self._np.log1p(column.fillna(0).clip(lower=0).astype("float64"))

    def fit(self, files: list[str]) -> None:
        """Read each column of all files, and keep what is learned of it."""
        self._shift_scale, self._vocabularies = {}, {}
        for name in COUNTS:
            column = self._logarithm(self._column(files, name))
            self._shift_scale[name] = column.mean(), column.std(ddof=0)
        for name in TEXTS:
            counts = self._column(files, name).value_counts().rename("count")
            counts = counts[counts >= FREQ_THRESHOLD].rename_axis("text").reset_index()
            ordered = counts.sort_values(["count", "text"], ascending=[False, True])
            self._vocabularies[name] = self._pd.Index(ordered["text"])

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
                ids[ids == 2] = self._np.where(rows[name].isna(), 1, 2)[ids == 2]
                made[name] = ids.astype("int32")
            made["label"] = rows["label"]
            self._pd.DataFrame(made).to_parquet(
                target / f"part_{number:05d}.parquet", index=False, compression="lz4",
                row_group_size=ROW_GROUP_ROWS, use_dictionary=["label"],
                use_byte_stream_split=[*COUNTS, *TEXTS],
            )  # fmt: skip


JOBS: dict[str, type[Job]] = {"tutorlib": TutorlibJob, "polars": PolarsJob, "pandas": PandasJob}
