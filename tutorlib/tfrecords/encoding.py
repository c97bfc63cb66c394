"""Rows as the bytes of a record: a message a row, a message a batch, or bare cells.

Does not belong here: files (`writers.py`), how a message is encoded (`wire.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tutorlib.chunk import Chunk, Ragged, Strings
from tutorlib.tfrecords.metadata import cell_dtype, stored_dtype
from tutorlib.tfrecords.wire import Template, padded, varints

BLOCK_BYTES = 1 << 25  # of rows encoded at a time, at most: long lists come in smaller blocks

# Wire format: tag = field number * 8 + wire type; all fields here are length-delimited (type 2).
_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"


def encode_examples(chunk: Chunk) -> Iterator[bytes]:
    """Yield each row as a serialized `tf.train.Example`, features in the order of their names.

    Parsed, it equals what `Example.SerializeToString` would have written; the order of the features
    in the bytes, which has no meaning, may differ.

    Args:
        chunk: rows; no nulls. A column is an array, `Strings`, or `Ragged` of these.

    Returns:
        Iterator of `chunk.num_rows` bytes objects.

    Example:
        >>> next(encode_examples(Chunk({"a": np.array([300])}))).hex(" ")
        '0a 0d 0a 0b 0a 01 61 12 06 1a 04 0a 02 ac 02'

    Source: protobuf.dev/programming-guides/encoding.
    """
    rows = chunk.num_rows
    if rows > 1 and rows * sum(_row_bytes(column) for column in chunk.values()) > BLOCK_BYTES:
        for part in (chunk.slice(0, rows // 2), chunk.slice(rows // 2, rows)):
            yield from encode_examples(part)
        return
    features = Template(rows)
    for name in sorted(chunk, key=str.encode):
        key = Template(rows).constant(name.encode()).nested(_FIELD_1)
        value = _feature(chunk[name]).nested(_FIELD_2)
        features.extend(key.extend(value).nested(_FIELD_1))
    flat, ends = features.nested(_FIELD_1).bytes()
    data, start = flat.tobytes(), 0
    for end in ends.tolist():
        yield data[start:end]
        start = end


def _row_bytes(column: Any) -> int:
    """Return an upper limit for the bytes of one row of a column, without its name."""
    if isinstance(column, Ragged):
        return _row_bytes(column.values) * int(np.diff(column.offsets).max(initial=0)) + 16
    if isinstance(column, Strings):
        return int(np.diff(column.offsets).max(initial=0)) + 10
    return 16


def _feature(column: Any) -> Template:
    """Return the `Feature` messages of a column: a bytes, float or int64 list a row."""
    values = column.values if isinstance(column, Ragged) else column
    elements, field, packed = _elements(values)
    if isinstance(column, Ragged):
        flat, ends = elements.bytes()
        starts = np.concatenate([[0], ends])[column.offsets]
        elements = padded(flat, starts)
    if packed:
        elements = elements.nested(_FIELD_1, unless_empty=True)
    return elements.nested(field)


def _elements(values: Any) -> tuple[Template, bytes, bool]:
    """Return (one element a row, tag of its kind of list, whether elements are packed)."""
    if isinstance(values, Strings):
        return padded(values.data, values.offsets).nested(_FIELD_1), _FIELD_1, False
    template = Template(len(values))
    if values.dtype.kind == "f":
        raw = np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(-1, 4)
        return template.varying(raw, None, 4), _FIELD_2, True
    return template.varying(*varints(values)), _FIELD_3, True


def encode_batch(chunk: Chunk) -> bytes:
    """Return a batch as one serialized `tf.train.Example`: a bytes value for each column.

    Args:
        chunk: rows of the batch; no nulls, no text.

    Returns:
        The record; lists as `NAME__values` and `NAME__nnzs` (int32).

    Example:
        >>> record = encode_batch(Chunk({"a": np.array([1, 2], np.int32)}))
        >>> record.hex(" ")
        '0a 13 0a 11 0a 01 61 12 0c 0a 0a 0a 08 01 00 00 00 02 00 00 00'
    """
    message = Template(1)
    for name, column in sorted(_flat(chunk).items(), key=lambda item: item[0].encode()):
        raw = np.ascontiguousarray(column, stored_dtype(column.dtype)).tobytes()
        key = Template(1).constant(name.encode()).nested(_FIELD_1)
        value = Template(1).constant(raw).nested(_FIELD_1).nested(_FIELD_1).nested(_FIELD_2)
        message.extend(key.extend(value).nested(_FIELD_1))
    return b"".join(message.nested(_FIELD_1).parts)


def _flat(chunk: Chunk) -> dict[str, np.ndarray]:
    """Return the arrays of a chunk, those of a list by the names that they have in a batch."""
    arrays = {}
    for name, column in chunk.items():
        if isinstance(column, Ragged):
            nnzs = np.diff(column.offsets).astype(np.int32)
            arrays |= {f"{name}__values": column.values, f"{name}__nnzs": nnzs}
        else:
            arrays[name] = column
    return arrays


def encode_cells(chunk: Chunk) -> np.ndarray:
    """Return rows as 4-byte cells, column by column; float32 by their bits.

    Args:
        chunk: rows; arrays only, integers within int32.

    Returns:
        int32 [columns, rows].

    Example:
        >>> encode_cells(Chunk({"a": np.array([7, 8]), "b": np.array([0.0, 1.0])})).tolist()
        [[7, 8], [0, 1065353216]]
    """
    cells = [np.ascontiguousarray(v, cell_dtype(v.dtype)).view("<i4") for v in chunk.values()]
    return np.stack(cells)
