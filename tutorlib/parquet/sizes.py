"""Bytes of decoded rows, estimated from the footers of the files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tutorlib.inference import element_type, is_number, is_time

SMALL_CHUNK = 2**20  # bytes


def number_width(kind: str) -> int:
    """Return the bytes of a number or vector of a type such as "int32", 0 for any other type."""
    dtype, length = element_type(kind)
    if not (is_number(dtype) or is_time(dtype)):
        return 0
    return np.dtype(dtype).itemsize * (length or 1)


def decoded_bytes(leaves: Iterable[tuple[str, Any]], columns: Mapping[str, int]) -> float:
    """Return the bytes of decoded columns that have no fixed width, without offsets.

    Args:
        leaves: (name, `pyarrow.parquet.ColumnChunkMetaData`) of the columns.
        columns: {name: bytes of one value, 0 for strings}.
    """
    return sum(leaf.num_values * columns[name] or _string_bytes(leaf) for name, leaf in leaves)


def _string_bytes(leaf: Any) -> float:
    """Return about how many bytes the strings of a `ColumnChunkMetaData` have when decoded."""
    stored, statistics = leaf.total_uncompressed_size, leaf.statistics
    if statistics is None or not statistics.has_min_max:
        return stored
    ends = (statistics.min, statistics.max)
    if not isinstance(ends[0], str | bytes):  # such as a decimal
        return stored
    lengths = [len(end.encode() if isinstance(end, str) else bytes(end)) for end in ends]
    return max(stored, leaf.num_values * sum(lengths) / 2)


def stream_bytes(file: Any, leaf: Any, buffer_bytes: int) -> int:
    """Return the bytes that Arrow holds of a column chunk that is being read in order.

    These are a page, compressed and not, the dictionary twice, and what is read ahead. Footers do
    not tell how large pages are: for a chunk above `SMALL_CHUNK` the headers of its first pages do.

    Args:
        file: `pyarrow.NativeFile` of the Parquet file.
        leaf: `pyarrow.parquet.ColumnChunkMetaData`.
        buffer_bytes: bytes that are read ahead.
    """
    whole, compressed = leaf.total_uncompressed_size, leaf.total_compressed_size
    ahead = min(compressed, buffer_bytes)
    dictionary = whole if leaf.has_dictionary_page else 0
    page = whole, compressed
    if whole > SMALL_CHUNK:
        if leaf.has_dictionary_page and leaf.dictionary_page_offset is not None:
            dictionary = min(whole, _page_sizes(file, leaf.dictionary_page_offset, page)[0])
        page = _page_sizes(file, leaf.data_page_offset, page)
    elif leaf.has_dictionary_page:
        page = 0, 0
    return 2 * dictionary + min(whole, page[0]) + min(compressed, page[1]) + ahead


def _page_sizes(file: Any, offset: int, otherwise: tuple[int, int]) -> tuple[int, int]:
    """Return (bytes, compressed bytes) of a page by its header.

    Source: parquet.thrift, PageHeader, in Thrift's compact protocol: fields 1 to 3 are the type and
    these two, each an int32 after the byte 0x15.
    """
    header, numbers, at = bytes(file.read_at(24, offset)), [], 0
    for _ in range(3):
        if header[at : at + 1] != b"\x15":
            return otherwise
        number, shift = 0, 0
        while True:
            at += 1
            number |= (header[at] & 0x7F) << shift
            shift += 7
            if header[at] < 0x80:
                break
        numbers.append(number >> 1)
        at += 1
    return numbers[1], numbers[2]
