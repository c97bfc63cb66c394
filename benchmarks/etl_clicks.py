"""The main job of the ETL benchmark: counts and strings of click logs to numbers and ids.

The rows are those of `data_prep synthetic criteo`, as Parquet with the strings of the raw files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from data_prep.synthetic_criteo import BLOCK_ROWS, block_to_arrow, column_sizes, draw_block
from tutorlib.parquet import ParquetSink

FREQ_THRESHOLD = 15  # as in data_prep
ROW_GROUP_ROWS = 131_072
ROWS_PER_FILE = 1_048_576
COUNTS = [f"I{i}" for i in range(1, 14)]
STRINGS = [f"C{i}" for i in range(1, 27)]


def clicks(path: Path, rows: int, scale: float) -> None:
    """Write raw rows with PyArrow's default settings: dictionary, Snappy, no page checksums."""
    sizes = column_sizes(scale)
    starts = tqdm(range(0, rows, BLOCK_ROWS), unit=" blocks", desc="raw rows", disable=None)
    with ParquetSink(
        path, row_group_rows=ROW_GROUP_ROWS, rows_per_file=ROWS_PER_FILE, encoding="default",
        checksums=False,
    ) as sink:  # fmt: skip
        for number, start in enumerate(starts):
            block = block_to_arrow(draw_block(0, 0, number, sizes))
            sink.write(block.slice(0, min(BLOCK_ROWS, rows - start)))


class Job(ABC):
    """The ETL in one library, which the constructor imports.

    It learns from raw rows, 13 counts and 26 strings of 8 hex digits, both with nulls, then writes
    rows ready for training. All libraries write the same values: counts with nulls and negative
    numbers as 0, log1p, mean 0 and standard deviation 1, as float32; ids of the strings as int32, 1
    for null, 2 for strings seen fewer than `FREQ_THRESHOLD` times, from 3 on by falling frequency,
    ties by their bytes.
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
