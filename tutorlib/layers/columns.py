"""Columns: what a layer is told about its columns, as a Schema or as `tf.feature_column` objects.

Belongs here: reading the legacy objects, which come from TensorFlow or tf_keras, without importing
either. Does not belong here: the Schema itself (`schema.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from tutorlib.schema import Column, Schema, as_schema


class Features(NamedTuple):
    """The feature columns of a layer, and what legacy columns say beyond a Schema.

    Args:
        schema: categorical and continuous columns, in order.
        combiners: {column: combiner} of legacy embedding columns.
        weights: {column: column of its weights} of legacy weighted columns.
    """

    schema: Schema
    combiners: dict[str, str]
    weights: dict[str, str]


def read_columns(columns: Any) -> Features:
    """Return the features of a Schema, a list of `Column`, or a list of `tf.feature_column`.

    Understood of the latter: `numeric_column` of shape (n,), and `embedding_column` over
    `categorical_column_with_identity` or `_with_hash_bucket`, bare or in a
    `weighted_categorical_column`. Ids must be numbers in [0, num_buckets) when they arrive; hashing
    is the business of a Workflow.

    Args:
        columns: Schema, `Column`, or an iterable of one kind; labels are left out.

    Raises:
        ValueError: naming every column that is not understood, with the reason, in one message.

    Example:
        >>> read_columns([Column("I1", "continuous"), Column("y", "label")]).schema.names
        ['I1']
    """
    if isinstance(columns, Schema | Column):
        return Features(as_schema(columns).features, {}, {})
    columns = list(columns)
    if all(isinstance(column, Column) for column in columns):
        return Features(Schema(columns).features, {}, {})
    return _read_legacy(columns)


def vector_length(column: Column) -> int | None:
    """Return n of a continuous column that holds n numbers a row, None of any other column."""
    if column.role == "continuous" and column.multi_hot:
        return column.embedding_dim
    return None


def feature_width(column: Column) -> int:
    """Return how many numbers a column becomes: its embedding's width, its length, or 1."""
    return vector_length(column) or column.width


def _read_legacy(items: Iterable[Any]) -> Features:
    found, combiners, weights, refused = [], {}, {}, []
    for item in items:
        try:
            plain, weight = _unweighted(item)
            column = item if isinstance(item, Column) else _as_column(plain)
        except ValueError as error:
            refused.append(f"{type(item).__name__}({getattr(item, 'name', item)}): {error}")
            continue
        found.append(column)
        if weight is not None:
            weights[column.name] = weight
        if hasattr(plain, "combiner"):
            combiners[column.name] = plain.combiner
    if refused:
        raise ValueError(
            f"these feature columns are not understood: {'; '.join(refused)}. Use numeric_column, "
            "or embedding_column over an identity or hash-bucket column, bare or weighted; move "
            "other transformations into a Workflow."
        )
    return Features(Schema(found).features, combiners, weights)


def _unweighted(item: Any) -> tuple[Any, str | None]:
    """Return a feature column without its weights, and the name of the column of weights."""
    inner = getattr(item, "categorical_column", item)
    if type(inner).__name__ != "WeightedCategoricalColumn":
        return item, None
    key = inner.weight_feature_key
    name = key if isinstance(key, str) else key.key
    if inner is item:  # not in an embedding_column
        return inner.categorical_column, name
    return item._replace(categorical_column=inner.categorical_column), name


def _as_column(item: Any) -> Column:
    """Return one feature column as a `Column`; raise where something of it would be lost."""
    inner = getattr(item, "categorical_column", item)
    lost = [
        name
        for name in ("normalizer_fn", "default_value", "ckpt_to_load_from", "max_norm")
        if getattr(inner, name, None) is not None or getattr(item, name, None) is not None
    ]
    lost += [] if getattr(item, "trainable", True) else ["trainable=False"]
    lost += [] if _usual_initializer(item) else ["initializer (give the layer one)"]
    if lost:
        raise ValueError(f"{', '.join(lost)} would have no effect")
    try:
        [column] = Schema.from_feature_columns([item])
    except ValueError as error:
        raise ValueError("this kind has no counterpart here") from error
    return column


def _usual_initializer(item: Any) -> bool:
    """Whether an embedding column has the initializer of those that are given none; it is ours."""
    made = getattr(item, "initializer", None)
    if made is None:
        return True
    usual = {"mean": 0.0, "stddev": 1 / math.sqrt(item.dimension), "seed": None}
    found = {name: getattr(made, name, None) for name in usual}
    return type(made).__name__.startswith("TruncatedNormal") and found == usual
