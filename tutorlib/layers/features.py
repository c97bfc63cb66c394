"""Features: all columns of a batch to one tensor, with a table for each categorical column.

Does not belong here: tables of several columns in one variable (`fused.py`), or learning
vocabularies (`workflow.py`): ids must already lie in [0, cardinality) when they arrive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import keras
from keras import ops

from tutorlib.checks import check_choice
from tutorlib.layers.checks import refuse_multi_hot
from tutorlib.layers.columns import feature_width, read_columns, vector_length
from tutorlib.layers.tables import (
    COMBINERS,
    EmbeddingBag,
    list_batch_size,
    register,
    values_and_counts,
)
from tutorlib.schema import Column, Schema


class FeatureLayer(keras.layers.Layer):
    """What layers over a Schema share: their columns, and that they can be made again."""

    def __init__(self, columns: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.schema = columns
        if not len(self.schema):
            raise ValueError(f"{type(self).__name__} needs at least one feature column, got none")
        unknown = [c.name for c in self.schema.categorical if c.cardinality is None]
        if unknown:
            raise ValueError(
                f"columns {unknown}: cardinality is not known. Fit a Workflow with Categorify or "
                "HashBucket, or give it."
            )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this layer again."""
        return super().get_config() | {"columns": [dataclasses.asdict(c) for c in self.schema]}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Return the layer that `get_config` describes."""
        columns = Schema(Column(**fields) for fields in config["columns"])
        return cls(**{**config, "columns": columns})

    def batch_size(self, input_shape: Mapping[str, Any]) -> int | None:
        """Return the batch size of a dict of shapes, after a check that it has all columns."""
        sizes = [_column_batch_size(column, input_shape) for column in self.schema]
        return sizes[0]


class _TableFeatures(FeatureLayer):
    """What layers with a table for each column share: combiners, weights, and the lookup."""

    def __init__(
        self,
        columns: Any,
        combiner: str | Mapping[str, str] = "mean",
        weights: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        schema, own_combiners, own_weights = read_columns(columns)
        weights = {**own_weights, **(weights or {})}
        taken = set(weights.values())
        super().__init__(Schema(c for c in schema if c.name not in taken), **kwargs)
        self.weights_of = weights
        self._check_names("weights", weights)
        self.combiner = combiner
        if own_combiners or not isinstance(combiner, str):
            self.combiner = self._combiners_by_name(combiner, own_combiners)
        for value in [combiner] if isinstance(combiner, str) else self.combiner.values():
            check_choice("combiner", value, COMBINERS)
        lists = [c.name for c in self.schema.continuous if c.multi_hot and not vector_length(c)]
        if lists:
            raise ValueError(
                "continuous columns must hold one number per row, or n numbers if embedding_dim=n "
                f"says so; {lists} hold lists"
            )

    def _combiners_by_name(
        self, combiner: str | Mapping[str, str], own: Mapping[str, str]
    ) -> dict[str, str]:
        """Return {column: combiner}: what is given for it, its own, what is given for all."""
        given, default = ({}, combiner) if isinstance(combiner, str) else (combiner, "mean")
        self._check_names("combiner", given)
        names = self.schema.categorical.names
        return {name: given.get(name, own.get(name, default)) for name in names}

    def _check_names(self, argument: str, names: Iterable[str]) -> None:
        """Raise ValueError where an argument names what is no categorical column."""
        known = self.schema.categorical.names
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(f"{argument} names {unknown}, but the categorical columns are {known}")

    def in_name_order(self) -> Schema:
        """Return the columns in the order of their names, which is that of the output."""
        return Schema(sorted(self.schema, key=lambda column: column.name))

    def make_tables(
        self, embedding_dim: int | None = None, **options: Any
    ) -> dict[str, EmbeddingBag]:
        """Return {column: its table}; `embedding_dim` None takes each column's own width."""
        return {
            column.name: EmbeddingBag(
                column.cardinality,
                embedding_dim or column.width,
                combiner=self.combiner
                if isinstance(self.combiner, str)
                else self.combiner[column.name],
                name=column.name,
                dtype=self.dtype_policy,
                **options,
            )
            for column in self.in_name_order().categorical
        }

    def lookup(self, inputs: Mapping[str, Any], name: str) -> Any:
        """Return the embedding of one column, [batch, dim]."""
        table, weight = self.tables[name], self.weights_of.get(name)
        if not _is_list(self.schema[name], inputs):
            if weight is None:
                return table.rows(ops.squeeze(inputs[name], 1))
            raise ValueError(f"column {name!r} has weights, so it must be multi-hot")
        found = list_inputs(inputs, name)
        if weight is not None:
            found["weights"] = list_inputs(inputs, weight, like=found)
        return table(found)

    def numbers(self, inputs: Mapping[str, Any], column: Column) -> Any:
        """Return the numbers of one continuous column, [batch, 1] or [batch, n]."""
        if column.multi_hot:
            return ops.cast(_vectors(inputs, column), self.compute_dtype)
        return ops.cast(inputs[column.name], self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this layer again."""
        combiner = self.combiner if isinstance(self.combiner, str) else dict(self.combiner)
        return super().get_config() | {"combiner": combiner, "weights": dict(self.weights_of)}


def list_inputs(inputs: Mapping[str, Any], name: str, like: Mapping[str, Any] | None = None) -> Any:
    """Return what `EmbeddingBag` takes for column `name`, out of a batch or a dict of shapes.

    With `like`, which is that of another column, only the values, in the same form.
    """
    if like is not None:
        wanted = name if "ids" in like else f"{name}__values"
        if wanted in inputs:
            return inputs[wanted]
        raise ValueError(f"the weights {wanted!r} are missing; the batch has {sorted(inputs)}")
    for form in ("nnzs", "offsets"):
        if f"{name}__{form}" in inputs and f"{name}__values" in inputs:
            return {"values": inputs[f"{name}__values"], form: inputs[f"{name}__{form}"]}
    if name in inputs:
        return {"ids": inputs[name]}
    raise ValueError(
        f"column {name!r} is multi-hot and needs {name}__values with {name}__nnzs or "
        f"{name}__offsets, or {name}; the batch has {sorted(inputs)}"
    )


def _is_list(column: Column, inputs: Mapping[str, Any]) -> bool:
    """Return whether a column holds lists; legacy feature columns leave that to the batch."""
    return column.multi_hot or f"{column.name}__values" in inputs


def _column_batch_size(column: Column, input_shape: Mapping[str, Any]) -> int | None:
    """Return the batch size that one column's shape tells."""
    if not isinstance(input_shape, Mapping):
        raise ValueError(f"a dict of columns is needed, got one tensor of shape {input_shape}")
    if _is_list(column, input_shape):
        return list_batch_size(list_inputs(input_shape, column.name))
    if column.name not in input_shape:
        raise ValueError(f"column {column.name!r} is missing; the batch has {sorted(input_shape)}")
    shape = tuple(input_shape[column.name])
    if len(shape) != 2 or shape[1] != 1:
        raise ValueError(f"column {column.name!r} must have shape [batch, 1], got {shape}")
    return shape[0]


def _vectors(inputs: Mapping[str, Any], column: Column) -> Any:
    """Return a column of n numbers a row as [batch, n]; a row with another number gets NaN."""
    found, length = list_inputs(inputs, column.name), column.embedding_dim
    if "ids" in found and not hasattr(found["ids"], "row_splits"):
        if found["ids"].shape[1] not in (length, None):
            raise ValueError(
                f"column {column.name!r} must have shape [batch, {length}], got "
                f"{tuple(found['ids'].shape)}"
            )
        return ops.reshape(found["ids"], (-1, length))
    values, counts = values_and_counts(found)
    starts = ops.cumsum(counts) - counts
    values = ops.pad(values, [[0, length]])  # for a last row that is too short
    places = starts[:, None] + ops.arange(length, dtype=starts.dtype)
    return ops.where(counts[:, None] == length, ops.take(values, places, axis=0), float("nan"))


@register
class DenseFeatures(_TableFeatures):
    """Columns to one dense tensor: ids and lists of ids through embeddings, numbers as they are.

    Columns stand in the order of their names. Each has a table of its own, whose path ends in
    `{column}/embedding_weights`.

    A continuous column with `multi_hot=True` and `embedding_dim=n` holds n numbers a row, which are
    taken over; a row with another number of them gives NaN.

    Args:
        columns: Schema, list of `Column`, or list of `tf.feature_column`; labels are left out. Of
            feature columns, the batch tells whether they are lists.
        combiner: how a list of ids becomes one vector: "mean", "sum" or "sqrtn", or {column: one of
            these}, "mean" for a column that is left out. A feature column has its own, which a dict
            alone overrules.
        aggregation: "concat", or "stack" where all widths are equal.
        weights: {multi-hot column: column of the weights of its ids}, which is a list of as many
            numbers a row, in the same form, and no feature of its own.
        **kwargs: `name`, `dtype` and the like of a Keras layer.

    Shapes: dict of [batch, 1] tensors, a multi-hot column `g` in any form that `keras_inputs` names
        -> [batch, sum of widths] for "concat", [batch, columns, width] for "stack".

    Raises:
        ValueError: if a choice is unknown, a cardinality is not known, a list column holds numbers
            and does not say how many, widths differ under "stack", or a batch lacks a column or has
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
        widths = {column.name: feature_width(column) for column in self.in_name_order()}
        if aggregation == "stack" and len(set(widths.values())) > 1:
            raise ValueError(
                f"aggregation='stack' needs equal widths, got {widths}. Give each column the same "
                "embedding_dim, feed numbers another way, or use 'concat'."
            )
        self.aggregation = aggregation
        self.tables = self.make_tables()

    def build(self, input_shape: Mapping[str, Any]) -> None:
        """Check the shapes and create the tables."""
        self.batch_size(input_shape)
        for table in self.tables.values():
            table.build()

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
        batch, widths = self.batch_size(input_shape), [feature_width(c) for c in self.schema]
        if self.aggregation == "stack":
            return (batch, len(widths), widths[0])
        return (batch, sum(widths))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this layer again."""
        return super().get_config() | {"aggregation": self.aggregation}


@register
class ScalarDenseFeatures(DenseFeatures):
    """One-hot columns to one dense tensor: `DenseFeatures` without lists of ids.

    Args:
        columns: Schema, list of `Column`, or list of `tf.feature_column`; labels are left out.
        aggregation: "concat", or "stack" where all widths are equal.
        **kwargs: `name`, `dtype` and the like of a Keras layer.

    Shapes: dict of [batch, 1] tensors -> [batch, sum of widths] for "concat", [batch, columns,
        width] for "stack", columns in the order of their names.

    Raises:
        ValueError: if a column is multi-hot, and as `DenseFeatures` does.

    Example:
        >>> import numpy as np
        >>> columns = [Column(name, "categorical", cardinality=9, embedding_dim=4) for name in "ab"]
        >>> layer = ScalarDenseFeatures(columns, aggregation="stack")
        >>> layer({"a": np.array([[1]]), "b": np.array([[8]])}).shape.as_list()
        [1, 2, 4]
    """

    def __init__(self, columns: Any, aggregation: str = "concat", **kwargs: Any) -> None:
        features = read_columns(columns).schema
        refuse_multi_hot(features, "ScalarDenseFeatures")
        super().__init__(features, aggregation=aggregation, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this layer again."""
        config = super().get_config()
        del config["combiner"], config["weights"]
        return config


@register
class LinearFeatures(_TableFeatures):
    """The wide side of a network: a weight for each id, a weight for each number, and a bias.

    All start at zero, so that a wide and deep network starts as its deep side. A list of ids counts
    as the sum of its weights.

    Args:
        columns: Schema, list of `Column`, or list of `tf.feature_column`; labels are left out.
        weights: {multi-hot column: column of the weights of its ids}, as in `DenseFeatures`.
        **kwargs: `name`, `dtype` and the like of a Keras layer.

    Shapes: dict of columns as `DenseFeatures` takes them -> [batch, 1].

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
        super().__init__(schema, "sum", {**legacy_weights, **(weights or {})}, **kwargs)
        self.tables = self.make_tables(1, embeddings_initializer="zeros")
        self._continuous = list(self.in_name_order().continuous)

    def build(self, input_shape: Mapping[str, Any]) -> None:
        """Check the shapes and create tables, numeric kernel and bias."""
        self.batch_size(input_shape)
        for table in self.tables.values():
            table.build()
        if self._continuous:
            size = sum(feature_width(column) for column in self._continuous)
            self.numeric_kernel = self.add_weight(
                name="numeric_kernel", shape=(size, 1), initializer="zeros"
            )
        self.bias = self.add_weight(name="bias", shape=(1,), initializer="zeros")

    def call(self, inputs: Mapping[str, Any]) -> Any:
        """Return the weighted sum of all columns."""
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
        """Return the arguments that make this layer again."""
        config = super().get_config()
        del config["combiner"]
        return config
