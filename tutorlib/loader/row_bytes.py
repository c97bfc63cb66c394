"""Bytes of a row in the places where a loader holds it, from the schema and the files' footers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tutorlib.loader.layout import batch_dtype
from tutorlib.loader.pipeline import CONVERT_BATCHES
from tutorlib.loader.settings import PLANNED_THREADS, LoaderSettings
from tutorlib.loader.sizing import RowBytes
from tutorlib.parquet import ParquetSource
from tutorlib.schema import Column, Schema

READING_COPIES = 3  # of what is being decoded: compressed, decompressed, decoded
SCATTER_COPIES = 2  # of a row range on a GPU: as it is read, and in the order of its scatter
SLICE_COPIES = 2  # of a slice, all columns together: in parts as they are decoded, and joined
LIST_COPIES = 2  # of lists in a chunk: as they are read, and joined
OFFSET_BYTES = 8  # of a list
POSITION_BYTES = 8  # of a value of a list while it is picked
EQUAL_WIDTHS = 1.05  # rows of row groups count the same up to this ratio of their bytes
STEP_COPIES = 6  # of what a thread reads in a step: decoded, as columns, transformed, picked
STEPS_OF_BUDGET = 128
AHEAD_PART = 10  # of the budget, for batches that are converted before the consumer takes them
LEAST_STEP_BYTES, MOST_STEP_BYTES = 2**16, 2**22


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
    stored = {name: source.sizes.nbytes_per_row([name]) for name in columns}
    scalars = sum(_cell_bytes(column) for column in schema if not column.multi_hot)
    records = 2 * scalars if stacked else 0  # and their columns
    reading = READING_COPIES * (sum if whole else max)(stored.values()) + records
    return RowBytes(
        batch=scalars + _list_bytes(source, stored, schema),
        reading=reading,
        slicing=max(reading, SLICE_COPIES * sum(stored.values()) + records),
        stream=source.sizes.stream_nbytes(columns),
    )


def budgeted_row_bytes(
    source: ParquetSource,
    columns: Sequence[str],
    schema: Schema,
    settings: LoaderSettings,
    budget_bytes: int,
    *,
    whole: bool,
) -> RowBytes:
    """Return the bytes of a row on the CPU as a memory budget needs them: by row group.

    Rows with lists or strings, rows that are transformed and rows of which some are filtered are
    read in steps of bytes, so that the width of rows matters for what is held only.

    Args:
        source: the files.
        columns: names of the columns to read.
        schema: schema of the batches.
        settings: settings of the loader.
        budget_bytes: the budget.
        whole: whether all columns of a row range are read before its rows are scattered.
    """
    steps, step = reads_in_steps(source, columns, whole=whole), step_bytes(budget_bytes)
    scalars = sum(_cell_bytes(column) for column in schema if not column.multi_hot)
    batch, values = np.full(len(source), float(scalars)), np.zeros(len(source))
    for name in columns:
        if _is_list(source, name, schema):
            counts = np.array(source.sizes.row_group_values(name))
            width = _value_bytes(schema[name]) if name in schema else 8
            batch += LIST_COPIES * (counts * width + OFFSET_BYTES)
            values += counts * width + POSITION_BYTES * counts
    least = batch.min() if batch.max() > EQUAL_WIDTHS * batch.min() else batch.max()
    costs = np.maximum(1, batch / least)
    stored = [source.sizes.nbytes_per_row([name]) for name in columns]
    records = 2 * scalars if settings.stacked else 0
    stream = source.sizes.measured_stream_nbytes(columns, step)
    widths = [
        sum(nbytes) for nbytes in zip(*map(source.sizes.row_group_nbytes, columns), strict=True)
    ]
    stored_rows = [source.stored.num_rows(group) for group in source.row_groups]
    largest = max(w * rows for w, rows in zip(widths, stored_rows, strict=True))
    decoded = min(largest, max(step, *widths))  # by a thread at a time
    row = ahead_row_bytes(source, columns, schema, settings)
    ahead = (2 * convert_batches(settings, row) + 3) * settings.batch_size * row
    decoding = PLANNED_THREADS * STEP_COPIES * decoded if steps else 0
    return RowBytes(
        batch=float(least),
        lists=float(((batch - scalars) / LIST_COPIES / costs).max()),
        reading=0 if steps else READING_COPIES * max(stored) + records,
        slicing=0 if steps else SLICE_COPIES * sum(stored) + records,
        stream=stream,
        whole_stream=stream if steps else 0,
        ordering=float((values / costs).max()),
        fixed=decoding + ahead + source.sizes.filter_nbytes,
        costs=None if costs.max() == 1 else costs.tolist(),
    )


def ahead_row_bytes(
    source: ParquetSource, columns: Sequence[str], schema: Schema, settings: LoaderSettings
) -> float:
    """Return the bytes of a row that a finished batch has in addition to its group's memory."""
    nbytes = 0.0
    for column in schema:
        if not column.multi_hot:
            continue
        if settings.multi_hot == "padded" and settings.max_list_length is not None:
            nbytes += settings.max_list_length * (_value_bytes(column) + 1)  # and its mask
        if column.name in columns:
            longest = max(source.sizes.row_group_values(column.name))
            nbytes += longest * _value_bytes(column) + 2 * OFFSET_BYTES
    return nbytes


def convert_batches(settings: LoaderSettings, row_bytes: float) -> int:
    """Return how many batches are converted at a time: fewer if they take much of the budget.

    Args:
        settings: settings of the loader.
        row_bytes: what `ahead_row_bytes` returns.
    """
    if settings.memory_budget is None or not row_bytes:
        return CONVERT_BATCHES
    most = settings.memory_budget / AHEAD_PART / (settings.batch_size * row_bytes)
    return max(1, min(CONVERT_BATCHES, int(most / 2)))


def reads_in_steps(source: ParquetSource, columns: Sequence[str], *, whole: bool) -> bool:
    """Return whether a loader with a memory budget reads row ranges in steps of bytes."""
    kinds = [source.column_types[name] for name in columns]
    return (
        whole or source.sizes.filter_nbytes > 0 or any(k == "string" or lists for k, lists in kinds)
    )


def step_bytes(budget_bytes: int) -> int:
    """Return the bytes that a thread decodes at a time within a memory budget."""
    return min(MOST_STEP_BYTES, max(LEAST_STEP_BYTES, budget_bytes // STEPS_OF_BUDGET))


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
    stored = {name: source.sizes.nbytes_per_row([name]) for name in columns}
    scalars = sum(wide * _cell_bytes(column) for column in schema if not column.multi_hot)
    reading = READING_COPIES * sum(stored.values()) + SCATTER_COPIES * scalars
    return RowBytes(
        batch=scalars + _list_bytes(source, stored, schema, wide),
        reading=reading,
        slicing=reading,
        stream=sum(stored.values()) * max(group.num_rows for group in source.row_groups),
    )


def _list_bytes(
    source: ParquetSource, stored: dict[str, float], schema: Schema, wide: int = 1
) -> float:
    """Return the bytes of a row's lists with their offsets."""
    lists = [nbytes for name, nbytes in stored.items() if _is_list(source, name, schema)]
    return sum(LIST_COPIES * (wide * nbytes + 8) for nbytes in lists)


def _is_list(source: ParquetSource, name: str, schema: Schema) -> bool:
    """Return whether a column is read as lists; vectors of ids become such."""
    return source.column_types[name][1] or (name in schema and schema[name].multi_hot)


def _cell_bytes(column: Column) -> int:
    """Return the bytes of a row of a column without lists in a batch."""
    return _value_bytes(column) * (column.length or 1)


def _value_bytes(column: Column) -> int:
    """Return the bytes of a value in a batch; 8 for one that a Workflow has to convert first."""
    try:
        return batch_dtype(column).itemsize
    except ValueError:
        return 8
