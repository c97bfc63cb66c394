"""Rows per second into the training step: the loader compared with its alternatives.

Criteo-shaped rows (13 float32, 26 int32 ids, 1 label), the same in every format; MovieLens-shaped
rows for lists; all in the page cache. Each way makes whole batches of tensors, except bare Arrow,
which only decodes: an upper bound for any reader of these files. Fast ways read every file --copies
times, by hard links or `repeat`: with few rows, the wait for the first batch would be half of an
epoch. Readers of one example per row read --slow-rows; the table says how many. They are measured
with CPU idle states suppressed, as during training (`tutorlib.cores_awake`); with idle states they
may be half as fast.

Sections (--only): readers, of one data set; plain, Parquet with int64, dictionary and Snappy;
movielens, lists; batches, of fewer rows; fit, of the smallest model; first, the wait for the first
batch. One thread: `taskset -c 0 python -m benchmarks loader`. Other libraries: `peers`.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

from benchmarks.data import Dataset, criteo_shape, files_of, linked, movielens_shape
from benchmarks.measure import Benchmark, Epoch, Way, faster, fit_epoch
from benchmarks.readers import (
    bare_arrow,
    consume,
    consume_awake,
    lines_of_numpy,
    read_and_shuffle,
    row_groups_of,
)

COLUMNS, STACKED = "loader, columns, shuffled", "loader, stacked, shuffled"
UNSHUFFLED = "loader, columns, not shuffled"
BASELINE = "make_batched_features_dataset, shuffled"
PARSE_BATCHES = "batch then parse_example, shuffled"
PREBATCHED = "prebatched TFRecord, not shuffled"
LINES = "25 lines of Arrow and NumPy, columns, shuffled"
ARROW = "Arrow read_row_group, no batches"
LISTS = "loader, nnzs, shuffled"
FIT, FIT_STACKED = "fit, one weight, columns", "fit, one weight, stacked"
FIRST_BATCH, ONE_CHUNK = "first batch of an epoch", "read and shuffle as many row groups"
FIRST_ROW_GROUPS = 8  # those of the loader's window
SIZES = (4096, 1024, 256)  # rows of smaller batches
READ_ONCE = 1024  # rows: an epoch of such batches takes long enough without copies


def of_size(name: str, size: int) -> str:
    """Return the name of a loader whose batches have fewer rows."""
    return f"{name}, batches of {size:,}"


BOUNDS = (
    ("readers", COLUMNS, BASELINE, 100),
    ("readers", COLUMNS, PARSE_BATCHES, 20),
    ("readers", COLUMNS, PREBATCHED, 1),
    ("readers", UNSHUFFLED, PREBATCHED, 1),
    ("readers", COLUMNS, LINES, 3),
    ("readers", COLUMNS, ARROW, 0.5),
    ("plain", COLUMNS, LINES, 2.5),
    ("plain", COLUMNS, ARROW, 0.75),
    ("movielens", LISTS, ARROW, 0.35),
    ("batches", of_size(COLUMNS, 4096), COLUMNS, 0.8),
    ("batches", of_size(COLUMNS, 1024), COLUMNS, 0.6),
    ("batches", of_size(COLUMNS, 256), COLUMNS, 0.3),
    ("batches", of_size(STACKED, 256), STACKED, 0.7),
    ("fit", FIT, COLUMNS, 0.85),
    ("first", FIRST_BATCH, ONE_CHUNK, 0.67),
)


def _loader(arguments: argparse.Namespace, data: Dataset, files: Any, **settings: Any) -> Any:
    from tutorlib import KerasSequenceLoader

    given = {"batch_size": arguments.batch_size, "device": arguments.device} | settings
    return KerasSequenceLoader(files, given.pop("batch_size"), schema=data.schema, **given)


def _reading(name: str, batches: Any, read: Any = consume) -> Way:
    return Way(name, functools.partial(read, batches))


def _criteo(arguments: argparse.Namespace) -> Dataset:
    return criteo_shape(arguments.data, arguments.rows)


def _files(arguments: argparse.Namespace, folder: Path) -> list[str]:
    return files_of(linked(folder, arguments.copies))


def readers(arguments: argparse.Namespace) -> list[Way]:
    """Return tf.data over TFRecord and raw binary, bare Arrow, 25 lines, and the loader."""
    import tfrecords

    data, size = _criteo(arguments), arguments.batch_size
    schema, files = data.schema, _files(arguments, data.parquet)
    examples = data.examples(min(arguments.slow_rows, data.rows))
    prebatched = tfrecords.prebatched_dataset(data.prebatched(size), schema)
    stacked = tfrecords.raw_stacked(data.raw_rows(), size, schema, shuffle=False)
    columns = tfrecords.raw_columns(data.raw_rows(), size, schema)
    loader = functools.partial(_loader, arguments, data, files)
    return [
        _reading(BASELINE, tfrecords.native_dataset(examples, size, schema), consume_awake),
        _reading(PARSE_BATCHES, tfrecords.parsed_batches(examples, size, schema), consume_awake),
        _reading(PREBATCHED, prebatched.repeat(arguments.copies)),
        _reading("raw binary, columns, shuffled in a window", columns),
        _reading("raw binary, stacked, not shuffled", stacked.repeat(arguments.copies)),
        _reading(LINES, lines_of_numpy(files, size, schema)),
        Way(ARROW, functools.partial(bare_arrow, files)),
        _reading(COLUMNS, loader()),
        _reading(UNSHUFFLED, loader(shuffle=False)),
        _reading(STACKED, loader(batch_layout="stacked")),
        _reading("loader, stacked, not shuffled", loader(batch_layout="stacked", shuffle=False)),
    ]


def plain(arguments: argparse.Namespace) -> list[Way]:
    """Return bare Arrow, 25 lines and the loader on files of int64 with dictionary and snappy."""
    data = _criteo(arguments)
    files = _files(arguments, data.plain)
    return [
        Way(ARROW, functools.partial(bare_arrow, files)),
        _reading(LINES, lines_of_numpy(files, arguments.batch_size, data.schema)),
        _reading(COLUMNS, _loader(arguments, data, files)),
    ]


def movielens(arguments: argparse.Namespace) -> list[Way]:
    """Return bare Arrow and the loader on rows with a list of ids."""
    data = movielens_shape(arguments.data, arguments.rows)
    files = _files(arguments, data.parquet)
    return [
        Way(ARROW, functools.partial(bare_arrow, files)),
        _reading(LISTS, _loader(arguments, data, files)),
    ]


def batches(arguments: argparse.Namespace) -> list[Way]:
    """Return the loader with batches of fewer rows, and with the default ones."""
    data, made = _criteo(arguments), []
    for name, layout in ((COLUMNS, "columns"), (STACKED, "stacked")):
        for size in (None, *SIZES):
            files = files_of(data.parquet)
            if size is None or size > READ_ONCE:
                files = _files(arguments, data.parquet)
            loader = _loader(
                arguments, data, files,
                batch_size=size or arguments.batch_size, batch_layout=layout,
            )  # fmt: skip
            made.append(_reading(of_size(name, size) if size else name, loader))
    return made


def fit(arguments: argparse.Namespace) -> list[Way]:
    """Return the loaders alone, and epochs of `fit` with a model of one weight."""
    import keras

    data = _criteo(arguments)
    loader = functools.partial(_loader, arguments, data, _files(arguments, data.parquet))

    def fitting(batches: Any, name_of_input: str) -> Epoch:
        return fit_epoch(models[name_of_input], batches)

    class OneWeight(keras.Model):
        """Predicts the label as one number times one column: the least that `fit` can train.

        Its step takes every tensor, and the loss and its gradient run over all rows.
        """

        def __init__(self, name_of_input: str) -> None:
            super().__init__()
            self.name_of_input = name_of_input
            self.factor = self.add_weight(shape=(), initializer="zeros", name="factor")

        def call(self, inputs: Any) -> Any:
            return self.factor * inputs[self.name_of_input][:, :1]

    models = {name: OneWeight(name) for name in ("I1", "continuous")}
    for model in models.values():
        model.compile(optimizer="sgd", loss="mse", jit_compile=False)  # many batch sizes
    stacked = functools.partial(loader, batch_layout="stacked")
    return [
        _reading(COLUMNS, loader()),
        Way(FIT, functools.partial(fitting, loader(), "I1")),
        _reading(STACKED, stacked()),
        Way(FIT_STACKED, functools.partial(fitting, stacked(), "continuous")),
    ]


def first(arguments: argparse.Namespace) -> list[Way]:
    """Return the wait for the first batch, and the time to read and shuffle so many row groups."""
    data = _criteo(arguments)
    files = _files(arguments, data.parquet)
    groups = row_groups_of(files)[:FIRST_ROW_GROUPS]
    rows = read_and_shuffle(groups)
    loader = _loader(arguments, data, files)

    def first_batch() -> int:
        next(iter(loader))
        return rows  # those that both begin with, so that rates compare the time

    return [
        Way(ONE_CHUNK, functools.partial(read_and_shuffle, groups)),
        Way(FIRST_BATCH, first_batch, after=loader.close),
    ]


LOADER = Benchmark(
    "loader",
    "rows/s of the loader, tf.data, bare Arrow and 25 lines of NumPy (7 minutes)",
    {
        "readers": readers,
        "plain": plain,
        "movielens": movielens,
        "batches": batches,
        "fit": fit,
        "first": first,
    },
    {
        "rows": (2_097_152, "rows"),
        "slow_rows": (262_144, "rows for readers of one example per row"),
        "copies": (8, "times that fast readers read the rows"),
        "batch_size": (65_536, "rows per batch"),
    },
    faster(BOUNDS),
    device=True,
)
