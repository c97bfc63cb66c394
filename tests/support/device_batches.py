"""What the tests of batches on a device share: rows of all kinds, and how two batches compare."""

import numpy as np
import tensorflow as tf

from tests.support.loaders import loader_with
from tutorlib.columns import Chunk, Masked, Ragged
from tutorlib.schema import Column, Schema

SCHEMA = Schema(
    [
        Column("row", "categorical", "int64"),
        Column("id", "categorical", "int32", cardinality=97),
        Column("small", "categorical", "int16"),
        Column("x", "continuous", "float32"),
        Column("x64", "continuous", "float64"),
        Column("holes", "continuous", "float32"),
        Column("gaps", "categorical", "int64", cardinality=50),
        Column("tags", "categorical", "int64", multi_hot=True, cardinality=4000),
        Column("label", "label", "float32"),
        Column("click", "label", "int64"),
        Column("weight", "weight", "float32"),
    ]
)


def chunk_of(rows):
    """Columns of all kinds; each value can be worked out from the row's number."""
    rows = np.arange(rows)
    lengths = rows % 4
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Chunk(
        {
            "row": rows,
            "id": (rows % 97).astype(np.int32),
            "small": (rows % 1000).astype(np.int16),
            "x": (rows / 8).astype(np.float32),
            "x64": rows / 16,
            "holes": np.where(rows % 5 == 0, np.nan, rows).astype(np.float32),
            "gaps": Masked(rows % 50, rows % 7 != 0),
            "tags": Ragged((np.arange(offsets[-1]) * 7) % 4000, offsets),
            "label": (rows % 2).astype(np.float32),
            "click": rows % 3,
            "weight": (rows % 5).astype(np.float32),
        }
    )


loader_of = loader_with(schema=SCHEMA, buffer_size=150, parts_per_chunk=2, nulls="fill")


def arrays_of(batch):
    """Every tensor of a batch as a NumPy array, by its place in it."""

    def flat(value, name):
        if isinstance(value, dict):
            return {
                k: v for key, part in value.items() for k, v in flat(part, f"{name}.{key}").items()
            }
        if isinstance(value, tf.RaggedTensor):
            parts = {"values": value.flat_values, "splits": value.row_splits}
            return {f"{name}.{key}": np.asarray(part) for key, part in parts.items()}
        return {name: np.asarray(value)}

    return {k: v for i, part in enumerate(batch) for k, v in flat(part, str(i)).items()}


def assert_same_batches(ours, theirs, min_int_dtype=np.int64):
    """The same batches in the same order, but for the width of integers."""
    ours, theirs = list(ours), list(theirs)
    assert len(ours) == len(theirs) > 0
    for one, other in zip(map(arrays_of, ours), map(arrays_of, theirs), strict=True):
        assert list(one) == list(other)
        for name, array in one.items():
            want = other[name]
            if want.dtype.kind == "i":
                want = want.astype(max(want.dtype, np.dtype(min_int_dtype)))
            assert array.dtype == want.dtype, name
            assert array.shape == want.shape, name
            np.testing.assert_array_equal(array, want, err_msg=name)
