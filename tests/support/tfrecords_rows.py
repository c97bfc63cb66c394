"""What the tests of tfrecords share: rows of all kinds of columns, and a look at what was read."""

from __future__ import annotations

import numpy as np

from tutorlib.chunk import Chunk, Ragged
from tutorlib.parquet import ParquetSink, ParquetSource
from tutorlib.schema import Column, Schema

ROWS = 1000
SCHEMA = Schema(
    [
        Column("C1", "categorical", "int32", cardinality=100_000),
        Column("genres", "categorical", "int64", multi_hot=True),
        Column("I1", "continuous", "float32"),
        Column("label", "label", "float32"),
    ]
)
SCALARS = Schema(column for column in SCHEMA if not column.multi_hot)


def lists(rng, rows, longest, values):
    """Return random lists of 0 to `longest` values."""
    nnzs = rng.integers(0, longest + 1, rows)
    return Ragged(values(int(nnzs.sum())), np.concatenate([[0], np.cumsum(nnzs)]))


def some_rows(rows=ROWS):
    """Return rows of the columns of SCHEMA."""
    rng = np.random.default_rng(0)
    return Chunk(
        {
            "I1": rng.normal(size=rows).astype(np.float32),
            "label": rng.integers(0, 2, rows).astype(np.float32),
            "C1": rng.integers(0, 100_000, rows).astype(np.int32),
            "genres": lists(rng, rows, 5, lambda n: rng.integers(0, 300, n)),
        }
    )


def as_parquet(rows, folder):
    """Return rows as a source of two files and four row groups."""
    with ParquetSink(folder, row_group_rows=300, rows_per_file=600) as sink:
        sink.write(rows)
    return ParquetSource(folder)


def text(values):
    """Return texts as a column."""
    import pyarrow as pa

    from tutorlib.chunk import Strings

    return Strings.from_arrow(pa.array(values, pa.string()))


def gathered(dataset):
    """Return all rows of a dataset as columns, lists as Python lists, in the order they came."""
    columns = {}
    for inputs, label in dataset:
        batch = {name: tensor.numpy() for name, tensor in inputs.items()}
        nnzs, values = batch.pop("genres__nnzs", None), batch.pop("genres__values", None)
        if nnzs is not None:
            split = np.split(values[:, 0], np.cumsum(nnzs[:, 0])[:-1])
            columns.setdefault("genres", []).extend(part.tolist() for part in split)
        for name, array in {**batch, "label": label.numpy()}.items():
            columns.setdefault(name, []).extend(array[:, 0].tolist())
    return columns


def as_lists(chunk):
    """Return the columns of a chunk as Python lists."""
    return {name: column.tolist() for name, column in chunk.items()}


def contents(folder):
    """Return {name: bytes} of the files in a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
