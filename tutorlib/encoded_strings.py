"""EncodedStrings: texts of which many are equal, as numbers of the entries of a dictionary.

So they stand in most Parquet files. What works on texts one by one works on the dictionary instead,
which has each text once. On the CPU. Does not belong here: reading them (`encoded_source.py`).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa

from tutorlib.chunk import Masked, Strings


class EncodedStrings(Strings):
    """Texts, one a row, that are made when somebody asks for them.

    Made by `encoded_column`. Joined with others they become plain `Strings`.

    Attributes:
        codes: int32 [n], the entry of each row.
        dictionary: `pyarrow.LargeStringArray`, no null, each text once; some may be in no row.
    """

    codes: np.ndarray
    dictionary: Any

    def __new__(cls, data: Any, offsets: Any) -> Any:
        """Return plain texts: what rows of several of them, joined, are."""
        return Strings(data, offsets)

    @classmethod
    def of(cls, codes: np.ndarray, dictionary: Any) -> EncodedStrings:
        """Return the texts dictionary[codes]."""
        texts = object.__new__(cls)
        texts.codes, texts.dictionary = codes, dictionary
        return texts

    def __reduce__(self) -> Any:
        return EncodedStrings.of, (self.codes, self.dictionary)

    def __len__(self) -> int:
        return len(self.codes)

    @functools.cached_property
    def _decoded(self) -> Strings:
        return Strings.from_arrow(self.to_arrow())

    @property
    def data(self) -> np.ndarray:
        """The UTF-8 bytes of all rows."""
        return self._decoded.data

    @property
    def offsets(self) -> np.ndarray:
        """Where each row begins in `data`, int64 [n + 1]."""
        return self._decoded.offsets

    @property
    def nbytes(self) -> int:
        """Bytes held, as long as nobody has asked for the texts."""
        return self.codes.nbytes + self.dictionary.nbytes

    def take(self, rows: np.ndarray) -> EncodedStrings:
        """Return the given rows, in the given order."""
        return EncodedStrings.of(self.codes[rows], self.dictionary)

    def slice(self, start: int, stop: int) -> EncodedStrings:
        """Return rows [start, stop), without copying."""
        return EncodedStrings.of(self.codes[start:stop], self.dictionary)

    def tolist(self) -> list[str]:
        """Return the texts."""
        return self.to_arrow().to_pylist()

    def to_arrow(self) -> Any:
        """Return the texts as a `pyarrow.LargeStringArray`."""
        return self.dictionary.take(pa.array(self.codes))


def encoded_column(array: Any) -> EncodedStrings | Masked:
    """Return an Arrow array of texts, dictionary-encoded or not, as a column of a chunk.

    Args:
        array: `pyarrow.Array` or `ChunkedArray`; nulls are those of the rows.

    Example:
        >>> column = encoded_column(pa.array(["b", None, "b"]).dictionary_encode())
        >>> column.tolist(), column.values.codes.tolist(), column.values.dictionary.to_pylist()
        (['b', None, 'b'], [0, 0, 0], ['b'])
    """
    if not pa.types.is_dictionary(array.type):
        array = array.cast(pa.large_string()).dictionary_encode()
    if isinstance(array, pa.ChunkedArray):
        chunks = array.unify_dictionaries().chunks or [pa.array([], array.type)]
        array = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    indices, dictionary = array.indices, array.dictionary.cast(pa.large_string())
    valid = None
    if indices.null_count:
        valid = indices.is_valid().to_numpy(zero_copy_only=False)
        indices = indices.fill_null(0)
    codes = indices.to_numpy().astype(np.int32, copy=False)
    if not len(dictionary):  # all are null; a null has some entry, too
        dictionary = pa.array([""], pa.large_string())
    texts = EncodedStrings.of(codes, dictionary)
    return texts if valid is None else Masked(texts, valid)


def plain_strings(column: Any) -> Any:
    """Return a column whose texts, if it holds any, are not encoded."""
    if isinstance(column, Masked):
        return Masked(plain_strings(column.values), column.valid)
    return column._decoded if isinstance(column, EncodedStrings) else column
