"""Fused embeddings: the tables of many columns in one variable, read by one gather."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from tutorlib.checks import check_choice
from tutorlib.layers.features import INT32_IDS, FeatureLayer, features_of, refuse_multi_hot
from tutorlib.layers.tables import add_table, compiled_by_xla, register, take_rows


@register
class FusedEmbedding(FeatureLayer):
    """Embeddings of many columns from one table: one gather instead of, say, 26.

    The tables are stacked, and each column's ids are shifted by the rows of the tables above its
    own. An id outside its column's range never reads another column's row: it has the effect that
    it has in a table of its own (an error on a CPU, zeros on a GPU with TensorFlow, NaN with JAX,
    the nearest row under XLA with TensorFlow).

    Args:
        columns: Schema, or list of `Column`. Only the categorical ones are used, in the given
            order, which must be that of a stacked batch. They need equal widths.
        aggregation: "stack" or "concat".
        embeddings_initializer: as in `EmbeddingTable`.
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: int [batch, columns], or a dict of int [batch, 1] -> [batch, columns, width] for
        "stack", [batch, columns * width] for "concat".

    Raises:
        ValueError: if a column is multi-hot, a cardinality is not known, or widths differ.

    Example:
        >>> from tutorlib import Column
        >>> columns = [Column(name, "categorical", cardinality=9, embedding_dim=4) for name in "ab"]
        >>> layer = FusedEmbedding(columns)
        >>> layer(np.array([[1, 8], [0, 0]])).shape.as_list(), layer.table("b").shape.as_list()
        ([2, 2, 4], [9, 4])
    """

    def __init__(
        self,
        columns: Any,
        aggregation: str = "stack",
        embeddings_initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(features_of(columns).categorical, **kwargs)
        refuse_multi_hot(self.schema, "FusedEmbedding")
        check_choice("aggregation", aggregation, ("concat", "stack"))
        self.aggregation, self.width = aggregation, self.common_width("FusedEmbedding")
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        sizes = [rows for rows, _ in self.schema.embedding_sizes().values()]
        self.starts = np.cumsum([0, *sizes], dtype=np.int64)  # first row of each table, and the end

    def build(self, input_shape: Any) -> None:
        """Check the shapes and create the table."""
        self._batch_size(input_shape)
        self.embedding_weights = add_table(
            self, int(self.starts[-1]), self.width, self.embeddings_initializer
        )

    def call(self, inputs: Any) -> Any:
        """Return the embeddings of all columns, stacked or side by side."""
        found = ops.cast(take_rows(self.embedding_weights, self._rows(inputs)), self.compute_dtype)
        if self.aggregation == "stack":
            return found
        return ops.reshape(found, (-1, len(self.schema) * self.width))

    def _rows(self, inputs: Any) -> Any:
        """Return the rows that ids select, [batch, columns]; none is of another column."""
        if isinstance(inputs, Mapping):
            # Concatenating rows and transposing is faster than concatenating columns.
            columns = [ops.reshape(inputs[name], (1, -1)) for name in self.schema.names]
            inputs = ops.transpose(ops.concatenate(columns, axis=0))
        rows = int(self.starts[-1])
        wide = keras.backend.standardize_dtype(inputs.dtype) == "int64"
        dtype = "int64" if wide or rows >= INT32_IDS else "int32"
        ids = ops.cast(inputs, dtype)
        starts = ops.convert_to_tensor(self.starts[:-1], dtype)
        last = ops.convert_to_tensor(np.diff(self.starts) - 1, dtype)
        nearest = ops.clip(ids, 0, last)
        if compiled_by_xla():
            return nearest + starts
        # The row behind the table is out of range for every backend's gather.
        return ops.where(ops.equal(ids, nearest), ids + starts, rows)

    def table(self, name: str) -> Any:
        """Return the rows that belong to one column, [cardinality, width]."""
        index = self.schema.names.index(name)
        start, stop = self.starts[index : index + 2]
        return self.embedding_weights[int(start) : int(stop)]

    def _batch_size(self, input_shape: Any) -> int | None:
        if isinstance(input_shape, Mapping):
            return self.batch_size(input_shape)
        if len(input_shape) != 2 or input_shape[1] != len(self.schema):
            raise ValueError(
                f"a stacked batch must have shape [batch, {len(self.schema)}], one id for each of "
                f"{self.schema.names}, got {tuple(input_shape)}"
            )
        return input_shape[0]

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return (batch, columns, width) or (batch, columns * width)."""
        batch, columns = self._batch_size(input_shape), len(self.schema)
        if self.aggregation == "stack":
            return (batch, columns, self.width)
        return (batch, columns * self.width)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this layer."""
        return super().get_config() | {
            "aggregation": self.aggregation,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }
