"""Batches on a device: rows of a row range into the groups of batches that they belong to.

The counterpart of `host_batches.py`, which copies little at a time so that it stays in a
processor's cache. A device needs few, large steps: all columns of one dtype form one matrix, a
*bank*; a block of rows is put in order for all columns of a bank in one step, and a row slice is
one copy. The order comes from the same plan, computed on the host (8 bytes a row), so the batches
are the same as on the CPU. All of this works with NumPy as with CuPy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tutorlib.columns import Ragged, array_namespace, concat_columns, gather_rows, to_host
from tutorlib.loader.batch_group import BatchBuilder, BatchGroup, ScatterPlan
from tutorlib.loader.layout import Layout
from tutorlib.loader.list_lengths import ListLengths
from tutorlib.memory import DevicePool, MemorySpace


@dataclasses.dataclass(frozen=True)
class Bank:
    """The columns that form one matrix: successive columns of one dtype, or one wide field."""

    fields: range  # numbers of its fields
    dtype: np.dtype
    width: int
    columns: int
    stacked: bool  # whether the matrix is [rows, width], for one field, or [width, rows]

    @property
    def row_axis(self) -> int:
        """The axis along which rows follow each other."""
        return 0 if self.stacked else 1

    def empty(self, rows: int, pool: DevicePool) -> Any:
        """Return memory for so many rows."""
        return pool.empty((rows, self.width) if self.stacked else (self.width, rows), self.dtype)

    def rows(self, matrix: Any, start: int, stop: int) -> Any:
        """Return a view of rows [start, stop) of the bank's matrix."""
        return matrix[start:stop] if self.stacked else matrix[:, start:stop]


def banks_of(layout: Layout) -> list[Bank]:
    """Return the banks that hold the fields of a layout, in order."""
    banks: list[Bank] = []
    for number, field in enumerate(layout.fields):
        stacked, count = field.width > 1, len(field.columns)
        last = banks[-1] if banks else None
        if last and not stacked and not last.stacked and last.dtype == field.dtype:
            joined = range(last.fields.start, number + 1)
            banks[-1] = Bank(joined, field.dtype, len(joined), len(joined), stacked=False)
        else:
            one = range(number, number + 1)
            banks.append(Bank(one, field.dtype, field.width, count, stacked))
    return banks


class DeviceGroup(BatchGroup):
    """The rows of some successive batches on a device."""

    def __init__(
        self, layout: Layout, num_rows: int, pool: DevicePool, lengths: ListLengths
    ) -> None:
        super().__init__(layout, num_rows, pool.space.alignment, lengths)
        self._pool, self._banks = pool, banks_of(layout)
        stride = self._padded(num_rows)
        self._matrices = [bank.empty(stride, pool) for bank in self._banks]
        self._bounds: dict[str, list[int]] = {}  # where each batch begins in the values of a list

    def rows(self, bank: int, start: int, stop: int) -> Any:
        """Return a view of rows [start, stop) of one of the banks."""
        return self._banks[bank].rows(self._matrices[bank], start, stop)

    def close(self, sizes: Sequence[int], order: np.ndarray | None) -> None:
        """Put the rows in their final order; call it once, when all of them have arrived."""
        try:
            self._close(sizes, order)
        except MemoryError as error:
            advice = self._pool.space.advice()
            if advice in str(error):
                raise
            raise MemoryError(f"no memory to make batches ({error}). {advice}") from error

    def _close(self, sizes: Sequence[int], order: np.ndarray | None) -> None:
        space = self._pool.space
        self._set_sizes(sizes)
        held: list[Any] = [self._matrices]  # made by other threads: must outlive the work here
        for name, parts in self._parts.items():
            held.append([parts.pop(first) for first in sorted(parts)])
            lists = concat_columns(held[-1])
            lists = lists if order is None else lists.take(space.array(order))
            self._lists[name] = lists
            self._bounds[name] = to_host(lists.offsets[space.array(self._first_rows)]).tolist()
        if len(sizes) > 1:
            picks = space.array(self._picks(order))
            ordered = []
            for bank, matrix in zip(self._banks, self._matrices, strict=True):
                ordered.append(bank.empty(len(picks), self._pool))
                space.xp.take(matrix, picks, axis=bank.row_axis, out=ordered[-1])
            self._matrices = ordered
        space.finish()

    def _scalars(self, start: int, stop: int) -> Iterator[tuple[str, Any]]:
        for bank, matrix in zip(self._banks, self._matrices, strict=True):
            part = bank.rows(matrix, start, stop)
            for index, field in enumerate(bank.fields):
                yield self.layout.fields[field].name, part if bank.stacked else part[index][:, None]

    def _lists_of(self, name: str, number: int) -> Ragged:
        lists = self._lists[name]
        first, last = self._first_rows[number : number + 2]
        start, stop = self._bounds[name][number : number + 2]
        count = stop - start
        length = self._lengths.values(name, last - first, count)
        values = self._pool.empty((length,), lists.values.dtype)
        values[:count] = lists.values[start:stop]
        if count < length:  # padded with the last value, as on the CPU
            values[count:] = lists.values[stop - 1 : stop] if count else 0
        return Ragged(values, self._pool.copy(lists.offsets[first : last + 1] - start))


class DeviceBuilder(BatchBuilder[DeviceGroup, DevicePool]):
    """Makes batches in the memory of the pool's device."""

    @property
    def space(self) -> MemorySpace:
        """The device's memory."""
        return self.pool.space

    def new_group(self, num_rows: int) -> DeviceGroup:
        """Return an empty group of batches with so many rows in all."""
        return DeviceGroup(self.layout, num_rows, self.pool, self.lengths)

    def scatter(
        self,
        columns: Iterable[tuple[str, Any]],
        scatter_plans: Sequence[ScatterPlan[DeviceGroup]],
        *,
        first_row: int = 0,
    ) -> None:
        """Copy rows to the groups of batches that they go to; the copies are done on return.

        Raises:
            ValueError: if a value does not fit the layout, or a column is not on the device.
            MemoryError: if the device has too little memory. It may be called again then.
        """
        layout, space = self.layout, self.space
        banks = banks_of(layout)
        orders = [
            None if plan.order is None else space.array(plan.order + plan.start)
            for plan in scatter_plans
        ]
        bank_of = {field: number for number, bank in enumerate(banks) for field in bank.fields}
        waiting: dict[int, dict[int, Any]] = {number: {} for number in range(len(banks))}
        for name, values in columns:
            if name in layout.positions:
                column, field, index = layout.positions[name]
                number = bank_of[field]
                bank = banks[number]
                cells = layout.cells(column, values, first_row=first_row)
                _check_space(name, cells, space.xp)
                waiting[number][index + field - bank.fields.start] = cells
                if len(waiting[number]) == bank.columns:
                    arrays = waiting.pop(number)
                    _scatter_bank(bank, number, arrays, scatter_plans, orders, space.xp)
            elif name in layout.ragged:
                lists = layout.list_cells(layout.ragged[name], values, first_row=first_row)
                _check_space(name, lists.values, space.xp)
                for scatter_plan, order in zip(scatter_plans, orders, strict=True):
                    _scatter_lists(name, lists, scatter_plan, order)
        space.finish()


def _check_space(name: str, array: Any, xp: Any) -> None:
    if array_namespace(array) is not xp:
        raise ValueError(
            f"column {name!r}: map() gave a {type(array).__module__} array, but batches are made "
            f"with {xp.__name__}. Use the functions of array_namespace(column), not NumPy's."
        )


def _scatter_bank(
    bank: Bank,
    number: int,
    columns: dict[int, Any],
    scatter_plans: Sequence[ScatterPlan[DeviceGroup]],
    orders: Sequence[Any],
    xp: Any,
) -> None:
    ordered = [columns[index] for index in sorted(columns)]
    if len(ordered) == bank.width:
        matrix = xp.stack(ordered, axis=1 - bank.row_axis)
    else:
        matrix = xp.concatenate([cells.reshape(len(cells), -1) for cells in ordered], axis=1)
    for scatter_plan, order in zip(scatter_plans, orders, strict=True):
        block, first = matrix, scatter_plan.start
        if order is not None:
            block, first = xp.take(matrix, order, axis=bank.row_axis), 0
        for group, rows in scatter_plan.row_slices:
            target = group.rows(number, rows.first, rows.first + rows.stop - rows.start)
            target[...] = bank.rows(block, first + rows.start, first + rows.stop)


def _scatter_lists(
    name: str, lists: Ragged, scatter_plan: ScatterPlan[DeviceGroup], order: Any
) -> None:
    xp, first = array_namespace(lists.offsets), scatter_plan.start
    if order is not None:
        positions, offsets = gather_rows(lists.offsets, order)
        lists, first = Ragged(xp.take(lists.values, positions), offsets), 0
    # Where the lists of each row slice begin and end: one question to the device for all of them.
    rows = np.array([(rows.start, rows.stop) for _, rows in scatter_plan.row_slices]) + first
    bounds = to_host(lists.offsets[xp.asarray(rows)]).tolist()
    for (group, row_slice), (start, stop) in zip(scatter_plan.row_slices, bounds, strict=True):
        offsets = lists.offsets[first + row_slice.start : first + row_slice.stop + 1] - start
        group.add_lists(name, row_slice.first, Ragged(lists.values[start:stop], offsets))
