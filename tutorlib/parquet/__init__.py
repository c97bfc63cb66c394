"""Parquet: files to chunks of columns and back.

`source` reads a data set of one or many files, or rows in memory; `files` has one file or table of
it. `sink` writes files that a loader reads fast; nothing that reads imports it.
"""

from typing import Any

from tutorlib.parquet.files import ParquetError, find_files, table_of
from tutorlib.parquet.source import ParquetSource, RowRange

__all__ = [
    "ParquetError",
    "ParquetSink",
    "ParquetSource",
    "RowRange",
    "find_files",
    "table_of",
]


def __getattr__(name: str) -> Any:
    if name not in ("ParquetSink", "file_rows"):
        raise AttributeError(f"module 'tutorlib.parquet' has no attribute {name!r}")
    import tutorlib.parquet.sink as sink

    return getattr(sink, name)
