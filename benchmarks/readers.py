"""Readers that the benchmarks compare with the loader beside those of the lessons."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import TIME
from other_readers import THREADS, read_row_group, row_groups_of
from turns import Epoch, cores_awake, named, read_epoch
from tutorlib import Schema

WINDOW_ROWS = 10_000  # of tf.data's shuffle, as in `tfrecords.ReadOptions`
JOINED_RECORDS = 16  # of an eighth of a batch each


# ---- what reads an epoch ------------------------------------------------------------------------


def consume(batches: Iterable[Any], facts: dict[str, Any] | None = None) -> Epoch:
    """Read an epoch, as the lessons do; return its rows, and when the last batch had come.

    Args:
        batches: batches of (inputs, label).
        facts: what is known of this reader. If empty, which it is in the turn that warms up, this
            epoch also measures what the shuffle is worth.
    """
    times: list[Any] = []
    done = read_epoch(
        batches,
        (lambda inputs: times.append(_moments(_holds_time(inputs)))) if facts == {} else None,
    )
    if facts is not None and len(times) > 1 and times[0] is not None:
        facts["values"] = {"worth_rows": [worth(times)]}
    return done


def _holds_time(inputs: Any) -> Any:
    """Return the tensor whose last column is the time by which the files are sorted, or None."""
    tensors = named(inputs)
    return tensors.get(TIME, tensors.get("continuous"))


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


# ---- bare Arrow ----------------------------------------------------------------------------------


def bare_arrow(files: list[str]) -> int:
    """Decode all row groups on all cores, do nothing else, return the rows.

    This is an upper bound for every loader that reads these files with PyArrow.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        return sum(len(rows) for rows in pool.map(read_row_group, row_groups_of(files)))
