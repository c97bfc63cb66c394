"""Rows per second into the training step: the loader compared with its alternatives.

Criteo-shaped rows (13 float32, 26 int32 ids, 1 label), sorted by time, the same in every format;
MovieLens-shaped rows for lists; all in the page cache. Each way makes whole batches of tensors,
except bare Arrow, which only decodes: an upper bound for any reader of these files. Fast ways read
every file --copies times, as copies or by `repeat`, so that an epoch is long compared with the
wait for its first batch. Readers that pass single rows from thread to thread read --slow-rows; the
table says how many. They are measured with CPU idle states suppressed, as during training
(`turns.cores_awake`); with idle states they may be half as fast.

`worth_rows` is what the shuffle is worth: as many random rows tell as much about the time as a
batch does (`readers.worth`). It is measured in the turn that warms up. It varies
by a fifth between epochs of 64 batches.

Sections (--only): readers, all of one data set, smaller batches and the smallest `fit`; plain,
Parquet with int64, dictionary and Snappy; movielens, lists; first, the wait for the first batch.
One core: `taskset -c 0 python -m benchmarks loader`. Other libraries: `peers`.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

import other_readers
from benchmarks import readers
from benchmarks.data import copied, criteo_shape, files_of, movielens_shape
from benchmarks.measure import Benchmark, Way, faster
from turns import fit_epoch

BASELINE = "TFRecord, make_batched_features_dataset"
PARSED = "TFRecord, batch then parse"
VECTORS = "TFRecord, three vectors a row"
PREBATCHED = "prebatched TFRecord, not shuffled"
JOINED = "prebatched TFRecord, joined and shuffled"
WINDOW = "raw binary, shuffled in a window"
ARRAYS = "Keras arrays in memory"
LINES = "25 lines of Arrow and NumPy"
ARROW = "Arrow alone, no batches"
COLUMNS, STACKED = "loader, columns", "loader, stacked"
UNSHUFFLED = "loader, columns, not shuffled"
ONE_THREAD = ", one reader thread"
RIVALS = (BASELINE, PARSED, VECTORS, WINDOW, ARRAYS, PREBATCHED, JOINED, LINES)
OF_SINGLE_ROWS = (BASELINE, PARSED, VECTORS, WINDOW)  # pass each row from thread to thread
OPTIONS: dict[str, tuple[Any, str]] = {
    "rows": (2_097_152, "rows"),
    "slow_rows": (262_144, "rows for readers that pass single rows on"),
    "copies": (
        8,
        "times that fast readers read the rows; small and joined batches fewer times",
    ),
    "batch_size": (65_536, "rows per batch"),
}


LISTS = "loader, lists as values and lengths"
FIT = "fit, one weight, columns"
SIZES = (4096, 1024, 256)  # rows of smaller batches


def of_size(name: str, size: int) -> str:
    """Return the name of a way whose batches have `size` rows; 0 stands for the usual number."""
    return f"{name}, batches of {size:,}" if size else name


BOUNDS: tuple[tuple[str, str, str, float | None], ...] = (
    ("readers", COLUMNS, BASELINE, 100),
    ("readers", COLUMNS, PARSED, 20),
    ("readers", COLUMNS, VECTORS, 10),
    ("readers", COLUMNS, WINDOW, 10),
    ("readers", COLUMNS, ARRAYS, 5),
    ("readers", COLUMNS, PREBATCHED, 1),
    ("readers", UNSHUFFLED, PREBATCHED, 1),
    ("readers", COLUMNS, JOINED, 2),
    ("readers", COLUMNS, LINES, 3),
    *(("readers", of_size(COLUMNS, size), of_size(LINES, size), None) for size in SIZES),
    ("readers", COLUMNS, ARROW, 0.5),
    ("readers", of_size(COLUMNS, 4096), COLUMNS, 0.8),
    ("readers", of_size(COLUMNS, 1024), COLUMNS, 0.6),
    ("readers", of_size(COLUMNS, 256), COLUMNS, 0.3),
    ("readers", of_size(STACKED, 256), STACKED, 0.7),
    ("readers", COLUMNS, COLUMNS + ONE_THREAD, 1.9),
    ("readers", of_size(COLUMNS, 4096), of_size(COLUMNS + ONE_THREAD, 4096), 1.7),
    ("readers", of_size(COLUMNS, 256), of_size(COLUMNS + ONE_THREAD, 256), 1.5),
    ("readers", STACKED, STACKED + ONE_THREAD, 2),
    ("readers", FIT, COLUMNS, 0.85),
    ("readers", of_size(FIT, 4096), of_size(COLUMNS, 4096), 0.85),
    ("plain", COLUMNS, LINES, 2.5),
    ("plain", COLUMNS, ARROW, 0.75),
    ("movielens", LISTS, ARROW, 0.35),
)


def reader(name: str, arguments: argparse.Namespace, size: int = 0, plain: bool = False) -> Way:
    """Return the way to read an epoch of the rows that has this name; arguments: `batches_of`."""
    batches, facts = batches_of(name, arguments, size, plain), dict[str, Any]()
    if name == ARROW:
        return Way(name, functools.partial(readers.bare_arrow, batches))
    read = readers.consume_awake if name in OF_SINGLE_ROWS else readers.consume
    return Way(of_size(name, size), functools.partial(read, batches, facts), facts=facts)


def batches_of(name: str, arguments: argparse.Namespace, size: int = 0, plain: bool = False) -> Any:
    """Return the batches of an epoch, or for `ARROW` the files.

    Args:
        name: one of the constants above, the loader's perhaps with `ONE_THREAD`.
        arguments: values of `OPTIONS`, and the folder `data`; maybe a `device`.
        size: rows per batch, which then are part of the way's name; 0 for those of the arguments.
        plain: whether to read Parquet files as most people have them, not those of the ETL.
    """
    import tfrecords
    from tutorlib import KerasSequenceLoader
    from tutorlib.keras_bridge.adapter import array_batches

    data = criteo_shape(arguments.data, arguments.rows)
    schema, copies, slow = data.schema, arguments.copies, min(arguments.slow_rows, data.rows)
    if size or name == JOINED:  # an epoch is long enough
        copies = min(copies, 4 if size == 4096 else 1 if name == LINES else 2)
    size = size or arguments.batch_size
    files = files_of(copied(data.plain if plain else data.parquet, copies))

    def prebatched(rows: int) -> Any:
        return tfrecords.prebatched_dataset(data.prebatched(rows), schema).repeat(copies)

    def loader() -> Any:
        return KerasSequenceLoader(
            files, size, schema=schema, shuffle="not shuffled" not in name,
            device=getattr(arguments, "device", "cpu"),
            batch_layout="stacked" if name.startswith(STACKED) else "columns",
            threads=1 if name.endswith(ONE_THREAD) else None,
        )  # fmt: skip

    make: dict[str, Callable[[], Any]] = {
        BASELINE: lambda: tfrecords.native_dataset(data.examples(slow), size, schema),
        PARSED: lambda: tfrecords.parsed_batches(data.examples(slow), size, schema),
        VECTORS: lambda: readers.vectors(data.vectors(slow), size, schema),
        WINDOW: lambda: tfrecords.raw_columns(data.raw_rows(slow), size, schema),
        ARRAYS: lambda: array_batches(data.arrays(), size),
        PREBATCHED: lambda: prebatched(size),
        JOINED: lambda: readers.joined(prebatched(max(1, size // 8)), size),
        LINES: lambda: other_readers.lines_of_numpy(files, size, schema),
        ARROW: lambda: files,
    }
    return make.get(name, loader)()


def by_reader(arguments: argparse.Namespace) -> list[Way]:
    """Return tf.data, arrays, Arrow, 25 lines and the loader, in several sizes of batches."""
    read = functools.partial(reader, arguments=arguments)
    names = (ARROW, COLUMNS, COLUMNS + ONE_THREAD, UNSHUFFLED, STACKED, STACKED + ONE_THREAD)
    large = [read(name) for name in (*RIVALS, *names)]
    small = [read(name, size=size) for size in SIZES for name in (LINES, COLUMNS, STACKED)]
    small += [read(COLUMNS + ONE_THREAD, size=size) for size in (4096, 256)]
    return [*large, fit(arguments), *small, fit(arguments, 4096)]


def plain(arguments: argparse.Namespace) -> list[Way]:
    """Return bare Arrow, 25 lines and the loader on files of int64 with dictionary and snappy."""
    return [reader(name, arguments, plain=True) for name in (LINES, COLUMNS, ARROW)]


def movielens(arguments: argparse.Namespace) -> list[Way]:
    """Return bare Arrow and the loader on rows with a list of ids."""
    from tutorlib import KerasSequenceLoader

    data = movielens_shape(arguments.data, arguments.rows)
    files = files_of(copied(data.parquet, arguments.copies))
    batches = KerasSequenceLoader(
        files, arguments.batch_size, schema=data.schema, device=arguments.device
    )
    return [
        Way(ARROW, functools.partial(readers.bare_arrow, files)),
        Way(LISTS, functools.partial(readers.consume, batches)),
    ]


def fit(arguments: argparse.Namespace, size: int = 0) -> Way:
    """Return an epoch of `fit` with a model of one weight on the loader."""
    import keras

    class OneWeight(keras.Model):
        """Predicts the label as one number times one column: the least that `fit` can train.

        Its step takes every tensor, and the loss and its gradient run over all rows.
        """

        def __init__(self) -> None:
            super().__init__()
            self.factor = self.add_weight(shape=(), initializer="zeros", name="factor")

        def call(self, inputs: Any) -> Any:
            return self.factor * inputs["I1"]

    model = OneWeight()
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)  # the last batch may be smaller
    batches = batches_of(COLUMNS, arguments, size)
    return Way(of_size(FIT, size), functools.partial(fit_epoch, model, batches))


LOADER = Benchmark(
    "loader",
    "rows/s of the loader, tf.data, bare Arrow and 25 lines of NumPy (8 to 15 minutes)",
    {"readers": by_reader, "plain": plain, "movielens": movielens},
    OPTIONS,
    faster(BOUNDS),
    device=True,
)
