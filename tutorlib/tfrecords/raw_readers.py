"""Readers of raw cells: no parsing, for every row has its numbers at the same places.

`FixedLengthRecordDataset` cuts the file into rows, or straight into batches where their order does
not matter; `decode_raw` calls the bytes numbers. Integers come as int32. Does not belong here:
TFRecord (`readers.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tutorlib.schema import Schema
from tutorlib.tfrecords.batches import as_batch, targets_of
from tutorlib.tfrecords.metadata import (
    CELL_BYTES,
    RAW,
    RAW_BATCHES,
    cell_dtype,
    cells_file,
    metadata_of,
)
from tutorlib.tfrecords.readers import ReadOptions, with_length
from tutorlib.tfrecords.writing import positive

Folder = str | os.PathLike[str]


def raw_columns(folder: Folder, batch_size: int, schema: Schema, **options: Any) -> Any:
    """Return batches of raw cells, a tensor for each column.

    Shuffled, each row is a record of its own that goes through tf.data's window, which is what
    takes the time. Not shuffled, a record is a whole batch.

    Args:
        folder: folder that `write_raw` wrote.
        batch_size: rows of a batch.
        schema: what to read; no multi-hot column.
        options: those of `ReadOptions`.

    Returns:
        `tf.data.Dataset` of (inputs, labels) or (inputs, labels, weights), int32 and float32
        [batch, 1], weights [batch]. Its cardinality is known.

    Raises:
        FileNotFoundError: if the folder is not there or was not written by this package.
        ValueError: if it holds another form, lacks columns, or was cut off.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tutorlib import Chunk, Column, write_raw
        >>> folder = tempfile.mkdtemp() + "/raw"
        >>> _ = write_raw(Chunk({"x": np.arange(5), "y": np.ones(5)}), folder)
        >>> schema = Schema([Column("x", "categorical"), Column("y", "label", "float32")])
        >>> [len(label) for _, label in raw_columns(folder, 2, schema)]
        [2, 2, 1]
    """

    def decode(cells: Any, metadata: Mapping[str, Any]) -> Any:  # int32 [batch, columns]
        import tensorflow as tf

        by_column = tf.reshape(tf.transpose(cells), [len(metadata["columns"]), -1, 1])
        return as_batch(_named(by_column, metadata), schema)

    return _batches_of_rows(folder, batch_size, schema, decode, ReadOptions(**options))


def raw_stacked(folder: Folder, batch_size: int, schema: Schema, **options: Any) -> Any:
    """Return stacked batches of raw cells: one tensor of ids and one of numbers.

    They are the batches of `KerasSequenceLoader(batch_layout="stacked")`. Columns of a role that
    stand side by side in the file are copied together.

    Args:
        folder: folder that `write_raw` wrote.
        batch_size: rows of a batch.
        schema: what to read; no multi-hot column.
        options: those of `ReadOptions`.

    Returns:
        `tf.data.Dataset` of ({"categorical": int32 [batch, n], "continuous": float32 [batch, m]},
        labels) and weights, if there are any; a role without columns has no tensor. Its cardinality
        is known.

    Raises:
        FileNotFoundError: if the folder is not there or was not written by this package.
        ValueError: if it holds another form, lacks columns, or was cut off; if ids are floating
            point, or numbers are integers.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tutorlib import Chunk, Column, write_raw
        >>> folder, ids = tempfile.mkdtemp() + "/raw", np.arange(5)
        >>> _ = write_raw(Chunk({"C1": ids, "C2": ids, "label": np.ones(5)}), folder)
        >>> roles = {"C1": "categorical", "C2": "categorical", "label": "label"}
        >>> schema = Schema(Column(name, role) for name, role in roles.items())
        >>> inputs, label = next(iter(raw_stacked(folder, 2, schema, shuffle=False)))
        >>> inputs["categorical"].numpy().tolist(), label.numpy().tolist()
        ([[0, 0], [1, 1]], [[1.0], [1.0]])
    """
    names = {role: schema.with_role(role).names for role in ("categorical", "continuous")}
    others = [column.name for column in schema if column.role not in names]
    _check_roles(metadata_of(folder, RAW, schema), names)

    def decode(cells: Any, metadata: Mapping[str, Any]) -> Any:  # int32 [batch, columns]
        import tensorflow as tf

        order = list(metadata["columns"])
        groups = {
            role: _columns(cells, [order.index(name) for name in members])
            for role, members in names.items()
            if members
        }
        if "continuous" in groups:
            groups["continuous"] = tf.bitcast(groups["continuous"], tf.float32)
        rest = {name: _columns(cells, [order.index(name)]) for name in others}
        typed = {name: tf.bitcast(part, _cell_type(metadata, name)) for name, part in rest.items()}
        return groups, *targets_of(typed, schema)

    return _batches_of_rows(folder, batch_size, schema, decode, ReadOptions(**options))


def raw_batches(folder: Folder, schema: Schema) -> Any:
    """Return the batches that `write_raw_batches` wrote, in their order: only copies.

    Args:
        folder: folder that `write_raw_batches` wrote.
        schema: what to read; no multi-hot column.

    Returns:
        As `raw_columns`.

    Raises:
        FileNotFoundError: if the folder is not there or was not written by this package.
        ValueError: if it holds another form, lacks columns, or was cut off.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tutorlib import Chunk, Column, write_raw_batches
        >>> folder = tempfile.mkdtemp() + "/raw"
        >>> _ = write_raw_batches(Chunk({"x": np.arange(5), "y": np.ones(5)}), folder, batch_size=2)
        >>> schema = Schema([Column("x", "categorical"), Column("y", "label", "float32")])
        >>> [len(label) for _, label in raw_batches(folder, schema)]
        [2, 2, 1]
    """
    metadata = metadata_of(folder, RAW_BATCHES, schema)

    def decode(record: Any) -> Any:
        import tensorflow as tf

        cells = tf.io.decode_raw(record, tf.int32)
        by_column = tf.reshape(cells, [len(metadata["columns"]), -1, 1])
        return as_batch(_named(by_column, metadata), schema)

    return _whole_batches(
        folder, metadata, metadata["batch_size"], decode, ReadOptions(shuffle=False)
    )


def _batches_of_rows(
    folder: Folder,
    batch_size: int,
    schema: Schema,
    decode: Callable[[Any, Mapping[str, Any]], Any],
    options: ReadOptions,
) -> Any:
    """Return decoded batches of a file that lies row by row."""
    import tensorflow as tf

    positive(batch_size=batch_size)
    metadata = metadata_of(folder, RAW, schema)
    width = len(metadata["columns"])

    def cells(bytes_of: Any) -> Any:  # one record of a batch, or the records of its rows
        return decode(tf.reshape(tf.io.decode_raw(bytes_of, tf.int32), [-1, width]), metadata)

    if not options.shuffle:
        return _whole_batches(folder, metadata, batch_size, cells, options)
    path = cells_file(folder, metadata)
    rows = tf.data.FixedLengthRecordDataset(path, width * CELL_BYTES)
    batches = (
        rows.shuffle(options.shuffle_buffer, seed=options.seed)
        .batch(batch_size, drop_remainder=options.drop_last)
        .map(cells, num_parallel_calls=tf.data.AUTOTUNE)
    )
    return with_length(batches, metadata["rows"], batch_size, drop_last=options.drop_last)


def _whole_batches(
    folder: Folder,
    metadata: Mapping[str, Any],
    batch_size: int,
    decode: Callable[[Any], Any],
    options: ReadOptions,
) -> Any:
    """Return decoded records of a batch each; what is left at the end is a record of its own."""
    import tensorflow as tf

    path, row_bytes = cells_file(folder, metadata), len(metadata["columns"]) * CELL_BYTES
    rest = metadata["rows"] % batch_size
    full = metadata["rows"] - rest

    def records(rows: int, skip: int, leave: int) -> Any:
        return tf.data.FixedLengthRecordDataset(
            path,
            record_bytes=rows * row_bytes,
            header_bytes=skip * row_bytes,
            footer_bytes=leave * row_bytes,
        )

    parts = [records(batch_size, 0, rest)] if full else []
    if rest and not options.drop_last:
        parts.append(records(rest, full, 0))
    if not parts:
        parts = [tf.data.Dataset.from_tensor_slices(tf.zeros([0], tf.string))]
    joined = parts[0] if len(parts) == 1 else parts[0].concatenate(parts[1])
    batches = joined.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return with_length(batches, metadata["rows"], batch_size, drop_last=options.drop_last)


def _cell_type(metadata: Mapping[str, Any], name: str) -> Any:
    import tensorflow as tf

    return tf.as_dtype(cell_dtype(metadata["columns"][name][0]))


def _named(by_column: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return int32 [columns, batch, 1] as {name: tensor of its type}."""
    import tensorflow as tf

    parts = tf.unstack(by_column, num=len(metadata["columns"]))
    return {
        name: tf.bitcast(part, _cell_type(metadata, name))
        for name, part in zip(metadata["columns"], parts, strict=True)
    }


def _columns(cells: Any, positions: Sequence[int]) -> Any:
    """Return some columns of int32 [batch, columns]: a slice where they stand side by side."""
    import tensorflow as tf

    first, count = positions[0], len(positions)
    if list(positions) == list(range(first, first + count)):
        return cells[:, first : first + count]
    return tf.gather(cells, positions, axis=1)


def _check_roles(metadata: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> None:
    wanted = {"categorical": "int32", "continuous": "float32"}
    for role, members in names.items():
        wrong = [n for n in members if cell_dtype(metadata["columns"][n][0]).name != wanted[role]]
        if wrong:
            raise ValueError(
                f"columns {wrong} are {role}, of which stacked batches hold {wanted[role]}, but "
                "they were written as the other type. Use raw_columns, or cast them beforehand."
            )
