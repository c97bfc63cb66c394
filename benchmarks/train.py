"""Samples per second of whole training runs, and the share of time spent waiting for data.

`train`: each network trains on the same rows in several ways that take turns, one epoch each.

- native: TFRecord, one example per row, read by TensorFlow's make_batched_features_dataset; one
  embedding table per column;
- native, prebatched: the same network on TFRecord with one record per batch, not shuffled: the most
  that TFRecord can do, since a record is copied instead of parsed, but batches stay as written;
- loader, columns: the same network on `KerasSequenceLoader`, so that only the reader differs;
- loader, stacked and fused: stacked batches, and one variable with the tables of all columns;
- ..., XLA: both the prebatched and the fused way compiled by XLA, which needs batches of one shape:
  rows without lists. On a GPU, XLA compiles all ways.

Sections (--only): dlrm, Criteo-shaped rows; movielens, ratings with a list of genres;
wide_and_deep, 10 numbers, 37 columns of one id, 3 of up to ten ids. On a CPU, `StallReport`
measures the wait: seconds inside the call that takes the next batch. There, reader and model use
the same cores, so a slow reader also makes the steps slower. Before its turns, each way trains 16
steps, after which all are compared by their loss on the same validation rows.

`large-tables`: a DLRM whose tables have the published 188.7 million parameters, stepped by Keras's
Adam, which updates every row of every table, or by row-sparse Adam, which updates the rows of the
batch. Keras's Adam has an `Embedding` for each column and reads --slow-rows; row-sparse Adam has
tutorlib's tables. The four models and their optimizers take about 10 GB of memory.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.data import Dataset, criteo_shape, movielens_shape, nhot_shape
from benchmarks.measure import Benchmark, Epoch, Way, faster, fit_epoch

DATASETS: dict[str, Callable[[Path, int], Dataset]] = {
    "dlrm": criteo_shape,
    "movielens": movielens_shape,
    "wide_and_deep": nhot_shape,
}
NATIVE, PREBATCHED = "native", "native, prebatched"
COLUMNS, FUSED = "loader, columns", "loader, stacked and fused"
XLA = ", XLA"
COMPARED_STEPS, VALID_BATCHES = 16, 4
NATIVE_ADAM, NATIVE_SPARSE = "native, Adam", "native, row-sparse Adam"
LOADER_ADAM, LOADER_SPARSE = "loader, Adam", "loader, stacked and fused, row-sparse Adam"
WIDTH, BOTTOM, TOP = 8, [32], [32]  # of the DLRM with large tables


def native(data: Dataset, rows: int, batch_size: int, schema: Any) -> Any:
    """Return TensorFlow's batches of the first rows, an epoch of known length."""
    import tensorflow as tf

    import tfrecords

    batches = tfrecords.native_dataset(data.examples(rows), batch_size, schema)
    return batches.apply(tf.data.experimental.assert_cardinality(-(-rows // batch_size)))


def compiled(make_model: Callable[[], Any], optimizer: Any, jit_compile: bool) -> Any:
    """Return a model that begins with the same weights each time."""
    import keras

    keras.utils.set_random_seed(0)
    model = make_model()
    model.compile(optimizer, "binary_crossentropy", jit_compile=jit_compile)
    return model


# ---- train --------------------------------------------------------------------------------------


def ways_of(section: str) -> Callable[[argparse.Namespace], list[Way]]:
    """Return the function that makes the trainings of one network."""

    def ways(arguments: argparse.Namespace) -> list[Way]:
        data = DATASETS[section](arguments.data, arguments.rows)
        has_lists = any(column.multi_hot for column in data.schema)
        names = [NATIVE, PREBATCHED, COLUMNS, FUSED]
        if not has_lists and arguments.device == "cpu":
            names += [PREBATCHED + XLA, FUSED + XLA]
        return [training(name, section, data, arguments) for name in names]

    return ways


def training(name: str, section: str, data: Dataset, arguments: argparse.Namespace) -> Way:
    """Return one way to train a network, after the steps that compare the ways."""
    import keras
    import tensorflow as tf

    import tfrecords
    from benchmarks.networks import NETWORKS
    from tutorlib import KerasSequenceLoader, StallReport

    keras.mixed_precision.set_dtype_policy(arguments.precision)
    network, size = NETWORKS[section](data.schema, arguments.widths), arguments.batch_size
    schema, reader = network.schema, name.removesuffix(XLA)
    layout = "stacked" if reader == FUSED else "columns"
    batches: Any
    if reader == NATIVE:
        batches = native(data, data.rows, size, schema)
    elif reader == PREBATCHED:
        batches = tfrecords.prebatched_dataset(data.prebatched(size), schema)
    else:
        batches = KerasSequenceLoader(
            data.parquet, size, schema=schema, batch_layout=layout, device=arguments.device
        )
    jit_compile = name.endswith(XLA) or arguments.device == "gpu"
    make_model = network.fused if reader == FUSED else network.by_column
    model = compiled(make_model, arguments.optimizer, jit_compile)
    steps = min(COMPARED_STEPS // 2, len(batches))
    model.fit(batches, epochs=2, steps_per_epoch=steps, verbose=0)
    valid = KerasSequenceLoader(
        data.valid(VALID_BATCHES * size).parquet, size, schema=schema, batch_layout=layout,
        shuffle=False,
    )  # fmt: skip
    facts = {
        "parameters": model.count_params(),
        "compared_steps": 2 * steps,
        "valid_loss": float(model.evaluate(valid, verbose=0)),
    }
    # On a GPU a callback would make each step wait for the loss of the one before.
    report = StallReport(batches) if arguments.device == "cpu" else None

    def epoch() -> Epoch:
        synchronise = tf.test.experimental.sync_devices
        if report is None:
            return fit_epoch(model, batches, synchronise=synchronise)
        done = fit_epoch(model, report.data, callbacks=[report], synchronise=synchronise)
        values = {**done.values, "wait_share": report.stalls[-1].share}
        return Epoch(done.rows, ended=done.ended, values=values)

    return Way(name, epoch, facts=facts)


TRAIN = Benchmark(
    "train",
    "samples/s of training and its wait for data, native and with the loader (6 minutes)",
    {section: ways_of(section) for section in DATASETS},
    {
        "rows": (262_144, "rows of an epoch, more than one batch"),
        "batch_size": (8192, "rows per batch"),
        "widths": (
            ("scaled", "published"),
            "of the networks: scaled down so that two CPU cores compute about as fast as they read "
            "TFRecord, or those of the published models, for a GPU",
        ),
        "optimizer": (("sgd", "adam"), "sgd costs the same for tables of any size"),
        "precision": (("float32", "mixed_float16"), "Keras's dtype policy"),
    },
    faster((section, way, NATIVE, 1) for section in DATASETS for way in (COLUMNS, FUSED)),
    device=True,
)


# ---- large tables -------------------------------------------------------------------------------


def large_tables(arguments: argparse.Namespace) -> list[Way]:
    """Return four ways to train a DLRM with tables of a share of Criteo's ids."""
    import keras

    from benchmarks.networks import dlrm_by_column
    from data_prep.synthetic_criteo import CARDINALITIES
    from tutorlib import DLRM, KerasSequenceLoader, RowSparseAdam

    rows, size = arguments.rows, arguments.batch_size
    few_rows = min(arguments.slow_rows, rows)
    data, few = criteo_shape(arguments.data, rows), criteo_shape(arguments.data, few_rows)
    schema = data.schema
    for column, ids in zip(schema.categorical, CARDINALITIES, strict=True):
        table_rows = max(column.cardinality or 0, int(arguments.table_share * ids))
        schema = schema.replace(column.name, cardinality=table_rows, embedding_dim=WIDTH)
    loader = functools.partial(KerasSequenceLoader, schema=schema, device=arguments.device)
    by_column = functools.partial(dlrm_by_column, schema, BOTTOM, TOP)
    by_layout = functools.partial(DLRM, schema, WIDTH, BOTTOM, TOP)
    stacked = functools.partial(by_layout, batch_layout="stacked")
    ways = {
        NATIVE_ADAM: (by_column, keras.optimizers.Adam, native(few, few_rows, size, schema)),
        LOADER_ADAM: (by_column, keras.optimizers.Adam, loader(few.parquet, size)),
        NATIVE_SPARSE: (by_layout, RowSparseAdam, native(data, rows, size, schema)),
        LOADER_SPARSE: (stacked, RowSparseAdam, loader(data.parquet, size, batch_layout="stacked")),
    }
    made = []
    for name, (make_model, optimizer, batches) in ways.items():
        model = compiled(make_model, optimizer(), False)
        facts = {"parameters": model.count_params()}
        made.append(Way(name, functools.partial(fit_epoch, model, batches), facts=facts))
    return made


LARGE_TABLES = Benchmark(
    "large-tables",
    "samples/s of a DLRM with tables of 188.7 million parameters (4 minutes)",
    {"adam": large_tables},
    {
        "rows": (262_144, "rows of an epoch"),
        "slow_rows": (32_768, "rows of an epoch with Keras's Adam"),
        "batch_size": (4096, "rows per batch"),
        "table_share": (0.75, "rows of each table, as a share of Criteo's ids"),
    },
    faster([("adam", LOADER_SPARSE, NATIVE_ADAM, 10), ("adam", LOADER_SPARSE, NATIVE_SPARSE, 1)]),
    repeat=3,
    device=True,
)
