"""Parquet: files to chunks of columns and back.

`source` reads a data set of one or many files, or rows in memory; `stored` is one file or table of
it. `sink` writes files that a loader reads fast. `gpu` decodes on a GPU.
"""

from tutorlib.parquet.sink import ParquetSink, fast_encoding, file_rows
from tutorlib.parquet.source import ParquetSource, RowGroup, RowRange
from tutorlib.parquet.stored import ParquetError, find_files, table_of

__all__ = [
    "ParquetError",
    "ParquetSink",
    "ParquetSource",
    "RowGroup",
    "RowRange",
    "fast_encoding",
    "file_rows",
    "find_files",
    "table_of",
]
