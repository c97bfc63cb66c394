"""JoinedPlan: the batches of a process that gives the rows of several canonical ranks.

The order of an epoch is that of S canonical ranks, each with a plan of its own. A process with some
of them reads their chunks in turn, and scatters the rows of each to its part of the batch. So the
batches of all processes, laid end to end, are the same for every number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tutorlib.loader.plan import ChunkPlan, EpochPlan, RowSlice


class JoinedPlan(EpochPlan):
    """The order of the rows of neighbouring canonical ranks, in batches that hold those of all.

    Until the batches of a group are put in order, its rows lie rank by rank; a group of one batch
    needs no order.

    Args:
        plans: plans of neighbouring ranks, of the same settings.

    Example:
        >>> halves = [
        ...     EpochPlan([4, 4], batch_size=2, shuffle=False, rank=rank, world_size=2)
        ...     for rank in (0, 1)
        ... ]
        >>> plan = JoinedPlan(halves)
        >>> [half.batch_sizes for half in halves], plan.batch_sizes, plan.num_ranks
        ([[2, 2], [2, 2]], [4, 4], 2)
    """

    def __init__(self, plans: Sequence[EpochPlan]) -> None:
        first = plans[0]
        self._plans, self.num_ranks = plans, len(plans)
        self.shuffle, self.seed, self.epoch = first.shuffle, first.seed, first.epoch
        self.rank, self.group_batches = first.rank, first.group_batches
        self.batch_size = len(plans) * first.batch_size
        self.num_rows = sum(plan.num_rows for plan in plans)
        self.batch_sizes = [sum(s) for s in zip(*(p.batch_sizes for p in plans), strict=True)]
        starts = np.array([plan._group_starts for plan in plans])
        self._group_starts = starts.sum(axis=0).tolist()
        # Where the rows of each rank begin in a group, [groups, ranks].
        rows = np.diff(starts, axis=1).T
        self._first_rows = (np.cumsum(rows, axis=1) - rows).tolist()
        # A chunk comes in the order in which its first row is needed: ranks' chunks differ in rows.
        places = [(c.first, member, c.index) for member, p in enumerate(plans) for c in p.chunks]
        self._places = [(member, index) for _, member, index in sorted(places)]
        self._numbers: list[list[int]] = [[] for _ in plans]
        self.chunks = []
        for number, (member, index) in enumerate(self._places):
            self._numbers[member].append(number)
            chunk = plans[member].chunks[index]
            self.chunks.append(ChunkPlan(number, chunk.first, chunk.row_ranges))

    def chunks_of(self, group: int) -> tuple[int, int]:
        """Return the first and the last chunk from which a group has rows."""
        parts = zip(self._numbers, self._plans, strict=True)
        spans = [(numbers, plan.chunks_of(group)) for numbers, plan in parts]
        first = min(numbers[first] for numbers, (first, _) in spans)
        return first, max(numbers[last] for numbers, (_, last) in spans)

    def row_slices(self, chunk: int) -> list[list[RowSlice]]:
        """Return for each block of a chunk the row slices that it gives to groups."""
        member, index = self._places[chunk]
        return [
            [
                RowSlice(s.group, self._first_rows[s.group][member] + s.first, s.start, s.stop)
                for s in row_slices
            ]
            for row_slices in self._plans[member].row_slices(index)
        ]

    def order(self, chunk: int, block: int, row_slices: Sequence[RowSlice]) -> np.ndarray | None:
        """Return the order in which the rows of a block are scattered (see `EpochPlan.order`)."""
        member, index = self._places[chunk]
        return self._plans[member].order(index, block, row_slices)

    def group_order(self, group: int) -> np.ndarray | None:
        """Return the order in which the rows of a group make up its batches, int64 [rows].

        None if the group has one batch.
        """
        if len(self.group_sizes(group)) == 1:
            return None
        parts = []  # of each rank, its rows of each batch
        for plan, first in zip(self._plans, self._first_rows[group], strict=True):
            order = plan.group_order(group)
            rows = first + (np.arange(plan.group_rows(group)) if order is None else order)
            parts.append(np.split(rows, np.cumsum(plan.group_sizes(group))[:-1]))
        return np.concatenate([rows for batch in zip(*parts, strict=True) for rows in batch])
