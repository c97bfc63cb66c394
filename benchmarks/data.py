"""The rows that benchmarks read: random, made once per folder, the same in every file format.

Each format is written when it is first asked for, whole or not at all. The name of a data set's
folder depends on all that decides its content, so that a changed writer writes a new one.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tfrecords
from tutorlib.columns import Chunk, Ragged
from tutorlib.parquet import ParquetSink, ParquetSource, fast_encoding
from tutorlib.schema import Column, Schema
from tutorlib.storage import new_folder

SCALE = 0.01  # factor on the real cardinalities, as in the lessons
ROW_GROUP_ROWS = 131_072
ROWS_PER_FILE = 524_288
MOVIELENS_ROW_GROUP_ROWS = 65_536  # as data_prep writes it
USERS, MOVIES, GENRES = 162_541, 59_047, 21  # MovieLens 25M
ROLES = ("categorical", "continuous", "label")
LABELS = 2  # version of the rule that draws labels

Make = Callable[[int, np.random.Generator], Chunk]


class Dataset:
    """Rows of one shape, as Parquet and in other formats on demand.

    Args:
        folder: folder of all data sets.
        name: name of the shape, part of the data set's folder name.
        schema: the columns.
        rows: number of rows.
        make: function of (rows, random generator) that returns a chunk of so many rows.
        row_group_rows: rows per row group.
        seed: for the values.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        schema: Schema,
        rows: int,
        make: Make,
        row_group_rows: int = ROW_GROUP_ROWS,
        seed: int = 0,
    ) -> None:
        self.name, self.schema, self.rows, self.row_group_rows = name, schema, rows, row_group_rows
        self._make, self._seed, self._parent = make, seed, folder
        encoding = fast_encoding(make(1, np.random.default_rng(0)).to_arrow().schema)
        decides = [encoding, row_group_rows, ROWS_PER_FILE, schema.to_json(), LABELS, seed]
        mark = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:8]
        self.folder = folder / f"{name}-{rows}-rows-{mark}"

    def valid(self, rows: int) -> Dataset:
        """Return a data set of other rows of the same shape, for validation."""
        shape = (f"{self.name}-valid", self.schema, rows, self._make, self.row_group_rows)
        return Dataset(self._parent, *shape, seed=self._seed + 1)

    @property
    def parquet(self) -> Path:
        """Folder of the rows as the ETL writes them: 4-byte numbers, byte-stream split, LZ4."""
        return self._format("parquet", self._write_parquet)

    @functools.cached_property
    def source(self) -> ParquetSource:
        """The files of `parquet`."""
        return ParquetSource(self.parquet)

    @property
    def unchecked(self) -> Path:
        """Folder of the same files without page checksums."""
        return self._format("unchecked", functools.partial(self._write_parquet, checksums=False))

    def _write_parquet(self, path: Path, checksums: bool = True) -> None:
        rng = np.random.default_rng(self._seed)
        rows_per_file = max(ROWS_PER_FILE, self.row_group_rows)
        with ParquetSink(
            path,
            row_group_rows=self.row_group_rows,
            rows_per_file=rows_per_file,
            checksums=checksums,
        ) as sink:
            for start in range(0, self.rows, ROW_GROUP_ROWS):
                sink.write(self._make(min(ROW_GROUP_ROWS, self.rows - start), rng))

    @property
    def plain(self) -> Path:
        """Folder of the rows as most people have them: int64, PyArrow's defaults."""
        return self._format(f"plain-{self.rows}", self._write_plain)

    def _write_plain(self, path: Path) -> None:
        wide = pa.schema([(f.name, _widest(f.type)) for f in self.source.arrow_schema])
        with new_folder(path) as partial:
            for number, chunk in enumerate(self.source.chunks(rows=ROWS_PER_FILE)):
                pq.write_table(
                    chunk.to_arrow().cast(wide),
                    partial / f"part_{number:05d}.parquet",
                    row_group_size=self.row_group_rows,
                )

    def examples(self, rows: int) -> Path:
        """Return a folder with the first rows as TFRecord, one example per row."""
        write = functools.partial(tfrecords.write_examples, self.source, limit_rows=rows)
        return self._format(f"examples-{rows}", write)

    def prebatched(self, batch_size: int) -> Path:
        """Return a folder with all rows as TFRecord, one record per batch."""
        write = functools.partial(tfrecords.write_prebatched, self.source, batch_size=batch_size)
        return self._format(f"prebatched-{batch_size}", write)

    def raw_rows(self) -> Path:
        """Return a folder with all rows as raw 4-byte cells, row by row, in schema order."""
        return self._format("raw-rows", functools.partial(tfrecords.write_raw, self.source))

    def raw_batches(self, batch_size: int) -> Path:
        """Return a folder with all rows as raw 4-byte cells, column by column in each batch."""
        write = functools.partial(tfrecords.write_raw_batches, self.source, batch_size=batch_size)
        return self._format(f"raw-columns-{batch_size}", write)

    def _format(self, name: str, write: Callable[[Path], Any]) -> Path:
        path = self.folder / name
        if not path.exists():
            write(path)
        return path

    def describe(self) -> dict[str, Any]:
        """Return rows, columns by role, and the bytes on disk of each format written so far."""
        formats = {
            path.name: sum(file.stat().st_size for file in path.iterdir() if _holds_rows(file))
            for path in sorted(self.folder.iterdir())
            if path.is_dir()
        }
        columns = {role: len(self.schema.with_role(role)) for role in ROLES}
        return {"rows": self.rows, "columns": columns, "nbytes": formats}


def _holds_rows(path: Path) -> bool:
    return path.is_file() and path.suffix != ".json" and not path.name.startswith(".")


def _widest(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_widest(kind.value_type))
    return pa.int64() if pa.types.is_integer(kind) else kind


def linked(folder: Path, copies: int) -> Path:
    """Return a folder that has every Parquet file of this one `copies` times, under other names.

    They are hard links, so they take no disk space and stay in the page cache.
    """
    path = folder.with_name(f"{folder.name}-linked-{copies}")
    if not path.exists():
        with new_folder(path) as partial:
            for copy, file in itertools.product(range(copies), folder.glob("*.parquet")):
                os.link(file, partial / f"{copy:05d}_{file.name}")
    return path


def column_sums(source: ParquetSource, rows: int | None = None) -> dict[str, float]:
    """Return the sum of each column over the first `rows` rows, of a list over all its values.

    Added up in float64: exact for integers here, to about 1e-12 for float32.
    """
    left = source.num_rows if rows is None else rows
    sums = dict.fromkeys(source.column_types, 0.0)
    for chunk in source.chunks():
        for name, column in chunk.slice(0, min(left, chunk.num_rows)).items():
            values = column.values if isinstance(column, Ragged) else column
            sums[name] += float(np.sum(values, dtype=np.float64))
        left -= min(left, chunk.num_rows)
        if not left:
            break
    return sums


# ---- the shapes ---------------------------------------------------------------------------------


def _labels(log_odds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return labels drawn so that a model can learn something: bool [rows]."""
    return rng.random(len(log_odds)) < 1 / (1 + np.exp(-log_odds))


def criteo_shape(folder: Path, rows: int, *, row_group_rows: int = ROW_GROUP_ROWS) -> Dataset:
    """Return rows as the Criteo ETL leaves them: log counts, frequent ids first, a label."""
    from data_prep.synthetic_criteo import CATEGORICAL_NAMES, INTEGER_NAMES, column_sizes

    sizes = dict(zip(CATEGORICAL_NAMES, column_sizes(SCALE), strict=True))
    schema = Schema(
        [
            Column("label", "label", "int32"),
            *(Column(name, "continuous", "float32") for name in INTEGER_NAMES),
            *(Column(n, "categorical", "int32", cardinality=size) for n, size in sizes.items()),
        ]
    )

    def make(count: int, rng: np.random.Generator) -> Chunk:
        numbers = {
            name: np.log1p(np.floor(rng.lognormal(2.0, 1.5, count))).astype(np.float32)
            for name in INTEGER_NAMES
        }
        ids = {
            name: (size * rng.random(count) ** 4).astype(np.int32) for name, size in sizes.items()
        }
        label = _labels(numbers["I1"] - numbers["I2"] + ids["C9"] % 3 - 1, rng)
        return Chunk({"label": label.astype(np.int32), **numbers, **ids})

    return Dataset(folder, "criteo-shape", schema, rows, make, row_group_rows)


def movielens_shape(
    folder: Path, rows: int, *, row_group_rows: int = MOVIELENS_ROW_GROUP_ROWS
) -> Dataset:
    """Return rows as the MovieLens ETL leaves them, with 1 to 5 genres a row, 3 on average."""
    schema = Schema(
        [
            Column("userId", "categorical", "int32", cardinality=USERS),
            Column("movieId", "categorical", "int32", cardinality=MOVIES),
            Column("genres", "categorical", "int32", multi_hot=True, cardinality=GENRES),
            Column("rating", "label", "float32"),
        ]
    )

    def make(count: int, rng: np.random.Generator) -> Chunk:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 6, count))])
        genres = rng.integers(0, GENRES, offsets[-1], dtype=np.int32)
        movies = (MOVIES * rng.random(count) ** 4).astype(np.int32)
        label = _labels(0.2 * (genres[offsets[:-1]] - 10) + movies % 3 - 1, rng)
        return Chunk(
            {
                "userId": (USERS * rng.random(count) ** 2).astype(np.int32),
                "movieId": movies,
                "genres": Ragged(genres, offsets),
                "rating": label.astype(np.float32),
            }
        )

    return Dataset(folder, "movielens-shape", schema, rows, make, row_group_rows)


def nhot_shape(folder: Path, rows: int) -> Dataset:
    """Return rows as `data_prep synthetic nhot` draws them: numbers, ids, lists of ids."""
    from data_prep.synthetic_nhot import (
        BLOCK_ROWS,
        block_to_arrow,
        cardinalities,
        draw_block,
        schema_of,
    )

    sizes = cardinalities(SCALE)

    def make(count: int, rng: np.random.Generator) -> Chunk:
        seed = int(rng.integers(2**62))
        blocks = [
            block_to_arrow(draw_block(seed, 0, number, sizes))
            for number in range(-(-count // BLOCK_ROWS))
        ]
        return Chunk.from_arrow(pa.concat_tables(blocks).slice(0, count))

    return Dataset(folder, "nhot-shape", schema_of(SCALE), rows, make)
