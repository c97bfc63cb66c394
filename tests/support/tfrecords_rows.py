"""Rows with all kinds of columns for the tests of tfrecords, and a look at what was read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tutorlib.columns import Chunk, Ragged, Strings
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


def some_rows(rows=ROWS):
    """Return rows of the columns of SCHEMA."""
    rng = np.random.default_rng(0)
    i1 = rng.normal(size=rows).astype(np.float32)
    label = rng.integers(0, 2, rows).astype(np.float32)
    c1 = rng.integers(0, 100_000, rows).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 6, rows))])
    genres = Ragged(rng.integers(0, 300, offsets[-1]), offsets)
    return Chunk({"I1": i1, "label": label, "C1": c1, "genres": genres})


def strings(values):
    """Return a column of strings."""
    return Strings.from_arrow(pa.array(values, pa.string()))


def gathered(dataset):
    """Return all rows of a dataset in order, as {name: list}; a row of lists is a list."""
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
    """Return the columns of a chunk as {name: list}."""
    return {name: column.tolist() for name, column in chunk.items()}


def assert_permuted(read, rows):
    """Assert that the gathered rows are the rows of a chunk, each once, in another order."""
    expected = as_lists(rows)
    assert read["I1"] != expected["I1"]
    order = [expected["I1"].index(value) for value in read["I1"]]
    assert sorted(order) == list(range(ROWS))
    assert read == {name: [column[i] for i in order] for name, column in expected.items()}


def batch_sizes(dataset):
    """Return the rows of each batch."""
    return [batch[1].shape[0] for batch in dataset]
