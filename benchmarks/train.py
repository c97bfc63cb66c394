"""Samples per second of whole training runs, and the share of time spent waiting for data.

`train`: each network trains on the same rows in several ways that take turns, one epoch each. Its
rows hold lists; `ladder` trains the lessons' network, without lists, from more readers.

- native: TFRecord, one example per row, read by TensorFlow's make_batched_features_dataset;
- native, prebatched: TFRecord with one record per batch, not shuffled: a record is copied instead
  of parsed, but batches stay as written;
- loader, in columns or stacked;
- no reader: the step alone, on the same batches, held in memory.

The network has an embedding table per column, or for stacked batches one variable with the tables
of all columns ("fused"). Batch size and optimizer are those of the ladder.

Sections (--only): movielens, ratings with a list of genres; wide_and_deep, 10 numbers, 37 columns
of one id, 3 of up to ten ids. On a CPU, `StallReport` measures the wait: seconds inside the call
that takes the next batch. There, reader and model use the same cores, so a slow reader also makes
the steps slower. Before its turns, each way trains 16 steps, after which all are compared by their
loss on the same validation rows.

`large-tables`: a DLRM whose tables have the published 188.7 million parameters, stepped by Keras's
Adam, which updates every row of every table, or by row-sparse Adam, which updates the rows of the
batch. Ids are spread over the tables. Each way first trains an epoch of --rows, then is compared by
its loss on the same validation rows. In the turns, Keras's Adam, which has an `Embedding` for each
column, reads --slow-rows; row-sparse Adam has tutorlib's tables. The four models and their
optimizers take about 10 GB of memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.data import Dataset, criteo_shape, files_of, movielens_shape, nhot_shape
from benchmarks.loader import COLUMNS
from benchmarks.measure import Benchmark, Way, faster
from ladder import SETTINGS
from other_readers import held_batches
from turns import Epoch, fit_epoch

DATASETS: dict[str, Callable[[Path, int], Dataset]] = {
    "dlrm": criteo_shape,
    "movielens": movielens_shape,
    "wide_and_deep": nhot_shape,
}
NATIVE, PREBATCHED = "native", "native, prebatched"
FUSED = "loader, stacked and fused"
STEP, FUSED_STEP = "no reader", "no reader, fused"  # the same batches, held in memory
XLA = ", XLA"
COMPARED_STEPS, VALID_BATCHES = 16, 4
NATIVE_ADAM, NATIVE_SPARSE = "native, Adam", "native, row-sparse Adam"
LOADER_ADAM, LOADER_SPARSE = "loader, Adam", "loader, stacked and fused, row-sparse Adam"
ADAM_BOUNDS = (
    ("adam", LOADER_SPARSE, NATIVE_ADAM, 10), ("adam", LOADER_SPARSE, NATIVE_SPARSE, 1),
    ("adam", LOADER_SPARSE, LOADER_ADAM, None), ("adam", LOADER_ADAM, NATIVE_ADAM, None),
)  # fmt: skip
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
        names = [NATIVE, PREBATCHED, COLUMNS, FUSED, STEP, FUSED_STEP]
        return [training(name, section, data, arguments) for name in names]

    return ways


def batches_of(reader: str, data: Dataset, schema: Any, arguments: argparse.Namespace) -> Any:
    """Return what `fit` is given to train on all rows of a data set once."""
    import tensorflow as tf

    import tfrecords
    from tutorlib import KerasSequenceLoader

    size = arguments.batch_size
    steps = -(-data.rows // size)
    if reader == NATIVE:
        return native(data, data.rows, size, schema)
    if reader == PREBATCHED:
        records = tfrecords.prebatched_dataset(data.prebatched(size), schema)
        return records.apply(tf.data.experimental.assert_cardinality(steps))
    loader = KerasSequenceLoader(
        files_of(data.parquet), size, schema=schema, device=arguments.device,
        batch_layout="columns" if reader in (COLUMNS, STEP) else "stacked",
    )  # fmt: skip
    return held_batches(loader) if reader in (STEP, FUSED_STEP) else loader


def training(name: str, section: str, data: Dataset, arguments: argparse.Namespace) -> Way:
    """Return one way to train a network, after the steps that compare the ways."""
    import keras
    import tensorflow as tf

    from benchmarks.networks import NETWORKS
    from tutorlib import KerasSequenceLoader, StallReport

    started = time.perf_counter()
    network, size = NETWORKS[section](data.schema, arguments.widths), arguments.batch_size
    schema, reader = network.schema, name.removesuffix(XLA)
    stacked = reader in (FUSED, FUSED_STEP)
    batches = batches_of(reader, data, schema, arguments)
    optimizer = keras.optimizers.get(arguments.optimizer)
    if arguments.optimizer == "adam":
        optimizer.learning_rate = SETTINGS.learning_rate
    jit_compile = name.endswith(XLA) or arguments.device == "gpu"
    model = compiled(network.fused if stacked else network.by_column, optimizer, jit_compile)
    steps = min(COMPARED_STEPS // 2, len(batches))
    model.fit(batches, epochs=2, steps_per_epoch=steps, verbose=0)
    valid = KerasSequenceLoader(
        data.valid(VALID_BATCHES * size).parquet, size, schema=schema, shuffle=False,
        batch_layout="stacked" if stacked else "columns",
    )  # fmt: skip
    facts = {
        "parameters": model.count_params(),
        "compared_steps": 2 * steps,
        "valid_loss": float(model.evaluate(valid, verbose=0)),
    }
    synchronise = tf.test.experimental.sync_devices
    print(f"  prepared  {name}, {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    if arguments.device == "gpu" or reader in (STEP, FUSED_STEP):
        # a callback for each step would make steps of a GPU wait for one another
        fit = functools.partial(fit_epoch, model, batches, synchronise=synchronise)
        return Way(name, fit, facts=facts)
    report = StallReport(batches)

    def epoch() -> Epoch:
        done = fit_epoch(model, report.data, callbacks=[report])
        values = {**done.values, "wait_share": report.stalls[-1].share}
        return dataclasses.replace(done, values=values)

    return Way(name, epoch, facts=facts)


def compared(section: str) -> list[tuple[str, str, str, float | None]]:
    """Return the claims of a section: first the reader, then the layers."""
    pairs = [(COLUMNS, NATIVE, 1), (COLUMNS, PREBATCHED, 1), (FUSED, COLUMNS, 1.2)]
    return [(section, *pair) for pair in pairs]


TRAIN = Benchmark(
    "train",
    "samples/s of training on lists and its wait for data, native and with the loader (3 minutes)",
    {section: ways_of(section) for section in ("movielens", "wide_and_deep")},
    {
        "rows": (SETTINGS.rows, "rows of an epoch, more than one batch"),
        "batch_size": (SETTINGS.batch_size, "rows per batch"),
        "widths": (
            ("scaled", "published"),
            "of the networks: scaled down so that two CPU cores compute about as fast as they read "
            "TFRecord, or those of the published models, for a GPU",
        ),
        "optimizer": (("adam", "sgd"), "sgd costs the same for tables of any size"),
    },
    faster(bound for section in ("movielens", "wide_and_deep") for bound in compared(section)),
    device=True,
)


# ---- large tables -------------------------------------------------------------------------------


def large_tables(arguments: argparse.Namespace) -> list[Way]:
    """Return four ways to train a DLRM with tables of a share of Criteo's ids."""
    import keras

    from ladder import dlrm_by_column, with_width
    from tutorlib import DLRM, KerasSequenceLoader, RowSparseAdam

    rows, size = arguments.rows, arguments.batch_size
    few_rows = min(arguments.slow_rows, rows)
    shape = functools.partial(criteo_shape, arguments.data, table_share=arguments.table_share)
    data, few = shape(rows), shape(few_rows)
    schema = with_width(data.schema, WIDTH)
    valid = data.valid(VALID_BATCHES * size).parquet
    loader = functools.partial(KerasSequenceLoader, schema=schema, device=arguments.device)
    by_column = functools.partial(dlrm_by_column, schema, BOTTOM, TOP)
    by_layout = functools.partial(DLRM, schema, WIDTH, BOTTOM, TOP)
    stacked = functools.partial(by_layout, batch_layout="stacked")
    ways = {
        NATIVE_ADAM: (by_column, keras.optimizers.Adam, NATIVE, few),
        LOADER_ADAM: (by_column, keras.optimizers.Adam, COLUMNS, few),
        NATIVE_SPARSE: (by_layout, RowSparseAdam, NATIVE, data),
        LOADER_SPARSE: (stacked, RowSparseAdam, FUSED, data),
    }
    made = []
    for name, (make_model, optimizer, reader, read) in ways.items():
        model = compiled(make_model, optimizer(), False)
        model.fit(batches_of(reader, data, schema, arguments), verbose=0)
        layout = "stacked" if reader == FUSED else "columns"
        loss = model.evaluate(loader(valid, size, batch_layout=layout, shuffle=False), verbose=0)
        facts = {
            "parameters": model.count_params(),
            "compared_steps": -(-rows // size),
            "values": {"valid_loss": [float(loss)]},
        }
        batches = batches_of(reader, read, schema, arguments)
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
    faster(ADAM_BOUNDS),
    repeat=3,
    device=True,
)
