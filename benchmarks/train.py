"""Samples per second of whole training runs, and the share of time spent waiting for data.

`train`: each network trains on the same rows in several ways that take turns, one epoch each.

- native: TFRecord, one example per row, read by TensorFlow's make_batched_features_dataset;
- native, prebatched: TFRecord with one record per batch, not shuffled: a record is copied instead
  of parsed, but batches stay as written;
- Keras arrays in memory: what `fit(x=arrays, shuffle=True)` makes of them;
- 25 lines of Arrow and NumPy, as a PyDataset of stacked batches;
- loader, in columns or stacked;
- no reader: the step alone, on one batch that is in memory.

The network has an embedding table per column, or for stacked batches one variable with the tables
of all columns ("fused"). Rows without lists make batches of one shape, which XLA can compile: there
every way runs with and without it, so that reader, layers and compiler have a factor each. On a
GPU, XLA compiles all ways.

Sections (--only): dlrm, Criteo-shaped rows; movielens, ratings with a list of genres;
wide_and_deep, 10 numbers, 37 columns of one id, 3 of up to ten ids. On a CPU, `StallReport`
measures the wait: seconds inside the call that takes the next batch. There, reader and model use
the same cores, so a slow reader also makes the steps slower. Before its turns, each way trains 16
steps, after which all are compared by their loss on the same validation rows.

`large-tables`: a DLRM whose tables have the published 188.7 million parameters, stepped by Keras's
Adam, which updates every row of every table, or by row-sparse Adam, which updates the rows of the
batch. Ids are spread over the tables. Each way first trains an epoch of --rows, then is compared by
its loss on the same validation rows. In the turns, Keras's Adam, which has an `Embedding` for each
column, reads --slow-rows; row-sparse Adam has tutorlib's tables. The four models and their
optimizers take about 10 GB of memory.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.data import Dataset, copied, criteo_shape, files_of, movielens_shape, nhot_shape
from benchmarks.loader import ARRAYS, COLUMNS, LINES
from benchmarks.measure import (
    Benchmark,
    Epoch,
    GpuWatch,
    Way,
    bounds,
    claim,
    faster,
    fit_epoch,
    rates,
)
from benchmarks.readers import (
    as_fit_shuffles,
    as_py_dataset,
    lines_of_numpy,
    matrices_of,
    one_batch,
)

DATASETS: dict[str, Callable[[Path, int], Dataset]] = {
    "dlrm": criteo_shape,
    "movielens": movielens_shape,
    "wide_and_deep": nhot_shape,
}
NATIVE, PREBATCHED = "native", "native, prebatched"
ON_CPU = "loader, columns made on the CPU"  # beside those that the GPU makes
FUSED = "loader, stacked and fused"
STEP, FUSED_STEP = "no reader", "no reader, fused"  # one batch again and again
XLA = ", XLA"
MEASURABLE_S = 1e-8  # of a row: what is less is not told from nothing
COMPARED_STEPS, VALID_BATCHES = 16, 4
NATIVE_ROWS = 262_144  # of an epoch of `native`, at most: it is slow
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
        has_lists = any(column.multi_hot for column in data.schema)
        names = [NATIVE, PREBATCHED, COLUMNS, FUSED, STEP, FUSED_STEP]
        if not has_lists:
            names[2:2] = [ARRAYS, LINES]
            if arguments.device == "cpu":
                names += [name + XLA for name in names]
        if arguments.device == "gpu":
            names.insert(names.index(COLUMNS), ON_CPU)
        return [training(name, section, data, arguments) for name in names]

    return ways


def batches_of(reader: str, data: Dataset, schema: Any, arguments: argparse.Namespace) -> Any:
    """Return what `fit` is given to train on all rows of a data set once."""
    import tensorflow as tf

    import tfrecords
    from tutorlib import KerasSequenceLoader

    size, copies = arguments.batch_size, getattr(arguments, "copies", 1)
    steps = copies * -(-data.rows // size)
    if reader == NATIVE:
        return native(data, min(data.rows, NATIVE_ROWS), size, schema)
    if reader == PREBATCHED:
        records = tfrecords.prebatched_dataset(data.prebatched(size), schema)
        return records.repeat(copies).apply(tf.data.experimental.assert_cardinality(steps))
    if reader == ARRAYS:
        return as_fit_shuffles(data.arrays(), size).repeat(copies)
    files = files_of(copied(data.parquet, copies))
    if reader == LINES:
        return as_py_dataset(lines_of_numpy(files, size, schema, matrices_of), steps)
    loader = KerasSequenceLoader(
        files, size, schema=schema, device="cpu" if reader == ON_CPU else arguments.device,
        batch_layout="columns" if reader in (COLUMNS, ON_CPU, STEP) else "stacked",
    )  # fmt: skip
    if reader in (COLUMNS, ON_CPU, FUSED):
        return loader
    batch = next(iter(loader))
    if arguments.device == "gpu":  # tf.data would copy the batch to the host and back
        return one_batch(batch, steps)
    return tf.data.Dataset.from_tensors(batch).repeat(steps)


def training(name: str, section: str, data: Dataset, arguments: argparse.Namespace) -> Way:
    """Return one way to train a network, after the steps that compare the ways."""
    import keras
    import tensorflow as tf

    from benchmarks.networks import NETWORKS
    from tutorlib import KerasSequenceLoader, StallReport

    started = time.perf_counter()
    keras.mixed_precision.set_dtype_policy(arguments.precision)
    network, size = NETWORKS[section](data.schema, arguments.widths), arguments.batch_size
    schema, reader = network.schema, name.removesuffix(XLA)
    stacked = reader in (LINES, FUSED, FUSED_STEP)
    batches = batches_of(reader, data, schema, arguments)
    jit_compile = name.endswith(XLA) or arguments.device == "gpu"
    make_model = network.fused if stacked else network.by_column
    model = compiled(make_model, arguments.optimizer, jit_compile)
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
    fit = functools.partial(fit_epoch, model, batches, synchronise=synchronise)
    print(f"  prepared  {name}, {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    if arguments.device == "gpu":  # a callback would make each step wait for the loss before it
        return Way(name, functools.partial(watched, fit), facts=facts)
    if reader == LINES:  # whose wait StallReport cannot measure
        return Way(name, fit, facts=facts)
    report = StallReport(batches)

    def epoch() -> Epoch:
        done = fit_epoch(model, report.data, callbacks=[report], synchronise=synchronise)
        values = {**done.values, "wait_share": report.stalls[-1].share}
        return Epoch(done.rows, ended=done.ended, values=values)

    return Way(name, epoch, facts=facts)


def watched(fit: Callable[[], Epoch]) -> Epoch:
    """Train an epoch; add how busy the GPU was."""
    with GpuWatch() as watch:
        started = time.perf_counter()
        done = fit()
    assert done.ended is not None
    values = {**done.values, "busy_share": watch.busy_share}
    return Epoch(done.rows, elapsed_s=done.ended - started, values=values)


def compared(section: str) -> list[tuple[str, str, str, float | None]]:
    """Return the claims of a section: first the reader, then the layers, then the compiler."""
    readers = [(COLUMNS, NATIVE), (COLUMNS, PREBATCHED), (COLUMNS, ARRAYS), (FUSED, LINES)]
    pairs: list[tuple[str, str, float | None]] = [
        *((way + end, other + end, 1) for end in ("", XLA) for way, other in readers),
        (FUSED, COLUMNS, 1.2),
        *((way + XLA, way, None) for way in (NATIVE, LINES, COLUMNS, FUSED)),
    ]
    return [(section, *pair) for pair in pairs]


def ceiling_of(name: str) -> str:
    """Return the name of the same training without a reader: the most that a reader can reach."""
    reader, end = name.removesuffix(XLA), XLA * name.endswith(XLA)
    return (FUSED_STEP if reader in (LINES, FUSED, FUSED_STEP) else STEP) + end


def where_reading_counts(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield, for each reader, the samples/s of the step alone from which it takes a tenth.

    Reading costs the difference in seconds per row between training and the step alone. A faster
    step leaves that cost as it is, so its share grows. Only of compiled ways, the more exact; a
    reader whose cost is too small to measure in some turn is left out.
    """
    entries = {(entry["section"], entry["name"]): entry for entry in result["ways"]}
    for (section, name), entry in entries.items():
        alone = entries.get((section, ceiling_of(name)))
        if alone is None or alone is entry or not name.endswith(XLA):
            continue
        turns = zip(rates(entry), rates(alone), strict=True)
        costs = [1 / rate - 1 / step for rate, step in turns]
        if bounds(costs)[0] > MEASURABLE_S:
            limits = [1 / (9 * max(cost, MEASURABLE_S)) for cost in costs]
            yield claim(f"{section}: samples/s of the step from which {name} takes a tenth", limits)


TRAIN = Benchmark(
    "train",
    "samples/s of training and its wait for data, native and with the loader (6 minutes)",
    {section: ways_of(section) for section in DATASETS},
    {
        "rows": (262_144, "rows of an epoch, more than one batch"),
        "batch_size": (8192, "rows per batch"),
        "copies": (1, "times that an epoch of all but `native` reads the rows"),
        "widths": (
            ("scaled", "published"),
            "of the networks: scaled down so that two CPU cores compute about as fast as they read "
            "TFRecord, or those of the published models, for a GPU",
        ),
        "optimizer": (("sgd", "adam"), "sgd costs the same for tables of any size"),
        "precision": (("float32", "mixed_float16"), "Keras's dtype policy"),
    },
    lambda result: [
        *faster(bound for section in DATASETS for bound in compared(section))(result),
        *where_reading_counts(result),
    ],
    device=True,
)


# ---- large tables -------------------------------------------------------------------------------


def large_tables(arguments: argparse.Namespace) -> list[Way]:
    """Return four ways to train a DLRM with tables of a share of Criteo's ids."""
    import keras

    from benchmarks.networks import dlrm_by_column, with_width
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
