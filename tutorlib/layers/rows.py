"""Rows: taking them out of a table and summing them in groups, on every backend and under XLA.

A table is a `keras.Variable` [rows, width]. Belongs here: the few operations for which TensorFlow
has two ways, of which one is several times faster or compiles and the other does not. Does not
belong here: layers.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

ID_TYPES = ("int32", "int64")


def take_rows(table: Any, ids: Any) -> Any:
    """Return the rows of a table that ids name, [..., width].

    On TensorFlow this reads the rows from the variable's memory. `keras.ops.take` reads the
    variable first, which copies the whole table in every step as soon as anything, such as a
    row-sparse optimizer, has written single rows of it: 8 ms for a million rows of 16 numbers.

    Args:
        table: `keras.Variable` [rows, width].
        ids: integers in [0, rows) of any shape. On a CPU TensorFlow raises for others.
    """
    dtype = keras.backend.standardize_dtype(ids.dtype)
    ids = ids if dtype in ID_TYPES else ops.cast(ids, "int32")
    if keras.config.backend() != "tensorflow":
        return ops.take(table, ids, axis=0)
    import tensorflow as tf

    if compiled_by_xla():  # which does not know the other way
        return tf.gather(table.value, ids)
    # On a CPU this takes three quarters of the time of tf.gather: 46 ms for 1.7 million rows.
    rows = tf.gather_nd(table.value, tf.reshape(ids, (-1, 1)))
    return tf.reshape(rows, tf.concat([tf.shape(ids), [table.shape[1]]], axis=0))


def row_numbers(counts: Any, size: Any) -> Any:
    """Return for each of `size` values the number of the row it belongs to, [size].

    One mark at the end of each row, then a running sum. (A binary search, which says it in one
    line, compares everything with everything under XLA: 49 GiB for 65,536 rows of three values.)

    Args:
        counts: integers [batch], values of each row; int64 gives int64, others int32.
        size: number of values; those behind the last row's get the number `batch`.
    """
    wide = keras.backend.standardize_dtype(counts.dtype) == "int64"
    ends = ops.cumsum(ops.cast(counts, "int64" if wide else "int32"))
    ones = ops.cast(ops.ones_like(ends), "int32")  # TensorFlow adds up no int64 on a GPU
    marks = ops.cast(ops.segment_sum(ones, ends, num_segments=size + 1), ends.dtype)
    return ops.cumsum(marks[:size])


def sum_rows(values: Any, rows: Any, batch: Any) -> Any:
    """Return the sum of the values of each row, [batch, ...].

    Args:
        values: numbers [size, ...].
        rows: integers [size] that `row_numbers` gave; values of row `batch` are left out.
        batch: number of rows.
    """
    if keras.config.backend() != "tensorflow" or compiled_by_xla():
        return ops.segment_sum(values, rows, num_segments=batch + 1)[:batch]
    import tensorflow as tf

    # Sorted numbers: twice as fast on a CPU as the sum for any order. It ends with the last row
    # that has values.
    total = tf.math.segment_sum(values, rows)
    missing = tf.maximum(batch - tf.shape(total)[0], 0)
    return tf.pad(total, [[0, missing], *[[0, 0]] * (len(values.shape) - 1)])[:batch]


def compiled_by_xla() -> bool:
    """Return whether the TensorFlow function that is being traced will be compiled by XLA.

    TensorFlow has no public way to tell. Where its private one is missing the answer is True: what
    compiles also runs uncompiled, only slower.
    """
    import tensorflow as tf

    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:
        return True
    if tf.executing_eagerly():
        return False
    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
