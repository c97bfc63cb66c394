"""What the loader is compared with, as far as it needs only the tutorial's own packages.

Each reader gives what the loader gives, one epoch of (inputs, label) with tensors [batch, 1] by
name, written as someone who knows the library would write it. The readers of TFRecord and raw
binary are in `tfrecords`, those of other libraries in `peer_readers.py`.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

from tutorlib.columns import Chunk
from tutorlib.memory import usable_cores
from tutorlib.parquet import ParquetSource
from tutorlib.schema import Column, Schema

THREADS = usable_cores()


# ---- bare Arrow ---------------------------------------------------------------------------------


def read_row_groups(source: ParquetSource) -> int:
    """Decode all row groups with PyArrow on all cores, do nothing else, return the rows.

    This is an upper bound for every loader that reads these files with PyArrow.
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
    """Read at least `rows` rows, permute each column, on all cores; return the rows.

    This is a lower bound for the wait for the first batch of shuffled rows.
    """
    counts = np.cumsum([group.num_rows for group in source.row_groups])
    groups = int(np.searchsorted(counts, rows)) + 1
    with ThreadPoolExecutor(THREADS) as pool:
        chunk = Chunk.concat(list(pool.map(source.read, range(groups))))
        order = np.random.default_rng(0).permutation(chunk.num_rows)
        shuffled = list(pool.map(lambda name: chunk[name].take(order), chunk.names))
    return len(shuffled[0])


# ---- Python in front of Keras, on top of our Parquet reader -------------------------------------


def generator(source: ParquetSource, batch_size: int, schema: Schema) -> tf.data.Dataset:
    """Return what people write first: a Python generator that shuffles each row group."""
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

    A row group that several batches need is read once and held until they have been made.

    Args:
        source: files to read.
        batch_size: rows per batch.
        schema: columns to read.
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
        self._locks: dict[int, threading.Lock] = collections.defaultdict(threading.Lock)
        self._held: collections.OrderedDict[int, Chunk] = collections.OrderedDict()

    def __getitem__(self, index: int) -> Any:
        start = index * self._batch_size
        stop = min(start + self._batch_size, int(self._ends[-1]))
        slices = []
        while start < stop:
            number = int(np.searchsorted(self._ends, start, side="right"))
            chunk, end = self._chunk(number), int(self._ends[number])
            first = start - (end - chunk.num_rows)
            slices.append(chunk.slice(first, first + min(stop, end) - start))
            start = min(stop, end)
        return _arrays(slices[0] if len(slices) == 1 else Chunk.concat(slices), self._schema)

    def _chunk(self, number: int) -> Chunk:
        """Return the shuffled row group at this position of the epoch's order."""
        with self._locks[number]:
            chunk = self._held.get(number)
            if chunk is None:
                chunk = self._source.read(self._order[number])
                order = np.random.default_rng([self._seed, number]).permutation(chunk.num_rows)
                chunk = self._held[number] = chunk.take(order)
                while len(self._held) > 2 * THREADS:
                    self._held.popitem(last=False)
        return chunk


class AsFitTakes(Iterable[Any]):
    """The batches of a `PyDataset` as `fit` takes them: through Keras's own adapter.

    Keras has no public way to them except `fit` itself.

    Args:
        dataset: the dataset.
    """

    def __init__(self, dataset: keras.utils.PyDataset) -> None:
        self._adapter = PyDatasetAdapter(dataset)

    def __iter__(self) -> Iterator[Any]:
        self._adapter.on_epoch_begin()
        try:
            yield from self._adapter.get_tf_dataset()
        finally:
            self._adapter.on_epoch_end()


def arrays_in_memory(source: ParquetSource, schema: Schema) -> Any:
    """Return all rows as (inputs, label), NumPy arrays [rows, 1] by name, as `fit` takes them."""
    return _arrays(Chunk.concat(list(source.chunks())), schema)


def as_fit_shuffles(arrays: Any, batch_size: int) -> tf.data.Dataset:
    """Return the batches that `fit(inputs, label, shuffle=True)` makes of arrays in memory."""
    inputs, label = arrays
    adapter = ArrayDataAdapter(inputs, label, batch_size=batch_size, shuffle=True)
    return adapter.get_tf_dataset()


def _arrays(chunk: Chunk, schema: Schema) -> Any:
    return _split({name: chunk[name][:, None] for name in schema.names}, schema)


def _split(columns: dict[str, Any], schema: Schema) -> tuple[dict[str, Any], Any]:
    [label] = schema.labels.names
    return {name: columns[name] for name in schema.features.names}, columns[label]


# ---- the smallest training ----------------------------------------------------------------------


class OneWeight(keras.Model):
    """Predicts the label as one number times one column: the least that `fit` can train.

    Its step still takes every tensor of the batch, and the loss and its gradient run over all rows.

    Args:
        name_of_input: tensor of the batch to use; of a stacked one, its first column.
    """

    def __init__(self, name_of_input: str) -> None:
        super().__init__()
        self.name_of_input = name_of_input
        self.factor = self.add_weight(shape=(), initializer="zeros", name="factor")

    def call(self, inputs: dict[str, Any]) -> Any:
        """Return float32 [batch, 1]."""
        return self.factor * inputs[self.name_of_input][:, :1]


def one_weight_model(name_of_input: str) -> keras.Model:
    """Return `OneWeight`, compiled without XLA, which would compile for every batch size."""
    model = OneWeight(name_of_input)
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)
    return model
