"""Rows as bytes: one protocol buffer per row or per batch, or 4-byte cells.

The messages of all rows have the same structure, so a block of rows is encoded as a matrix of bytes
with a mask of those that belong to a message. `tf.io.encode_proto` writes the same bytes, 13 times
slower (40 columns, one core).

Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfrecords.metadata import cell_dtype, stored_dtype
from tutorlib.columns import Chunk, Ragged

ALL = np.ones((1, 1), bool)  # the mask of a matrix whose bytes all belong to their messages

# Wire format: tag = field number * 8 + wire type; all fields here are length-delimited (type 2).
_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"


def encode_examples(chunk: Chunk) -> Iterator[bytes]:
    """Yield each row as a serialized `tf.train.Example`.

    The features are sorted by name. `Example.SerializeToString` writes them in an order of its own,
    which has no meaning; a parser reads the same example from both.

    Args:
        chunk: rows without nulls. A column is an array of numbers, or `Ragged`.

    Yields:
        `chunk.num_rows` records.

    Example:
        >>> next(encode_examples(Chunk({"a": np.array([300])}))).hex(" ")
        '0a 0d 0a 0b 0a 01 61 12 06 1a 04 0a 02 ac 02'
    """
    features = _constant(b"")
    for name in sorted(chunk, key=str.encode):
        key = _field(_FIELD_1, _constant(name.encode()))
        features += _field(_FIELD_1, key + _field(_FIELD_2, _feature(chunk[name])))
    flat, ends = _joined(_field(_FIELD_1, features), chunk.num_rows)
    data, start = flat.tobytes(), 0
    for end in ends.tolist():
        yield data[start:end]
        start = end


def encode_batch(chunk: Chunk) -> bytes:
    """Return a batch without nulls as one `tf.train.Example`, a bytes value per column.

    A multi-hot column is stored as `NAME__values` and `NAME__nnzs` (int32).
    """
    arrays: dict[str, np.ndarray] = {}
    for name, column in chunk.items():
        if isinstance(column, Ragged):
            nnzs = np.diff(column.offsets).astype(np.int32)
            arrays |= {f"{name}__values": column.values, f"{name}__nnzs": nnzs}
        else:
            arrays[name] = column
    features = _constant(b"")
    for name in sorted(arrays, key=str.encode):
        array = arrays[name]
        raw = _constant(np.ascontiguousarray(array, stored_dtype(array.dtype)).tobytes())
        key = _field(_FIELD_1, _constant(name.encode()))
        value = _field(_FIELD_2, _field(_FIELD_1, _field(_FIELD_1, raw)))
        features += _field(_FIELD_1, key + value)
    return b"".join(part for part in _field(_FIELD_1, features).parts if isinstance(part, bytes))


def encode_cells(chunk: Chunk) -> np.ndarray:
    """Return the rows as 4-byte cells, int32 [columns, rows]; a float32 keeps its bits."""
    cells = [np.ascontiguousarray(v, cell_dtype(v.dtype)).view("<i4") for v in chunk.values()]
    return np.stack(cells)


# ---- columns as messages ------------------------------------------------------------------------


def _feature(column: Any) -> _Messages:
    """Return a column as `Feature` messages: a float or int64 list per row."""
    values = column.values if isinstance(column, Ragged) else column
    elements, kind = _elements(values)
    if isinstance(column, Ragged):
        flat, ends = _joined(elements, len(values))
        elements = _slices(flat, np.concatenate([[0], ends])[column.offsets])
    return _field(kind, _field(_FIELD_1, elements, omit_empty=True))


def _elements(values: np.ndarray) -> tuple[_Messages, bytes]:
    """Return (a message per value, the tag of their kind of list)."""
    if values.dtype.kind == "f":
        raw = np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(-1, 4)
        return _Messages([(raw, ALL)], 4), _FIELD_2
    digits, mask, lengths = _varints(values)
    return _Messages([(digits, mask)], lengths), _FIELD_3


# ---- messages, all rows at a time ---------------------------------------------------------------


@dataclass(frozen=True)
class _Messages:
    """A message per row, all of the same structure.

    Attributes:
        parts: in their order, bytes that all messages share, or (uint8 [rows, width], mask). The
            mask broadcasts to [rows, width] and is true where a byte belongs to the message.
        length: bytes per message: an int if equal for all, else int64 [rows].
    """

    parts: list[bytes | tuple[np.ndarray, np.ndarray]]
    length: int | np.ndarray

    def __add__(self, other: _Messages) -> _Messages:
        return _Messages(self.parts + other.parts, self.length + other.length)


def _constant(data: bytes) -> _Messages:
    return _Messages([data], len(data))


def _slices(flat: np.ndarray, offsets: np.ndarray) -> _Messages:
    """Return flat[offsets[i]:offsets[i + 1]] as message i."""
    lengths = np.diff(offsets)
    width = int(lengths.max(initial=0))
    mask = np.arange(width) < lengths[:, None]
    data = np.zeros(mask.shape, np.uint8)
    data[mask] = flat[offsets[0] : offsets[-1]]
    return _Messages([(data, mask)], lengths)


def _field(tag: bytes, messages: _Messages, *, omit_empty: bool = False) -> _Messages:
    """Return messages as a field of others: tag, length, message.

    `omit_empty` leaves out the tag and length of an empty message, as packed lists do.
    """
    length = messages.length
    if isinstance(length, int):
        if omit_empty and not length:
            return messages
        return _constant(tag + _varint(length)) + messages
    digits, mask, lengths = _varints(length)
    filled = length > 0
    if omit_empty and not filled.all():
        tags = np.full((len(filled), 1), tag[0], np.uint8)
        parts = [(tags, filled[:, None]), (digits, mask & filled[:, None])]
        return _Messages([*parts], (1 + lengths) * filled) + messages
    return _constant(tag) + _Messages([(digits, mask)], lengths) + messages


def _joined(messages: _Messages, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (uint8: the messages of all rows one after the other, int64 [rows]: their ends)."""
    row = b"".join(p if isinstance(p, bytes) else bytes(p[0].shape[1]) for p in messages.parts)
    data = np.empty((rows, len(row)), np.uint8)
    data[:] = np.frombuffer(row, np.uint8)
    mask = np.ones(data.shape, bool)
    start = 0
    for part in messages.parts:
        stop = start + (len(part) if isinstance(part, bytes) else part[0].shape[1])
        if not isinstance(part, bytes):
            data[:, start:stop], mask[:, start:stop] = part
        start = stop
    return data[mask], np.cumsum(np.broadcast_to(messages.length, rows))


# ---- integers in base 128, lowest digit first; the top bit is set on all digits but the last ----


def _varint(number: int) -> bytes:
    """Return an integer of at least 0 in base 128: 300 is ac 02."""
    digits = []
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def _varints(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return (digits in base 128 uint8 [n, width], mask of those that belong to a number, count).

    A negative number is its 64-bit two's complement, ten digits. The count is an int if it is equal
    for all numbers, else int64 [n].
    """
    rest = np.asarray(numbers).astype(np.int64).view(np.uint64)
    largest = int(rest.max(initial=0))
    if largest < 128:
        return rest.astype(np.uint8)[:, None], ALL, 1
    if largest < 2**32:
        rest = rest.astype(np.uint32)  # half the bytes to move
    width = -(-largest.bit_length() // 7)
    digits = np.empty((width, len(rest)), np.uint8)
    mask = np.ones((width, len(rest)), bool)
    for position in range(width):
        if position:
            np.not_equal(rest, 0, out=mask[position])
            digits[position - 1] |= mask[position].view(np.uint8) << 7
        digits[position] = rest & rest.dtype.type(0x7F)
        rest = rest >> rest.dtype.type(7)
    return digits.T, mask.T, mask.sum(axis=0)
