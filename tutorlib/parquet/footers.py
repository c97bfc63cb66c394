"""Footers of Parquet files: read once, on threads, before any row is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from tutorlib.memory import map_on_threads
from tutorlib.parquet.paths import CSV_ENDINGS, DataFile, csv_remedy
from tutorlib.parquet.types import ParquetError
from tutorlib.storage import etag_of, store_failure

OPENING_THREADS = 8
REMOTE_THREADS = 32  # which wait for answers most of the time


def read_footers(files: Sequence[DataFile]) -> list[tuple[pq.FileMetaData, bytes | None]]:
    """Return (footer, entity tag in an object store) of each file.

    Raises:
        ParquetError: if a file is not Parquet, is truncated or cannot be read.
    """
    return map_on_threads(_footer, files, opening_threads(files))


def opening_threads(files: Sequence[DataFile]) -> int:
    """Return how many files to open at a time."""
    return OPENING_THREADS if all(file.is_local for file in files) else REMOTE_THREADS


def _footer(file: DataFile) -> tuple[pq.FileMetaData, bytes | None]:
    try:
        with file.filesystem.open_input_file(file.inner) as opened:
            return pq.read_metadata(opened), None if file.is_local else etag_of(opened)
    except PermissionError as error:
        raise ParquetError(f"{file.path}: may not be read ({error})") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if failure := store_failure(error, file.filesystem):
            raise ParquetError(f"{file.path}: {failure}") from error
        remedy = "Write it again, or remove it"
        if file.path.endswith(CSV_ENDINGS):
            remedy = csv_remedy(file.path)
        raise ParquetError(f"{file.path}: not a whole Parquet file ({error}). {remedy}.") from error


def schemas_of(footers: Sequence[pq.FileMetaData]) -> Iterator[pa.Schema]:
    """Yield the Arrow schema of each file: the same object again where it cannot differ."""
    last, stored, schema = None, None, None
    for footer in footers:
        metadata = footer.metadata
        # Equal leaves and the equal Arrow schema that was written; leaves alone do not tell groups.
        if not (metadata and b"ARROW:schema" in metadata and metadata == stored) or not (
            footer.schema.equals(last)
        ):
            last, stored, schema = footer.schema, metadata, footer.schema.to_arrow_schema()
        yield schema


def leaf_count(kind: pa.DataType) -> int:
    """Return the number of column chunks in which a Parquet file stores a column of this type."""
    if isinstance(kind, pa.BaseExtensionType):
        return leaf_count(kind.storage_type)
    return sum(leaf_count(kind.field(k).type) for k in range(kind.num_fields)) or 1
