"""Features: all columns of a batch as one tensor, with a table for each categorical column.

Ids must already lie in [0, cardinality); a Workflow learns the vocabularies that make them so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import keras
from keras import ops

from tutorlib.checks import check_choice
from tutorlib.layers.columns import read_columns, refuse_multi_hot
from tutorlib.layers.tables import (
    COMBINERS,
    EmbeddingBag,
    list_batch_size,
    register,
)
from tutorlib.schema import Column, Schema


class FeatureLayer(keras.layers.Layer):
    """Base of layers over a Schema: checks the columns, and keeps them in its config."""

    def __init__(self, schema: Schema, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.schema = schema
        if not len(schema):
            raise ValueError(f"{type(self).__name__} needs at least one feature column, got none")
        unknown = [c.name for c in schema.categorical if c.cardinality is None]
        if unknown:
            raise ValueError(
                f"columns {unknown}: cardinality is not known. Take it from a fitted Workflow with "
                "Categorify or HashBucket, or set it in the schema."
            )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this layer."""
        return super().get_config() | {"columns": [dataclasses.asdict(c) for c in self.schema]}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Return the layer that `get_config` describes."""
        columns = Schema(Column(**fields) for fields in config["columns"])
        return cls(**{**config, "columns": columns})

    def batch_size(self, input_shape: Mapping[str, Any]) -> int | None:
        """Return the batch size of a dict of shapes; raise ValueError unless all columns fit."""
        sizes = [_column_batch_size(column, input_shape) for column in self.schema]
        return sizes[0]


class _TableFeatures(FeatureLayer):
    """Base of layers with a table for each categorical column; arguments as in `DenseFeatures`.

    `table_width` is the width of all tables (None for each column's own), `table_initializer` their
    initializer (None for that of `EmbeddingTable`).
    """

    def __init__(
        self,
        columns: Any,
        combiner: str | Mapping[str, str],
        weights: Mapping[str, str] | None,
        *,
        table_width: int | None = None,
        table_initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        schema, own_combiners, own_weights = read_columns(columns)
        weights = {**own_weights, **(weights or {})}
        super().__init__(Schema(c for c in schema if c.name not in weights.values()), **kwargs)
        self._check_categorical("weights", weights)
        self.weights_of = weights
        lists = [c.name for c in self.schema.continuous if c.multi_hot]
        if lists:
            raise ValueError(
                f"columns {lists} hold lists of numbers; continuous columns must hold one number "
                "per row, or k numbers with length=k. Name weights of ids in `weights`."
            )
        given, default = ({}, combiner) if isinstance(combiner, str) else (combiner, "mean")
        check_choice("combiner", default, COMBINERS)
        self._check_categorical("combiner", given)
        sizes = sorted(self.schema.embedding_sizes().items())
        combiners = {name: given.get(name, own_combiners.get(name, default)) for name, _ in sizes}
        self.combiner: str | dict[str, str] = combiners if given or own_combiners else default
        self.tables = {
            name: EmbeddingBag(
                cardinality,
                table_width or width,
                combiner=combiners[name],
                embeddings_initializer=table_initializer,
                name=name,
                dtype=self.dtype_policy,
            )
            for name, (cardinality, width) in sizes
        }

    def _check_categorical(self, argument: str, names: Iterable[str]) -> None:
        known = self.schema.categorical.names
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(f"{argument} names {unknown}, but the categorical columns are {known}")

    def in_name_order(self) -> Schema:
        """Return the columns in the order of their names, which is that of the output."""
        return Schema(sorted(self.schema, key=lambda column: column.name))

    def build(self, input_shape: Mapping[str, Any]) -> None:
        """Check the shapes and create the tables."""
        self.batch_size(input_shape)
        for table in self.tables.values():
            table.build()

    def lookup(self, inputs: Mapping[str, Any], name: str) -> Any:
        """Return the embedding of one categorical column, [batch, dim]."""
        table, weight = self.tables[name], self.weights_of.get(name)
        if not _is_list(self.schema[name], inputs):
            if weight is None:
                return table.rows(ops.squeeze(inputs[name], 1))
            raise ValueError(
                f"column {name!r} has weights, so it must be multi-hot, but the batch has one id "
                f"per row. Drop {weight!r} from `weights`."
            )
        found = list_inputs(inputs, name)
        if weight is not None:
            found["weights"] = _weight_values(inputs, weight, "ids" in found)
        return table(found)

    def numbers(self, inputs: Mapping[str, Any], column: Column) -> Any:
        """Return the numbers of one continuous column, [batch, 1] or [batch, k]."""
        return ops.cast(inputs[column.name], self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this layer."""
        combiner = self.combiner if isinstance(self.combiner, str) else dict(self.combiner)
        return super().get_config() | {"combiner": combiner, "weights": dict(self.weights_of)}


def list_inputs(inputs: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what `EmbeddingBag` takes for one column, from a batch or a dict of shapes."""
    for form in ("nnzs", "offsets"):
        if f"{name}__{form}" in inputs and f"{name}__values" in inputs:
            return {"values": inputs[f"{name}__values"], form: inputs[f"{name}__{form}"]}
    if name in inputs:
        return {"ids": inputs[name]}
    raise ValueError(
        f"column {name!r} is multi-hot and needs {name}__values with {name}__nnzs or "
        f"{name}__offsets, or {name}; the batch has {sorted(inputs)}"
    )


def _weight_values(inputs: Mapping[str, Any], name: str, whole: bool) -> Any:
    """Return the weights in column `name`, in the form of the ids: whole lists, or values."""
    wanted = name if whole else f"{name}__values"
    if wanted in inputs:
        return inputs[wanted]
    raise ValueError(
        f"the weights {wanted!r} are missing; the batch has {sorted(inputs)}. Weights need the "
        "same form as their ids."
    )


def _is_list(column: Column, inputs: Mapping[str, Any]) -> bool:
    """Return whether a column holds lists; for legacy feature columns, the batch tells."""
    return column.multi_hot or f"{column.name}__values" in inputs


def _column_batch_size(column: Column, input_shape: Mapping[str, Any]) -> int | None:
    """Return the batch size by one column's shape; raise ValueError if it does not fit."""
    if not isinstance(input_shape, Mapping):
        raise ValueError(f"the input must be a dict of columns, got one tensor {input_shape}")
    if _is_list(column, input_shape):
        return list_batch_size(list_inputs(input_shape, column.name))
    if column.name not in input_shape:
        raise ValueError(f"column {column.name!r} is missing; the batch has {sorted(input_shape)}")
    shape, length = tuple(input_shape[column.name]), column.length or 1
    if len(shape) != 2 or shape[1] != length:
        raise ValueError(f"column {column.name!r} must have shape [batch, {length}], got {shape}")
    return shape[0]


@register
class DenseFeatures(_TableFeatures):
    """Concatenates or stacks all columns: ids and lists of ids as embeddings, numbers as they are.

    Columns are ordered by name. Each categorical column has a table of its own, whose path ends in
    `{column}/embedding_weights`; `FusedEmbedding` needs one gather where this needs one per column.

    A column of vectors, with `length=k`, is k numbers.

    Args:
        columns: Schema, list of `Column`, or list of `tf.feature_column`; labels are left out. For
            feature columns, the batch tells which hold lists.
        combiner: how a list of ids becomes one vector: "mean", "sum" or "sqrtn" for all columns,
            or {column: combiner} with "mean" for the others. A feature column keeps its own
            combiner unless the dict names it.
        aggregation: "concat", or "stack", which needs equal widths.
        weights: {multi-hot column: column with the weights of its ids}; None for no weights. The
            weights are lists as long as those of the ids, in the same form, and no features.
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: dict of [batch, 1] tensors, vectors as [batch, k], multi-hot columns in any form of
        `keras_inputs` -> [batch, sum of widths] for "concat", [batch, columns, width] for "stack".
        An empty list gives zeros.

    Raises:
        ValueError: if a choice is unknown, a cardinality is not known, a continuous column holds
            lists of unknown length, widths differ under "stack", or a batch lacks a column or holds
            one of another shape.

    Example:
        >>> import numpy as np
        >>> user = Column("user", "categorical", cardinality=9, embedding_dim=4)
        >>> tags = Column("tags", "categorical", multi_hot=True, cardinality=5, embedding_dim=2)
        >>> batch = {"user": np.array([[1], [2]]), "tags__values": np.array([[1], [2], [3]]),
        ...          "tags__nnzs": np.array([[0], [3]])}
        >>> DenseFeatures([user, tags])(batch).shape.as_list()
        [2, 6]
    """

    def __init__(
        self,
        columns: Any,
        combiner: str | Mapping[str, str] = "mean",
        aggregation: str = "concat",
        weights: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(columns, combiner, weights, **kwargs)
        check_choice("aggregation", aggregation, ("concat", "stack"))
        widths = {column.name: column.width for column in self.in_name_order()}
        if aggregation == "stack" and len(set(widths.values())) > 1:
            raise ValueError(
                f"aggregation='stack' needs equal widths, got {widths}. Give each column the same "
                "embedding_dim, feed numbers another way, or use 'concat'."
            )
        self.aggregation = aggregation

    def call(self, inputs: Mapping[str, Any]) -> Any:
        """Return all columns as one tensor."""
        parts = [
            self.lookup(inputs, column.name)
            if column.role == "categorical"
            else self.numbers(inputs, column)
            for column in self.in_name_order()
        ]
        if self.aggregation == "stack":
            return ops.stack(parts, axis=1)
        return ops.concatenate(parts, axis=1)

    def compute_output_shape(self, input_shape: Mapping[str, Any]) -> tuple[int | None, ...]:
        """Return (batch, sum of widths) or (batch, columns, width)."""
        batch, widths = self.batch_size(input_shape), [c.width for c in self.schema]
        if self.aggregation == "stack":
            return (batch, len(widths), widths[0])
        return (batch, sum(widths))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this layer."""
        return super().get_config() | {"aggregation": self.aggregation}


@register
class ScalarDenseFeatures(DenseFeatures):
    """`DenseFeatures` for columns with one value or one vector per row.

    Args:
        columns: Schema, list of `Column`, or list of `tf.feature_column`; labels are left out.
        aggregation: "concat", or "stack", which needs equal widths.
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: dict of [batch, 1] tensors -> [batch, sum of widths] for "concat", [batch, columns,
        width] for "stack", columns ordered by name.

    Raises:
        ValueError: if a column is multi-hot or weighted, and as `DenseFeatures` does.

    Example:
        >>> import numpy as np
        >>> columns = [Column(name, "categorical", cardinality=9, embedding_dim=4) for name in "ab"]
        >>> layer = ScalarDenseFeatures(columns, aggregation="stack")
        >>> layer({"a": np.array([[1]]), "b": np.array([[8]])}).shape.as_list()
        [1, 2, 4]
    """

    def __init__(self, columns: Any, aggregation: str = "concat", **kwargs: Any) -> None:
        features, _, weights = read_columns(columns)
        refuse_multi_hot(features, "ScalarDenseFeatures")
        if weights:
            raise ValueError(
                f"ScalarDenseFeatures takes one value per row, but the columns {list(weights)} "
                "have weights, so they hold lists. Use DenseFeatures for them."
            )
        super().__init__(features, aggregation=aggregation, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this layer."""
        config = super().get_config()
        del config["combiner"], config["weights"]
        return config


@register
class LinearFeatures(_TableFeatures):
    """The wide side of a network: one weight for each id and each number, and a bias, summed.

    All start at zero, so a wide and deep network starts as its deep side alone. A list of ids
    counts as the sum of its weights, an empty one as zero.

    Args:
        columns: Schema, list of `Column`, or list of `tf.feature_column`; labels are left out.
        weights: {multi-hot column: column with the weights of its ids}, as in `DenseFeatures`.
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: dict of columns as in `DenseFeatures` -> [batch, 1].

    Raises:
        ValueError: if a cardinality is not known, or a batch lacks a column.

    Example:
        >>> import numpy as np
        >>> layer = LinearFeatures([Column("C1", "categorical", cardinality=9)])
        >>> layer({"C1": np.array([[3], [4]])}).shape.as_list()
        [2, 1]

    References:
        Cheng et al., Wide & Deep Learning for Recommender Systems, 2016, arXiv:1606.07792.
    """

    def __init__(
        self, columns: Any, weights: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        schema, _, legacy_weights = read_columns(columns)
        super().__init__(
            schema,
            "sum",
            {**legacy_weights, **(weights or {})},
            table_width=1,
            table_initializer="zeros",
            **kwargs,
        )
        self._continuous = list(self.in_name_order().continuous)

    def build(self, input_shape: Mapping[str, Any]) -> None:
        """Check the shapes and create tables, numeric kernel and bias."""
        super().build(input_shape)
        if self._continuous:
            size = sum(column.width for column in self._continuous)
            self.numeric_kernel = self.add_weight(
                name="numeric_kernel", shape=(size, 1), initializer="zeros"
            )
        self.bias = self.add_weight(name="bias", shape=(1,), initializer="zeros")

    def call(self, inputs: Mapping[str, Any]) -> Any:
        """Return the weighted sum of all columns, [batch, 1]."""
        total = self.bias
        for name in self.tables:
            total = total + self.lookup(inputs, name)
        if self._continuous:
            numbers = [self.numbers(inputs, column) for column in self._continuous]
            total = total + ops.matmul(ops.concatenate(numbers, axis=1), self.numeric_kernel)
        return total

    def compute_output_shape(self, input_shape: Mapping[str, Any]) -> tuple[int | None, int]:
        """Return (batch, 1)."""
        return (self.batch_size(input_shape), 1)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this layer."""
        config = super().get_config()
        del config["combiner"]
        return config
