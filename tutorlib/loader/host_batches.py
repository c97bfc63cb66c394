"""Batches in host memory: rows of a row range straight into the batches that they belong to.

A shuffled batch is a random choice of the rows of a chunk, and a chunk is far larger than the
cache: taking the rows from there would miss the cache at every value. So each row range is
scattered as soon as it is decoded, field by field and block by block (`plan.BLOCK_ROWS`): the
values that are picked lie in the second-level cache and go straight to all groups of batches. A
field is a column or, in stacked batches, a record of several columns, which is picked as a whole.
A group of several small batches is put in order in the same way; a large batch is a group of its
own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tutorlib.columns import Ragged, gather_rows
from tutorlib.loader.batch_group import BatchBuilder, BatchGroup, ScatterPlan
from tutorlib.loader.held_lists import HeldLists
from tutorlib.loader.layout import Field, Layout
from tutorlib.loader.list_lengths import ListLengths
from tutorlib.memory import ALIGNMENT, BufferPool

RUN_FIELDS = 8  # columns that are scattered together
RECORD_ROWS = 16_384  # rows that become records at a time


class HostGroup(BatchGroup):
    """The rows of some successive batches in host memory; `fields` has one cell a row."""

    def __init__(
        self,
        layout: Layout,
        num_rows: int,
        pool: BufferPool,
        lengths: ListLengths,
        held: HeldLists,
    ) -> None:
        super().__init__(layout, num_rows, ALIGNMENT, lengths)
        self._pool, self._held = pool, held
        self._memory = pool.empty((self._padded(num_rows) * layout.row_bytes,), np.uint8)
        self.fields = self._views(self._memory, self._padded(num_rows))

    def _views(self, memory: np.ndarray, stride: int) -> list[np.ndarray]:
        """Return the part of the memory that holds each field, aligned, one cell a row."""
        return [
            memory[stride * start : stride * (start + field.nbytes)].view(field.cell)
            for field, start in zip(self.layout.fields, self.layout.starts, strict=True)
        ]

    def add_lists(self, name: str, first: int, lists: Ragged) -> None:
        """Keep the lists of some rows; raises ValueError beyond what a memory budget planned."""
        self._held.add(self, lists.values.nbytes + lists.offsets.nbytes)
        super().add_lists(name, first, lists)

    def run(self, number: int, count: int) -> np.ndarray:
        """Return `count` fields of equal width from field number `number` on, [count, num_rows]."""
        cell, stride = self.layout.fields[number].cell, self._padded(self.num_rows)
        start = stride * self.layout.starts[number]
        memory = self._memory[start : start + count * stride * cell.itemsize]
        return memory.view(cell).reshape(count, stride)[:, : self.num_rows]

    def close(self, sizes: Sequence[int], order: np.ndarray | None) -> None:
        """Put the rows in their final order; call it once, when all of them have arrived."""
        self._set_sizes(sizes)
        for name, parts in self._parts.items():
            lists = [parts.pop(first) for first in sorted(parts)]
            if len(sizes) == 1:
                self._lists[name] = self._batch_lists(name, lists)
                continue
            joined = _joined(lists, sum(len(part.values) for part in lists), self._pool)
            self._lists[name] = joined if order is None else joined.take(order)
        if len(sizes) == 1:
            return
        picks = self._picks(order)
        memory = self._pool.empty((len(picks) * self.layout.row_bytes,), np.uint8)
        ordered = self._views(memory, len(picks))
        for target, source in zip(ordered, self.fields, strict=True):
            np.take(source, picks, out=target, mode="clip")
        self.fields, self._memory = ordered, memory

    def _scalars(self, start: int, stop: int) -> Iterator[tuple[str, np.ndarray]]:
        """Yield views of the group's memory, which lives as long as they."""
        for field, cells in zip(self.layout.fields, self.fields, strict=True):
            yield field.name, cells[start:stop].view(field.dtype).reshape(stop - start, -1)

    def _lists_of(self, name: str, number: int) -> Ragged:
        column = self._lists[name]
        if len(self._sizes) == 1:
            return column
        first, last = self._first_rows[number : number + 2]
        return self._batch_lists(name, [column.slice(first, last)])

    def _batch_lists(self, name: str, parts: Sequence[Ragged]) -> Ragged:
        """Return the lists of a batch, with as many values as `ListLengths` asks for."""
        rows, count = sum(map(len, parts)), sum(len(part.values) for part in parts)
        return _joined(parts, self._lengths.values(name, rows, count), self._pool)


def _joined(parts: Sequence[Ragged], length: int, pool: BufferPool) -> Ragged:
    """Return lists one after the other, in aligned memory of their own, with `length` values.

    Padding repeats the last value: any other could be an id that these rows do not have (see
    `layers.bucketed`).
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


class HostBuilder(BatchBuilder[HostGroup, BufferPool]):
    """Makes batches in host memory.

    Args:
        layout: how the columns lie in a batch.
        pool: gives the memory of batches.
        lengths: gives the lengths of the arrays of lists; None for as long as they must be.
        held: counts the bytes of lists; None for any number.
    """

    def __init__(
        self,
        layout: Layout,
        pool: BufferPool,
        lengths: ListLengths | None = None,
        held: HeldLists | None = None,
    ) -> None:
        super().__init__(layout, pool, lengths)
        self._held = held or HeldLists()

    def new_group(self, num_rows: int) -> HostGroup:
        """Return an empty group of batches with so many rows in all."""
        return HostGroup(self.layout, num_rows, self.pool, self.lengths, self._held)

    def scatter(
        self,
        columns: Iterable[tuple[str, Any]],
        scatter_plans: Sequence[ScatterPlan[HostGroup]],
        *,
        first_row: int = 0,
    ) -> None:
        """Copy rows to the groups of batches that they go to, field by field."""
        layout = self.layout
        records: dict[int, _Records] = {}
        run = _Run(layout, scatter_plans, self.pool)
        for name, values in columns:
            if name in layout.positions:
                column, number, index = layout.positions[name]
                field = layout.fields[number]
                cells = layout.cells(column, values, first_row=first_row)
                if field.width == 1:
                    run.add(number, cells.view(field.cell))
                elif len(field.columns) == 1:
                    vectors = np.ascontiguousarray(cells).reshape(-1).view(field.cell)
                    for scatter_plan in scatter_plans:
                        _scatter_records(vectors, number, scatter_plan)
                    del vectors
                else:
                    waiting = records.setdefault(number, _Records(field, self.pool))
                    made = waiting.add(index, cells)
                    if made is not None:
                        for scatter_plan in scatter_plans:
                            _scatter_records(made, number, scatter_plan)
                    del made
                del cells
            elif name in layout.ragged:
                lists = layout.list_cells(layout.ragged[name], values, first_row=first_row)
                for scatter_plan in scatter_plans:
                    _scatter_lists(name, lists, scatter_plan, self.pool)
                del lists
            del values
        run.scatter()


class _Run:
    """Columns that lie one after the other in a group, and are scattered together.

    A row slice has few rows, and copying them takes some microseconds: too short for a thread to
    let others run meanwhile. Copying `RUN_FIELDS` columns at a time takes a quarter less time on
    two threads.
    """

    def __init__(
        self, layout: Layout, scatter_plans: Sequence[ScatterPlan[HostGroup]], pool: BufferPool
    ) -> None:
        self._layout, self._scatter_plans, self._pool = layout, scatter_plans, pool
        self._first = 0
        self._columns: list[np.ndarray] = []

    def add(self, number: int, cells: np.ndarray) -> None:
        """Add the cells of a field; scatters the columns so far if it does not follow them."""
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
            blocks = self._ordered(columns, scatter_plan)
            for group, rows in scatter_plan.row_slices:
                stop = rows.first + rows.stop - rows.start
                target = group.run(self._first, len(columns))[:, rows.first : stop]
                if isinstance(blocks, np.ndarray):
                    target[:] = blocks[:, rows.start : rows.stop]
                else:
                    for cells, block in zip(target, blocks, strict=True):
                        cells[:] = block[rows.start : rows.stop]

    def _ordered(
        self, columns: list[np.ndarray], scatter_plan: ScatterPlan[HostGroup]
    ) -> list[np.ndarray] | np.ndarray:
        """Return the rows of the block in the order in which they are scattered."""
        if scatter_plan.order is None:
            return [cells[scatter_plan.start :] for cells in columns]
        shape = (len(columns), len(scatter_plan.order))
        blocks = self._pool.empty(shape, columns[0].dtype)
        for cells, ordered in zip(columns, blocks, strict=True):
            np.take(cells[scatter_plan.start :], scatter_plan.order, out=ordered, mode="clip")
        return blocks


class _Records:
    """The columns of one field, until all of them have come and become records.

    Columns are copied side by side, `RECORD_ROWS` rows at a time, so that NumPy writes one record
    after the other. Writing column by column takes twice as long, and so does copying all rows.
    """

    def __init__(self, field: Field, pool: BufferPool) -> None:
        self._field, self._pool = field, pool
        self._columns: dict[int, np.ndarray] = {}

    def add(self, index: int, column: np.ndarray) -> np.ndarray | None:
        """Add a column; returns the records, one cell a row, with the last column, else None."""
        self._columns[index] = column
        count, rows = len(self._field.columns), len(column)
        if len(self._columns) < count:
            return None
        values = self._pool.empty((rows, self._field.width), self._field.dtype)
        if self._field.width > count:
            self._copy_with_vectors(values)
            return values.reshape(-1).view(self._field.cell)
        columns = [self._columns.pop(index) for index in range(count)]
        step = min(RECORD_ROWS, rows)
        side_by_side = self._pool.empty((count, _unlike(step)), self._field.dtype)
        for start in range(0, rows, RECORD_ROWS):
            part = values[start : start + RECORD_ROWS]
            for target, cells in zip(side_by_side, columns, strict=True):
                target[: len(part)] = cells[start : start + RECORD_ROWS]
            part[:] = side_by_side[:, : len(part)].T
        return values.reshape(-1).view(self._field.cell)

    def _copy_with_vectors(self, values: np.ndarray) -> None:
        columns, self._columns = self._columns, {}
        for start in range(0, len(values), RECORD_ROWS):
            part = values[start : start + RECORD_ROWS]
            for index, column in columns.items():
                cells = column[start : start + RECORD_ROWS].reshape(len(part), -1)
                part[:, index : index + cells.shape[1]] = cells


def _unlike(rows: int) -> int:
    """Return a length at which columns side by side do not compete for the same cache lines."""
    cells = ALIGNMENT // 4
    return -(-rows // cells) * cells + cells


def _scatter_records(cells: np.ndarray, number: int, scatter_plan: ScatterPlan[HostGroup]) -> None:
    block, order = cells[scatter_plan.start :], scatter_plan.order
    for group, rows in scatter_plan.row_slices:
        target = group.fields[number][rows.first : rows.first + rows.stop - rows.start]
        if order is None:
            target[:] = block[rows.start : rows.stop]
        else:
            np.take(block, order[rows.start : rows.stop], out=target, mode="clip")


def _scatter_lists(
    name: str, lists: Ragged, scatter_plan: ScatterPlan[HostGroup], pool: BufferPool
) -> None:
    first = scatter_plan.start
    if scatter_plan.order is not None:
        positions, offsets = gather_rows(lists.offsets, scatter_plan.start + scatter_plan.order)
        values = pool.empty((len(positions),), lists.values.dtype)
        np.take(lists.values, positions, out=values, mode="clip")
        lists, first = Ragged(values, offsets), 0
    for group, rows in scatter_plan.row_slices:
        part = lists.slice(first + rows.start, first + rows.stop)
        group.add_lists(name, rows.first, part)
