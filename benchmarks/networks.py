"""The networks that `train` trains, each with one table per column and with fused tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from ladder import dlrm_by_column, with_width
from tutorlib import (
    DLRM,
    MLP,
    DenseFeatures,
    FusedEmbedding,
    LinearFeatures,
    Schema,
    WideAndDeep,
    keras_inputs,
    movielens_network,
)


@dataclasses.dataclass(frozen=True)
class Network:
    """Two forms of one network."""

    schema: Schema  # its columns, with the widths of their embeddings
    by_column: Callable[[], keras.Model]  # one table per column, for batches of columns
    fused: Callable[[], keras.Model]  # fused tables, for stacked batches


def dlrm(schema: Schema, widths: str) -> Network:
    """Return a DLRM over continuous columns and columns of ids, embeddings 8 wide."""
    bottom, top = ([32], [32]) if widths == "scaled" else ([1024, 512, 256], [1024, 1024, 512, 256])
    schema = with_width(schema, 8)
    return Network(
        schema,
        lambda: dlrm_by_column(schema, bottom, top),
        lambda: DLRM(schema, 8, bottom, top, batch_layout="stacked"),
    )


def movielens(schema: Schema, widths: str) -> Network:
    """Return the network over user, movie and genres; the published embeddings are 512 wide."""
    if widths == "scaled":
        schema = with_width(schema, 16)
    units = [128, 128, 128]

    def fused() -> keras.Model:
        inputs = _stacked_inputs(schema)
        x = MLP(units)(_fused_features(schema, inputs))
        return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(x))

    return Network(schema, lambda: movielens_network(schema, units), fused)


def wide_and_deep(schema: Schema, widths: str) -> Network:
    """Return a Wide & Deep over numbers, ids and lists of ids, embeddings 16 wide."""
    units = [64, 32] if widths == "scaled" else [1024, 1024, 1024]
    schema = with_width(schema, 16)

    def fused() -> keras.Model:
        inputs = _stacked_inputs(schema)
        scalars, lists = _scalars_and_lists(schema)
        deep = keras.layers.Dense(1)(MLP(units)(_fused_features(schema, inputs)))
        ids = FusedEmbedding(with_width(scalars, 1), "concat", "zeros")(inputs["categorical"])
        numbers = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        wide = [
            keras.ops.sum(ids, axis=1, keepdims=True),
            LinearFeatures(lists)(inputs),
            numbers(inputs["continuous"]),
        ]
        x = keras.layers.Add()([deep, *wide])
        return keras.Model(inputs, keras.layers.Activation("sigmoid")(x))

    return Network(schema, lambda: WideAndDeep(schema, units), fused)


NETWORKS = {"dlrm": dlrm, "movielens": movielens, "wide_and_deep": wide_and_deep}


def _stacked_inputs(schema: Schema) -> dict[str, Any]:
    """Return the inputs for stacked batches: two matrices, and each list column on its own."""
    scalars, lists = _scalars_and_lists(schema)
    return keras_inputs(scalars, batch_layout="stacked") | keras_inputs(lists)


def _scalars_and_lists(schema: Schema) -> tuple[Schema, Schema]:
    """Return the feature columns of one value per row, and those of lists."""
    return (
        Schema(column for column in schema.features if not column.multi_hot),
        Schema(column for column in schema.features if column.multi_hot),
    )


def _fused_features(schema: Schema, inputs: dict[str, Any]) -> Any:
    """Return all features concatenated: fused embeddings, the mean of each list, numbers."""
    scalars, lists = _scalars_and_lists(schema)
    parts = [FusedEmbedding(scalars, "concat")(inputs["categorical"]), DenseFeatures(lists)(inputs)]
    if len(scalars.continuous):
        parts.append(inputs["continuous"])
    return keras.layers.Concatenate()(parts)
