"""Speed of layers, forward and backward in float32, and of optimizer steps.

Every candidate is a compiled TensorFlow function over a batch in memory: it computes the layer's
output and, from a given gradient of the output, the gradient of the tables, sparse as an optimizer
gets it. Data, loss and update are not included. Ids are skewed as in the benchmark of the loader.

Sections (--only): fused, 26 columns of ids to one tensor; bag, lists of ids from a large table and
from one as small as MovieLens's genres; adam, Adam's step on one table of all columns, with small
and with large batches. "XLA" is `jit_compile=True`, for what XLA compiles.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.device import Device
from benchmarks.measure import Claim

SUMMARY = "layers and optimizer steps compared with Keras and TensorFlow (2 minutes)"

STACKED = "FusedEmbedding, stacked"
COLUMNS = "FusedEmbedding, columns"
SEPARATE = "26 keras.layers.Embedding + concatenate"
LEGACY = "tf_keras DenseFeatures"
XLA = ", XLA"
BAG, LOOKUP = "EmbeddingBag", "embedding_lookup_sparse"
LARGE, SMALL = "100,000 rows", "21 rows"
DENSE, SPARSE, ROW_WISE = "keras Adam", "RowSparseAdam", "RowWiseAdagrad"

LIST_LENGTH = 3  # mean
SMALL_BATCH = 4096

CLAIMS = (
    Claim(STACKED, 1.5, other=SEPARATE),
    Claim(STACKED, 5, other=LEGACY),
    Claim(f"{BAG}, {LARGE}", 1, other=f"{LOOKUP}, {LARGE}"),
    Claim(f"{BAG}, {SMALL}", 1, other=f"{LOOKUP}, {SMALL}"),
    Claim(f"{BAG}, {LARGE}{XLA}", 1, other=f"{LOOKUP}, {LARGE}"),
    Claim(f"{SPARSE}, batch {SMALL_BATCH:,}", 1, other=f"{DENSE}, batch {SMALL_BATCH:,}"),
)

Work = Callable[[], int]  # returns the rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to a parser."""
    measure.add_numbers(
        parser,
        batch_size=(65_536, "rows per batch"),
        table_rows=(1_000_000, "rows of all 26 tables together"),
        width=(16, "width of embeddings"),
    )
    measure.add_options(parser, "layers", repeat=15, sections=SECTIONS, data=False)


def run(arguments: argparse.Namespace) -> None:
    """Measure, print the table and write the JSON file."""
    device = Device(arguments.device, loader=False)
    if device.backend != "tensorflow":
        raise SystemExit("benchmarks: layers are compiled by TensorFlow; KERAS_BACKEND=tensorflow")
    sizes = column_sizes(arguments.table_rows)
    timings: list[measure.Timing] = []
    for section in arguments.only:
        timings += measure.turns(
            SECTIONS[section](sizes, arguments.batch_size, arguments.width),
            repeat=arguments.repeat,
            warmup=3,
            synchronise=device.synchronise,
        )
    result = measure.report(
        "layers",
        timings,
        command=measure.command_line(arguments),
        claims=CLAIMS,
        details={
            "device": device.name,
            "batch_size": arguments.batch_size,
            "table_rows": sum(sizes),
            "cardinalities": sizes,
            "width": arguments.width,
            "list_length": LIST_LENGTH,
        },
    )
    print(measure.table(result))
    measure.save(result, arguments.out)


def column_sizes(table_rows: int) -> list[int]:
    """Return the cardinalities of Criteo's 26 columns, scaled to about `table_rows` together."""
    from data_prep import synthetic_criteo

    whole = sum(synthetic_criteo.column_sizes(1.0))
    return list(synthetic_criteo.column_sizes(table_rows / whole))


def skewed_ids(sizes: Sequence[int], rows: int, rng: np.random.Generator) -> np.ndarray:
    """Return ids, small ones more frequent, as the ETL numbers them: int32 [rows, columns]."""
    return (np.array(sizes) * rng.random((rows, len(sizes))) ** 4).astype(np.int32)


def step(
    layer: Callable[[Any], Any], variables: Sequence[Any], batch: Any, upstream: Any, xla: bool
) -> Work:
    """Return a function that goes forward and backward once and returns the rows."""
    import tensorflow as tf

    @tf.function(jit_compile=xla)
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

    return work


# ---- 26 columns of ids --------------------------------------------------------------------------


def fused(sizes: Sequence[int], batch_size: int, width: int) -> dict[str, Work]:
    """Return the candidates that look up 26 columns of ids."""
    import keras
    import tensorflow as tf

    from tutorlib.layers import FusedEmbedding

    rng = np.random.default_rng(0)
    ids = tf.constant(skewed_ids(sizes, batch_size, rng))
    names = [f"C{k}" for k in range(len(sizes))]
    columns = {name: ids[:, k, None] for k, name in enumerate(names)}
    flat = tf.constant(rng.standard_normal((batch_size, len(sizes) * width), dtype=np.float32))
    cube = tf.reshape(flat, (batch_size, len(sizes), width))

    layer = FusedEmbedding(_schema(names, sizes, width))
    layer.build(ids.shape)
    ours = [layer.embedding_weights.value]
    tables = [keras.layers.Embedding(size, width) for size in sizes]
    for table in tables:
        table.build()
    theirs = [table.embeddings.value for table in tables]

    def separate(batch: Mapping[str, Any]) -> Any:
        found = [
            keras.ops.squeeze(table(batch[name]), 1)
            for name, table in zip(names, tables, strict=True)
        ]
        return keras.ops.concatenate(found, axis=1)

    return {
        STACKED: step(layer, ours, ids, cube, False),
        COLUMNS: step(layer, ours, columns, cube, False),
        SEPARATE: step(separate, theirs, columns, flat, False),
        STACKED + XLA: step(layer, ours, ids, cube, True),
        SEPARATE + XLA: step(separate, theirs, columns, flat, True),
        LEGACY: _legacy(names, sizes, width, columns, flat),
    }


def _schema(names: Sequence[str], sizes: Sequence[int], width: int) -> Any:
    from tutorlib.schema import Column, Schema

    return Schema(
        Column(name, "categorical", cardinality=size, embedding_dim=width)
        for name, size in zip(names, sizes, strict=True)
    )


def _legacy(
    names: Sequence[str], sizes: Sequence[int], width: int, columns: Mapping[str, Any], flat: Any
) -> Work:
    """Return the candidate with TensorFlow's feature columns, which are in order of their names."""
    import tensorflow as tf
    import tf_keras

    feature_columns = [
        tf.feature_column.embedding_column(
            tf.feature_column.categorical_column_with_identity(name, size), width
        )
        for name, size in zip(names, sizes, strict=True)
    ]
    layer = tf_keras.layers.DenseFeatures(feature_columns)
    layer(columns)
    return step(layer, layer.trainable_variables, columns, flat, False)


# ---- lists of ids -------------------------------------------------------------------------------


def bag(_: Sequence[int], batch_size: int, width: int) -> dict[str, Work]:
    """Return the candidates that average the embeddings of lists of ids."""
    return {
        **_bags(100_000, LARGE, batch_size, width),
        **_bags(21, SMALL, batch_size, width),
    }


def _bags(rows: int, title: str, batch_size: int, width: int) -> dict[str, Work]:
    import tensorflow as tf

    from tutorlib.layers import EmbeddingBag

    rng = np.random.default_rng(0)
    nnzs = rng.integers(0, 2 * LIST_LENGTH + 1, batch_size, dtype=np.int32)
    values = (rows * rng.random(nnzs.sum()) ** 4).astype(np.int32)
    ragged = tf.RaggedTensor.from_row_lengths(values, nnzs)
    upstream = tf.constant(rng.standard_normal((batch_size, width), dtype=np.float32))
    layer = EmbeddingBag(rows, width)
    layer.build()
    table = layer.embedding_weights.value

    def lookup(sparse_ids: Any) -> Any:
        found = tf.nn.embedding_lookup_sparse(table, sparse_ids, None, combiner="mean")
        # It has fewer rows where the last lists are empty.
        return tf.pad(found, [[0, batch_size - tf.shape(found)[0]], [0, 0]])

    batch = {"values": tf.constant(values), "nnzs": tf.constant(nnzs)}
    return {
        f"{BAG}, {title}": step(layer, [table], batch, upstream, False),
        f"{LOOKUP}, {title}": step(lookup, [table], ragged.to_sparse(), upstream, False),
        f"{BAG}, {title}{XLA}": step(layer, [table], batch, upstream, True),
    }


# ---- the optimizer's step -----------------------------------------------------------------------


def adam(sizes: Sequence[int], batch_size: int, width: int) -> dict[str, Work]:
    """Return the candidates that update one table of all columns, with small and large batches."""
    return {
        name: work
        for rows in dict.fromkeys((SMALL_BATCH, batch_size))
        for name, work in _updates(sizes, rows, width).items()
    }


def _updates(sizes: Sequence[int], rows: int, width: int) -> dict[str, Work]:
    import keras
    import tensorflow as tf

    from tutorlib.layers import EmbeddingTable
    from tutorlib.optimizers import RowSparseAdam, RowWiseAdagrad

    rng = np.random.default_rng(0)
    first_rows = np.cumsum(sizes) - np.array(sizes)
    ids = tf.constant((skewed_ids(sizes, rows, rng) + first_rows).ravel().astype(np.int32))
    values = tf.constant(rng.standard_normal((len(ids), width), dtype=np.float32))

    def update(optimizer: Any, xla: bool) -> Work:
        layer = EmbeddingTable(sum(sizes), width, "zeros")
        layer.build()
        table = layer.embedding_weights
        optimizer.build([table])

        @tf.function(jit_compile=xla)
        def apply() -> Any:
            gradient = tf.IndexedSlices(values, ids, tf.constant([sum(sizes), width]))
            optimizer.apply([gradient], [table])
            return tf.gather(table.value, 0)

        def work() -> int:
            apply().numpy()  # waits until it is done
            return rows

        return work

    title = f", batch {rows:,}"
    return {
        DENSE + title: update(keras.optimizers.Adam(), False),
        SPARSE + title: update(RowSparseAdam(), False),
        ROW_WISE + title: update(RowWiseAdagrad(), False),
        DENSE + title + XLA: update(keras.optimizers.Adam(), True),
        SPARSE + title + XLA: update(RowSparseAdam(), True),
    }


SECTIONS = {"fused": fused, "bag": bag, "adam": adam}
