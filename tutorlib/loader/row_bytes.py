"""Bytes of a row in the places where a loader holds it, from the schema and the files' footers."""

from __future__ import annotations

from collections.abc import Sequence

from tutorlib.loader.layout import batch_dtype
from tutorlib.loader.sizing import RowBytes
from tutorlib.parquet import ParquetSource
from tutorlib.schema import Column, Schema

READING_COPIES = 3  # of what is being decoded: compressed, decompressed, decoded
SCATTER_COPIES = 2  # of a row range on a GPU: as it is read, and in the order of its scatter
SLICE_COPIES = 2  # of a slice, all columns together: in parts as they are decoded, and joined
LIST_COPIES = 2  # of lists in a chunk: as they are read, and joined


def row_bytes(
    source: ParquetSource, columns: Sequence[str], schema: Schema, *, whole: bool, stacked: bool
) -> RowBytes:
    """Return the bytes of a row on the CPU.

    Args:
        source: the files.
        columns: names of the columns to read.
        schema: schema of the batches; list columns count as they are in the files.
        whole: whether all columns are read before the first is scattered, as a Workflow needs it.
        stacked: whether columns become records.
    """
    stored = {name: source.nbytes_per_row([name]) for name in columns}
    scalars = sum(_value_bytes(column) for column in schema if not column.multi_hot)
    records = 2 * scalars if stacked else 0  # and their columns
    reading = READING_COPIES * (sum if whole else max)(stored.values()) + records
    return RowBytes(
        batch=scalars + _list_bytes(source, stored),
        reading=reading,
        slicing=max(reading, SLICE_COPIES * sum(stored.values()) + records),
        stream=source.stream_nbytes(columns),
    )


def row_bytes_on_device(
    source: ParquetSource, columns: Sequence[str], schema: Schema, *, min_int_dtype: str
) -> RowBytes:
    """Return the same for a GPU, where integers may be wider and all columns are decoded together.

    Args:
        source: the files.
        columns: names of the columns to read.
        schema: schema of the batches.
        min_int_dtype: "int32" or "int64": integers of a batch have at least this width.
    """
    wide = 1 if min_int_dtype == "int32" else 2  # times the CPU's bytes, at most
    stored = {name: source.nbytes_per_row([name]) for name in columns}
    scalars = sum(wide * _value_bytes(column) for column in schema if not column.multi_hot)
    reading = READING_COPIES * sum(stored.values()) + SCATTER_COPIES * scalars
    return RowBytes(
        batch=scalars + _list_bytes(source, stored, wide),
        reading=reading,
        slicing=reading,
        stream=sum(stored.values()) * max(group.num_rows for group in source.row_groups),
    )


def _list_bytes(source: ParquetSource, stored: dict[str, float], wide: int = 1) -> float:
    """Return the bytes of a row's lists with their offsets."""
    lists = [nbytes for name, nbytes in stored.items() if source.column_types[name][1]]
    return sum(LIST_COPIES * (wide * nbytes + 8) for nbytes in lists)


def _value_bytes(column: Column) -> int:
    """Return the bytes of a value in a batch; 8 for one that a Workflow has to convert first."""
    try:
        return batch_dtype(column).itemsize
    except ValueError:
        return 8
