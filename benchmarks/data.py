"""The rows that the benchmarks read: random, made once a folder, the same in every format.

A format is written beside its place and renamed when it is whole; it is made when it is first asked
for. Its folder is named after all that it depends on, so that a changed writer makes it anew.
Does not belong here: reading it (`rivals.py`), measuring.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tutorlib.chunk import Chunk, Ragged
from tutorlib.parquet import ParquetSink, ParquetSource, fast_encoding
from tutorlib.schema import Column, Schema
from tutorlib.storage import written_whole

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "benchmarks"
SCALE = 0.01  # of the real cardinalities, as in the lessons
ROW_GROUP_ROWS = 131_072
ROWS_PER_FILE = 524_288
MOVIELENS_ROW_GROUP_ROWS = 65_536  # as data_prep writes it
USERS, FILMS, GENRES = 162_541, 59_047, 21  # MovieLens 25M
ROLES = ("categorical", "continuous", "label")


class Dataset:
    """Rows of one shape as Parquet, and in whatever other format is asked for.

    Args:
        folder: where data sets are kept.
        name: of the shape, part of the folder's name.
        schema: its columns.
        rows: number of rows.
        make: (rows of a block, random generator) -> `Chunk`.
        row_group_rows: rows of a row group.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        schema: Schema,
        rows: int,
        make: Callable[[int, np.random.Generator], Chunk],
        row_group_rows: int,
    ) -> None:
        self.name, self.schema, self.rows, self._make = name, schema, rows, make
        self.row_group_rows = row_group_rows
        encoding = fast_encoding(make(1, np.random.default_rng(0)).to_arrow().schema)
        written_as = json.dumps([encoding, row_group_rows, ROWS_PER_FILE, schema.to_json()])
        mark = hashlib.sha256(written_as.encode()).hexdigest()[:8]
        self.folder = folder / f"{name}-{rows}-rows-{mark}"

    @functools.cached_property
    def source(self) -> ParquetSource:
        """The rows as the ETL writes them: 4-byte numbers, byte-stream split, LZ4."""
        path = self.folder / "parquet"
        if not path.exists():
            rng = np.random.default_rng(0)
            with ParquetSink(
                path,
                row_group_rows=self.row_group_rows,
                rows_per_file=max(ROWS_PER_FILE, self.row_group_rows),
            ) as sink:
                for start in range(0, self.rows, ROW_GROUP_ROWS):
                    sink.write(self._make(min(ROW_GROUP_ROWS, self.rows - start), rng))
        return ParquetSource(path)

    @functools.cached_property
    def plain(self) -> ParquetSource:
        """The rows as most people have them: int64, dictionary, snappy, PyArrow's defaults."""
        return self.plain_first(self.rows)

    def plain_first(self, rows: int) -> ParquetSource:
        """Return the first rows as `plain`."""
        path = self.folder / f"plain-{rows}"
        if not path.exists():
            wide = pa.schema([(f.name, _widest(f.type)) for f in self.source.arrow_schema])
            with written_whole(path) as partial:
                partial.mkdir()
                for part, table in enumerate(self._files_of(rows)):
                    pq.write_table(
                        table.cast(wide),
                        partial / f"part_{part:05d}.parquet",
                        row_group_size=self.row_group_rows,
                    )
        return ParquetSource(path)

    def _files_of(self, rows: int) -> Iterator[pa.Table]:
        """Yield the first rows in order, a table for each file."""
        for chunk in self.source.chunks(rows=min(ROWS_PER_FILE, rows)):
            yield chunk.slice(0, min(chunk.num_rows, rows)).to_arrow()
            rows -= chunk.num_rows
            if rows <= 0:
                return

    def examples(self, rows: int) -> Path:
        """Return the folder of the first rows as TFRecord, one example a row."""
        from tutorlib import tfrecords

        path = self.folder / f"examples-{rows}"
        if not path.exists():
            tfrecords.write_examples(self.source, path, limit_rows=rows)
        return path

    def prebatched(self, batch_size: int) -> Path:
        """Return the folder of TFRecord, one record a batch."""
        from tutorlib import tfrecords

        path = self.folder / f"prebatched-{batch_size}"
        if not path.exists():
            tfrecords.write_prebatched(self.source, path, batch_size=batch_size)
        return path

    def raw(self, form: str, batch_size: int) -> Path:
        """Return a folder of raw binary: 4-byte cells without any header.

        Args:
            form: "rows" or "stacked": row by row, the columns in the order of the schema;
                "columns": batch by batch, and in a batch column by column.
            batch_size: rows of a batch; matters for "columns" alone.
        """
        from tutorlib import tfrecords

        name = f"raw-columns-{batch_size}" if form == "columns" else "raw-rows"
        path = self.folder / name
        if not path.exists():
            if form == "columns":
                tfrecords.write_raw_batches(self.source, path, batch_size=batch_size)
            else:
                tfrecords.write_raw(self.source, path)
        return path

    def facts(self) -> dict[str, Any]:
        """Return rows, columns by role, and the bytes on disk of each format that is there."""
        formats = {
            path.name: sum(file.stat().st_size for file in path.iterdir() if holds_rows(file))
            for path in sorted(self.folder.iterdir())
            if path.is_dir()
        }
        columns = {role: len(self.schema.with_role(role)) for role in ROLES}
        return {"rows": self.rows, "columns": columns, "nbytes": formats}


def holds_rows(path: Path) -> bool:
    """Tell whether a path is a file of rows, and not of facts about them."""
    return path.is_file() and path.suffix != ".json"


def _widest(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_widest(kind.value_type))
    return pa.int64() if pa.types.is_integer(kind) else kind


# ---- Criteo: many columns -----------------------------------------------------------------------


def criteo_schema() -> Schema:
    """Return 13 continuous columns, 26 categorical ones with scaled cardinalities, and the label.

    Example:
        >>> schema = criteo_schema()
        >>> len(schema.continuous), len(schema.categorical), schema["C1"].cardinality
        (13, 26, 75995)
    """
    from data_prep.synthetic_criteo import CATEGORICAL_NAMES, INTEGER_NAMES, column_sizes

    return Schema(
        [
            Column("label", "label", "int32"),
            *(Column(name, "continuous", "float32") for name in INTEGER_NAMES),
            *(
                Column(name, "categorical", "int32", cardinality=size)
                for name, size in zip(CATEGORICAL_NAMES, column_sizes(SCALE), strict=True)
            ),
        ]
    )


def criteo_shape(folder: Path, rows: int, *, row_group_rows: int = ROW_GROUP_ROWS) -> Dataset:
    """Return rows as the Criteo ETL leaves them: log counts, frequent ids first, a label."""
    schema = criteo_schema()

    def make(count: int, rng: np.random.Generator) -> Chunk:
        return Chunk({column.name: _criteo_values(column, count, rng) for column in schema})

    return Dataset(folder, "criteo-shape", schema, rows, make, row_group_rows)


def _criteo_values(column: Column, rows: int, rng: np.random.Generator) -> np.ndarray:
    if column.role == "label":
        return rng.integers(0, 2, rows, dtype=np.int32)
    if column.role == "continuous":
        return np.log1p(np.floor(rng.lognormal(2.0, 1.5, rows))).astype(np.float32)
    return (column.cardinality * rng.random(rows) ** 4).astype(np.int32)


# ---- MovieLens: few columns, one of them multi-hot ----------------------------------------------


def movielens_schema() -> Schema:
    """Return user, film, genres (multi-hot) and the label, with the sizes of MovieLens 25M.

    Example:
        >>> [column.name for column in movielens_schema() if column.multi_hot]
        ['genres']
    """
    return Schema(
        [
            Column("userId", "categorical", "int32", cardinality=USERS),
            Column("movieId", "categorical", "int32", cardinality=FILMS),
            Column("genres", "categorical", "int32", multi_hot=True, cardinality=GENRES),
            Column("rating", "label", "float32"),
        ]
    )


def movielens_shape(
    folder: Path, rows: int, *, row_group_rows: int = MOVIELENS_ROW_GROUP_ROWS
) -> Dataset:
    """Return rows as the MovieLens ETL leaves them, with 1 to 5 genres a row, 3 on average."""

    def make(count: int, rng: np.random.Generator) -> Chunk:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 6, count))])
        genres = rng.integers(0, GENRES, offsets[-1], dtype=np.int32)
        return Chunk(
            {
                "userId": (USERS * rng.random(count) ** 2).astype(np.int32),
                "movieId": (FILMS * rng.random(count) ** 4).astype(np.int32),
                "genres": Ragged(genres, offsets),
                "rating": rng.integers(0, 2, count).astype(np.float32),
            }
        )

    return Dataset(folder, "movielens-shape", movielens_schema(), rows, make, row_group_rows)


def column_sums(source: ParquetSource, rows: int | None = None) -> dict[str, float]:
    """Return the sum of each column over the first `rows` rows, of a list over all its values.

    Added up in float64: exact for whole numbers here, to about 1e-12 for float32.
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
