"""Fused embeddings: the tables of many columns in one variable, read by one gather."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tutorlib.checks import check_choice
from tutorlib.layers.columns import read_columns, refuse_multi_hot
from tutorlib.layers.features import FeatureLayer
from tutorlib.layers.rows import INT32_IDS, take_rows
from tutorlib.layers.tables import embedding_initializer, register
from tutorlib.schema import Schema


class TableGroup(NamedTuple):
    """The columns of one width, whose tables are stacked in one variable."""

    width: int  # of the embeddings
    positions: tuple[int, ...]  # indices of these columns in a stacked batch
    first_rows: np.ndarray  # int64 [columns], the first row of each column's table
    rows: int  # of all these tables together


@register
class FusedEmbedding(FeatureLayer):
    """Embeddings of many columns from one table: one gather instead of, say, 26.

    The tables are stacked, and each column's ids are shifted by the rows of the tables above its
    own. The price: an id outside its column's range reads another column's row, where a table of
    its own would raise. Leave the loader's `check_ids` on.

    Columns of several widths ("concat" only) need one table and one gather per width.

    Args:
        columns: Schema, list of `Column`, or list of `tf.feature_column`. Only the categorical
            ones are used, in the given order, which must be that of a stacked batch.
        aggregation: "stack", which needs equal widths, or "concat".
        embeddings_initializer: a Keras initializer; None for a truncated normal with standard
            deviation 1 / sqrt(width).
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: int [batch, columns], or a dict of int [batch, 1] -> [batch, columns, width] for
        "stack", [batch, sum of widths] for "concat".

    Raises:
        ValueError: if a column is multi-hot, a cardinality is not known, or widths differ under
            "stack".

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
        super().__init__(read_columns(columns).schema.categorical, **kwargs)
        refuse_multi_hot(self.schema, "FusedEmbedding")
        check_choice("aggregation", aggregation, ("concat", "stack"))
        self.aggregation = aggregation
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.groups = _groups(self.schema)
        if aggregation == "stack" and len(self.groups) > 1:
            widths = {column.name: column.width for column in self.schema}
            raise ValueError(
                f"FusedEmbedding needs equal widths, got {widths}. Set embedding_dim, or "
                "aggregation='concat'."
            )

    def build(self, input_shape: Any) -> None:
        """Check the shapes and create a table for each width."""
        self._fused_batch_size(input_shape)
        several = len(self.groups) > 1
        self.tables = [
            self.add_weight(
                name=f"width_{group.width}_embedding_weights" if several else "embedding_weights",
                shape=(group.rows, group.width),
                initializer=self.embeddings_initializer or embedding_initializer(group.width),
                autocast=False,  # `_take` casts what was looked up
            )
            for group in self.groups
        ]

    @property
    def embedding_weights(self) -> Any:
        """The one table of all columns, [rows, width]; an error if widths differ."""
        if len(self.tables) > 1:
            raise ValueError(
                f"the columns have widths {[group.width for group in self.groups]}, so there are "
                f"{len(self.tables)} tables: see `tables`"
            )
        return self.tables[0]

    def call(self, inputs: Any) -> Any:
        """Return the embeddings of all columns, stacked or side by side."""
        ids = self._stacked(inputs) if isinstance(inputs, Mapping) else inputs
        found = [
            self._take(table, group, ids)
            for table, group in zip(self.tables, self.groups, strict=True)
        ]
        if self.aggregation == "stack":
            return found[0]
        if len(found) == 1:
            return ops.reshape(found[0], (-1, len(self.schema) * self.groups[0].width))
        return self._in_order(found)

    def _stacked(self, inputs: Mapping[str, Any]) -> Any:
        """Return a dict of columns as ids [batch, columns].

        Concatenating rows and transposing is faster than concatenating columns.
        """
        columns = [ops.reshape(inputs[name], (1, -1)) for name in self.schema.names]
        return ops.transpose(ops.concatenate(columns, axis=0))

    def _take(self, table: Any, group: TableGroup, ids: Any) -> Any:
        """Return the embeddings of the columns of one width, [batch, columns, width]."""
        if len(group.positions) < len(self.schema):
            ids = ops.take(ids, np.array(group.positions, np.int32), axis=1)
        wide = keras.backend.standardize_dtype(ids.dtype) == "int64"
        dtype = "int64" if wide or group.rows >= INT32_IDS else "int32"
        rows = ops.cast(ids, dtype) + ops.convert_to_tensor(group.first_rows, dtype)
        return ops.cast(take_rows(table, rows), self.compute_dtype)

    def _in_order(self, found: list[Any]) -> Any:
        """Return the embeddings of several widths side by side in the order of the columns."""
        origin = {
            position: (number, index)
            for number, group in enumerate(self.groups)
            for index, position in enumerate(group.positions)
        }
        parts = []
        order = [origin[position] for position in range(len(self.schema))]
        for number, run in itertools.groupby(order, key=lambda entry: entry[0]):
            indices = [index for _, index in run]  # neighbours of one width stay together
            part = found[number][:, indices[0] : indices[-1] + 1]
            parts.append(ops.reshape(part, (-1, len(indices) * self.groups[number].width)))
        return ops.concatenate(parts, axis=1)

    def table(self, name: str) -> Any:
        """Return the rows that belong to one column, [cardinality, width]."""
        number = [group.width for group in self.groups].index(self.schema[name].width)
        group = self.groups[number]
        index = group.positions.index(self.schema.names.index(name))
        start, stop = [*group.first_rows, group.rows][index : index + 2]
        return self.tables[number][int(start) : int(stop)]

    def _fused_batch_size(self, input_shape: Any) -> int | None:
        if isinstance(input_shape, Mapping):
            return self.batch_size(input_shape)
        if len(input_shape) != 2 or input_shape[1] != len(self.schema):
            raise ValueError(
                f"a stacked batch must have shape [batch, {len(self.schema)}], one id for each of "
                f"{self.schema.names}, got {tuple(input_shape)}"
            )
        return input_shape[0]

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return (batch, columns, width) or (batch, sum of widths)."""
        batch, widths = self._fused_batch_size(input_shape), [c.width for c in self.schema]
        if self.aggregation == "stack":
            return (batch, len(widths), widths[0])
        return (batch, sum(widths))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this layer."""
        initializer = self.embeddings_initializer
        return super().get_config() | {
            "aggregation": self.aggregation,
            "embeddings_initializer": initializer and keras.initializers.serialize(initializer),
        }


def _groups(schema: Schema) -> list[TableGroup]:
    """Return the columns of each width, in the order of their first column."""
    groups = []
    for width in dict.fromkeys(column.width for column in schema):
        positions = tuple(k for k, column in enumerate(schema) if column.width == width)
        rows = np.array([schema.columns[k].cardinality for k in positions], np.int64)
        groups.append(TableGroup(width, positions, np.cumsum(rows) - rows, int(rows.sum())))
    return groups
