"""Readers of raw cells, which need no parsing: every row has its numbers at the same offsets.

`FixedLengthRecordDataset` cuts the file into rows, or into whole batches if their order does not
matter, and `decode_raw` reinterprets the bytes. Integers are int32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfrecords.metadata import (
    CELL_BYTES,
    RAW,
    RAW_BATCHES,
    Folder,
    cell_dtype,
    cells_file,
    metadata_of,
)
from tfrecords.readers import ReadOptions, as_batch, targets_of, with_length
from tutorlib.checks import check_positive
from tutorlib.schema import Schema

ROLE_DTYPES = {"categorical": "int32", "continuous": "float32"}  # what stacked batches hold


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
        `tf.data.Dataset` of (inputs, labels) or (inputs, labels, weights), int32 and float32
        [batch, 1], weights [batch]. Its cardinality is known.

    Raises:
        FileNotFoundError: if the folder does not exist or no writer of this package wrote it.
        ValueError: if the folder has another form, lacks columns of the schema, or was cut off.
    """
    metadata = metadata_of(folder, RAW, schema)

    def decode(cells: Any) -> Any:  # int32 [batch, columns]
        import tensorflow as tf

        by_column = tf.reshape(tf.transpose(cells), [len(metadata["columns"]), -1, 1])
        return as_batch(_typed(by_column, metadata), schema)

    return _batches_of_rows(folder, metadata, batch_size, decode, ReadOptions(**options))


def raw_stacked(folder: Folder, batch_size: int, schema: Schema, **options: Any) -> Any:
    """Return batches of raw cells with one tensor of ids and one of numbers.

    They equal those of `KerasSequenceLoader(batch_layout="stacked")`. Columns of a role that are
    next to each other in the file are copied together.

    Args:
        folder: folder that `write_raw` wrote.
        batch_size: rows per batch, at least 1.
        schema: columns to read, none of them multi-hot.
        options: those of `ReadOptions`.

    Returns:
        `tf.data.Dataset` of ({"categorical": int32 [batch, n], "continuous": float32 [batch, m]},
        labels), and weights if there are any; a role without columns has no tensor. Its cardinality
        is known.

    Raises:
        FileNotFoundError: as `raw_columns`.
        ValueError: as `raw_columns`, and if a categorical column is floating point or a continuous
            one holds integers.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tfrecords import write_raw
        >>> from tutorlib import Chunk, Column
        >>> folder, ids = tempfile.mkdtemp() + "/raw", np.arange(5)
        >>> _ = write_raw(Chunk({"C1": ids, "C2": ids, "label": np.ones(5)}), folder)
        >>> roles = {"C1": "categorical", "C2": "categorical", "label": "label"}
        >>> schema = Schema(Column(name, role) for name, role in roles.items())
        >>> inputs, label = next(iter(raw_stacked(folder, 2, schema, shuffle=False)))
        >>> inputs["categorical"].numpy().tolist(), label.numpy().tolist()
        ([[0, 0], [1, 1]], [[1.0], [1.0]])
    """
    metadata = metadata_of(folder, RAW, schema)
    order = list(metadata["columns"])
    names = {role: schema.with_role(role).names for role in ROLE_DTYPES}
    _check_roles(metadata, names)

    def decode(cells: Any) -> Any:  # int32 [batch, columns]
        import tensorflow as tf

        inputs = {
            role: _columns(cells, [order.index(name) for name in members])
            for role, members in names.items()
            if members
        }
        if "continuous" in inputs:
            inputs["continuous"] = tf.bitcast(inputs["continuous"], tf.float32)
        targets = {
            column.name: tf.bitcast(
                _columns(cells, [order.index(column.name)]), _dtype(metadata, column.name)
            )
            for column in schema
            if column.role not in ROLE_DTYPES
        }
        return inputs, *targets_of(targets, schema)

    return _batches_of_rows(folder, metadata, batch_size, decode, ReadOptions(**options))


def raw_batches(folder: Folder, schema: Schema) -> Any:
    """Return the batches that `write_raw_batches` wrote, in their order; reading is only copying.

    Args:
        folder: folder that `write_raw_batches` wrote.
        schema: columns to read, none of them multi-hot.

    Returns:
        As `raw_columns`, which also raises the same errors.
    """
    metadata = metadata_of(folder, RAW_BATCHES, schema)

    def decode(record: Any) -> Any:
        import tensorflow as tf

        cells = tf.io.decode_raw(record, tf.int32)
        by_column = tf.reshape(cells, [len(metadata["columns"]), -1, 1])
        return as_batch(_typed(by_column, metadata), schema)

    return _whole_batches(folder, metadata, metadata["batch_size"], decode, drop_last=False)


def _batches_of_rows(
    folder: Folder,
    metadata: Mapping[str, Any],
    batch_size: int,
    decode: Callable[[Any], Any],
    options: ReadOptions,
) -> Any:
    """Return batches of cells that are stored row by row, decoded from int32 [batch, columns]."""
    import tensorflow as tf

    check_positive(batch_size=batch_size)
    width = len(metadata["columns"])

    def decode_bytes(data: Any) -> Any:  # a record with a batch, or the records of its rows
        return decode(tf.reshape(tf.io.decode_raw(data, tf.int32), [-1, width]))

    if not options.shuffle:
        return _whole_batches(
            folder, metadata, batch_size, decode_bytes, drop_last=options.drop_last
        )
    rows = tf.data.FixedLengthRecordDataset(cells_file(folder, metadata), width * CELL_BYTES)
    batches = (
        rows.shuffle(options.shuffle_buffer, seed=options.seed)
        .batch(batch_size, drop_remainder=options.drop_last)
        .map(decode_bytes, num_parallel_calls=tf.data.AUTOTUNE)
    )
    return with_length(batches, metadata["rows"], batch_size, drop_last=options.drop_last)


def _whole_batches(
    folder: Folder,
    metadata: Mapping[str, Any],
    batch_size: int,
    decode: Callable[[Any], Any],
    *,
    drop_last: bool,
) -> Any:
    """Return batches decoded from a record each; the rows left at the end are the last record."""
    import tensorflow as tf

    path, row_bytes = cells_file(folder, metadata), len(metadata["columns"]) * CELL_BYTES
    batch_bytes, rest_bytes = batch_size * row_bytes, metadata["rows"] % batch_size * row_bytes
    records = tf.data.FixedLengthRecordDataset(path, batch_bytes, footer_bytes=rest_bytes)
    if rest_bytes and not drop_last:
        full_bytes = metadata["rows"] * row_bytes - rest_bytes
        rest = tf.data.FixedLengthRecordDataset(path, rest_bytes, header_bytes=full_bytes)
        records = records.concatenate(rest)
    batches = records.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return with_length(batches, metadata["rows"], batch_size, drop_last=drop_last)


def _dtype(metadata: Mapping[str, Any], name: str) -> Any:
    import tensorflow as tf

    return tf.as_dtype(cell_dtype(metadata["columns"][name][0]))


def _typed(by_column: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return int32 [columns, batch, 1] as {name: tensor of the column's dtype}."""
    import tensorflow as tf

    parts = tf.unstack(by_column, num=len(metadata["columns"]))
    return {
        name: tf.bitcast(part, _dtype(metadata, name))
        for name, part in zip(metadata["columns"], parts, strict=True)
    }


def _columns(cells: Any, positions: Sequence[int]) -> Any:
    """Return some columns of int32 [batch, columns]: a slice if they are next to each other."""
    import tensorflow as tf

    first, count = positions[0], len(positions)
    if list(positions) == list(range(first, first + count)):
        return cells[:, first : first + count]
    return tf.gather(cells, positions, axis=1)


def _check_roles(metadata: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError if the cells of a column have another dtype than its role has."""
    for role, dtype in ROLE_DTYPES.items():
        wrong = [n for n in names[role] if cell_dtype(metadata["columns"][n][0]).name != dtype]
        if wrong:
            raise ValueError(
                f"columns {wrong} are {role}, which is {dtype} in stacked batches, but they were "
                "written as the other type. Use raw_columns, or cast them before writing."
            )
