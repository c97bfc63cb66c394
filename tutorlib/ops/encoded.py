"""Strings as a dictionary and codes, and as integers: what ops count and look up faster."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa

from tutorlib.columns import Masked, Strings, column_from_arrow, parts_of, with_wide_offsets


class EncodedStrings(Strings):
    """Strings as a dictionary of distinct values and a code for each row, decoded on first use.

    Most Parquet files store strings this way. An op that maps each string works on the dictionary,
    which holds it once. Only on the CPU; concatenated or copied, they become plain `Strings`.

    Args:
        codes: int32 [n], index into the dictionary.
        dictionary: `pyarrow.LargeStringArray` of distinct strings, no null; some may be unused.
    """

    memory = np

    def __init__(self, codes: np.ndarray, dictionary: Any) -> None:
        self.codes, self.dictionary = codes, dictionary

    def __reduce__(self) -> Any:
        return EncodedStrings, (self.codes, self.dictionary)

    def __len__(self) -> int:
        return len(self.codes)

    @functools.cached_property
    def _decoded(self) -> Strings:
        return Strings.from_arrow(self.to_arrow())

    @property
    def data(self) -> np.ndarray:
        """UTF-8 bytes of all rows, uint8 [nbytes]."""
        return self._decoded.data

    @property
    def offsets(self) -> np.ndarray:
        """Offsets of the rows in `data`, int64 [n + 1]."""
        return self._decoded.offsets

    @property
    def nbytes(self) -> int:
        """Bytes of memory before decoding."""
        return self.codes.nbytes + self.dictionary.nbytes

    def take(self, rows: np.ndarray) -> EncodedStrings:
        """Return the given rows, in the given order."""
        return EncodedStrings(self.codes[rows], self.dictionary)

    def slice(self, start: int, stop: int) -> EncodedStrings:
        """Return rows [start, stop), without copying."""
        return EncodedStrings(self.codes[start:stop], self.dictionary)

    def to_arrow(self) -> pa.LargeStringArray:
        """Return the strings as a `pyarrow.LargeStringArray`."""
        return self.dictionary.take(pa.array(self.codes))


def encoded_column(array: Any) -> EncodedStrings | Masked:
    """Return an Arrow array of strings, dictionary-encoded or not, as a column of a chunk.

    Args:
        array: `pyarrow.Array` or `ChunkedArray`, without nulls in the dictionary.

    Example:
        >>> column = encoded_column(pa.array(["b", None, "b"]).dictionary_encode())
        >>> column.tolist(), column.values.codes.tolist(), column.values.dictionary.to_pylist()
        (['b', None, 'b'], [0, 0, 0], ['b'])
    """
    if not pa.types.is_dictionary(array.type):
        array = array.cast(pa.large_string()).dictionary_encode()
    array = array.cast(with_wide_offsets(array.type))
    if isinstance(array, pa.ChunkedArray):
        chunks = array.unify_dictionaries().chunks or [pa.array([], array.type)]
        array = pa.concat_arrays(chunks)
    codes, valid = parts_of(column_from_arrow(array.indices))
    dictionary = array.dictionary.cast(pa.large_string())
    if not len(dictionary):  # all rows are null, and code 0 must exist
        dictionary = pa.array([""], pa.large_string())
    strings = EncodedStrings(codes.astype(np.int32, copy=False), dictionary)
    return strings if valid is None else Masked(strings, valid)


def strings_as_integers(strings: Any) -> pa.Array | None:
    """Return strings that all have 8 bytes as int64 [n]; None for any others.

    Arrow hashes integers two to three times as fast as strings, and ids of 8 hex digits are common.

    Args:
        strings: Arrow array [n].

    Example:
        >>> strings = pa.array(["68fd1e64", "05db9164"], pa.large_string())
        >>> integers_as_strings(strings_as_integers(strings)).to_pylist()
        ['68fd1e64', '05db9164']
        >>> strings_as_integers(pa.array(["68fd1e64", "05"], pa.large_string())) is None
        True
    """
    if not len(strings) or strings.null_count or strings.type != pa.large_string():
        return None
    _, buffer, data = strings.buffers()
    offsets = np.frombuffer(buffer, np.int64, len(strings) + 1, strings.offset * 8)
    if offsets[-1] - offsets[0] != 8 * len(strings) or not (np.diff(offsets) == 8).all():
        return None
    integers = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]].view(np.int64)
    return pa.array(np.require(integers, requirements=["ALIGNED"]))


def integers_as_strings(integers: Any) -> Any:
    """Return the `pyarrow.LargeStringArray` [n] of which `strings_as_integers` made int64 [n]."""
    offsets = pa.py_buffer(8 * np.arange(len(integers) + 1))
    data = pa.py_buffer(integers.to_numpy())
    return pa.LargeStringArray.from_buffers(len(integers), offsets, data)
