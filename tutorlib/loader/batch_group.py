"""What batches in host memory and on a device have in common: groups, and the rows they are given.

`host_batches.py` and `device_batches.py` implement `BatchGroup` and `BatchBuilder`.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from tutorlib.columns import Ragged
from tutorlib.loader.layout import Layout
from tutorlib.loader.list_lengths import ListLengths
from tutorlib.loader.plan import RowSlice
from tutorlib.memory import BufferPool, DevicePool, MemorySpace


@dataclasses.dataclass
class ArrayBatches:
    """Successive batches of equally many rows as arrays of NumPy or CuPy, before they are tensors.

    Each is a few microseconds of work, most of them per call: all of them together take a third.
    """

    num_rows: int  # of each batch
    scalars: dict[str, Any]  # {name: [batches, num_rows, 1]}, or {role: [.., n]} if stacked
    lists: Sequence[Mapping[str, Ragged]]  # of each; the values may be padded after the last list


class BatchGroup(abc.ABC):
    """The rows of some successive batches: several threads fill it, then one closes it.

    Args:
        layout: how the columns lie in a batch.
        num_rows: rows of all its batches.
        alignment: bytes; every batch starts at a multiple of them.
        lengths: gives the lengths of the arrays of lists.
    """

    def __init__(self, layout: Layout, num_rows: int, alignment: int, lengths: ListLengths) -> None:
        self.layout, self.num_rows = layout, num_rows
        self._alignment, self._lengths = alignment, lengths
        self._parts: dict[str, dict[int, Ragged]] = {name: {} for name in layout.ragged}
        self._lists: dict[str, Ragged] = {}

    def add_lists(self, name: str, first: int, lists: Ragged) -> None:
        """Keep the lists of rows [first, first + len(lists)) of a multi-hot column."""
        self._parts[name][first] = lists

    @abc.abstractmethod
    def close(self, sizes: Sequence[int], order: np.ndarray | None) -> None:
        """Put the rows in their final order; call it once, when all of them have arrived.

        Args:
            sizes: rows of each batch.
            order: int64 [num_rows] on the host, the order in which the rows make up the batches;
                None if they are in order already.
        """

    def batches(self, which: range) -> Iterator[ArrayBatches]:
        """Yield successive batches, counted from 0; those of equally many rows come together.

        The arrays of each batch start aligned, and no two batches share any value.
        """
        for rows, numbers in itertools.groupby(which, key=self._sizes.__getitem__):
            first, *others = numbers
            start, stop = first * self._stride, (first + 1 + len(others)) * self._stride
            scalars = {
                name: cells.reshape(-1, self._stride, cells.shape[1])[:, :rows]
                for name, cells in self._scalars(start, stop)
            }
            lists = [
                {name: self._lists_of(name, number) for name in self._lists}
                for number in (first, *others)
            ]
            yield ArrayBatches(rows, scalars, lists)

    @abc.abstractmethod
    def _scalars(self, start: int, stop: int) -> Iterator[tuple[str, Any]]:
        """Yield (name, rows [start, stop) in final order) of each field, [rows, width]."""

    @abc.abstractmethod
    def _lists_of(self, name: str, number: int) -> Ragged:
        """Return the lists of a batch, with as many values as `ListLengths` asks for."""

    def _padded(self, rows: int) -> int:
        """Return `rows` rounded up, so that what follows as many values of 4 bytes is aligned."""
        values = self._alignment // 4
        return -(-rows // values) * values

    def _set_sizes(self, sizes: Sequence[int]) -> None:
        self._sizes = list(sizes)
        self._first_rows = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        self._stride = self._padded(max(sizes))  # rows from one batch to the next

    def _picks(self, order: np.ndarray | None) -> np.ndarray:
        """Return which row goes to each row of the ordered group, int64 [batches * stride]."""
        rows = np.arange(self.num_rows)
        batch = np.repeat(np.arange(len(self._sizes)), self._sizes)
        targets = rows + batch * self._stride - np.repeat(self._first_rows[:-1], self._sizes)
        picks = np.zeros(len(self._sizes) * self._stride, dtype=np.int64)
        picks[targets] = rows if order is None else order
        return picks


GroupT = TypeVar("GroupT", bound=BatchGroup)
PoolT = TypeVar("PoolT", BufferPool, DevicePool)


@dataclasses.dataclass(frozen=True)
class ScatterPlan(Generic[GroupT]):
    """Where the rows of one block go."""

    start: int  # first row of the block within the columns that are scattered
    order: np.ndarray | None  # int64 [rows], in which they are scattered; None for their own order
    row_slices: Sequence[tuple[GroupT, RowSlice]]  # what goes to each group of batches


class BatchBuilder(abc.ABC, Generic[GroupT, PoolT]):
    """Makes groups of batches in one kind of memory and scatters rows to them.

    Args:
        layout: how the columns lie in a batch.
        pool: gives the memory of batches.
        lengths: gives the lengths of the arrays of lists; None for as long as they must be.
    """

    def __init__(self, layout: Layout, pool: PoolT, lengths: ListLengths | None = None) -> None:
        self.layout, self.lengths = layout, lengths or ListLengths()
        self.pool: PoolT = pool

    @property
    def space(self) -> MemorySpace | None:
        """The device's memory; None for batches in host memory."""
        return None

    @abc.abstractmethod
    def new_group(self, num_rows: int) -> GroupT:
        """Return an empty group of batches with so many rows in all."""

    @abc.abstractmethod
    def scatter(
        self,
        columns: Iterable[tuple[str, Any]],
        scatter_plans: Sequence[ScatterPlan[GroupT]],
        *,
        first_row: int = 0,
    ) -> None:
        """Copy rows to the groups of batches that they go to.

        Args:
            columns: (name, column) of each column of the layout, in any order. Each is released
                before the next is asked for: columns that are decoded only then reuse its memory
                while it is still in the cache.
            scatter_plans: where the rows go.
            first_row: number of the first of the rows, for messages.

        Raises:
            ValueError: if a value does not fit the layout (see `Layout.cells`).
        """

    def work(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which a thread does its work."""
        return contextlib.nullcontext() if self.space is None else self.space.work()
