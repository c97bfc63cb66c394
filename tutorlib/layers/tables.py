"""Tables: embeddings of one column, for one id per row or a list of ids per row.

A table's gradient stays sparse (`IndexedSlices` on TensorFlow). Under a mixed policy only the rows
that were looked up are cast to the compute dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import keras
from keras import ops

from tutorlib.checks import check_choice, check_integer

COMBINERS = ("mean", "sum", "sqrtn")
PADDING = 0  # behind the ids of a padded list: no id there, but one in all other forms

Tensor = Any  # of Keras's backend, or a NumPy array
Shape = tuple[int | None, ...]
Initializer: TypeAlias = "str | keras.initializers.Initializer | None"

register = keras.saving.register_keras_serializable(package="tutorlib")


def add_table(
    layer: keras.layers.Layer, rows: int, width: int, initializer: Initializer
) -> keras.Variable:
    """Add a table [rows, width] to a layer.

    Without an initializer it starts as that of `keras.layers.Embedding`: uniform in [-0.05, 0.05].
    It is not cast as a whole under a mixed policy: the layers cast what they looked up.
    """
    return layer.add_weight(
        name="embedding_weights",
        shape=(rows, width),
        initializer=initializer or "uniform",
        autocast=False,
    )


@register
class EmbeddingTable(keras.layers.Layer):
    """An embedding table: looks up one vector for each id.

    Unlike `keras.layers.Embedding` it stays fast with a row-sparse optimizer: it never copies the
    table.

    Args:
        cardinality: rows of the table, at least 1; ids lie in [0, cardinality).
        embedding_dim: width of the vectors, at least 1.
        embeddings_initializer: a Keras initializer, or its name; None for uniform numbers in
            [-0.05, 0.05], as in `keras.layers.Embedding`.
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: ids int [...] -> [..., embedding_dim] in the compute dtype.

    Raises:
        ValueError: if a size is below 1.

    Example:
        >>> import numpy as np
        >>> EmbeddingTable(10, 4)(np.array([[1], [7]])).shape.as_list()
        [2, 1, 4]
    """

    def __init__(
        self,
        cardinality: int,
        embedding_dim: int,
        embeddings_initializer: Initializer = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cardinality = check_integer("cardinality", cardinality, at_least=1)
        self.embedding_dim = check_integer("embedding_dim", embedding_dim, at_least=1)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, input_shape: Shape | None = None) -> None:
        """Create the table; its size does not depend on the input."""
        self.embedding_weights = add_table(
            self, self.cardinality, self.embedding_dim, self.embeddings_initializer
        )

    def call(self, inputs: Tensor) -> Tensor:
        """Return the rows that ids [...] select, [..., embedding_dim]."""
        return self.rows(inputs)

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows that ids [...] select, [..., embedding_dim] in the compute dtype."""
        return ops.cast(take_rows(self.embedding_weights, ids), self.compute_dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return (..., embedding_dim)."""
        return (*input_shape, self.embedding_dim)

    def get_config(self) -> dict[str, object]:
        """Return the arguments that recreate this layer."""
        return super().get_config() | {
            "cardinality": self.cardinality,
            "embedding_dim": self.embedding_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }


@register
class EmbeddingBag(EmbeddingTable):
    """An embedding table for lists: combines the vectors of each row's ids into one.

    For a row with n ids and their vectors v, the combiners give sum(v) for "sum", sum(v) / n for
    "mean", sum(v) / sqrt(n) for "sqrtn", and zeros if the row is empty. All forms of the same lists
    give the same.

    Sums are in float32 under 16-bit policies. Unlike `tf.nn.embedding_lookup_sparse` it compiles
    under XLA with its gradient, and it is faster without XLA too. XLA and JAX compile again for
    every new number of values: pad lists there, with `MultiHot("padded", max_length=...)`.

    Args:
        cardinality: rows of the table, at least 1; ids lie in [0, cardinality).
        embedding_dim: width of the vectors, at least 1.
        combiner: "mean", "sum" or "sqrtn".
        embeddings_initializer: as in `EmbeddingTable`.
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: one of these -> [batch, embedding_dim] in the compute dtype:
        {"values": int [nnz] or [nnz, 1], "nnzs": int [batch] or [batch, 1]};
        int [batch, max_len], where 0 is padding. In the other form 0 is an id.

    Raises:
        ValueError: if a size is below 1 or `combiner` is unknown.

    Example:
        >>> import numpy as np
        >>> bag = EmbeddingBag(10, 4, combiner="sum")
        >>> bag({"values": np.array([0, 2, 0]), "nnzs": np.array([2, 0, 1])}).shape.as_list()
        [3, 4]
        >>> bag(np.array([[1, 2], [0, 0], [1, 0]])).shape.as_list()
        [3, 4]
    """

    def __init__(
        self,
        cardinality: int,
        embedding_dim: int,
        combiner: str = "mean",
        embeddings_initializer: Initializer = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(cardinality, embedding_dim, embeddings_initializer, **kwargs)
        check_choice("combiner", combiner, COMBINERS)
        self.combiner = combiner

    def call(self, inputs: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Return the combined vector of each row, [batch, embedding_dim]."""
        if isinstance(inputs, Mapping):
            values = ops.reshape(inputs["values"], (-1,))  # [nnz]
            counts = ops.reshape(inputs["nnzs"], (-1,))  # [batch]
            numbers = row_numbers(counts, ops.shape(values)[0])
            total = sum_rows(self._rows_to_sum(values), numbers, ops.shape(counts)[0])
        else:
            list_batch_size(inputs.shape)
            present = ops.not_equal(inputs, PADDING)  # [batch, max_len]
            counts = ops.sum(ops.cast(present, "int32"), axis=1)
            # Padding reads a row that the batch names anyway: a row-sparse optimizer updates every
            # row that was read.
            ids = ops.where(present, inputs, ops.maximum(ops.max(inputs), 0))
            rows = self._rows_to_sum(ids)  # [batch, max_len, dim]
            total = ops.sum(rows * ops.cast(present, rows.dtype)[..., None], axis=1)
        if self.combiner != "sum":
            divisor = ops.cast(ops.maximum(counts, 1), total.dtype)
            divisor = ops.sqrt(divisor) if self.combiner == "sqrtn" else divisor
            total = total / divisor[:, None]
        return ops.cast(total, self.compute_dtype)

    def _rows_to_sum(self, ids: Tensor) -> Tensor:
        """Return the rows of ids in a dtype for sums."""
        dtype = "float64" if self.variable_dtype == "float64" else "float32"
        return ops.cast(take_rows(self.embedding_weights, ids), dtype)

    def compute_output_shape(self, input_shape: Shape | Mapping[str, Shape]) -> Shape:
        """Return (batch, embedding_dim)."""
        return (list_batch_size(input_shape), self.embedding_dim)

    def get_config(self) -> dict[str, object]:
        """Return the arguments that recreate this layer."""
        return super().get_config() | {"combiner": self.combiner}


def list_batch_size(shape: Shape | Mapping[str, Shape]) -> int | None:
    """Return the batch size of the input of a bag, given its shapes.

    Raises:
        ValueError: for ids that are neither [batch, max_len] nor values with their nnzs.
    """
    if isinstance(shape, Mapping):
        return shape["nnzs"][0]
    if len(shape) != 2:
        raise ValueError(
            f"padded lists of ids must have shape [batch, max_len], got {tuple(shape)}. Reshape "
            "them, or look single ids up in an EmbeddingTable."
        )
    return shape[0]


def row_numbers(counts: Tensor, size: Tensor) -> Tensor:
    """Return the row that each of `size` values belongs to, integers [size].

    One mark at the end of each row, then a running sum. A binary search would be one line, but
    under XLA it compares every value with every row: 49 GiB for 65,536 rows of three values.
    """
    wide = keras.backend.standardize_dtype(counts.dtype) == "int64"
    ends = ops.cumsum(ops.cast(counts, "int64" if wide else "int32"))
    ones = ops.cast(ops.ones_like(ends), "int32")  # TensorFlow has no int64 segment sum on a GPU
    marks = ops.cast(ops.segment_sum(ones, ends, num_segments=size + 1), ends.dtype)
    return ops.cumsum(marks[:size])


def sum_rows(values: Tensor, rows: Tensor, batch: Tensor) -> Tensor:
    """Return the sum of the values of each row, [batch, ...]; zeros for a row without values."""
    if keras.config.backend() != "tensorflow" or compiled_by_xla():
        return ops.segment_sum(values, rows, num_segments=batch + 1)[:batch]
    import tensorflow as tf

    # For sorted row numbers: twice as fast on a CPU as the unsorted sum. The result ends with the
    # last row that has values.
    total = tf.math.segment_sum(values, rows)
    missing = tf.maximum(batch - tf.shape(total)[0], 0)
    return tf.pad(total, [[0, missing], *[[0, 0]] * (len(values.shape) - 1)])[:batch]


# ---- rows of a variable, read without a copy of the rest of it -----------------------------------


def take_rows(variable: keras.Variable, ids: Tensor) -> Tensor:
    """Return the rows of a `keras.Variable` [rows, ...] that integer ids select, [*ids.shape, ...].

    On TensorFlow this reads the rows from the variable's memory. `keras.ops.take` first reads the
    whole variable; once something, such as a row-sparse optimizer, has written single rows, that
    read is a copy of the table in every step: 8 ms for a million rows of 16 numbers.
    """
    if keras.backend.standardize_dtype(ids.dtype) not in ("int32", "int64"):
        ids = ops.cast(ids, "int32")
    if keras.config.backend() != "tensorflow":
        return ops.take(variable, ids, axis=0)
    return gather_rows(variable.value, ids)


def gather_rows(variable: Tensor, ids: Tensor) -> Tensor:
    """Return the rows of a `tf.Variable` that ids select, [*ids.shape, ...]."""
    import tensorflow as tf

    if compiled_by_xla():  # XLA cannot read single rows of a variable
        return tf.gather(variable, ids)
    # A quarter faster than tf.gather on a CPU: 46 ms for 1.7 million rows.
    rows = tf.gather_nd(variable, tf.reshape(ids, (-1, 1)))
    return tf.reshape(rows, tf.concat([tf.shape(ids), variable.shape[1:]], axis=0))


def compiled_by_xla() -> bool:
    """Return whether XLA will compile the TensorFlow function that is being traced.

    TensorFlow has no public way to tell. If its private one is missing, the answer is True: what
    XLA compiles also runs without it, only slower. False on other backends.
    """
    if keras.config.backend() != "tensorflow":
        return False
    import tensorflow as tf

    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:
        return True
    if tf.executing_eagerly():
        return False
    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
