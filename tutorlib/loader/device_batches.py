"""Batches on a device: rows of a piece into the groups of batches that they are dealt to.

The counterpart of `batching.py`, which deals rows out so that they stay in a processor's cache. A
device has other needs: few, large steps. So all columns of one dtype lie in one matrix, a *bank*;
a block of rows is put in order for all of them at once, and a share is one copy. The order comes
from the same plan, computed on the host (8 bytes a row), so the batches are the same as on the CPU.
Works with NumPy as with CuPy. Does not belong here: which row goes where (`plan.py`), threads,
files, tensors.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tutorlib.chunk import Ragged, array_namespace, concat_columns, gather_rows, to_host
from tutorlib.loader.host_batches import HostBatch, ScatterPlan
from tutorlib.loader.layout import Layout
from tutorlib.loader.list_lengths import ListLengths
from tutorlib.memory import DevicePool


@dataclasses.dataclass(frozen=True)
class Bank:
    """What lies in one matrix: successive columns of one dtype, or those of a stacked field.

    Args:
        fields: numbers of its fields.
        dtype: of every value.
        width: columns.
        stacked: whether it is [rows, width], for one field, or [width, rows].
    """

    fields: range
    dtype: np.dtype
    width: int
    stacked: bool

    @property
    def row_axis(self) -> int:
        """The axis along which rows follow each other."""
        return 0 if self.stacked else 1

    def empty(self, rows: int, pool: DevicePool) -> Any:
        """Return memory for so many rows."""
        return pool.empty((rows, self.width) if self.stacked else (self.width, rows), self.dtype)

    def rows(self, matrix: Any, start: int, stop: int) -> Any:
        """Return rows [start, stop) of the bank's matrix, not copied."""
        return matrix[start:stop] if self.stacked else matrix[:, start:stop]


def banks_of(layout: Layout) -> list[Bank]:
    """Return the banks in which the fields of a layout lie, in order."""
    banks: list[Bank] = []
    for number, field in enumerate(layout.fields):
        stacked, width = len(field.columns) > 1, len(field.columns)
        last = banks[-1] if banks else None
        if last and not stacked and not last.stacked and last.dtype == field.dtype:
            joined = range(last.fields.start, number + 1)
            banks[-1] = Bank(joined, field.dtype, len(joined), stacked=False)
        else:
            banks.append(Bank(range(number, number + 1), field.dtype, width, stacked))
    return banks


class DeviceGroup:
    """The rows of some successive batches: filled by several threads, closed by one, then cut up.

    Args:
        layout: how the columns lie.
        num_rows: rows of all its batches.
        pool: where memory comes from.
        lengths: how long the arrays of lists are.
    """

    def __init__(
        self,
        layout: Layout,
        num_rows: int,
        pool: DevicePool,
        *,
        lengths: ListLengths | None = None,
    ) -> None:
        self.layout, self.num_rows = layout, num_rows
        self._pool, self._banks = pool, banks_of(layout)
        self._lengths = lengths or ListLengths()
        stride = self._padded(num_rows)
        self._matrices = [bank.empty(stride, pool) for bank in self._banks]
        self._parts: dict[str, dict[int, Ragged]] = {name: {} for name in layout.ragged}
        self._lists: dict[str, Ragged] = {}
        self._bounds: dict[str, list[int]] = {}  # where each batch begins in the values of a list

    def _padded(self, rows: int) -> int:
        """Return `rows`, or more, such that what stands behind that many values starts aligned."""
        values = self._pool.space.alignment // 4
        return -(-rows // values) * values

    def rows(self, bank: int, start: int, stop: int) -> Any:
        """Return the place of rows [start, stop) in one of the banks."""
        return self._banks[bank].rows(self._matrices[bank], start, stop)

    def add_lists(self, name: str, first: int, lists: Ragged) -> None:
        """Keep the lists of rows [first, first + len(lists)) of a multi-hot column."""
        self._parts[name][first] = lists

    def close(self, sizes: Sequence[int], order: np.ndarray | None) -> None:
        """Put the rows in their final order; call it once, when all of them are there.

        Args:
            sizes: rows of each batch.
            order: int64 [num_rows] on the host, the order in which the rows make up the batches;
                None for as they are.

        Raises:
            MemoryError: if the place has not enough of it; says what to change.
        """
        try:
            self._close(sizes, order)
        except MemoryError as error:
            advice = self._pool.space.advice()
            if advice in str(error):
                raise
            raise MemoryError(f"no memory to make batches ({error}). {advice}") from error

    def _close(self, sizes: Sequence[int], order: np.ndarray | None) -> None:
        space = self._pool.space
        self._sizes = list(sizes)
        self._first_rows = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        self._stride = self._padded(max(sizes))  # rows from one batch to the next
        held: list[Any] = [self._matrices]  # others have made this: it must outlive the work here
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

    def _picks(self, order: np.ndarray | None) -> np.ndarray:
        """Return the row that comes to each place, where every batch starts aligned."""
        rows = np.arange(self.num_rows)
        batch = np.repeat(np.arange(len(self._sizes)), self._sizes)
        spaces = rows + batch * self._stride - np.repeat(self._first_rows[:-1], self._sizes)
        picks = np.zeros(len(self._sizes) * self._stride, dtype=np.int64)
        picks[spaces] = rows if order is None else order
        return picks

    def batch(self, number: int) -> HostBatch:
        """Return one of the batches, counted from 0, as arrays of the device.

        Each array starts aligned, and no two batches share any value.
        """
        rows, first = self._sizes[number], number * self._stride
        scalars = {}
        for bank, matrix in zip(self._banks, self._matrices, strict=True):
            part = bank.rows(matrix, first, first + rows)
            for index, field in enumerate(bank.fields):
                values = part if bank.stacked else part[index].reshape(rows, 1)
                scalars[self.layout.fields[field].name] = values
        lists = {name: self._lists_of(name, number) for name in self._lists}
        return HostBatch(rows, scalars, lists)

    def _lists_of(self, name: str, number: int) -> Ragged:
        lists = self._lists[name]
        first, last = self._first_rows[number : number + 2]
        start, stop = self._bounds[name][number : number + 2]
        count = stop - start
        length = self._lengths.values(name, last - first, count)
        values = self._pool.empty((length,), lists.values.dtype)
        values[:count] = lists.values[start:stop]
        if count < length:  # the last value again, as on the CPU
            values[count:] = lists.values[stop - 1 : stop] if count else 0
        return Ragged(values, self._pool.copy(lists.offsets[first : last + 1] - start))


def scatter(
    layout: Layout,
    columns: Iterable[tuple[str, Any]],
    scatter_plans: Sequence[ScatterPlan],
    pool: DevicePool,
    *,
    first_row: int = 0,
) -> None:
    """Copy some rows to the groups of batches that they go to; done when it returns.

    Args:
        layout: how the columns lie.
        columns: (name, column) of each column of the layout, in any order, in the pool's place.
        scatter_plans: where the rows go; the groups are `DeviceGroup`.
        pool: where memory comes from.
        first_row: number of the first of the rows, for messages.

    Raises:
        ValueError: if a value does not fit (see `Layout.cells`), or a column is not in the place.
        MemoryError: if the device has not enough of it. It can be done again.
    """
    space, banks = pool.space, banks_of(layout)
    orders = [
        None if scatter_plan.order is None else space.array(scatter_plan.order + scatter_plan.start)
        for scatter_plan in scatter_plans
    ]
    bank_of = {field: number for number, bank in enumerate(banks) for field in bank.fields}
    waiting: dict[int, dict[int, Any]] = {number: {} for number in range(len(banks))}
    for name, values in columns:
        if name in layout.places:
            column, field, index = layout.places[name]
            number = bank_of[field]
            cells = layout.cells(column, values, first_row=first_row)
            _check_place(name, cells, space.xp)
            waiting[number][index + field - banks[number].fields.start] = cells
            if len(waiting[number]) == banks[number].width:
                _scatter_bank(
                    banks[number], number, waiting.pop(number), scatter_plans, orders, space.xp
                )
        elif name in layout.ragged:
            lists = layout.list_cells(layout.ragged[name], values, first_row=first_row)
            _check_place(name, lists.values, space.xp)
            for scatter_plan, order in zip(scatter_plans, orders, strict=True):
                _scatter_lists(name, lists, scatter_plan, order)
    space.finish()


def _check_place(name: str, array: Any, xp: Any) -> None:
    if array_namespace(array) is not xp:
        raise ValueError(
            f"column {name!r}: map() gave a {type(array).__module__} array, but batches are made "
            f"with {xp.__name__}. Use the functions of array_namespace(column), not NumPy's."
        )


def _scatter_bank(
    bank: Bank,
    number: int,
    columns: dict[int, Any],
    scatter_plans: Sequence[ScatterPlan],
    orders: Sequence[Any],
    xp: Any,
) -> None:
    matrix = xp.stack([columns[index] for index in range(bank.width)], axis=1 - bank.row_axis)
    for scatter_plan, order in zip(scatter_plans, orders, strict=True):
        block, first = matrix, scatter_plan.start
        if order is not None:
            block, first = xp.take(matrix, order, axis=bank.row_axis), 0
        for group, row_slice in scatter_plan.row_slices:
            target = group.rows(
                number, row_slice.first, row_slice.first + row_slice.stop - row_slice.start
            )
            target[...] = bank.rows(block, first + row_slice.start, first + row_slice.stop)


def _scatter_lists(name: str, lists: Ragged, scatter_plan: ScatterPlan, order: Any) -> None:
    xp, first = array_namespace(lists.offsets), scatter_plan.start
    if order is not None:
        positions, offsets = gather_rows(lists.offsets, order)
        lists, first = Ragged(xp.take(lists.values, positions), offsets), 0
    # Where the lists of each share begin and end: asked of the device for all shares at once.
    rows = (
        np.array([(row_slice.start, row_slice.stop) for _, row_slice in scatter_plan.row_slices])
        + first
    )
    bounds = to_host(lists.offsets[xp.asarray(rows)]).tolist()
    for (group, row_slice), (start, stop) in zip(scatter_plan.row_slices, bounds, strict=True):
        offsets = lists.offsets[first + row_slice.start : first + row_slice.stop + 1] - start
        group.add_lists(name, row_slice.first, Ragged(lists.values[start:stop], offsets))


def again_with_less(
    work: Callable[..., None], relieve: Callable[[], None], advice: Callable[..., str]
) -> Callable[..., None]:
    """Return `work`, which is done once more where memory runs out, after `relieve()`.

    Args:
        work: what is done; it must be possible to do it twice.
        relieve: makes room, and whatever needs less memory from now on.
        advice: given the same arguments, what to say where that is not enough.

    Example:
        >>> tried = []
        >>> def work(row_group):
        ...     tried.append(row_group)
        ...     raise MemoryError("no 5 MiB")
        >>> again_with_less(work, lambda: None, lambda group: f"at {group}: need less")(7)
        Traceback (most recent call last):
        MemoryError: at 7: need less (no 5 MiB)
        >>> tried
        [7, 7]
    """

    @functools.wraps(work)
    def done(*arguments: Any) -> None:
        try:
            return work(*arguments)
        except MemoryError:
            pass  # and with the error goes what its traceback holds
        relieve()
        try:
            return work(*arguments)
        except MemoryError as error:
            raise MemoryError(f"{advice(*arguments)} ({error})") from error

    return done
