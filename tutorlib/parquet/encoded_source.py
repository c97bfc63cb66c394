"""A source whose texts are read as `EncodedStrings`, without decoding what a dictionary holds.

Only texts that stand alone in a row are; those in lists are read as ever. Does not belong here:
what is done with the dictionaries (`ops`).
"""

from __future__ import annotations

import copy
from typing import Any

import pyarrow.parquet as pq

from tutorlib.encoded_strings import encoded_column
from tutorlib.parquet.files import ParquetFiles, RowGroup, column_type
from tutorlib.parquet.source import ParquetSource


def with_encoded_strings(source: Any) -> Any:
    """Return a source of the same rows that reads texts as `EncodedStrings`.

    Reading 26 columns of 8 hex digits takes 0.4 times as long so, and to count them a tenth.

    Args:
        source: what `as_source` or `split_rows` gives. Chunks in memory, and what is decoded on a
            GPU, stay as they are.

    Example:
        >>> import tempfile
        >>> import pyarrow as pa
        >>> path = tempfile.mkdtemp() + "/a.parquet"
        >>> pq.write_table(pa.table({"x": ["b", "a", "b"]}), path)
        >>> column = with_encoded_strings(ParquetSource(path)).read(0)["x"]
        >>> column.codes.tolist(), column.dictionary.to_pylist()
        ([0, 1, 0], ['b', 'a'])
    """
    if isinstance(source, ParquetSource):
        if source.memory is not None:
            return source  # its columns are decoded on a GPU
        encoded = copy.copy(source)
        encoded._stored = _EncodedFiles(source._stored)
        return encoded
    if not hasattr(source, "source"):
        return source
    part = copy.copy(source)  # rows of a source, by `split_rows`
    part.source = with_encoded_strings(source.source)
    return part


class _EncodedFiles(ParquetFiles):
    """The same files, of whose texts Arrow gives the dictionaries."""

    def __init__(self, files: ParquetFiles) -> None:
        self.__dict__.update(copy.copy(files).__dict__)  # with streams of its own
        self._texts = [f.name for f in self.schema if column_type(f.type) == ("string", False)]

    def _open(self, group: RowGroup, **options: Any) -> pq.ParquetFile:
        leaves = self.leaves(group, self._texts)
        # Arrow cannot make a dictionary of texts that are stored as differences.
        encoded = [n for n, leaf in leaves if not any("DELTA" in e for e in leaf.encodings)]
        return super()._open(group, read_dictionary=encoded, **options)

    def column(self, array: Any) -> Any:
        """Return an Arrow array as a column of a chunk."""
        if column_type(array.type) == ("string", False):
            return encoded_column(array)
        return super().column(array)
