"""The readers of TFRecord files that people write, from the ready-made one to prebatched records.

Each gives one epoch of the batches of `KerasSequenceLoader(batch_layout="columns")`: (inputs,
label), inputs a dict of [batch, 1]; a multi-hot column g as `g__values` [nnz, 1] and `g__nnzs`
int32 [batch, 1]. Integers are int64 and floating point float32, for an example knows no other
types; prebatched records keep int32. Does not belong here: raw cells (`raw_readers.py`).
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from tutorlib.schema import Schema
from tutorlib.tfrecords.batches import as_batch, inputs_of, parsing_features
from tutorlib.tfrecords.metadata import (
    EXAMPLES,
    PREBATCHED,
    metadata_of,
    record_files,
    stored_dtype,
)
from tutorlib.tfrecords.writing import positive


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """What every reader that forms its own batches takes by name.

    Args:
        shuffle: whether files and rows come in random order.
        shuffle_buffer: rows of the window in which they are shuffled.
        seed: for the order; None for another one each time.
        drop_last: leave out the last batch where it is not full.

    Raises:
        ValueError: if `shuffle_buffer` is below 1.

    Example:
        >>> ReadOptions(shuffle=False).drop_last
        False
    """

    shuffle: bool = True
    shuffle_buffer: int = 10_000
    seed: int | None = None
    drop_last: bool = False

    def __post_init__(self) -> None:
        positive(shuffle_buffer=self.shuffle_buffer)


def native_dataset(files: Any, batch_size: int, schema: Schema, **options: Any) -> Any:
    """Return the pipeline of TensorFlow's guides: `make_batched_features_dataset`.

    It is the baseline, called as people call it, with its own defaults: files in random order, one
    reader thread, rows shuffled within a window.

    Args:
        files: folder that `write_examples` wrote, a TFRecord file, a glob pattern, or a list.
        batch_size: rows of a batch.
        schema: what to read; exactly one label and no weight.
        options: those of `ReadOptions`.

    Returns:
        `tf.data.Dataset` of one epoch of (inputs, label).

    Raises:
        FileNotFoundError: if no file is there.
        ValueError: if the schema has not exactly one label, or a weight, or columns that the
            folder does not have.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tutorlib.chunk import Chunk
        >>> from tutorlib.schema import Column
        >>> from tutorlib.tfrecords import write_examples
        >>> folder = tempfile.mkdtemp() + "/examples"
        >>> _ = write_examples(Chunk({"C1": np.arange(5), "y": np.ones(5)}), folder)
        >>> schema = Schema([Column("C1", "categorical"), Column("y", "label", "float32")])
        >>> inputs, label = next(iter(native_dataset(folder, 4, schema)))
        >>> inputs["C1"].shape, label.shape
        (TensorShape([4, 1]), TensorShape([4, 1]))

    Source: tensorflow.org/api_docs/python/tf/data/experimental/make_batched_features_dataset.
    """
    import tensorflow as tf

    chosen = ReadOptions(**options)
    labels = schema.labels.names
    if len(labels) != 1 or schema.with_role("weight").names:
        raise ValueError(
            "make_batched_features_dataset knows exactly one label and no weight; the schema has "
            f"labels {labels}, weights {schema.with_role('weight').names}. Use parsed_batches."
        )
    dataset = tf.data.experimental.make_batched_features_dataset(
        record_files(files, EXAMPLES, schema),
        batch_size,
        parsing_features(schema),
        reader=tf.data.TFRecordDataset,
        label_key=labels[0],
        num_epochs=1,
        shuffle=chosen.shuffle,
        shuffle_buffer_size=chosen.shuffle_buffer,
        shuffle_seed=chosen.seed,
        prefetch_buffer_size=tf.data.AUTOTUNE,
        drop_final_batch=chosen.drop_last,
    )
    if not any(column.multi_hot for column in schema):
        return dataset
    return dataset.map(lambda features, label: (inputs_of(features, schema), label))


def parsed_examples(
    files: Any,
    batch_size: int,
    schema: Schema,
    *,
    parallel_calls: int | None = None,
    **options: Any,
) -> Any:
    """Return the batches that most people's own code makes: parse each record, then batch.

    One call of `tf.io.parse_single_example` a row: the cost of a call, and of a look at each name,
    for every row.

    Args:
        files: as for `native_dataset`.
        batch_size: rows of a batch.
        schema: what to read.
        parallel_calls: records that are parsed at a time; None parses one after the other,
            `tf.data.AUTOTUNE` leaves it to tf.data.
        options: those of `ReadOptions`.

    Returns:
        `tf.data.Dataset` of one epoch of (inputs, labels) or (inputs, labels, weights); labels are
        a dict where the schema has several, weights are [batch].

    Raises:
        FileNotFoundError: if no file is there.
        ValueError: if the schema has columns that the folder does not have.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tutorlib import Chunk, Column, write_examples
        >>> folder = tempfile.mkdtemp() + "/examples"
        >>> _ = write_examples(Chunk({"x": np.arange(5), "y": np.ones(5)}), folder)
        >>> schema = Schema([Column("x", "categorical"), Column("y", "label", "float32")])
        >>> [len(label) for _, label in parsed_examples(folder, 2, schema)]
        [2, 2, 1]
    """
    import tensorflow as tf

    chosen = ReadOptions(**options)
    features = parsing_features(schema)
    rows = _records(record_files(files, EXAMPLES, schema), chosen).map(
        lambda record: tf.io.parse_single_example(record, features),
        num_parallel_calls=parallel_calls,
    )
    if any(column.multi_hot for column in schema):
        batches = rows.ragged_batch(batch_size, chosen.drop_last, row_splits_dtype=tf.int32)
    else:
        batches = rows.batch(batch_size, chosen.drop_last)
    return batches.map(lambda batch: as_batch(batch, schema)).prefetch(tf.data.AUTOTUNE)


def parsed_batches(files: Any, batch_size: int, schema: Schema, **options: Any) -> Any:
    """Return the same batches the other way round: batch the records, then parse a batch at a time.

    One `tf.io.parse_example` a batch, on all cores (`num_parallel_calls=AUTOTUNE`), files read in
    parallel where the order is random anyway.

    Args:
        files: as for `native_dataset`.
        batch_size: rows of a batch.
        schema: what to read.
        options: those of `ReadOptions`.

    Returns:
        As `parsed_examples`.

    Raises:
        FileNotFoundError: if no file is there.
        ValueError: if the schema has columns that the folder does not have.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tutorlib import Chunk, Column, write_examples
        >>> folder = tempfile.mkdtemp() + "/examples"
        >>> _ = write_examples(Chunk({"x": np.arange(5), "y": np.ones(5)}), folder)
        >>> schema = Schema([Column("x", "categorical"), Column("y", "label", "float32")])
        >>> [len(label) for _, label in parsed_batches(folder, 2, schema)]
        [2, 2, 1]
    """
    import tensorflow as tf

    chosen = ReadOptions(**options)
    features = parsing_features(schema)
    records = _records(record_files(files, EXAMPLES, schema), chosen)
    batches = records.batch(batch_size, drop_remainder=chosen.drop_last).map(
        lambda rows: as_batch(tf.io.parse_example(rows, features), schema),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return batches.prefetch(tf.data.AUTOTUNE)


def _records(paths: list[str], options: ReadOptions) -> Any:
    """Return the records of all files, one by one, in the order asked for."""
    import tensorflow as tf

    if not options.shuffle:
        return tf.data.TFRecordDataset(paths)
    names = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed=options.seed)
    parallel = None if options.seed is not None else tf.data.AUTOTUNE
    records = tf.data.TFRecordDataset(names, num_parallel_reads=parallel)
    return records.shuffle(options.shuffle_buffer, seed=options.seed)


def prebatched_dataset(folder: str | os.PathLike[str], schema: Schema) -> Any:
    """Return the batches that `write_prebatched` wrote, in the order in which it wrote them.

    Args:
        folder: folder that `write_prebatched` wrote.
        schema: what to read; other columns are not decoded.

    Returns:
        `tf.data.Dataset` of (inputs, labels) or (inputs, labels, weights), as `parsed_batches`,
        with integers as wide as they were in the Parquet files (int32 or int64). Its cardinality
        is known, so `.shuffle(len(dataset))` puts the batches in random order.

    Raises:
        FileNotFoundError: if the folder is not there or was not written by this package.
        ValueError: if it holds another form, or lacks columns of the schema.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tutorlib import Chunk, Column, write_prebatched
        >>> folder = tempfile.mkdtemp() + "/prebatched"
        >>> _ = write_prebatched(Chunk({"x": np.arange(5), "y": np.ones(5)}), folder, batch_size=2)
        >>> schema = Schema([Column("x", "categorical"), Column("y", "label", "float32")])
        >>> [len(label) for _, label in prebatched_dataset(folder, schema)]
        [2, 2, 1]
    """
    import tensorflow as tf

    metadata = metadata_of(folder, PREBATCHED, schema)
    dtypes: dict[str, tf.DType] = {}
    for column in schema:
        stored = tf.as_dtype(stored_dtype(metadata["columns"][column.name][0]))
        if column.multi_hot:
            dtypes |= {f"{column.name}__values": stored, f"{column.name}__nnzs": tf.int32}
        else:
            dtypes[column.name] = stored
    features = {key: tf.io.FixedLenFeature([], tf.string) for key in dtypes}

    def decode(record: Any) -> Any:
        raw = tf.io.parse_single_example(record, features)
        flat = {key: tf.io.decode_raw(raw[key], dtype) for key, dtype in dtypes.items()}
        return as_batch({key: values[:, None] for key, values in flat.items()}, schema)

    records = tf.data.TFRecordDataset(record_files(folder, PREBATCHED, schema))
    batches = records.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return with_length(batches, metadata["rows"], metadata["batch_size"], drop_last=False)


def with_length(batches: Any, rows: int, batch_size: int, *, drop_last: bool) -> Any:
    """Tell a dataset of batches how many it gives, and make it read ahead."""
    import tensorflow as tf

    steps = rows // batch_size if drop_last else -(-rows // batch_size)
    counted = batches.apply(tf.data.experimental.assert_cardinality(steps))
    return counted.prefetch(tf.data.AUTOTUNE)
