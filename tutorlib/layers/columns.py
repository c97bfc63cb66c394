"""Columns: the features a layer is given, as a Schema or as `tf.feature_column` objects.

The legacy objects come from TensorFlow or tf_keras; they are read without importing either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from tutorlib.schema import Column, Schema, as_schema

# Settings of a legacy column that a Schema has no room for.
UNSUPPORTED = ("normalizer_fn", "default_value", "ckpt_to_load_from", "max_norm")


class Features(NamedTuple):
    """The feature columns of a layer, and what legacy columns say beyond a Schema.

    Args:
        schema: categorical and continuous columns, in order.
        combiners: {column: combiner} of legacy embedding columns.
        weights: {column: column with the weights of its ids} of legacy weighted columns.
    """

    schema: Schema
    combiners: dict[str, str]
    weights: dict[str, str]


def read_columns(columns: Any) -> Features:
    """Return the features of a Schema, a list of `Column`, or a list of `tf.feature_column`.

    Of the latter these are supported: `numeric_column` of shape (n,), and `embedding_column` over
    `categorical_column_with_identity` or `_with_hash_bucket`, bare or in a
    `weighted_categorical_column`. The batch must already hold ids in [0, num_buckets); a Workflow
    does the hashing.

    Args:
        columns: Schema, `Column`, or an iterable of one kind. Labels and weights are left out.

    Raises:
        ValueError: if a column is not supported; one message names all of them with the reason.
    """
    if not isinstance(columns, Schema | Column):
        columns = list(columns)
        if not all(isinstance(column, Column) for column in columns):
            return _read_legacy(columns)
    return Features(as_schema(columns).features, {}, {})


def refuse_multi_hot(features: Schema, who: str) -> None:
    """Raise ValueError that names all multi-hot columns, if there are any."""
    names = [column.name for column in features if column.multi_hot]
    if names:
        raise ValueError(
            f"{who} takes one value per row, but the columns {names} are multi-hot. "
            "Use DenseFeatures for them."
        )


def _read_legacy(items: Iterable[Any]) -> Features:
    found: list[Column] = []
    combiners, weights, refused = {}, {}, []
    for item in items:
        try:
            column, *extra = [item] if isinstance(item, Column) else _as_columns(item)
        except ValueError as error:
            refused.append(f"{type(item).__name__}({getattr(item, 'name', item)}): {error}")
            continue
        found.append(column)
        if extra:
            weights[column.name] = extra[0].name
        if hasattr(item, "combiner"):
            combiners[column.name] = item.combiner
    if refused:
        raise ValueError(
            f"these feature columns are not supported: {'; '.join(refused)}. Use numeric_column, "
            "or embedding_column over an identity or hash-bucket column, bare or weighted; move "
            "other transformations into a Workflow."
        )
    return Features(Schema(found).features, combiners, weights)


def _as_columns(item: Any) -> Schema:
    """Return one legacy column, followed by the column of its weights if it has one."""
    parts = [item]
    while hasattr(parts[-1], "categorical_column"):
        parts.append(parts[-1].categorical_column)
    lost = [
        name for name in UNSUPPORTED if any(getattr(part, name, None) is not None for part in parts)
    ]
    lost += [] if getattr(item, "trainable", True) else ["trainable=False"]
    lost += [] if _has_default_initializer(item) else ["initializer (give the layer one)"]
    if lost:
        raise ValueError(f"{', '.join(lost)} would have no effect")
    try:
        return Schema.from_feature_columns([item])
    except ValueError as error:
        raise ValueError("a Schema cannot describe it") from error


def _has_default_initializer(item: Any) -> bool:
    """Return whether an embedding column was given no initializer; its default is also ours."""
    initializer = getattr(item, "initializer", None)
    if initializer is None:
        return True
    default = {"mean": 0.0, "stddev": 1 / math.sqrt(item.dimension), "seed": None}
    found = {name: getattr(initializer, name, None) for name in default}
    return type(initializer).__name__.startswith("TruncatedNormal") and found == default
