"""Lookups by Keras 2's feature columns, by tables of their own and by a fused table are the same.

Lesson 10 states how their times compare.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tf_keras

from tutorlib.layers import DenseFeatures, FusedEmbedding
from tutorlib.schema import Column, Schema

WIDTH, ROWS = 3, 7
IDS = {"b": 5, "a": 9}  # column: cardinality, not in the order of names
LIST = Column("h", "categorical", multi_hot=True, cardinality=6, embedding_dim=WIDTH)


def test_feature_columns_separate_tables_and_a_fused_table_give_the_same_vectors():
    rng = np.random.default_rng(0)
    one_hot = Schema(
        Column(name, "categorical", cardinality=n, embedding_dim=WIDTH) for name, n in IDS.items()
    )
    columns = {column.name: column for column in [*one_hot, LIST]}
    tables = {
        name: rng.normal(size=(c.cardinality, WIDTH)).astype("float32")
        for name, c in columns.items()
    }
    ids = {name: rng.integers(0, n, (ROWS, 1)) for name, n in IDS.items()}
    lengths = np.array([2, 0, 3, 1, 0, 4, 1])
    values = rng.integers(0, LIST.cardinality, lengths.sum())
    ragged = tf.RaggedTensor.from_row_lengths(values, lengths)

    old = tf_keras.layers.DenseFeatures(
        tf.feature_column.embedding_column(
            tf.feature_column.categorical_column_with_identity(name, c.cardinality), WIDTH, "mean"
        )
        for name, c in columns.items()
    )
    sparse = {**ids, "h": ragged.to_sparse()}
    old(sparse)
    for variable in old.trainable_variables:
        variable.assign(tables[variable.name.split("/")[1].removesuffix("_embedding")])
    by_feature_columns = old(sparse).numpy().reshape(ROWS, 3, WIDTH)  # sorted by name: a, b, h

    separate = DenseFeatures(list(columns.values()))
    batch = {**ids, "h__values": values[:, None], "h__nnzs": lengths[:, None]}
    separate(batch)
    for name, table in separate.tables.items():
        table.embedding_weights.assign(tables[name])
    fused = FusedEmbedding(one_hot)  # in the order of the schema: b, a
    stacked = np.concatenate([ids[name] for name in IDS], axis=1)
    fused(stacked)
    fused.embedding_weights.assign(np.concatenate([tables[name] for name in IDS]))

    by_table = separate(batch).numpy().reshape(ROWS, 3, WIDTH)  # sorted by name too
    np.testing.assert_allclose(by_table, by_feature_columns, atol=1e-6)
    np.testing.assert_allclose(fused(stacked).numpy()[:, ::-1], by_table[:, :2], atol=1e-6)
