"""Tables: embeddings of one column, of one id or of a list of ids a row.

A table's gradient stays sparse (`IndexedSlices` on TensorFlow), and only the rows taken are cast to
the compute dtype of a mixed policy. Does not belong here: several columns (`features.py`,
`fused.py`).
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

register = keras.saving.register_keras_serializable(package="tutorlib")


def embedding_initializer(embedding_dim: int) -> keras.initializers.Initializer:
    """Return the initialiser of TensorFlow's feature columns: embeddings of norm near 1."""
    return keras.initializers.TruncatedNormal(stddev=embedding_dim**-0.5)


@register
class EmbeddingTable(keras.layers.Layer):
    """One table of embeddings, one id in, one vector out.

    Args:
        cardinality: rows of the table; ids lie in [0, cardinality).
        embedding_dim: columns of the table.
        embeddings_initializer: a Keras initialiser; None for truncated normal with a standard
            deviation of 1 / sqrt(embedding_dim).
        **kwargs: `name`, `dtype` and the like of a Keras layer.

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
            autocast=False,  # cast the rows taken, not the table
        )

    def call(self, inputs: Any) -> Any:
        """Return the rows of the table that the ids name."""
        return self.rows(inputs)

    def rows(self, ids: Any) -> Any:
        """Return the rows that ids [...] name, [..., embedding_dim]."""
        return ops.cast(take_rows(self.embedding_weights, ids), self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the shape of the ids with `embedding_dim` behind it."""
        return (*input_shape, self.embedding_dim)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this layer again."""
        return super().get_config() | {
            "cardinality": self.cardinality,
            "embedding_dim": self.embedding_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }


@register
class EmbeddingBag(EmbeddingTable):
    """One table of embeddings, a list of ids in, one combined vector out.

    A gather, then a sum over the values of each row. It compiles under XLA with its gradient, which
    `tf.nn.embedding_lookup_sparse` does not, and is faster than that without XLA. Sums are taken in
    float32 under any policy. A row without ids gives zeros.

    With weights w, "mean" is sum(w v) / sum(w) and "sqrtn" sum(w v) / sqrt(sum(w w)), zeros where
    that would divide by zero.

    XLA and JAX compile anew for every other number of values: see the loader's `bucket_lists`, and
    `bucketed`.

    Args:
        cardinality: rows of the table; ids lie in [0, cardinality).
        embedding_dim: columns of the table.
        combiner: "mean", "sum", or "sqrtn" (sum divided by the square root of the number of ids).
        embeddings_initializer: as in `EmbeddingTable`.
        **kwargs: `name`, `dtype` and the like of a Keras layer.

    Shapes: one of these -> [batch, embedding_dim]:
        {"values": int [nnz] or [nnz, 1], "nnzs": int [batch] or [batch, 1]} (values behind the last
        row's, as a padded buffer has them, are ignored);
        {"values": ..., "offsets": int [batch + 1]};
        int [batch, max_len], in which id 0 is padding; a `tf.RaggedTensor` [batch, None];
        {"ids": either of these two}.
        A dict may have "weights": float in the shape of its "values" or "ids".

    Raises:
        ValueError: if a size is below 1 or `combiner` is unknown.

    Example:
        >>> import numpy as np
        >>> bag = EmbeddingBag(10, 4, combiner="sum")
        >>> bag({"values": np.array([1, 2, 3]), "nnzs": np.array([2, 0, 1])}).shape.as_list()
        [3, 4]
    """

    def __init__(
        self, cardinality: int, embedding_dim: int, combiner: str = "mean", **kwargs: Any
    ) -> None:
        super().__init__(cardinality, embedding_dim, **kwargs)
        check_choice("combiner", combiner, COMBINERS)
        self.combiner = combiner

    def call(self, inputs: Any) -> Any:
        """Return the combined embedding of each row."""
        if not isinstance(inputs, Mapping):
            inputs = {"ids": inputs}
        weights = inputs.get("weights")
        weights = None if weights is None else self._sum_dtype_of(_flat_values(weights))
        if "ids" in inputs and not hasattr(inputs["ids"], "row_splits"):
            total, size = self._padded_sums(inputs["ids"], weights)
        else:
            values, counts = values_and_counts(inputs)
            weights = None if weights is None else ops.reshape(weights, (-1,))
            total, size = self._segment_sums(values, counts, weights)
        if self.combiner != "sum":
            size = ops.sqrt(size) if self.combiner == "sqrtn" else size
            total = total / ops.where(size == 0, ops.ones_like(size), size)[:, None]
        return ops.cast(total, self.compute_dtype)

    def _padded_sums(self, ids: Any, weights: Any) -> tuple[Any, Any]:
        """Return what `_segment_sums` does, of ids [batch, max_len]."""
        rows = self._sum_dtype_of(take_rows(self.embedding_weights, ids))  # [batch, max_len, dim]
        present = ops.cast(ops.not_equal(ids, 0), rows.dtype)
        weights = present if weights is None else weights * present
        total = ops.sum(rows * weights[..., None], axis=1)
        return total, ops.sum(weights * weights if self.combiner == "sqrtn" else weights, axis=1)

    def _segment_sums(self, values: Any, counts: Any, weights: Any) -> tuple[Any, Any]:
        """Return the sum of each row, [batch, dim], and by what its combiner divides it, [batch].

        Of "sqrtn" that is still to be drawn the square root of.
        """
        batch, size = ops.shape(counts)[0], ops.shape(values)[0]
        numbers = row_numbers(counts, size)
        rows = self._sum_dtype_of(take_rows(self.embedding_weights, values))
        if weights is None:
            return sum_rows(rows, numbers, batch), ops.cast(counts, rows.dtype)
        total = sum_rows(rows * weights[:, None], numbers, batch)
        weights = weights * weights if self.combiner == "sqrtn" else weights
        return total, sum_rows(weights, numbers, batch)

    def _sum_dtype_of(self, x: Any) -> Any:
        """Return numbers in the type that sums are taken in."""
        return ops.cast(x, "float32" if self.variable_dtype in NARROW else self.variable_dtype)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, int]:
        """Return (batch, embedding_dim)."""
        return (list_batch_size(input_shape), self.embedding_dim)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this layer again."""
        return super().get_config() | {"combiner": self.combiner}


def values_and_counts(inputs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return values [nnz] and values per row [batch] of a ragged column in any of its forms."""
    if "ids" in inputs:
        return inputs["ids"].values, inputs["ids"].row_lengths()
    if "nnzs" in inputs:
        counts = ops.reshape(inputs["nnzs"], (-1,))
    else:
        offsets = ops.reshape(inputs["offsets"], (-1,))
        counts = offsets[1:] - offsets[:-1]
    return ops.reshape(inputs["values"], (-1,)), counts


def list_batch_size(shape: Any) -> int | None:
    """Return the batch size of what `EmbeddingBag` takes, out of its shapes."""
    if not isinstance(shape, Mapping):
        return shape[0]
    if "ids" in shape:
        return shape["ids"][0]
    if "nnzs" in shape:
        return shape["nnzs"][0]
    size = shape["offsets"][0]
    return None if size is None else size - 1


def _flat_values(x: Any) -> Any:
    return x.values if hasattr(x, "row_splits") else x
