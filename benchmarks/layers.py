"""Speed of layers, forward and backward in float32, and of optimizer steps.

Every way is a compiled TensorFlow function over a batch in memory: it computes the layer's output
and, from a given gradient of the output, the gradient of the tables, sparse as an optimizer gets
it. Data, loss and update are not included. Ids are skewed as in the benchmark of the loader.

Sections (--only): fused, 26 columns of ids to one tensor; lists of ids from a large table and from
a small one, as MovieLens's genres; Adam's step on one table of all columns, with small and with
large batches. "XLA" is `jit_compile=True`, for what XLA compiles.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.measure import Benchmark, Way, faster

STACKED, COLUMNS = "FusedEmbedding, stacked", "FusedEmbedding, columns"
SEPARATE = "26 keras.layers.Embedding + concatenate"
LEGACY = "tf_keras DenseFeatures"
BAG, LOOKUP = "EmbeddingBag", "embedding_lookup_sparse"
DENSE, SPARSE = "keras Adam", "RowSparseAdam"
XLA = ", XLA"
LARGE, SMALL = "lists of 100,000 ids", "lists of 21 ids"
SMALL_STEP, LARGE_STEP = "steps of small batches", "steps of large batches"
LIST_LENGTH = 3  # mean
SMALL_BATCH = 4096

BOUNDS = (
    ("fused", STACKED, SEPARATE, 1.5),
    ("fused", STACKED, LEGACY, 5),
    (LARGE, BAG, LOOKUP, 1),
    (SMALL, BAG, LOOKUP, 1),
    (LARGE, BAG + XLA, LOOKUP, 1),
    (SMALL_STEP, SPARSE, DENSE, 1),
)


def column_sizes(table_rows: int) -> list[int]:
    """Return the cardinalities of Criteo's 26 columns, scaled to about `table_rows` together."""
    from data_prep import synthetic_criteo

    whole = sum(synthetic_criteo.column_sizes(1.0))
    return list(synthetic_criteo.column_sizes(table_rows / whole))


def skewed_ids(sizes: Sequence[int], rows: int, rng: np.random.Generator) -> np.ndarray:
    """Return ids, small ones more frequent, as the ETL numbers them: int32 [rows, columns]."""
    return (np.array(sizes) * rng.random((rows, len(sizes))) ** 4).astype(np.int32)


def step(
    name: str, layer: Callable[[Any], Any], variables: Sequence[Any], batch: Any, upstream: Any
) -> Way:
    """Return the way that goes forward and backward once; compiled by XLA if its name says so."""
    import tensorflow as tf

    @tf.function(jit_compile=name.endswith(XLA))
    def forward_and_backward(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            output = layer(batch)
        gradients = tape.gradient(output, variables, output_gradients=upstream)
        # What an optimizer gets: rows and their numbers.
        return output, [(g.values, g.indices) for g in gradients]

    def work() -> int:
        output, _ = forward_and_backward(batch)
        output[0].numpy()  # waits until it is computed
        return len(upstream)

    return Way(name, work)


def fused(arguments: argparse.Namespace) -> list[Way]:
    """Return the ways to look up 26 columns of ids; Keras' own first."""
    import keras
    import tensorflow as tf
    import tf_keras

    from tutorlib import Column, FusedEmbedding, Schema

    rng, sizes = np.random.default_rng(0), column_sizes(arguments.table_rows)
    batch_size, width = arguments.batch_size, arguments.width
    ids = tf.constant(skewed_ids(sizes, batch_size, rng))
    names = [f"C{k}" for k in range(len(sizes))]
    columns = {name: ids[:, k, None] for k, name in enumerate(names)}
    flat = tf.constant(rng.standard_normal((batch_size, len(sizes) * width), dtype=np.float32))
    cube = tf.reshape(flat, (batch_size, len(sizes), width))

    layer = FusedEmbedding(
        Schema(
            Column(name, "categorical", cardinality=size, embedding_dim=width)
            for name, size in zip(names, sizes, strict=True)
        )
    )
    layer.build(ids.shape)
    ours = [variable.value for variable in layer.trainable_variables]
    tables = [keras.layers.Embedding(size, width) for size in sizes]
    for table in tables:
        table.build()
    theirs = [table.embeddings.value for table in tables]

    def separate(batch: Mapping[str, Any]) -> Any:
        looked_up = [
            keras.ops.squeeze(table(batch[name]), 1)
            for name, table in zip(names, tables, strict=True)
        ]
        return keras.ops.concatenate(looked_up, axis=1)

    feature_columns = [
        tf.feature_column.embedding_column(
            tf.feature_column.categorical_column_with_identity(name, size), width
        )
        for name, size in zip(names, sizes, strict=True)
    ]
    legacy = tf_keras.layers.DenseFeatures(feature_columns)  # in order of the names
    legacy(columns)
    return [
        step(SEPARATE, separate, theirs, columns, flat),
        step(SEPARATE + XLA, separate, theirs, columns, flat),
        step(LEGACY, legacy, legacy.trainable_variables, columns, flat),
        step(COLUMNS, layer, ours, columns, cube),
        step(STACKED, layer, ours, ids, cube),
        step(STACKED + XLA, layer, ours, ids, cube),
    ]


def lists(table_rows: int, arguments: argparse.Namespace) -> list[Way]:
    """Return the ways to average the embeddings of lists of ids; TensorFlow's own first."""
    import tensorflow as tf

    from tutorlib import EmbeddingBag

    rng, batch_size = np.random.default_rng(0), arguments.batch_size
    nnzs = rng.integers(0, 2 * LIST_LENGTH + 1, batch_size, dtype=np.int32)
    values = (table_rows * rng.random(nnzs.sum()) ** 4).astype(np.int32)
    sparse_ids = tf.RaggedTensor.from_row_lengths(values, nnzs).to_sparse()
    upstream = tf.constant(rng.standard_normal((batch_size, arguments.width), dtype=np.float32))
    layer = EmbeddingBag(table_rows, arguments.width)
    layer.build()
    [variable] = layer.trainable_variables
    table = variable.value

    def lookup(sparse_ids: Any) -> Any:
        means = tf.nn.embedding_lookup_sparse(table, sparse_ids, None, combiner="mean")
        # It has fewer rows where the last lists are empty.
        return tf.pad(means, [[0, batch_size - tf.shape(means)[0]], [0, 0]])

    batch = {"values": tf.constant(values), "nnzs": tf.constant(nnzs)}
    return [
        step(LOOKUP, lookup, [table], sparse_ids, upstream),
        step(BAG, layer, [table], batch, upstream),
        step(BAG + XLA, layer, [table], batch, upstream),
    ]


def steps(rows: int | None, arguments: argparse.Namespace) -> list[Way]:
    """Return the ways to update one table of all columns; Keras' own first."""
    import keras
    import tensorflow as tf

    from tutorlib import RowSparseAdam
    from tutorlib.layers import EmbeddingTable

    rng, sizes = np.random.default_rng(0), column_sizes(arguments.table_rows)
    batch_size, shape = rows or arguments.batch_size, (sum(sizes), arguments.width)
    first_rows = np.cumsum(sizes) - np.array(sizes)
    ids = tf.constant((skewed_ids(sizes, batch_size, rng) + first_rows).ravel().astype(np.int32))
    values = tf.constant(rng.standard_normal((len(ids), arguments.width), dtype=np.float32))

    def update(name: str, optimizer: Any) -> Way:
        layer = EmbeddingTable(*shape, "zeros")
        layer.build()
        table = layer.embedding_weights
        optimizer.build([table])

        @tf.function(jit_compile=name.endswith(XLA))
        def apply() -> Any:
            gradient = tf.IndexedSlices(values, ids, tf.constant(shape))
            optimizer.apply([gradient], [table])
            return tf.gather(table.value, 0)

        def work() -> int:
            apply().numpy()  # waits until it is done
            return batch_size

        return Way(name, work)

    return [
        update(DENSE, keras.optimizers.Adam()),
        update(DENSE + XLA, keras.optimizers.Adam()),
        update(SPARSE, RowSparseAdam()),
        update(SPARSE + XLA, RowSparseAdam()),
    ]


LAYERS = Benchmark(
    "layers",
    "layers and optimizer steps compared with Keras and TensorFlow (2 minutes)",
    {
        "fused": fused,
        LARGE: functools.partial(lists, 100_000),
        SMALL: functools.partial(lists, 21),
        SMALL_STEP: functools.partial(steps, SMALL_BATCH),
        LARGE_STEP: functools.partial(steps, None),
    },
    {
        "batch_size": (65_536, "rows per batch"),
        "table_rows": (1_000_000, "rows of all 26 tables together"),
        "width": (16, "width of embeddings"),
    },
    faster(BOUNDS),
    repeat=15,
    warmup=3,
    device=True,
)
