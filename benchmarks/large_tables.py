"""Samples per second of a DLRM whose tables have the published 188.7 million parameters.

Four ways to train it on the same rows: read by TensorFlow's make_batched_features_dataset or by
the loader, and stepped by Keras's Adam, which updates every row of every table, or by row-sparse
Adam, which updates the rows of the batch. Adam's ways have a Keras `Embedding` for each column;
row-sparse Adam's have tutorlib's tables, fused on the loader's stacked batches.

The rows name only the first ids of each table; dense Adam updates the others too. The ways take
turns, an epoch of `fit` each; Adam's are shorter (--slow-rows). The four models and their
optimizers take about 10 GB of memory.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

from benchmarks import measure
from benchmarks.data import Dataset, criteo_shape
from benchmarks.device import Device
from benchmarks.measure import Claim
from tutorlib.schema import Schema

SUMMARY = "samples/s of a DLRM with tables of 188.7 million parameters (4 minutes)"
WIDTH, BOTTOM, TOP = 8, [32], [32]
NATIVE, NATIVE_SPARSE = "native, Adam", "native, row-sparse Adam"
LOADER, LOADER_SPARSE = "loader, Adam", "loader, stacked and fused, row-sparse Adam"
CLAIMS = (Claim(LOADER_SPARSE, 10, other=NATIVE), Claim(LOADER_SPARSE, 1, other=NATIVE_SPARSE))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to a parser."""
    measure.add_numbers(
        parser,
        rows=(262_144, "rows of an epoch"),
        slow_rows=(32_768, "rows of an epoch with Keras's Adam"),
        batch_size=(4096, "rows per batch"),
        table_share=(0.75, "rows of each table, as a share of Criteo's ids"),
    )
    measure.add_options(parser, "large-tables", repeat=3, repeated="epochs of each way")


def run(arguments: argparse.Namespace) -> None:
    """Measure, print the table and write the JSON file."""
    device = Device(arguments.device)
    data = criteo_shape(arguments.data, arguments.rows)
    device.count_loaders()
    ways = trainings(data, resized(data.schema, arguments.table_share), arguments)
    timings = measure.turns(
        {name: functools.partial(epoch, *way) for name, way in ways.items()},
        repeat=arguments.repeat,
        synchronise=device.synchronise,
    )
    result = measure.report(
        "large-tables",
        timings,
        command=measure.command_line(arguments),
        claims=CLAIMS,
        details={
            "device": device.name,
            "batch_size": arguments.batch_size,
            "data": {data.name: data.describe()},
            "parameters": ways[NATIVE][0].count_params(),
        },
    )
    print(measure.table(result, notes=[f"{result['parameters']:,} parameters"]))
    measure.save(result, arguments.out)


def resized(schema: Schema, share: float) -> Schema:
    """Return the columns with tables of this share of Criteo's ids, or more if the rows need it."""
    from data_prep.synthetic_criteo import CARDINALITIES

    for column, size in zip(schema.categorical, CARDINALITIES, strict=True):
        rows = max(column.cardinality or 0, int(share * size))
        schema = schema.replace(column.name, cardinality=rows, embedding_dim=WIDTH)
    return schema


def trainings(
    data: Dataset, schema: Schema, arguments: argparse.Namespace
) -> dict[str, tuple[Any, Any]]:
    """Return {way: (compiled model, batches)}, an epoch of known length each."""
    import keras
    import tensorflow as tf

    import tfrecords
    from benchmarks.networks import dlrm_by_column
    from tutorlib.loader import KerasSequenceLoader
    from tutorlib.models import DLRM
    from tutorlib.optimizers import RowSparseAdam

    size, slow_rows = arguments.batch_size, min(arguments.slow_rows, data.rows)

    def native(rows: int) -> Any:
        batches = tfrecords.native_dataset(data.examples(rows), size, schema)
        return batches.apply(tf.data.experimental.assert_cardinality(-(-rows // size)))

    def loader(rows: int, layout: str) -> Any:
        return KerasSequenceLoader(
            data.source, size, schema=schema, batch_layout=layout, limit_rows=rows,
            device=arguments.device,
        )  # fmt: skip

    def compiled(make_model: Callable[[], Any], optimizer: Any) -> Any:
        keras.utils.set_random_seed(0)
        model = make_model()
        model.compile(optimizer(), "binary_crossentropy", jit_compile=False)
        return model

    by_column = functools.partial(dlrm_by_column, schema, BOTTOM, TOP)
    sparse = {
        layout: functools.partial(DLRM, schema, WIDTH, BOTTOM, TOP, batch_layout=layout)
        for layout in ("columns", "stacked")
    }
    adam = keras.optimizers.Adam
    return {
        NATIVE: (compiled(by_column, adam), native(slow_rows)),
        LOADER: (compiled(by_column, adam), loader(slow_rows, "columns")),
        NATIVE_SPARSE: (compiled(sparse["columns"], RowSparseAdam), native(data.rows)),
        LOADER_SPARSE: (compiled(sparse["stacked"], RowSparseAdam), loader(data.rows, "stacked")),
    }


def epoch(model: Any, batches: Any) -> int:
    """Train one epoch; return its rows, as the loss metric counted them."""
    ended, _ = measure.fit_epoch(model, batches)
    return ended
