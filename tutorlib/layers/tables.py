"""Tables: embeddings of one column, for one id per row or a list of ids per row.

A table's gradient stays sparse (`IndexedSlices` on TensorFlow). Under a mixed policy only the rows
that were looked up are cast to the compute dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from tutorlib.checks import check_choice, check_integer
from tutorlib.layers.rows import row_numbers, sum_rows, take_rows

COMBINERS = ("mean", "sum", "sqrtn")
NARROW = ("float16", "bfloat16")
# How the names of this library's tables and those of keras.layers.Embedding end.
TABLE_NAMES = ("embedding_weights", "embeddings")

register = keras.saving.register_keras_serializable(package="tutorlib")


def embedding_initializer(embedding_dim: int) -> keras.initializers.Initializer:
    """Return the default of TensorFlow's feature columns: embeddings have a norm near 1."""
    return keras.initializers.TruncatedNormal(stddev=embedding_dim**-0.5)


@register
class EmbeddingTable(keras.layers.Layer):
    """An embedding table: looks up one vector for each id.

    Unlike `keras.layers.Embedding` it stays fast with a row-sparse optimizer: `take_rows` never
    copies the table.

    Args:
        cardinality: rows of the table, at least 1; ids lie in [0, cardinality).
        embedding_dim: width of the vectors, at least 1.
        embeddings_initializer: a Keras initializer; None for a truncated normal with standard
            deviation 1 / sqrt(embedding_dim).
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
        embeddings_initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cardinality = check_integer("cardinality", cardinality, at_least=1)
        self.embedding_dim = check_integer("embedding_dim", embedding_dim, at_least=1)
        self.embeddings_initializer = keras.initializers.get(
            embeddings_initializer or embedding_initializer(embedding_dim)
        )

    def build(self, input_shape: Any = None) -> None:
        """Create the table; its size does not depend on the input."""
        self.embedding_weights = self.add_weight(
            name="embedding_weights",
            shape=(self.cardinality, self.embedding_dim),
            initializer=self.embeddings_initializer,
            autocast=False,  # `rows` casts what was looked up
        )

    def call(self, inputs: Any) -> Any:
        """Return the rows that ids [...] select, [..., embedding_dim]."""
        return self.rows(inputs)

    def rows(self, ids: Any) -> Any:
        """Return the rows that ids [...] select, [..., embedding_dim] in the compute dtype."""
        return ops.cast(take_rows(self.embedding_weights, ids), self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return (..., embedding_dim)."""
        return (*input_shape, self.embedding_dim)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this layer."""
        return super().get_config() | {
            "cardinality": self.cardinality,
            "embedding_dim": self.embedding_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }


@register
class EmbeddingBag(EmbeddingTable):
    """An embedding table for lists: combines the vectors of each row's ids into one.

    For a row with ids 1..n, vectors v and, optionally, weights w, the combiners give

        "sum"    sum(v)             sum(w v)
        "mean"   sum(v) / n         sum(w v) / sum(w)
        "sqrtn"  sum(v) / sqrt(n)   sum(w v) / sqrt(sum(w w))

    and zeros if the row is empty or its divisor is zero.

    Sums are in float32 under 16-bit policies. Unlike `tf.nn.embedding_lookup_sparse` it compiles
    under XLA with its gradient, and it is faster without XLA too. XLA and JAX compile again for
    every new number of values: set `bucket_lists=True` in the loader, or use `bucketed`.

    Args:
        cardinality: rows of the table, at least 1; ids lie in [0, cardinality).
        embedding_dim: width of the vectors, at least 1.
        combiner: "mean", "sum" or "sqrtn".
        embeddings_initializer: as in `EmbeddingTable`.
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: one of these -> [batch, embedding_dim] in the compute dtype:
        {"values": int [nnz] or [nnz, 1], "nnzs": int [batch] or [batch, 1]}, where surplus values
        behind those of the last row (the padding of `bucket_lists`) are ignored;
        {"values": int [nnz], "offsets": int [batch + 1]};
        int [batch, max_len], where id 0 is padding; a `tf.RaggedTensor` [batch, None];
        {"ids": one of the last two}.
        Each dict may also hold "weights", floats in the shape of its "values" or "ids".

    Raises:
        ValueError: if a size is below 1 or `combiner` is unknown.

    Example:
        >>> import numpy as np
        >>> bag = EmbeddingBag(10, 4, combiner="sum")
        >>> bag({"values": np.array([1, 2, 3]), "nnzs": np.array([2, 0, 1])}).shape.as_list()
        [3, 4]
    """

    def __init__(
        self,
        cardinality: int,
        embedding_dim: int,
        combiner: str = "mean",
        embeddings_initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(cardinality, embedding_dim, embeddings_initializer, **kwargs)
        check_choice("combiner", combiner, COMBINERS)
        self.combiner = combiner

    def call(self, inputs: Any) -> Any:
        """Return the combined vector of each row, [batch, embedding_dim]."""
        if not isinstance(inputs, Mapping):
            inputs = {"ids": inputs}
        weights = inputs.get("weights")
        if weights is not None:
            weights = self._sum_dtype_of(weights.values if is_ragged(weights) else weights)
        if "ids" in inputs and not is_ragged(inputs["ids"]):
            total, divisor = self._padded_sums(inputs["ids"], weights)
        else:
            values, counts = values_and_counts(inputs)
            weights = None if weights is None else ops.reshape(weights, (-1,))
            total, divisor = self._segment_sums(values, counts, weights)
        if self.combiner != "sum":
            divisor = ops.sqrt(divisor) if self.combiner == "sqrtn" else divisor
            total = total / ops.where(divisor == 0, ops.ones_like(divisor), divisor)[:, None]
        return ops.cast(total, self.compute_dtype)

    def _padded_sums(self, ids: Any, weights: Any) -> tuple[Any, Any]:
        """Return what `_segment_sums` does, for ids [batch, max_len]."""
        rows = self._sum_dtype_of(take_rows(self.embedding_weights, ids))  # [batch, max_len, dim]
        present = ops.cast(ops.not_equal(ids, 0), rows.dtype)
        weights = present if weights is None else weights * present
        total = ops.sum(rows * weights[..., None], axis=1)
        return total, ops.sum(weights * weights if self.combiner == "sqrtn" else weights, axis=1)

    def _segment_sums(self, values: Any, counts: Any, weights: Any) -> tuple[Any, Any]:
        """Return the sum of each row [batch, dim] and its divisor [batch], squared for "sqrtn"."""
        batch, size = ops.shape(counts)[0], ops.shape(values)[0]
        numbers = row_numbers(counts, size)
        rows = self._sum_dtype_of(take_rows(self.embedding_weights, values))
        if weights is None:
            return sum_rows(rows, numbers, batch), ops.cast(counts, rows.dtype)
        total = sum_rows(rows * weights[:, None], numbers, batch)
        weights = weights * weights if self.combiner == "sqrtn" else weights
        return total, sum_rows(weights, numbers, batch)

    def _sum_dtype_of(self, x: Any) -> Any:
        return ops.cast(x, "float32" if self.variable_dtype in NARROW else self.variable_dtype)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, int]:
        """Return (batch, embedding_dim)."""
        return (list_batch_size(input_shape), self.embedding_dim)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this layer."""
        return super().get_config() | {"combiner": self.combiner}


def values_and_counts(inputs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return values [nnz] and values per row [batch] of any input of a bag that is not padded."""
    if "ids" in inputs:
        return inputs["ids"].values, inputs["ids"].row_lengths()
    if "nnzs" in inputs:
        counts = ops.reshape(inputs["nnzs"], (-1,))
    else:
        offsets = ops.reshape(inputs["offsets"], (-1,))
        counts = offsets[1:] - offsets[:-1]
    return ops.reshape(inputs["values"], (-1,)), counts


def list_batch_size(shape: Any) -> int | None:
    """Return the batch size of the input of a bag, given its shapes."""
    if not isinstance(shape, Mapping):
        return shape[0]
    if "ids" in shape:
        return shape["ids"][0]
    if "nnzs" in shape:
        return shape["nnzs"][0]
    size = shape["offsets"][0]
    return None if size is None else size - 1


def is_table(variable: Any) -> bool:
    """Return whether a variable is an embedding table, by its name and shape."""
    return variable.name.endswith(TABLE_NAMES) and len(variable.shape) == 2


def is_ragged(x: Any) -> bool:
    """Return whether a tensor is a `tf.RaggedTensor`, without importing TensorFlow."""
    return hasattr(x, "row_splits")
