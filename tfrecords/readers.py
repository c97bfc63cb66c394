"""Readers of TFRecord files, from TensorFlow's ready-made one to prebatched records, and of cells.

Each returns one epoch of the batches of `KerasSequenceLoader`: (inputs, labels), where inputs is a
dict of [batch, 1] tensors; a multi-hot column g is `g__values` [nnz, 1] and `g__nnzs` int32
[batch, 1]. Integers are int64 and floating point is float32, because an example has no other types;
prebatched records keep int32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrecords.metadata import (
    CELL_BYTES,
    Files,
    Folder,
    cell_dtype,
    cells_file,
    metadata_of,
    record_files,
    stored_dtype,
)
from tutorlib.checks import check_positive
from tutorlib.schema import Column, Schema


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """Options that every reader which forms its own batches takes by name.

    Args:
        shuffle: whether files and rows come in random order.
        shuffle_buffer: rows of the window in which they are shuffled, at least 1.
        seed: seed of the order; None gives another order each time.
        drop_last: whether to drop the last batch if it is not full.

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
        check_positive(shuffle_buffer=self.shuffle_buffer)


def native_dataset(files: Files, batch_size: int, schema: Schema, **options: Any) -> Any:
    """Return the pipeline of TensorFlow's guides: `make_batched_features_dataset`.

    This is the baseline of the comparisons, with its own defaults: files in random order, one
    reader thread, rows shuffled within a window.

    Args:
        files: folder that `write_examples` wrote, TFRecord file, glob pattern, or list of these.
        batch_size: rows per batch, at least 1.
        schema: columns to read, with exactly one label and no weight, as for every reader.
        options: those of `ReadOptions`.

    Returns:
        `tf.data.Dataset` of one epoch of (inputs, label).

    Raises:
        FileNotFoundError: if there is no file.
        ValueError: if the schema has a weight, or not exactly one label, or columns that the folder
            lacks.

    Example:
        >>> import tempfile
        >>> from tfrecords import write_examples
        >>> from tutorlib import Chunk
        >>> folder = tempfile.mkdtemp() + "/examples"
        >>> _ = write_examples(Chunk({"C1": np.arange(5), "y": np.ones(5)}), folder)
        >>> schema = Schema([Column("C1", "categorical"), Column("y", "label", "float32")])
        >>> inputs, label = next(iter(native_dataset(folder, 4, schema)))
        >>> inputs["C1"].shape, label.shape
        (TensorShape([4, 1]), TensorShape([4, 1]))

    Source: tensorflow.org/api_docs/python/tf/data/experimental/make_batched_features_dataset.
    """
    chosen = ReadOptions(**options)
    dataset = tf.data.experimental.make_batched_features_dataset(
        record_files(files, "examples", schema),
        batch_size,
        _parsing_features(schema),
        reader=tf.data.TFRecordDataset,
        label_key=_label(schema),
        num_epochs=1,
        shuffle=chosen.shuffle,
        shuffle_buffer_size=chosen.shuffle_buffer,
        shuffle_seed=chosen.seed,
        prefetch_buffer_size=tf.data.AUTOTUNE,
        drop_final_batch=chosen.drop_last,
    )
    if not any(column.multi_hot for column in schema):
        return dataset
    return dataset.map(lambda features, label: (_inputs(features, schema), label))


def parsed_batches(files: Files, batch_size: int, schema: Schema, **options: Any) -> Any:
    """Return the same batches from single `tf.data` steps: batch the records, then parse a batch.

    It calls `tf.io.parse_example` once per batch, on all cores (`num_parallel_calls=AUTOTUNE`). If
    the order is random and has no seed, it reads several files at the same time.

    Args:
        files: as for `native_dataset`.
        batch_size: rows per batch, at least 1.
        schema: columns to read.
        options: those of `ReadOptions`.

    Returns:
        `tf.data.Dataset` of one epoch of (inputs, label).

    Raises:
        FileNotFoundError, ValueError: if there is no file, or it lacks columns of the schema.
    """
    chosen = ReadOptions(**options)
    features = _parsing_features(schema)
    records = _records(record_files(files, "examples", schema), chosen)
    batches = records.batch(batch_size, drop_remainder=chosen.drop_last).map(
        lambda rows: as_batch(tf.io.parse_example(rows, features), schema),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return batches.prefetch(tf.data.AUTOTUNE)


def prebatched_dataset(folder: Folder, schema: Schema) -> Any:
    """Return the batches that `write_prebatched` wrote, in the order in which it wrote them.

    Args:
        folder: folder that `write_prebatched` wrote.
        schema: columns to read; the others are not decoded.

    Returns:
        `tf.data.Dataset` as `parsed_batches`, except that integers are int32 or int64, as wide as
        they were in the Parquet files. Its cardinality is known, so `.shuffle(len(dataset))` puts
        the batches in random order.

    Raises:
        FileNotFoundError: if the folder does not exist or no writer of this package wrote it.
        ValueError: if the folder has another form or lacks columns of the schema.
    """
    metadata = metadata_of(folder, "prebatched", schema)
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

    records = tf.data.TFRecordDataset(record_files(folder, "prebatched", schema))
    batches = records.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return with_length(batches, metadata["rows"], metadata["batch_size"], drop_last=False)


def _records(paths: list[str], options: ReadOptions) -> Any:
    """Return the records of all files, one by one, in the order asked for."""
    if not options.shuffle:
        return tf.data.TFRecordDataset(paths)
    names = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed=options.seed)
    parallel = None if options.seed is not None else tf.data.AUTOTUNE
    records = tf.data.TFRecordDataset(names, num_parallel_reads=parallel)
    return records.shuffle(options.shuffle_buffer, seed=options.seed)


# ---- raw cells, which need no parsing: each row has its numbers at the same offsets -------------


def raw_columns(folder: Folder, batch_size: int, schema: Schema, **options: Any) -> Any:
    """Return batches of raw cells with a tensor per column.

    With `shuffle`, each row is a record that goes through tf.data's window, which takes most of the
    time. Without, a record is a whole batch.

    Args:
        folder: folder that `write_raw` wrote.
        batch_size: rows per batch, at least 1.
        schema: columns to read, none of them multi-hot.
        options: those of `ReadOptions`.

    Returns:
        `tf.data.Dataset` of (inputs, label), int32 and float32 [batch, 1]. Its cardinality is
        known.

    Raises:
        FileNotFoundError: if the folder does not exist or no writer of this package wrote it.
        ValueError: if the folder has another form, lacks columns of the schema, or was cut off.
    """
    metadata = metadata_of(folder, "raw", schema)

    def decode(cells: Any) -> Any:  # int32 [batch, columns]
        by_column = tf.reshape(tf.transpose(cells), [len(metadata["columns"]), -1, 1])
        return as_batch(_typed(by_column, metadata), schema)

    return _batches_of_rows(folder, metadata, batch_size, decode, ReadOptions(**options))


def _batches_of_rows(
    folder: Folder, metadata: Mapping[str, Any], batch_size: int, decode: Any, options: ReadOptions
) -> Any:
    """Return batches of cells, decoded from int32 [batch, columns]."""
    check_positive(batch_size=batch_size)
    path, rows, width = cells_file(folder, metadata), metadata["rows"], len(metadata["columns"])
    row_bytes = width * CELL_BYTES

    def decode_bytes(data: Any) -> Any:  # a record with a batch, or the records of its rows
        return decode(tf.reshape(tf.io.decode_raw(data, tf.int32), [-1, width]))

    if options.shuffle:
        records = tf.data.FixedLengthRecordDataset(path, row_bytes)
        records = records.shuffle(options.shuffle_buffer, seed=options.seed)
        records = records.batch(batch_size, drop_remainder=options.drop_last)
    else:  # a record is a batch; the rows left at the end are the last record
        rest = rows % batch_size * row_bytes
        records = tf.data.FixedLengthRecordDataset(path, batch_size * row_bytes, footer_bytes=rest)
        if rest and not options.drop_last:
            full = rows * row_bytes - rest
            last = tf.data.FixedLengthRecordDataset(path, rest, header_bytes=full)
            records = records.concatenate(last)
    batches = records.map(decode_bytes, num_parallel_calls=tf.data.AUTOTUNE)
    return with_length(batches, rows, batch_size, drop_last=options.drop_last)


def _dtype(metadata: Mapping[str, Any], name: str) -> Any:
    return tf.as_dtype(cell_dtype(metadata["columns"][name][0]))


def _typed(by_column: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return int32 [columns, batch, 1] as {name: tensor of the column's dtype}."""
    parts = tf.unstack(by_column, num=len(metadata["columns"]))
    return {
        name: tf.bitcast(part, _dtype(metadata, name))
        for name, part in zip(metadata["columns"], parts, strict=True)
    }


# ---- what all readers share ---------------------------------------------------------------------


def _parsing_features(schema: Schema) -> dict[str, Any]:
    """Return the features that `tf.io.parse_example` needs: {name: type and shape}."""

    def dtype(column: Column) -> Any:
        return tf.float32 if np.dtype(column.dtype).kind == "f" else tf.int64

    return {
        column.name: tf.io.RaggedFeature(dtype(column), row_splits_dtype=tf.int32)
        if column.multi_hot
        else tf.io.FixedLenFeature([1], dtype(column))
        for column in schema
    }


def _label(schema: Schema) -> str:
    """Return the name of the label; refuse other numbers of labels, and weights."""
    labels, weights = schema.labels.names, schema.with_role("weight").names
    if len(labels) != 1 or weights:
        raise ValueError(
            "these readers take exactly one label and no weight, got labels "
            f"{labels} and weights {weights}. Select the columns, or use KerasSequenceLoader."
        )
    return labels[0]


def as_batch(features: Mapping[str, Any], schema: Schema) -> tuple[Any, Any]:
    """Return (inputs, label), as the loader does."""
    return _inputs(features, schema), features[_label(schema)]


def _inputs(features: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return the inputs of a batch: a list column as values and nnzs, the others unchanged."""
    inputs = {}
    for column in schema.features:
        values, nnzs = f"{column.name}__values", f"{column.name}__nnzs"
        if not column.multi_hot:
            inputs[column.name] = features[column.name]
        elif values in features:
            inputs |= {values: features[values], nnzs: features[nnzs]}
        else:
            ragged = features[column.name]
            inputs |= {values: ragged.values[:, None], nnzs: ragged.row_lengths()[:, None]}
    return inputs


def with_length(batches: Any, rows: int, batch_size: int, *, drop_last: bool) -> Any:
    """Return a dataset of batches that knows how many it gives, and prefetches."""
    steps = rows // batch_size if drop_last else -(-rows // batch_size)
    counted = batches.apply(tf.data.experimental.assert_cardinality(steps))
    return counted.prefetch(tf.data.AUTOTUNE)
