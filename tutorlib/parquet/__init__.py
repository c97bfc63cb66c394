"""Parquet: files to chunks of columns and back.

`source` reads a data set of one or many files, `sink` writes one; `paths` finds files, `tables`
makes files of rows in memory, `filters` and `filtered` choose rows, `slices` reads part of a row
group; `device_reader` and `cudf_decoder` read on a GPU.
"""

from tutorlib.parquet.encoded_source import with_encoded_strings
from tutorlib.parquet.fingerprint import fingerprints_of_files
from tutorlib.parquet.paths import find_files
from tutorlib.parquet.sink import ParquetSink, fast_encoding, file_rows
from tutorlib.parquet.source import ParquetSource
from tutorlib.parquet.tables import table_of
from tutorlib.parquet.types import ParquetError, RowGroup, RowRange, column_type, type_words
from tutorlib.storage import as_arrow_filesystem

__all__ = [
    "ParquetError",
    "ParquetSink",
    "ParquetSource",
    "RowGroup",
    "RowRange",
    "as_arrow_filesystem",
    "column_type",
    "fast_encoding",
    "file_rows",
    "find_files",
    "fingerprints_of_files",
    "table_of",
    "type_words",
    "with_encoded_strings",
]
