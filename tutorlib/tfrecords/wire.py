"""The protocol buffer encoding, for thousands of messages of the same build at once.

All rows have the same fields, so a row is a template in which only numbers and a few lengths
differ: it is filled for all rows as a matrix of bytes with a mask of those that count. Does not
belong here: what a `tf.train.Example` is (`encoding.py`).

Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Template:
    """Messages of the same build, one a row: constant bytes, and matrices of bytes with masks.

    Attributes:
        rows: number of messages.
        parts: bytes, or (uint8 [rows, width], bool [rows, width] of the bytes that count, or None
            if all do).
        length: bytes of each message: an int if all are equal, else int64 [rows].
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.parts: list[Any] = []
        self.length: Any = 0

    def constant(self, data: bytes) -> Template:
        """Append the same bytes to all messages; returns self."""
        if self.parts and isinstance(self.parts[-1], bytes):
            self.parts[-1] += data
        else:
            self.parts.append(data)
        self.length = self.length + len(data)
        return self

    def varying(self, data: np.ndarray, counts: np.ndarray | None, length: Any) -> Template:
        """Append a matrix of bytes, of which `length` a row count; returns self."""
        self.parts.append((data, counts))
        self.length = self.length + length
        return self

    def extend(self, other: Template) -> Template:
        """Append the parts of another template; returns self."""
        length = self.length + other.length
        for part in other.parts:
            self.constant(part) if isinstance(part, bytes) else self.varying(*part, 0)
        self.length = length
        return self

    def nested(self, tag: bytes, *, unless_empty: bool = False) -> Template:
        """Return the messages as a field: tag, length, message.

        Args:
            tag: of the field.
            unless_empty: leave out tag and length of an empty message, as packed lists do.
        """
        outer = Template(self.rows)
        if isinstance(self.length, int):
            there = self.length or not unless_empty
            return outer.constant(tag + varint(self.length)).extend(self) if there else outer
        empty = self.length == 0
        digits, counts, lengths = varints(self.length)
        if not unless_empty or not empty.any():
            return outer.constant(tag).varying(digits, counts, lengths).extend(self)
        header = np.concatenate([np.full((self.rows, 1), tag[0], np.uint8), digits], axis=1)
        counts = np.ones_like(digits, bool) if counts is None else counts
        counts = np.concatenate([np.ones((self.rows, 1), bool), counts], axis=1)
        counts[empty] = False
        return outer.varying(header, counts, np.where(empty, 0, 1 + lengths)).extend(self)

    def bytes(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (uint8: all messages one after the other, int64 [rows]: where each one ends)."""
        row = b"".join(p if isinstance(p, bytes) else bytes(p[0].shape[1]) for p in self.parts)
        data = np.empty((self.rows, len(row)), np.uint8)
        data[:] = np.frombuffer(row, np.uint8)
        counts = np.ones(data.shape, bool)
        start = 0
        for part in self.parts:
            if isinstance(part, bytes):
                start += len(part)
                continue
            stop = start + part[0].shape[1]
            data[:, start:stop] = part[0]
            if part[1] is not None:
                counts[:, start:stop] = part[1]
            start = stop
        ends = np.cumsum(np.broadcast_to(self.length, self.rows))
        return data[counts], ends


def padded(flat: np.ndarray, offsets: np.ndarray) -> Template:
    """Return flat[offsets[i]:offsets[i + 1]] as message i."""
    lengths = np.diff(offsets)
    width = int(lengths.max(initial=0))
    positions = np.arange(width)
    data = np.zeros((len(lengths), width), np.uint8)
    counts = positions < lengths[:, None]
    data[counts] = flat[offsets[0] : offsets[-1]]
    return Template(len(lengths)).varying(data, counts, lengths)


def varint(number: int) -> bytes:
    """Return one integer in base 128, as `varints` does.

    Example:
        >>> varint(300).hex(" ")
        'ac 02'
    """
    digits, counts, _ = varints(np.array([number]))
    return digits.tobytes() if counts is None else digits[counts].tobytes()


def varints(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, Any]:
    """Return integers in base 128, lowest digit first, the top bit set on all but the last digit.

    A negative number counts as its 64-bit two's complement: ten digits.

    Args:
        numbers: integers or bool [n].

    Returns:
        (uint8 [n, width], bool [n, width] of the digits that count or None for all, int64 [n] or
        int of how many these are).
    """
    rest = np.asarray(numbers).astype(np.int64).view(np.uint64)
    largest = int(rest.max(initial=0))
    if largest < 128:
        return rest.astype(np.uint8)[:, None], None, 1
    if largest < 2**32:
        rest = rest.astype(np.uint32)  # half the bytes to move
    width = -(-largest.bit_length() // 7)
    digits = np.empty((width, len(rest)), np.uint8)
    counts = np.ones((width, len(rest)), bool)
    for position in range(width):
        if position:
            np.not_equal(rest, 0, out=counts[position])
            digits[position - 1] |= counts[position].view(np.uint8) << 7
        digits[position] = rest & rest.dtype.type(0x7F)
        rest = rest >> rest.dtype.type(7)
    return digits.T, counts.T, counts.sum(axis=0)
