"""The rows that benchmarks read: random, made once per folder, the same in every file format.

Each format is written when it is first asked for, whole or not at all. The name of a data set's
folder depends on all that decides its content, so that a changed writer writes a new one.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from other_readers import vectors_of
from tutorlib import Chunk, Column, ParquetSink, ParquetSource, Schema

SCALE = 0.01  # factor on the real cardinalities, as in the lessons
ROW_GROUP_ROWS = 131_072
ROWS_PER_FILE = 524_288
MOVIELENS_ROW_GROUP_ROWS = 65_536  # as data_prep writes it
USERS, MOVIES, GENRES = 162_541, 59_047, 21  # MovieLens 25M
NUMBERS, IDS = [f"I{k}" for k in range(1, 14)], [f"C{k}" for k in range(1, 27)]  # of Criteo
TIME = NUMBERS[-1]  # holds the time of each row, in days; the files are sorted by it

Make = Callable[[int, int, np.random.Generator], Mapping[str, Any]]  # first row, rows -> columns


class Dataset:
    """Rows of one shape, as Parquet and in other formats on demand.

    Args:
        folder: folder of all data sets.
        name: name of the shape, part of the data set's folder name.
        schema: the columns.
        rows: number of rows.
        make: function of (first row, rows, random generator) that returns these rows as columns.
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
        writers = inspect.getsource(sys.modules[ParquetSink.__module__]) + inspect.getsource(make)
        decides = f"{writers} {row_group_rows} {ROWS_PER_FILE} {schema.to_json()} {seed}"
        mark = hashlib.sha256(decides.encode()).hexdigest()[:8]
        self.folder = folder / f"{name}-{rows}-rows-{mark}"

    def valid(self, rows: int) -> Dataset:
        """Return a data set of other rows of the same shape, for validation or to warm up."""
        shape = (f"{self.name}-valid", self.schema, rows, self._make, self.row_group_rows)
        return Dataset(self._parent, *shape, seed=self._seed + 1)

    @property
    def parquet(self) -> Path:
        """Folder of the rows as the ETL writes them: 4-byte numbers, byte-stream split, LZ4."""
        return self._format("parquet", self._write_parquet)

    def _write_parquet(self, path: Path) -> None:
        rng = np.random.default_rng(self._seed)
        rows_per_file = max(ROWS_PER_FILE, self.row_group_rows)
        with ParquetSink(
            path, row_group_rows=self.row_group_rows, rows_per_file=rows_per_file
        ) as sink:
            for start in range(0, self.rows, ROW_GROUP_ROWS):
                count = min(ROW_GROUP_ROWS, self.rows - start)
                sink.write(pa.table(dict(self._make(start, count, rng))))

    @property
    def plain(self) -> Path:
        """Folder of the rows as most people have them: int64, PyArrow's defaults."""
        return self._format("plain", self._write_plain)

    def _write_plain(self, path: Path) -> None:
        def write(partial: Path) -> None:
            for file in files_of(self.parquet):
                rows = pq.read_table(file)
                wide = [field.with_type(_widest(field.type)) for field in rows.schema]
                pq.write_table(
                    rows.cast(pa.schema(wide)),
                    partial / Path(file).name,
                    row_group_size=self.row_group_rows,
                )

        whole_folder(path, write)

    def examples(self, rows: int) -> Path:
        """Return a folder with the first rows as TFRecord, one example per row."""
        import tfrecords  # starts TensorFlow

        return self._format(
            f"examples-{rows}",
            lambda path: tfrecords.write_examples(self.parquet, path, limit_rows=rows),
        )

    def prebatched(self, batch_size: int) -> Path:
        """Return a folder with all rows as TFRecord, one record per batch."""
        import tfrecords  # starts TensorFlow

        return self._format(
            f"prebatched-{batch_size}",
            lambda path: tfrecords.write_prebatched(self.parquet, path, batch_size=batch_size),
        )

    def vectors(self, rows: int) -> Path:
        """Return a folder with the first rows as TFRecord, each the vectors of its roles."""
        import tfrecords  # starts TensorFlow

        def write(path: Path) -> None:
            chunk = Chunk.concat(list(ParquetSource(self.parquet).head(rows).chunks()))
            tfrecords.write_examples(vectors_of(chunk, self.schema), path)

        return self._format(f"vectors-{rows}", write)

    def raw_rows(self, rows: int | None = None) -> Path:
        """Return a folder with the first rows, or all, as raw 4-byte cells, in schema order."""
        import tfrecords  # starts TensorFlow

        return self._format(
            f"raw-rows-{rows or self.rows}",
            lambda path: tfrecords.write_raw(self.parquet, path, limit_rows=rows),
        )

    def _format(self, name: str, write: Callable[[Path], Any]) -> Path:
        path = self.folder / name
        if not path.exists():
            write(path)
        return path

    def arrays(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return all rows as (inputs, label), arrays [rows, 1] by name; for rows without lists."""
        rows = pq.read_table(self.parquet)
        columns = {name: rows[name].to_numpy()[:, None] for name in rows.column_names}
        label = columns.pop(self.schema.labels.names[0])
        return columns, label


def files_of(folder: Path) -> list[str]:
    """Return the Parquet files of a folder in order."""
    return sorted(map(str, folder.glob("*.parquet")))


def whole_folder(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a folder beside `path`, which then becomes `path`."""
    partial = path.with_name(f"{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write(partial)
    partial.rename(path)


def copied(folder: Path, copies: int) -> Path:
    """Return a folder that has every Parquet file of this one `copies` times, under other names.

    They are copies, because a loader refuses two names of one file.
    """
    path = folder.with_name(f"{folder.name}-copied-{copies}")

    def write(partial: Path) -> None:
        for copy, file in itertools.product(range(copies), folder.glob("*.parquet")):
            shutil.copyfile(file, partial / f"{copy:05d}_{file.name}")

    if not path.exists():
        whole_folder(path, write)
    return path


def column_sums(files: list[str], rows: int | None = None) -> dict[str, float]:
    """Return the sum of each column over the first `rows` rows; for rows without lists.

    Added up in float64: exact for integers here, to about 1e-12 for float32.
    """
    table = pa.concat_tables([pq.read_table(file) for file in files]).slice(0, rows)
    return {
        name: float(np.sum(table[name].to_numpy(), dtype=np.float64)) for name in table.column_names
    }


def _widest(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_widest(kind.value_type))
    return pa.int64() if pa.types.is_integer(kind) else kind


# ---- the shapes ---------------------------------------------------------------------------------


def _labels(log_odds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return labels drawn so that a model can learn something: bool [rows]."""
    return rng.random(len(log_odds)) < 1 / (1 + np.exp(-log_odds))


def criteo_shape(
    folder: Path, rows: int, *, row_group_rows: int = ROW_GROUP_ROWS, table_share: float = 0
) -> Dataset:
    """Return rows as the Criteo ETL leaves them: log counts, frequent ids first, a label.

    Args:
        folder: folder of all data sets.
        rows: number of rows, sorted by `TIME`.
        row_group_rows: rows per row group.
        table_share: if not 0, each column has this share of Criteo's ids, and its values are spread
            evenly over them, as in a real table: values that lie together at a table's start would
            stay in the processor's cache.
    """
    from data_prep.synthetic_criteo import CARDINALITIES, column_sizes

    sizes = dict(zip(IDS, column_sizes(SCALE), strict=True))
    tables = [int(table_share * ids) for ids in CARDINALITIES]
    steps = {n: max(1, ids // size) for ids, (n, size) in zip(tables, sizes.items(), strict=True)}
    schema = Schema(
        [
            Column("label", "label", "int32"),
            *(Column(name, "continuous", "float32") for name in NUMBERS),
            *(
                Column(name, "categorical", "int32", cardinality=max(size, ids))
                for ids, (name, size) in zip(tables, sizes.items(), strict=True)
            ),
        ]
    )

    def make(start: int, count: int, rng: np.random.Generator) -> dict[str, Any]:
        numbers = {
            name: np.log1p(np.floor(rng.lognormal(2.0, 1.5, count))).astype(np.float32)
            for name in NUMBERS
        }
        numbers[TIME] = (np.arange(start, start + count) / ROWS_PER_FILE).astype(np.float32)
        ids = {
            name: (size * rng.random(count) ** 4).astype(np.int32) for name, size in sizes.items()
        }
        label = _labels(numbers["I1"] - numbers["I2"] + ids["C9"] % 3 - 1, rng)
        spread = {name: steps[name] * values for name, values in ids.items()}
        return {"label": label.astype(np.int32), **numbers, **spread}

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

    def make(start: int, count: int, rng: np.random.Generator) -> dict[str, Any]:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 6, count))]).astype(np.int32)
        genres = rng.integers(0, GENRES, offsets[-1], dtype=np.int32)
        movies = (MOVIES * rng.random(count) ** 4).astype(np.int32)
        label = _labels(0.2 * (genres[offsets[:-1]] - 10) + movies % 3 - 1, rng)
        return {
            "userId": (USERS * rng.random(count) ** 2).astype(np.int32),
            "movieId": movies,
            "genres": pa.ListArray.from_arrays(offsets, genres),
            "rating": label.astype(np.float32),
        }

    return Dataset(folder, "movielens-shape", schema, rows, make, row_group_rows)


def nhot_shape(folder: Path, rows: int) -> Dataset:
    """Return rows as `data_prep synthetic nhot` draws them: numbers, ids, lists of ids."""
    from data_prep import synthetic_nhot

    sizes = synthetic_nhot.cardinalities(SCALE)

    def make(start: int, count: int, rng: np.random.Generator) -> dict[str, Any]:
        seed = int(rng.integers(2**62))
        blocks = [
            synthetic_nhot.draw_block(seed, 0, number, sizes).table
            for number in range(-(-count // synthetic_nhot.BLOCK_ROWS))
        ]
        rows = pa.concat_tables(blocks).slice(0, count).combine_chunks()
        return dict(zip(rows.column_names, rows.columns, strict=True))

    return Dataset(folder, "nhot-shape", synthetic_nhot.schema_of(SCALE), rows, make)
