"""SmallLoader: Parquet files to shuffled batches of tensors for `fit`, in 150 lines to copy.

Lesson 08 builds it step by step, measures it, and says what `KerasSequenceLoader` has besides. It
needs NumPy, pyarrow, TensorFlow and Keras 3, and nothing of this project.
"""

import collections
import concurrent.futures
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

# Keras takes a DataAdapter's batches as they are; batches of a generator it copies.
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

TOGETHER = 8  # columns that are decoded before they are gathered: fewer take less memory


def read_ahead(function, jobs, threads):
    """Yield `function(*job)` of each job in order, and work on the next ones meanwhile."""
    pool, running = concurrent.futures.ThreadPoolExecutor(threads), collections.deque()
    try:
        for job in jobs:
            running.append(pool.submit(function, *job))
            if len(running) > threads:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def gather(values, order, aligned_row=0):
    """Return the rows of a column in an order, in memory that TensorFlow can share.

    Args:
        values: the column, numbers.
        order: the rows to take.
        aligned_row: the row of the result that starts at a multiple of 64 bytes.
    """
    if values.dtype.kind not in "iuf":
        raise TypeError(f"expected a column of numbers, got {values.dtype}")
    if values.dtype.kind == "f" and np.isnan(values.min(initial=0)):
        raise ValueError("expected a column without nulls and NaN")
    memory = np.empty(len(order) * values.itemsize + 64, np.uint8)
    start = -(memory.ctypes.data + aligned_row * values.itemsize) % 64
    out = memory[start : start + len(order) * values.itemsize].view(values.dtype)
    return np.take(values, order, out=out, mode="clip")  # "clip": no second copy


def cut(column, size):
    """Return a column as tensors [size, 1] over its memory, all made in one call."""
    if not len(column):
        return []
    batches = column.reshape(-1, size, 1).__dlpack__()
    return tf.unstack(tf.experimental.dlpack.from_dlpack(batches))


def joined(pieces):
    """Return the pieces of a batch, {name: array} each, as one batch of tensors; copies."""
    whole = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    return {name: tf.convert_to_tensor(column[:, None]) for name, column in whole.items()}


class SmallLoader(DataAdapter):
    """Shuffled batches (inputs, label) of [batch, 1] tensors. Iterating goes on where it stands.

    Args:
        paths: Parquet files whose columns are all numbers, without nulls.
        batch_size: rows of a batch; the last one of an epoch may have fewer.
        label: name of the label column; all others are inputs.
        parts: row groups that are mixed in a chunk.
        seed: with the epoch, decides the order.
        threads: threads that read ahead, a chunk each; None for one per core.
        columns: names of the columns to read, with the label; None for all.

    Example:
        >>> loader = SmallLoader(["train.parquet"], 4096)  # doctest: +SKIP
        >>> model.fit(loader, epochs=2)  # after a resume: one `fit` per epoch  # doctest: +SKIP
    """

    batch_size = 0  # in place of the base class's property

    def __init__(
        self, paths, batch_size, label="label", parts=8, seed=0, threads=None, columns=None
    ):
        self.batch_size, self.label, self.parts, self.seed = batch_size, label, parts, seed
        self.threads, self.columns = threads or os.cpu_count(), columns
        self.epoch = self.first_batch = 0  # where the loader stands
        self.footer = {str(path): pq.read_metadata(path) for path in paths}
        self.groups = [
            (path, group, footer.row_group(group).num_rows)
            for path, footer in self.footer.items()
            for group in range(footer.num_row_groups)
        ]
        self.num_rows = sum(rows for _, _, rows in self.groups)

    def __len__(self):
        return -(-self.num_rows // self.batch_size)

    def state_dict(self):
        """Return where the loader stands, as three numbers."""
        return {"seed": self.seed, "epoch": self.epoch, "batch": self.first_batch}

    def load_state_dict(self, state):
        """Go on where a loader with the same files and settings stood."""
        self.seed, self.epoch, self.first_batch = state["seed"], state["epoch"], state["batch"]

    def _jobs(self):
        """Yield the arguments of `_read` for each chunk with rows that are still to come."""
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.groups))
        first_row, stop = self.first_batch * self.batch_size, 0
        for number, start in enumerate(range(0, len(order), self.parts)):
            groups = [self.groups[i] for i in order[start : start + self.parts]]
            begin, stop = stop, stop + sum(rows for _, _, rows in groups)
            if stop > first_row:
                skipped = max(0, first_row - begin)
                rows_to_full = -(begin + skipped) % self.batch_size
                yield groups, [self.seed, self.epoch, number], skipped, rows_to_full

    def _read(self, groups, seed, skipped, rows_to_full):
        """Return a shuffled chunk: the rows that fill a batch, whole batches, and what remains."""
        checked = {"page_checksum_verification": True}
        files = [pq.ParquetFile(path, metadata=self.footer[path], **checked) for path, *_ in groups]
        names = list(self.columns or files[0].schema_arrow.names)
        rows = sum(rows for _, _, rows in groups)
        order = np.random.default_rng(seed).permutation(rows)[skipped:]
        first = min(rows_to_full, len(order))
        stop = len(order) - (len(order) - first) % self.batch_size
        begun, whole, rest = {}, {}, {}
        for some in (names[i : i + TOGETHER] for i in range(0, len(names), TOGETHER)):
            tables = [
                file.read_row_group(group, some, use_threads=False)
                for file, (_, group, _) in zip(files, groups, strict=True)
            ]
            table = pa.concat_tables(tables)
            for name in some:
                column = gather(table[name].to_numpy(), order, first)
                begun[name], rest[name] = column[:first], column[stop:]
                whole[name] = cut(column[first:stop], self.batch_size)
        return begun, whole, rest

    def _batches(self):
        """Yield the batches that are still to come in this epoch."""
        pieces = []  # of a batch that is not full yet
        for begun, whole, rest in read_ahead(self._read, self._jobs(), self.threads):
            pieces.append(begun)
            if sum(len(piece[self.label]) for piece in pieces) == self.batch_size:
                yield joined(pieces)
                pieces = []
            yield from (dict(zip(whole, batch)) for batch in zip(*whole.values()))  # noqa: B905
            pieces.append(rest)
        if any(len(piece[self.label]) for piece in pieces):
            yield joined(pieces)

    def __iter__(self):
        for batch in self._batches():
            self.first_batch += 1
            if self.first_batch == len(self):
                self.epoch, self.first_batch = self.epoch + 1, 0
            yield batch, batch.pop(self.label)

    def get_tf_dataset(self):
        """Return what `fit` iterates over."""
        return self

    @property
    def num_batches(self):
        """Number of batches until the epoch ends; Keras asks once per `fit`."""
        return len(self) - self.first_batch
