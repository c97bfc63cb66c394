"""Readers that lessons compare with the loader: 25 lines of Arrow, arrays, held batches."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from turns import named
from tutorlib import Chunk, Schema
from tutorlib.columns import Ragged
from tutorlib.memory import usable_cores

THREADS = usable_cores()
AHEAD = 3  # row groups that the reader of 25 lines reads ahead


# ---- what a competent user writes ----------------------------------------------------------------


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


# ---- what `fit` is given ------------------------------------------------------------------------


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
    lists = [name for name in named(held[0][0]) if name.endswith("__values")]
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


# ---- rows as three vectors -----------------------------------------------------------------------


def vectors_of(chunk: Chunk, schema: Schema) -> Chunk:
    """Return rows with a list for each role in place of its columns."""
    fields = {}
    for role in ("continuous", "categorical", "label"):
        names = schema.with_role(role).names
        matrix = np.stack([chunk[name] for name in names], axis=1)
        fields[role] = Ragged(matrix.ravel(), np.arange(len(matrix) + 1) * len(names))
    return Chunk(fields)
