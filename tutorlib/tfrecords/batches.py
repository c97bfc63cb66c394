"""What a batch looks like, whoever reads it: as from the loader, inputs and labels and weights.

Does not belong here: where the tensors come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tutorlib.schema import Column, Schema


def parsing_features(schema: Schema) -> dict[str, Any]:
    """Return what `tf.io.parse_example` must know: {name: type and shape of a feature}.

    Example:
        >>> parsing_features(Schema([Column("C1", "categorical")]))["C1"].dtype
        tf.int64
    """
    import tensorflow as tf

    def feature(column: Column) -> Any:
        dtype = tf.int64
        if column.dtype == "string":
            dtype = tf.string
        elif np.dtype(column.dtype).kind == "f":
            dtype = tf.float32
        if column.multi_hot:
            return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int32)
        return tf.io.FixedLenFeature([1], dtype)

    return {column.name: feature(column) for column in schema}


def as_batch(features: Mapping[str, Any], schema: Schema) -> tuple[Any, ...]:
    """Return (inputs, labels) or (inputs, labels, weights), as the loader does."""
    return inputs_of(features, schema), *targets_of(features, schema)


def inputs_of(features: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return the inputs of a batch: lists as values and nnzs, everything else as it came."""
    inputs = {}
    for column in schema.features:
        values, nnzs = f"{column.name}__values", f"{column.name}__nnzs"
        if not column.multi_hot:
            inputs[column.name] = features[column.name]
        elif values in features:
            inputs |= {values: features[values], nnzs: features[nnzs]}
        else:
            ragged = features[column.name]
            inputs |= {values: ragged.values[:, None], nnzs: ragged.row_lengths()[:, None]}
    return inputs


def targets_of(features: Mapping[str, Any], schema: Schema) -> tuple[Any, ...]:
    """Return (labels,) or (labels, weights): a tensor, or a dict of several labels; weights [n]."""
    labels = {name: features[name] for name in schema.labels.names}
    target = next(iter(labels.values())) if len(labels) == 1 else labels or None
    weights = [features[name][:, 0] for name in schema.with_role("weight").names]
    return target, *weights
