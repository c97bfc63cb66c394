"""Batching: rows of a piece straight into the batches that they are dealt to.

A shuffled batch is a random choice of rows of a chunk, which is far larger than the cache. Taking
its rows from there costs a cache miss a value. Here each piece is taken apart as soon as it is
decoded: field by field and block by block (`plan.BLOCK_ROWS`), so that the values being picked are
in the second-level cache, into the field's place in every group of batches at once. A field is a
column, or in stacked batches the record that several columns make, which is then picked as a whole.
A group of several small batches is put in order the same way; a large batch is a group by itself.
Does not belong here: which row goes where (`plan.py`), threads, files, tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tutorlib.chunk import Ragged, gather_rows
from tutorlib.loader.layout import Field, Layout
from tutorlib.loader.list_lengths import ListLengths
from tutorlib.loader.plan import RowSlice
from tutorlib.memory import ALIGNMENT, BufferPool

RUN_FIELDS = 8  # columns that are dealt out together
RECORD_ROWS = 16_384  # rows that become records at a time


@dataclasses.dataclass
class HostBatch:
    """A whole batch in host memory.

    Args:
        num_rows: rows.
        scalars: {name: [rows, 1]}, or for stacked batches {"categorical": [rows, n], ...}.
        lists: {name: `Ragged` of rows lists}, whose values may be padded behind the last list.
    """

    num_rows: int
    scalars: dict[str, np.ndarray]
    lists: dict[str, Ragged]


class Group:
    """The rows of some successive batches: filled by several threads, closed by one, then cut up.

    Args:
        layout: how the columns lie.
        num_rows: rows of all its batches.
        pool: where memory comes from.
        lengths: how long the arrays of lists are.

    Attributes:
        fields: [num_rows] of each field of the layout, a cell a row.
    """

    def __init__(
        self,
        layout: Layout,
        num_rows: int,
        pool: BufferPool,
        *,
        lengths: ListLengths | None = None,
    ) -> None:
        self.layout, self.num_rows = layout, num_rows
        self._pool, self._lengths = pool, lengths or ListLengths()
        self._memory = pool.empty((_padded(num_rows) * layout.row_bytes,), np.uint8)
        self.fields = _fields(layout, num_rows, self._memory)
        self._parts: dict[str, dict[int, Ragged]] = {name: {} for name in layout.ragged}
        self._lists: dict[str, Ragged] = {}

    def run(self, number: int, count: int) -> np.ndarray:
        """Return `count` fields of equal width from field number `number` on, [count, num_rows]."""
        cell, stride = self.layout.fields[number].cell, _padded(self.num_rows)
        start = stride * sum(field.nbytes for field in self.layout.fields[:number])
        memory = self._memory[start : start + count * stride * cell.itemsize]
        return memory.view(cell).reshape(count, stride)[:, : self.num_rows]

    def add_lists(self, name: str, first: int, lists: Ragged) -> None:
        """Keep the lists of rows [first, first + len(lists)) of a multi-hot column."""
        self._parts[name][first] = lists

    def close(self, sizes: Sequence[int], order: np.ndarray | None) -> None:
        """Put the rows in their final order; call it once, when all of them are there.

        Args:
            sizes: rows of each batch.
            order: int64 [num_rows], the order in which the rows make up the batches; None for as
                they are.
        """
        for name, parts in self._parts.items():
            lists = [parts.pop(first) for first in sorted(parts)]
            if len(sizes) == 1:
                self._lists[name] = self._batch_lists(name, lists)
                continue
            joined = _joined(lists, sum(len(part.values) for part in lists), self._pool)
            self._lists[name] = joined if order is None else joined.take(order)
        self._sizes = list(sizes)
        self._first_rows = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        self._stride = _padded(max(sizes))  # rows from one batch to the next
        if len(sizes) == 1:
            return
        rows = np.arange(self.num_rows)
        batch = np.repeat(np.arange(len(sizes)), sizes)
        places = rows + batch * self._stride - np.repeat(self._first_rows[:-1], sizes)
        picks = np.zeros(len(sizes) * self._stride, dtype=np.int64)
        picks[places] = rows if order is None else order
        memory = self._pool.empty((_padded(len(picks)) * self.layout.row_bytes,), np.uint8)
        ordered = _fields(self.layout, len(picks), memory)
        for target, source in zip(ordered, self.fields, strict=True):
            np.take(source, picks, out=target, mode="clip")
        self.fields, self._memory = ordered, memory

    def batch(self, number: int) -> HostBatch:
        """Return one of the batches, counted from 0.

        Its arrays are parts of the group's, which live as long as one of them does; each field
        starts at a multiple of 64 bytes, and no two batches share any value.
        """
        rows, first = self._sizes[number], number * self._stride
        scalars = {
            field.name: cells[first : first + rows].view(field.dtype).reshape(rows, -1)
            for field, cells in zip(self.layout.fields, self.fields, strict=True)
        }
        first = self._first_rows[number]
        lists = {}
        for name, column in self._lists.items():
            if len(self._sizes) > 1:
                part = column.slice(first, first + rows)
                column = self._batch_lists(name, [part])
            lists[name] = column
        return HostBatch(rows, scalars, lists)

    def _batch_lists(self, name: str, parts: Sequence[Ragged]) -> Ragged:
        """Return the lists of a batch, their values in an array as long as is asked for."""
        rows, count = sum(map(len, parts)), sum(len(part.values) for part in parts)
        return _joined(parts, self._lengths.values(name, rows, count), self._pool)


def _padded(rows: int) -> int:
    """Return `rows`, or more, such that what stands behind that many cells starts aligned."""
    cells = ALIGNMENT // 4
    return -(-rows // cells) * cells


def _unlike(rows: int) -> int:
    """Return a number of cells such that columns side by side do not share places in the cache."""
    return _padded(rows) + ALIGNMENT // 4


def _fields(layout: Layout, num_rows: int, memory: np.ndarray) -> list[np.ndarray]:
    """Return the memory of each field, aligned, a cell a row."""
    stride = _padded(num_rows)
    fields, start = [], 0
    for field in layout.fields:
        fields.append(memory[start : start + num_rows * field.nbytes].view(field.cell))
        start += stride * field.nbytes
    return fields


def _joined(parts: Sequence[Ragged], length: int, pool: BufferPool) -> Ragged:
    """Return lists one after the other, in memory of their own that starts aligned.

    What their array is longer than they are repeats the last value: any other would be an id that
    these rows may not have (see `layers.bucketed`).
    """
    values = pool.empty((length,), parts[0].values.dtype)
    offsets = np.zeros(sum(map(len, parts)) + 1, dtype=np.int64)
    first, row = 0, 1
    for part in parts:
        count = len(part.values)
        values[first : first + count] = part.values
        np.add(part.offsets[1:], first, out=offsets[row : row + len(part)])
        first, row = first + count, row + len(part)
    values[first:] = values[first - 1] if first else 0
    return Ragged(values, offsets)


@dataclasses.dataclass(frozen=True)
class ScatterPlan:
    """Where one block of rows goes.

    Args:
        start: its first row within the columns given to `scatter`.
        order: int64 [rows], the order in which its rows are scattered; None for as they are.
        row_slices: (group of batches, the rows of the block that go there)
    """

    start: int
    order: np.ndarray | None
    row_slices: Sequence[tuple[Group, RowSlice]]


def scatter(
    layout: Layout,
    columns: Iterable[tuple[str, Any]],
    scatter_plans: Sequence[ScatterPlan],
    pool: BufferPool,
    *,
    first_row: int = 0,
) -> None:
    """Copy some rows to the groups of batches that they go to, field by field.

    Args:
        layout: how the columns lie.
        columns: (name, column) of each column of the layout, in any order; one is let go before
            the next is asked for, so that columns that are decoded only then can use the same
            memory, still in the cache, one after the other.
        scatter_plans: where the rows go.
        pool: where memory comes from.
        first_row: number of the first of the rows, for messages.

    Raises:
        ValueError: if a value does not fit (see `Layout.cells`).
    """
    records: dict[int, _Records] = {}
    run = _Run(layout, scatter_plans, pool)
    for name, values in columns:
        if name in layout.places:
            column, number, index = layout.places[name]
            field = layout.fields[number]
            cells: np.ndarray | None = layout.cells(column, values, first_row=first_row)
            if len(field.columns) == 1:
                run.add(number, cells.view(field.cell))
            elif (
                made := records.setdefault(number, _Records(field, pool)).add(index, cells)
            ) is not None:
                for scatter_plan in scatter_plans:
                    _scatter_records(made, number, scatter_plan)
        elif name in layout.ragged:
            lists = layout.list_cells(layout.ragged[name], values, first_row=first_row)
            for scatter_plan in scatter_plans:
                _scatter_lists(name, lists, scatter_plan)
        del values
    run.scatter()


class _Run:
    """Columns whose places in a group lie one behind the other, dealt out together.

    The rows of a share are few, and copying them takes some microseconds: too short for a thread to
    let others run meanwhile. So a whole block of each column is put in order at once, and shares
    are copied for `RUN_FIELDS` columns at once. With two threads this takes three quarters of the
    time.
    """

    def __init__(
        self, layout: Layout, scatter_plans: Sequence[ScatterPlan], pool: BufferPool
    ) -> None:
        self._layout, self._scatter_plans, self._pool = layout, scatter_plans, pool
        self._first = 0
        self._columns: list[np.ndarray] = []

    def add(self, number: int, cells: np.ndarray) -> None:
        """Take the cells of field number `number`; deals out what was there if it does not fit."""
        if self._columns and (
            len(self._columns) == RUN_FIELDS
            or number != self._first + len(self._columns)
            or cells.dtype != self._columns[0].dtype
        ):
            self.scatter()
        if not self._columns:
            self._first = number
        self._columns.append(cells)

    def scatter(self) -> None:
        """Copy the rows of these columns to where they go."""
        columns, self._columns = self._columns, []
        for scatter_plan in self._scatter_plans if columns else ():
            if scatter_plan.order is None:
                blocks = [cells[scatter_plan.start :] for cells in columns]
            else:
                shape = (len(columns), len(scatter_plan.order))
                blocks = self._pool.empty(shape, columns[0].dtype)
                for cells, ordered in zip(columns, blocks, strict=True):
                    source = cells[scatter_plan.start :]
                    np.take(source, scatter_plan.order, out=ordered, mode="clip")
            for group, row_slice in scatter_plan.row_slices:
                stop = row_slice.first + row_slice.stop - row_slice.start
                target = group.run(self._first, len(columns))[:, row_slice.first : stop]
                if scatter_plan.order is None:
                    for place, block in zip(target, blocks, strict=True):
                        place[:] = block[row_slice.start : row_slice.stop]
                else:
                    target[:] = blocks[:, row_slice.start : row_slice.stop]


class _Records:
    """The records of a field of several columns, made once all of these are there.

    Some thousand rows at a time, and first side by side: NumPy then writes one record after the
    other. Column by column into their places takes twice as long, as does all rows at once.
    """

    def __init__(self, field: Field, pool: BufferPool) -> None:
        self._field, self._pool = field, pool
        self._columns: dict[int, np.ndarray] = {}

    def add(self, index: int, column: np.ndarray) -> np.ndarray | None:
        """Take a column; returns the records, a cell a row, with the last of them."""
        self._columns[index] = column
        count, rows = len(self._field.columns), len(column)
        if len(self._columns) < count:
            return None
        columns = [self._columns.pop(index) for index in range(count)]
        values = self._pool.empty((rows, count), self._field.dtype)
        step = min(RECORD_ROWS, rows)
        beside = self._pool.empty((count, _unlike(step)), self._field.dtype)
        for start in range(0, rows, RECORD_ROWS):
            part = values[start : start + RECORD_ROWS]
            for place, cells in zip(beside, columns, strict=True):
                place[: len(part)] = cells[start : start + RECORD_ROWS]
            part[:] = beside[:, : len(part)].T
        return values.reshape(-1).view(self._field.cell)


def _scatter_records(cells: np.ndarray, number: int, scatter_plan: ScatterPlan) -> None:
    block = cells[scatter_plan.start :]
    for group, row_slice in scatter_plan.row_slices:
        target = group.fields[number][
            row_slice.first : row_slice.first + row_slice.stop - row_slice.start
        ]
        if scatter_plan.order is None:
            target[:] = block[row_slice.start : row_slice.stop]
        else:
            np.take(
                block, scatter_plan.order[row_slice.start : row_slice.stop], out=target, mode="clip"
            )


def _scatter_lists(name: str, lists: Ragged, scatter_plan: ScatterPlan) -> None:
    first = scatter_plan.start
    if scatter_plan.order is not None:
        positions, offsets = gather_rows(lists.offsets, scatter_plan.start + scatter_plan.order)
        lists, first = Ragged(np.take(lists.values, positions, mode="clip"), offsets), 0
    for group, row_slice in scatter_plan.row_slices:
        part = lists.slice(first + row_slice.start, first + row_slice.stop)
        group.add_lists(name, row_slice.first, part)
