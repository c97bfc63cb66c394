"""What the loader is measured against, as far as it needs nothing but what the tutorial has.

Every reader gives what the loader gives: one epoch of (inputs, label), tensors [batch, 1] by name,
or stacked; each is written as someone who knows the library would write it. The TFRecord readers
are in `tutorlib.tfrecords`, other libraries in `peers.py`. Does not belong here: measuring.
"""

from __future__ import annotations

import collections
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

from tutorlib import tfrecords
from tutorlib.chunk import Chunk
from tutorlib.parquet import ParquetSource
from tutorlib.schema import Column, Schema

THREADS = len(os.sched_getaffinity(0))


# ---- bare Arrow ---------------------------------------------------------------------------------


def read_row_groups(source: ParquetSource) -> int:
    """Decode all row groups with PyArrow on all cores, do nothing else, return the rows.

    This is what the files allow: a loader that reads with PyArrow cannot be faster.
    """
    open_files = threading.local()

    def read(position: int) -> int:
        group = source.row_groups[position]
        path = source.files[group.file]
        if getattr(open_files, "path", None) != path:
            open_files.path, open_files.file = path, pq.ParquetFile(path, memory_map=True)
        return open_files.file.read_row_group(group.index, use_threads=False).num_rows

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(read, range(len(source))))


def read_and_shuffle(source: ParquetSource, rows: int) -> int:
    """Read the first `rows` rows or a few more, permute each column, all cores; return the rows.

    What any shuffled first batch has to wait for, written down plainly.
    """
    positions, read_rows = [], 0
    while read_rows < rows:
        read_rows += source.row_groups[len(positions)].num_rows
        positions.append(len(positions))
    with ThreadPoolExecutor(THREADS) as pool:
        chunk = Chunk.concat(list(pool.map(source.read, positions)))
        order = np.random.default_rng(0).permutation(read_rows)
        shuffled = list(pool.map(lambda name: chunk[name].take(order), chunk.names))
    return len(shuffled[0])


# ---- tf.data over TFRecord and raw binary -------------------------------------------------------


def parsed_examples(folder: Path, batch_size: int, schema: Schema) -> tf.data.Dataset:
    """Return the batches that TensorFlow's own guides make: parse each example, shuffle, batch."""
    calls = tf.data.AUTOTUNE
    return tfrecords.parsed_examples(folder, batch_size, schema, parallel_calls=calls)


def raw_columns(folder: Path, batch_size: int, schema: Schema) -> tf.data.Dataset:
    """Return batches of raw binary that lies column by column in each batch: only copies."""
    return tfrecords.raw_batches(folder, schema)


def raw_rows(folder: Path, batch_size: int, schema: Schema) -> tf.data.Dataset:
    """Return batches of raw binary that lies row by row, rows shuffled in tf.data's window."""
    return tfrecords.raw_columns(folder, batch_size, schema)


def raw_stacked(folder: Path, batch_size: int, schema: Schema) -> tf.data.Dataset:
    """Return stacked batches of raw binary that lies row by row: copies of parts of rows."""
    return tfrecords.raw_stacked(folder, batch_size, schema, shuffle=False)


# ---- Python in front of Keras, fed by our reader ------------------------------------------------


def generator(source: ParquetSource, batch_size: int, schema: Schema) -> tf.data.Dataset:
    """Return what people write first: a Python generator that shuffles row group by row group."""
    rng = np.random.default_rng(0)

    def batches() -> Iterator[Any]:
        left = None
        for position in rng.permutation(len(source)):
            chunk = source.read(position)
            chunk = chunk.take(rng.permutation(chunk.num_rows))
            chunk = chunk if left is None else Chunk.concat([left, chunk])
            whole = chunk.num_rows - chunk.num_rows % batch_size
            for start in range(0, whole, batch_size):
                yield _arrays(chunk.slice(start, start + batch_size), schema)
            left = chunk.slice(whole, chunk.num_rows)
        if left is not None and left.num_rows:
            yield _arrays(left, schema)

    def spec(column: Column) -> tf.TensorSpec:
        return tf.TensorSpec([None, 1], column.dtype)

    signature = _split({column.name: spec(column) for column in schema}, schema)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.prefetch(tf.data.AUTOTUNE)


class RowGroups(keras.utils.PyDataset):
    """Batches by number: row groups in a new order each epoch, rows shuffled in their row group.

    A row group that several batches need is read once and held until those have been made.

    Args:
        source: where to read.
        batch_size: rows of a batch.
        schema: what to read.
    """

    def __init__(self, source: ParquetSource, batch_size: int, schema: Schema) -> None:
        super().__init__(workers=THREADS, max_queue_size=2 * THREADS)
        self._source, self._batch_size, self._schema = source, batch_size, schema
        self._rng = np.random.default_rng(0)
        self.on_epoch_end()

    def __len__(self) -> int:
        return -(-self._source.num_rows // self._batch_size)

    def on_epoch_end(self) -> None:
        """Draw the order of the row groups for the next epoch, and the seed for their rows."""
        self._seed = int(self._rng.integers(2**32))
        self._order = self._rng.permutation(len(self._source))
        counts = [self._source.row_groups[position].num_rows for position in self._order]
        self._ends = np.cumsum(counts)
        self._locks = collections.defaultdict(threading.Lock)
        self._held: collections.OrderedDict[int, Chunk] = collections.OrderedDict()

    def __getitem__(self, index: int) -> Any:
        start = index * self._batch_size
        stop = min(start + self._batch_size, int(self._ends[-1]))
        parts = []
        while start < stop:
            number = int(np.searchsorted(self._ends, start, side="right"))
            chunk, end = self._chunk(number), int(self._ends[number])
            first = start - (end - chunk.num_rows)
            parts.append(chunk.slice(first, first + min(stop, end) - start))
            start = min(stop, end)
        return _arrays(parts[0] if len(parts) == 1 else Chunk.concat(parts), self._schema)

    def _chunk(self, number: int) -> Chunk:
        """Return the shuffled row group of that place in the epoch's order."""
        with self._locks[number]:
            chunk = self._held.get(number)
            if chunk is None:
                chunk = self._source.read(self._order[number])
                order = np.random.default_rng([self._seed, number]).permutation(chunk.num_rows)
                chunk = self._held[number] = chunk.take(order)
                while len(self._held) > 2 * THREADS:
                    self._held.popitem(last=False)
        return chunk


class AsFitDoes(Iterable[Any]):
    """The batches of a `PyDataset` as `fit` takes them: through Keras's own adapter.

    Keras has no public way to them but `fit` itself.
    """

    def __init__(self, dataset: keras.utils.PyDataset) -> None:
        self._adapter = PyDatasetAdapter(dataset)

    def __iter__(self) -> Iterator[Any]:
        self._adapter.on_epoch_begin()
        try:
            yield from self._adapter.get_tf_dataset()
        finally:
            self._adapter.on_epoch_end()


def _arrays(chunk: Chunk, schema: Schema) -> Any:
    return _split({name: chunk[name][:, None] for name in schema.names}, schema)


def _split(columns: dict[str, Any], schema: Schema) -> tuple[dict[str, Any], Any]:
    [label] = schema.labels.names
    return {name: columns[name] for name in schema.features.names}, columns[label]
