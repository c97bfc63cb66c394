"""Readers that the benchmarks compare with the loader, and what iterates over any of them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import TIME
from benchmarks.measure import Epoch, cores_awake
from tutorlib import Schema
from tutorlib.memory import usable_cores

THREADS = usable_cores()
AHEAD = 3  # row groups that the reader of 25 lines reads ahead
WINDOW_ROWS = 10_000  # of tf.data's shuffle, as in `tfrecords.ReadOptions`
JOINED_RECORDS = 16  # of an eighth of a batch each


# ---- what reads an epoch ------------------------------------------------------------------------


def consume(batches: Iterable[Any], facts: dict[str, Any] | None = None) -> Epoch:
    """Read an epoch; return its rows, and when the last batch had come.

    The rows of each tensor are compared with the label's in the first batch, and in each batch of
    another size than the one before: asking 40 tensors for their shape takes longer than making
    them. A dataset of tf.data is read in a compiled function, as `fit` reads it: a loop in Python
    waits longer for each of its batches.

    Args:
        batches: batches of (inputs, label).
        facts: what is known of this reader. If empty, which it is in the turn that warms up, this
            epoch also measures what the shuffle is worth.
    """
    import tensorflow as tf

    rows = last = 0
    begun = time.perf_counter()
    times: list[Any] | None = [] if facts == {} else None
    if isinstance(batches, tf.data.Dataset):
        iterator, next_rows = iter(batches), _compiled_next_rows()
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                size, held = next_rows(iterator)
                rows += int(size)
                if times is not None:
                    times.append(_moments(held))
    else:
        for inputs, label in batches:
            if (size := label.shape[0]) != last:
                last = _rows_of(inputs, label)
            rows += size
            if times is not None:
                times.append(_moments(_holds_time(inputs)))
    ended = time.perf_counter()
    if facts is not None and times and len(times) > 1 and times[0] is not None:
        facts["values"] = {"worth_rows": [worth(times)]}
    return Epoch(rows, elapsed_s=ended - begun)


@functools.cache
def _compiled_next_rows() -> Callable[[Any], Any]:
    import tensorflow as tf

    def next_rows(iterator: Any) -> Any:
        inputs, label = iterator.get_next()
        rows = tf.shape(label)[0]
        others = [tf.shape(t)[0] for n, t in _named(inputs).items() if not n.endswith("__values")]
        with tf.control_dependencies([tf.debugging.assert_equal(tf.stack(others), rows)]):
            return tf.identity(rows), _holds_time(inputs)

    return tf.function(next_rows)


def _rows_of(inputs: Any, label: Any) -> int:
    rows: int = label.shape[0]
    for name, tensor in _named(inputs).items():
        if tensor.shape[0] != rows and not name.endswith("__values"):
            raise ValueError(f"{name!r} has {tensor.shape[0]} rows, the label {rows}")
    return rows


def _named(inputs: Any) -> Mapping[str, Any]:
    """Return the tensors of a batch by name."""
    return inputs if isinstance(inputs, Mapping) else {"inputs": inputs}


def _holds_time(inputs: Any) -> Any:
    """Return the tensor whose last column is the time by which the files are sorted, or None."""
    named = _named(inputs)
    return named.get(TIME, named.get("continuous"))


def _moments(held: Any) -> tuple[float, float] | None:
    """Return the mean and the mean square of the times of a batch."""
    if held is None:
        return None
    times = np.asarray(held)[:, -1].astype(np.float64)
    return times.mean(), np.square(times).mean()


def worth(times: Iterable[tuple[float, float]]) -> float:
    """Return how many random rows tell as much about the mean time as a batch does.

    The variance of a batch's mean is that of a row divided by this number: the effective sample
    size of survey statistics (L. Kish, Survey Sampling, 1965), with batches as clusters. Times are
    even in steps.

    Args:
        times: (mean, mean square) of the times of each batch; batches of one size.
    """
    means, squares = np.transpose(list(times))
    between = float(means.var(ddof=1))
    return float(squares.mean() - means.mean() ** 2) / between if between else float(len(means))


def consume_awake(batches: Iterable[Any], facts: dict[str, Any] | None = None) -> Epoch:
    """Read an epoch with CPU idle states suppressed, as they are during training.

    Readers that pass single records from thread to thread may be half as fast with idle states.
    """
    with cores_awake():
        return consume(batches, facts)


# ---- tf.data over records of vectors, and over small batches that are joined ---------------------


def vectors(folder: Path, batch_size: int, schema: Schema) -> Any:
    """Return shuffled batches of records that hold three vectors: numbers, ids and the label."""
    import tensorflow as tf

    roles = {"continuous": tf.float32, "categorical": tf.int64, "label": tf.int64}
    features = {
        role: tf.io.FixedLenFeature([len(schema.with_role(role))], dtype)
        for role, dtype in roles.items()
    }

    def parse(records: Any) -> Any:
        inputs = tf.io.parse_example(records, features)
        label = inputs.pop("label")
        return inputs, label

    files = sorted(map(str, folder.glob("*.tfrecord")))
    records = tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE)
    batches = records.shuffle(WINDOW_ROWS).batch(batch_size)
    return batches.map(parse, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def joined(records: Any, batch_size: int) -> Any:
    """Return batches of rows from several records of small batches, their rows permuted.

    The records come in random order from a window of twice as many as are joined; blocks are
    permuted in parallel.
    """
    import tensorflow as tf

    def permuted(inputs: Any, label: Any) -> Any:
        order = tf.random.shuffle(tf.range(tf.shape(label.values)[0]))
        rows = {name: tf.gather(part.values, order) for name, part in inputs.items()}
        return rows, tf.gather(label.values, order)

    blocks = records.shuffle(2 * JOINED_RECORDS).ragged_batch(JOINED_RECORDS)
    batches = blocks.map(permuted, num_parallel_calls=tf.data.AUTOTUNE).rebatch(batch_size)
    return batches.prefetch(tf.data.AUTOTUNE)


# ---- bare Arrow, and what a competent user writes -----------------------------------------------


def row_groups_of(files: list[str], rows: int | None = None) -> list[tuple[str, int]]:
    """Return (file, number) of each row group, or of those that begin in the first `rows` rows."""
    groups, start = [], 0
    for file in files:
        metadata = pq.read_metadata(file)
        for number in range(metadata.num_row_groups):
            if rows is None or start < rows:
                groups.append((file, number))
            start += metadata.row_group(number).num_rows
    return groups


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


def columns_of(rows: pa.Table, order: np.ndarray, schema: Schema) -> dict[str, np.ndarray]:
    """Return rows in another order, as an array [rows, 1] for each column."""
    return {name: rows[name].to_numpy()[order][:, None] for name in schema.names}


def matrices_of(rows: pa.Table, order: np.ndarray, schema: Schema) -> dict[str, np.ndarray]:
    """Return rows in another order, as a matrix [rows, columns] of ids, of numbers, and a label."""
    names = {role: schema.with_role(role).names for role in ("categorical", "continuous")}
    names |= {name: [name] for name in schema.labels.names}
    return {
        key: np.stack([rows[name].to_numpy() for name in columns], axis=1)[order]
        for key, columns in names.items()
    }


def arrow_batches(groups: list[Any], batch_size: int, gather: Any, seed: int) -> Iterator[Any]:
    """Yield shuffled batches of Parquet row groups, three of which threads read ahead."""
    order = deque(np.random.default_rng(seed).permutation(len(groups)))

    def read(number: int) -> dict[str, np.ndarray]:
        rows = read_row_group(groups[number])
        places = np.random.default_rng([seed, number]).permutation(len(rows))
        return gather(rows, places)

    left = None  # rows that begin the next batch
    with ThreadPoolExecutor(THREADS) as pool:
        reading = deque(pool.submit(read, order.popleft()) for _ in groups[:AHEAD])
        while reading:
            rows = reading.popleft().result()
            if order:
                reading.append(pool.submit(read, order.popleft()))
            if left is not None:
                rows = {name: np.concatenate([left[name], rows[name]]) for name in rows}
            count = len(rows["label"])
            stop = count - count % batch_size if reading else count
            for start in range(0, stop, batch_size):
                batch = {name: values[start : start + batch_size] for name, values in rows.items()}
                yield batch, batch.pop("label")
            left = {name: values[stop:] for name, values in rows.items()}


def lines_of_numpy(
    files: list[str],
    batch_size: int,
    schema: Schema,
    gather: Any = columns_of,
    seed: int = 0,
    limit: int | None = None,
) -> Any:
    """Return an iterable of the tensors of `arrow_batches`: 25 lines, as a competent user writes.

    Row groups in random order, three ahead on a thread for each core, a permutation each; tensors
    of `columns_of` or `matrices_of`; rows left over begin the next batch.
    """
    import tensorflow as tf

    class Batches:
        def __iter__(self) -> Iterator[Any]:
            groups = row_groups_of(files, limit)

            def gathered(rows: Any, places: np.ndarray) -> dict[str, np.ndarray]:
                return gather(rows, places, schema)

            for inputs, label in arrow_batches(groups, batch_size, gathered, seed):
                tensors = {name: tf.convert_to_tensor(values) for name, values in inputs.items()}
                yield tensors, tf.convert_to_tensor(label)

    return Batches()


def as_py_dataset(batches: Iterable[Any], steps: int) -> Any:
    """Return a `keras.utils.PyDataset` of the first `steps` batches of an epoch after the other."""
    import keras

    epochs = (itertools.islice(epoch, steps) for epoch in itertools.repeat(batches))
    endless = itertools.chain.from_iterable(epochs)

    class Steps(keras.utils.PyDataset):
        peeked: ClassVar[dict[int, Any]] = {}

        def __len__(self) -> int:
            return steps

        def __getitem__(self, step: int) -> Any:
            if step in self.peeked:
                return self.peeked.pop(step)
            batch = next(endless)
            if step < 2:  # of these `fit` takes the types first, and asks again
                self.peeked[step] = batch
            return batch

    return Steps()


def held_batches(batches: Iterable[Any]) -> Any:
    """Return a data set for `fit` of batches that stay in memory, where their tensors are.

    On TensorFlow those without lists have their type, as the loader's batches have: without it,
    `tf.function` would look at each tensor in each step, which a ceiling must not pay.
    """
    import keras

    from tutorlib.keras_bridge.adapter import TensorAdapter

    held = list(batches)
    lists = [name for name in _named(held[0][0]) if name.endswith("__values")]
    if keras.backend.backend() == "tensorflow" and not lists:
        from tutorlib.keras_bridge.batch_types import with_types

        held = [*map(with_types(), held)]

    class Held(TensorAdapter):
        num_batches, batch_size = len(held), len(held[0][1])
        has_partial_batch, partial_batch_size = False, None

        def __len__(self) -> int:
            return len(held)

        def new_pass(self) -> Iterator[Any]:
            return iter(held)

    return Held()


def as_fit_shuffles(arrays: Any, batch_size: int) -> Any:
    """Return the batches that `fit(inputs, label, shuffle=True)` makes of arrays in memory."""
    import tensorflow as tf

    from tutorlib.keras_bridge.adapter import array_batches

    steps = -(-len(arrays[1]) // batch_size)
    known = tf.data.experimental.assert_cardinality(steps)
    return array_batches(arrays, batch_size).apply(known)
