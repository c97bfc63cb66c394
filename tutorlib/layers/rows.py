"""Rows: gather rows of a table and sum them in groups, on every backend and under XLA.

Where TensorFlow has two ways to do this, one is several times faster and the other compiles under
XLA; the functions here pick the right one. A table is a `keras.Variable` [rows, width].
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

ID_TYPES = ("int32", "int64")
INT32_IDS = 2**31  # ids of a larger table need int64


def take_rows(table: Any, ids: Any) -> Any:
    """Return the rows of a table that ids select, [..., width] in the table's dtype.

    On TensorFlow this reads the rows from the variable's memory. `keras.ops.take` first reads the
    whole variable; once something, such as a row-sparse optimizer, has written single rows, that
    read is a copy of the table in every step: 8 ms for a million rows of 16 numbers.
    """
    dtype = keras.backend.standardize_dtype(ids.dtype)
    ids = ids if dtype in ID_TYPES else ops.cast(ids, "int32")
    if keras.config.backend() != "tensorflow":
        return ops.take(table, ids, axis=0)
    return gather_rows(table.value, ids)


def gather_rows(variable: Any, ids: Any) -> Any:
    """Return the rows of a `tf.Variable` that ids select, [*ids.shape, ...]."""
    import tensorflow as tf

    if compiled_by_xla():  # XLA cannot read single rows of a variable
        return tf.gather(variable, ids)
    # A quarter faster than tf.gather on a CPU: 46 ms for 1.7 million rows.
    rows = tf.gather_nd(variable, tf.reshape(ids, (-1, 1)))
    return tf.reshape(rows, tf.concat([tf.shape(ids), variable.shape[1:]], axis=0))


def row_numbers(counts: Any, size: Any) -> Any:
    """Return the row that each of `size` values belongs to, integers [size].

    One mark at the end of each row, then a running sum. A binary search would be one line, but
    under XLA it compares every value with every row: 49 GiB for 65,536 rows of three values.
    """
    wide = keras.backend.standardize_dtype(counts.dtype) == "int64"
    ends = ops.cumsum(ops.cast(counts, "int64" if wide else "int32"))
    ones = ops.cast(ops.ones_like(ends), "int32")  # TensorFlow has no int64 segment sum on a GPU
    marks = ops.cast(ops.segment_sum(ones, ends, num_segments=size + 1), ends.dtype)
    return ops.cumsum(marks[:size])


def sum_rows(values: Any, rows: Any, batch: Any) -> Any:
    """Return the sum of the values of each row, [batch, ...]; zeros for a row without values."""
    if keras.config.backend() != "tensorflow" or compiled_by_xla():
        return ops.segment_sum(values, rows, num_segments=batch + 1)[:batch]
    import tensorflow as tf

    # For sorted row numbers: twice as fast on a CPU as the unsorted sum. The result ends with the
    # last row that has values.
    total = tf.math.segment_sum(values, rows)
    missing = tf.maximum(batch - tf.shape(total)[0], 0)
    return tf.pad(total, [[0, missing], *[[0, 0]] * (len(values.shape) - 1)])[:batch]


def compiled_by_xla() -> bool:
    """Return whether XLA will compile the TensorFlow function that is being traced.

    TensorFlow has no public way to tell. If its private one is missing, the answer is True: what
    XLA compiles also runs without it, only slower.
    """
    import tensorflow as tf

    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:
        return True
    if tf.executing_eagerly():
        return False
    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
