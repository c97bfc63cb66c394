"""The tasks of a chunk on a GPU: decode all of it in one call, then gather all of it.

Steps are few and large. What is found wrong is read again on the CPU, whose error names a place.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from tutorlib.arrays import one_array
from tutorlib.gpu.decoding import decode, refused
from tutorlib.loader.layout import Lists
from tutorlib.loader.pipeline import Submit
from tutorlib.loader.plan import ChunkPlan
from tutorlib.parquet import ParquetError


def begin_on_gpu(
    reader: Any,
    submit: Submit,
    chunk: ChunkPlan,
    parts: Sequence[Any],
    order: Future[Any],
) -> list[Future[Any]]:
    """Submit the tasks that make the parts of a chunk, and return them.

    Args:
        reader: `ChunkReader` of the pass.
        submit: of a pool that is first in, first out.
        chunk: the chunk.
        parts: `Part` of each segment, to be filled.
        order: gives the order of the chunk's rows, or None.
    """
    decoding = submit(_decode, reader, chunk)
    return [decoding, submit(_gather, reader, chunk, parts, order, decoding)]


def _decode(reader: Any, chunk: ChunkPlan) -> dict[str, Any]:
    """Return all columns of the chunk's row groups, decoded in one call."""
    groups = [row_range.row_group for row_range in chunk.row_ranges]
    try:
        with reader.stopwatch.timing("read"):
            return decode(reader.source, groups, reader.columns)
    except ParquetError:
        _name_fault(reader, chunk)
        raise


def _gather(
    reader: Any,
    chunk: ChunkPlan,
    parts: Sequence[Any],
    order: Future[Any],
    decoding: Future[Any],
) -> None:
    """Make the arrays of all columns in all parts."""
    columns, layout, gatherer = decoding.result(), reader.layout, reader.gatherer
    place = reader.source.errors_at(chunk.row_ranges[0])
    with reader.stopwatch.timing("gather"), place:
        if refused(columns, layout):
            _name_fault(reader, chunk)
            raise ValueError("cuDF reads values that Arrow does not find. Use device='cpu'")
        places = _places(reader, chunk, order.result())
        for field in layout.fields:
            rows = len(columns[field.columns[0].name])
            matrix = gatherer.empty((rows, field.width), field.dtype)
            for number, column in enumerate(field.columns):
                matrix[:, number] = columns[column.name]
            gatherer.gather_rows(field, matrix, parts, places)
        for name in layout.ragged:
            lists = columns[name]
            values = lists.values.astype(layout.dtypes[name], copy=False)
            gatherer.gather_lists(name, Lists(values, lists.offsets), parts, places)
        gatherer.library.cuda.get_current_stream().synchronize()  # consumers have their own


def _places(reader: Any, chunk: ChunkPlan, order: Any) -> Any:
    """Return an order on the GPU, as places among all rows of the chunk's row groups."""
    places, first = [], 0
    for row_range in chunk.row_ranges:
        places.append(np.arange(first + row_range.start, first + row_range.stop))
        stored, index = reader.source.stored(row_range.row_group)
        first += stored.row_counts[index]
    if first > chunk.num_rows:  # another rank or nobody has the rest of a row group
        rows = np.concatenate(places)
        order = rows if order is None else rows[order]
    return None if order is None else reader.gatherer.library.asarray(order)


def _name_fault(reader: Any, chunk: ChunkPlan) -> None:
    """Raise the error of a CPU for rows that a GPU refuses, if it has one: it names a place."""
    layout, source = reader.layout, reader.source
    for column in layout.columns:
        check = layout.list_cells if column.multi_hot else layout.cells
        for row_range in chunk.row_ranges:
            rows = source.table(row_range.row_group, [column.name])
            with source.errors_at(row_range):
                check(column, [one_array(rows[column.name])])
