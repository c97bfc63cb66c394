"""Readers that the benchmarks compare with the loader, and what iterates over any of them."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Epoch
from tutorlib import Schema
from tutorlib.memory import usable_cores

THREADS = usable_cores()
AHEAD = 3  # row groups that the reader of 25 lines reads ahead


# ---- what reads an epoch ------------------------------------------------------------------------


def consume(batches: Iterable[Any]) -> Epoch:
    """Read an epoch; return its rows, and when the last batch had come.

    The rows of each tensor are compared with the label's in the first batch, and in each batch of
    another size than the one before: asking 40 tensors for their shape takes longer than making
    them. A dataset of tf.data is read in a compiled function, as `fit` reads it: a loop in Python
    waits longer for each of its batches.
    """
    import tensorflow as tf

    rows = last = 0
    if not isinstance(batches, tf.data.Dataset):
        for inputs, label in batches:
            if (size := label.shape[0]) != last:
                last = _rows_of(inputs, label)
            rows += size
        return Epoch(rows, ended=time.perf_counter())
    iterator, next_rows = iter(batches), _compiled_next_rows()
    with contextlib.suppress(tf.errors.OutOfRangeError):
        while True:
            rows += int(next_rows(iterator))
    return Epoch(rows, ended=time.perf_counter())


@functools.cache
def _compiled_next_rows() -> Callable[[Any], Any]:
    import tensorflow as tf

    def next_rows(iterator: Any) -> Any:
        inputs, label = iterator.get_next()
        rows = tf.shape(label)[0]
        others = [tf.shape(t)[0] for n, t in inputs.items() if not n.endswith("__values")]
        with tf.control_dependencies([tf.debugging.assert_equal(tf.stack(others), rows)]):
            return tf.identity(rows)

    return tf.function(next_rows)


def _rows_of(inputs: Mapping[str, Any], label: Any) -> int:
    rows: int = label.shape[0]
    for name, tensor in inputs.items():
        if tensor.shape[0] != rows and not name.endswith("__values"):
            raise ValueError(f"{name!r} has {tensor.shape[0]} rows, the label {rows}")
    return rows


def consume_awake(batches: Iterable[Any]) -> Epoch:
    """Read an epoch with CPU idle states suppressed, as they are during training.

    Readers that pass single records from thread to thread may be half as fast with idle states.
    """
    from tutorlib import cores_awake

    with cores_awake():
        return consume(batches)


# ---- bare Arrow, and what a competent user writes -----------------------------------------------


def row_groups_of(files: list[str]) -> list[tuple[str, int]]:
    """Return (file, number) of each row group."""
    return [(f, number) for f in files for number in range(pq.read_metadata(f).num_row_groups)]


_open = threading.local()


def read_row_group(group: tuple[str, int]) -> pa.Table:
    """Decode a row group on one thread; each thread keeps its file open."""
    path, number = group
    if getattr(_open, "path", None) != path:
        _open.path, _open.file = path, pq.ParquetFile(path, memory_map=True)
    return _open.file.read_row_group(number, use_threads=False)


def bare_arrow(files: list[str]) -> int:
    """Decode all row groups on all cores, do nothing else, return the rows.

    This is an upper bound for every loader that reads these files with PyArrow.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        return sum(len(rows) for rows in pool.map(read_row_group, row_groups_of(files)))


def read_and_shuffle(groups: list[tuple[str, int]]) -> int:
    """Read row groups and permute each column, on all cores; return the rows.

    This is a lower bound for the wait for the first batch of these rows, shuffled.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        chunk = pa.concat_tables(pool.map(read_row_group, groups))
        order = np.random.default_rng(0).permutation(len(chunk))
        done = pool.map(lambda column: column.to_numpy()[order], chunk.columns)
        return len(next(iter(done)))


def lines_of_numpy(files: list[str], batch_size: int, schema: Schema, seed: int = 0) -> Any:
    """Return an iterable of shuffled batches as a competent user writes it in 25 lines.

    Row groups in random order, three ahead on a thread for each core, a permutation each; a tensor
    [batch, 1] for each column; rows left over begin the next batch.
    """
    import tensorflow as tf

    [target] = schema.labels.names

    class Batches:
        def __iter__(self) -> Iterator[Any]:
            rng = np.random.default_rng(seed)
            groups = row_groups_of(files)
            order = deque(rng.permutation(len(groups)))

            def read(number: int) -> dict[str, np.ndarray]:
                rows = read_row_group(groups[number])
                places = np.random.default_rng([seed, number]).permutation(len(rows))
                return {name: rows[name].to_numpy()[places][:, None] for name in rows.column_names}

            left: dict[str, np.ndarray] = {}
            with ThreadPoolExecutor(THREADS) as pool:
                reading = deque(pool.submit(read, order.popleft()) for _ in groups[:AHEAD])
                while reading:
                    rows = reading.popleft().result()
                    if order:
                        reading.append(pool.submit(read, order.popleft()))
                    if left:
                        rows = {n: np.concatenate([left[n], values]) for n, values in rows.items()}
                    count = len(rows[target])
                    stop = count - count % batch_size if reading else count
                    for start in range(0, stop, batch_size):
                        cut = slice(start, min(start + batch_size, stop))
                        batch = {n: tf.convert_to_tensor(v[cut]) for n, v in rows.items()}
                        label = batch.pop(target)
                        yield batch, label
                    left = {n: values[stop:] for n, values in rows.items()}

    return Batches()


def as_fit_shuffles(arrays: Any, batch_size: int) -> Any:
    """Return the batches that `fit(inputs, label, shuffle=True)` makes of arrays in memory."""
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    inputs, label = arrays
    adapter = ArrayDataAdapter(inputs, label, batch_size=batch_size, shuffle=True)
    return adapter.get_tf_dataset()
