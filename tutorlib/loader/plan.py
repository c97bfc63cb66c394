"""EpochPlan: which rows are read together and in which batch each one lands. No I/O.

The plan of an epoch is a pure function of the row counts of the row groups and of the settings. So
its length is known before anything is read, any batch can be found without those before it, and
ranks need no communication. It has three steps:

1. Neighbouring row groups form *partitions*; a larger row group forms several, its *slices*. If
   rows are shuffled, the row groups are put in random order.
2. That sequence is cut into one run per rank, of equal length give or take one row. Each
   `parts_per_chunk` partitions of a run form a *chunk*. The slices of a row group go to successive
   chunks, in order, so that it is read through once.
3. The rows of a chunk are assigned at random to the batches that lie in it. Batch i holds positions
   [i * batch_size, (i + 1) * batch_size) of all chunks laid end to end: the rows that a chunk has
   left over begin the next batch.

Rows are assigned by *blocks* of neighbouring rows and *groups* of successive batches, both small
enough that one column of them stays in the second-level cache: first the number of rows that each
block gives to each group is drawn (multivariate hypergeometric), then which rows, then the batch of
each (both by `_random_split`). This chooses the rows of each batch uniformly, at a tenth of the
cost of permuting the chunk. Within a batch they keep the order of the chunk, so that all copies go
through memory in one direction.

Random numbers come from a counter-based generator (Philox) keyed by (seed, epoch) and the chunk.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tutorlib.checks import check_integer, check_positive
from tutorlib.parquet import RowRange

BLOCK_ROWS = 131_072  # 512 KiB of 4-byte values
GROUP_ROWS = 65_536  # 256 KiB of them


def blocks_of(row_range: RowRange) -> list[tuple[int, int]]:
    """Return (start, stop) of each block of a row range, counted from its first row."""
    starts = range(0, row_range.num_rows, BLOCK_ROWS)
    return [(start, min(start + BLOCK_ROWS, row_range.num_rows)) for start in starts]


@dataclasses.dataclass(frozen=True)
class ChunkPlan:
    """Row ranges that are read and shuffled together.

    Args:
        index: number of the chunk in the epoch.
        first: position of its first row in all chunks laid end to end.
        row_ranges: its rows, in the order in which they are read.
    """

    index: int
    first: int
    row_ranges: tuple[RowRange, ...]

    @functools.cached_property
    def num_rows(self) -> int:
        """Rows of the chunk."""
        return sum(row_range.num_rows for row_range in self.row_ranges)

    @functools.cached_property
    def block_rows(self) -> list[int]:
        """Rows of each block, over all row ranges in order."""
        return [
            stop - start for row_range in self.row_ranges for start, stop in blocks_of(row_range)
        ]


@dataclasses.dataclass(frozen=True)
class RowSlice:
    """Rows that a block gives to a group of batches.

    Args:
        group: number of the group.
        first: row of the group at which they begin.
        start: first of them, in the order in which the block is scattered.
        stop: one past the last of them.
    """

    group: int
    first: int
    start: int
    stop: int


class EpochPlan:
    """The order of one rank's rows in one epoch.

    Args:
        row_counts: rows of each row group of the source, in order.
        batch_size: rows per batch, at least 1.
        shuffle: whether rows come in random order; False keeps the order of the source.
        seed: 0 to 2**64 - 1.
        epoch: number of the epoch, from 0.
        partition_rows: most rows of a partition, at least 1.
        parts_per_chunk: number of partitions that are mixed in one chunk, at least 1.
        rank: number of this rank, from 0.
        world_size: number of ranks.
        drop_last: whether to leave out a last batch that is not full. All ranks leave out equally
            many batches, so at most `batch_size` rows each.
        limit_rows: use only this many rows from the start of the source; None for all.
        group_rows: most rows of a group of batches; None for 65,536.
        row_costs: how many rows of a partition a row of each row group counts as; None for 1. With
            them, partitions have about equally many bytes where rows differ in width.

    Attributes:
        num_rows: rows of this rank, before `drop_last`.
        num_ranks: ranks whose rows the batches hold: 1, but several in a `JoinedPlan`.
        batch_sizes: rows of every batch; all ranks have equally many batches.
        group_batches: number of batches of a group; the last group may have fewer.
        chunks: `ChunkPlan` of every chunk, in order.

    Raises:
        ValueError: if a setting is out of range, or there are fewer rows than ranks.

    Example:
        >>> plan = EpochPlan([3, 3, 3], batch_size=4, shuffle=False, partition_rows=3)
        >>> len(plan), plan.batch_sizes, [chunk.num_rows for chunk in plan.chunks]
        (3, [4, 4, 1], [3, 3, 3])
    """

    num_ranks = 1

    def __init__(
        self,
        row_counts: Sequence[int],
        *,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        epoch: int = 0,
        partition_rows: int = 1,
        parts_per_chunk: int = 1,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        limit_rows: int | None = None,
        group_rows: int | None = None,
        row_costs: Sequence[float] | None = None,
    ) -> None:
        check_positive(
            batch_size=batch_size, partition_rows=partition_rows, parts_per_chunk=parts_per_chunk,
            world_size=world_size, limit_rows=limit_rows, group_rows=group_rows,
        )  # fmt: skip
        check_integer("epoch", epoch, 0, bits=64)
        check_integer("seed", seed, 0, bits=64)
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be in [0, world_size={world_size}), got {rank}")
        self.batch_size, self.shuffle = batch_size, shuffle
        self.seed, self.epoch = seed, epoch
        row_ranges = _limited(row_counts, limit_rows)
        costs = [1] * len(row_counts) if row_costs is None else row_costs
        partitions = _partitions(row_ranges, partition_rows, costs)
        if shuffle:
            order = self._random(0).permutation(len(partitions))
            partitions = [partitions[i] for i in order]
        total = sum(row_range.num_rows for row_range in row_ranges)
        if total < world_size:
            raise ValueError(f"{total} rows are too few for {world_size} ranks")
        cuts = [total * r // world_size for r in range(world_size + 1)]
        self.rank = rank
        self.num_rows = cuts[rank + 1] - cuts[rank]
        counts = [b - a for a, b in itertools.pairwise(cuts)]
        self.batch_sizes = _batch_sizes(
            self.num_rows, min(counts), max(counts), batch_size, drop_last
        )
        run = _cut(partitions, cuts[rank], cuts[rank + 1])
        lanes = parts_per_chunk if shuffle else 1
        self.chunks = _chunks(
            _slices(run, partition_rows, lanes, costs), parts_per_chunk, lanes > 1
        )
        chunk_rows = min(group_rows or GROUP_ROWS, partition_rows * parts_per_chunk)
        self.group_batches = max(1, chunk_rows // max(batch_size, 16))
        self._firsts = [chunk.first for chunk in self.chunks]
        starts = np.concatenate([[0], np.cumsum(self.batch_sizes)]).tolist()
        self._group_starts = [*starts[: -1 : self.group_batches], starts[-1]]

    def __len__(self) -> int:
        return len(self.batch_sizes)

    def _random(self, stream: int, chunk: int = 0, block: int = 0) -> np.random.Generator:
        key = np.array([self.seed, self.epoch], dtype=np.uint64)
        counter = np.array([0, block, chunk, stream]).astype(np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))

    @property
    def num_groups(self) -> int:
        """Number of groups of batches."""
        return len(self._group_starts) - 1

    def group_rows(self, group: int) -> int:
        """Return the rows of a group of batches."""
        return self._group_starts[group + 1] - self._group_starts[group]

    def group_sizes(self, group: int) -> list[int]:
        """Return the rows of each batch of a group."""
        first = group * self.group_batches
        return self.batch_sizes[first : first + self.group_batches]

    def chunks_of(self, group: int) -> tuple[int, int]:
        """Return the first and the last chunk from which a group has rows."""
        first, stop = self._group_starts[group], self._group_starts[group + 1]
        first_chunk = bisect.bisect_right(self._firsts, first) - 1
        return first_chunk, bisect.bisect_left(self._firsts, stop) - 1

    def row_slices(self, chunk: int) -> list[list[RowSlice]]:
        """Return for each block of a chunk the row slices that it gives to groups."""
        plan = self.chunks[chunk]
        end = min(plan.first + plan.num_rows, self._group_starts[-1])
        left = np.array(plan.block_rows)
        row_slices: list[list[RowSlice]] = [[] for _ in left]
        starts = np.zeros_like(left)
        random = self._random(1 + self.rank, chunk)
        position = plan.first
        while position < end:
            group = bisect.bisect_right(self._group_starts, position) - 1
            rows = min(end, self._group_starts[group + 1]) - position
            if self.shuffle:
                counts = random.multivariate_hypergeometric(left, rows)
            else:
                counts = np.clip(rows - (np.cumsum(left) - left), 0, left)
            first = position - self._group_starts[group]
            for block in np.flatnonzero(counts).tolist():
                start, count = int(starts[block]), int(counts[block])
                row_slices[block].append(RowSlice(group, first, start, start + count))
                first += count
            left, starts = left - counts, starts + counts
            position += rows
        return row_slices

    def order(self, chunk: int, block: int, row_slices: Sequence[RowSlice]) -> np.ndarray | None:
        """Return the order in which the rows of a block are scattered, int64 [rows].

        The rows of each row slice keep their order in the block, so that picking them goes through
        memory in one direction. None if rows are not shuffled.

        Args:
            chunk: number of the chunk.
            block: number of the block in it.
            row_slices: those of `row_slices(chunk)` that are of the block.
        """
        if not self.shuffle:
            return None
        random = self._random(1 + self.rank, chunk, 1 + block)
        counts = [row_slice.stop - row_slice.start for row_slice in row_slices]
        rest = self.chunks[chunk].block_rows[block] - sum(counts)  # beyond the last batch
        return _random_split(random, [*counts, rest] if rest else counts)

    def group_order(self, group: int) -> np.ndarray | None:
        """Return the order in which the rows of a group make up its batches, int64 [rows].

        The rows of each batch keep their order in the group. None if they are in order already:
        rows are not shuffled, or the group has one batch.
        """
        sizes = self.group_sizes(group)
        if not self.shuffle or len(sizes) == 1:
            return None
        return _random_split(self._random(-1 - self.rank, group), sizes)


def _random_split(random: np.random.Generator, sizes: Sequence[int]) -> np.ndarray:
    """Return a random split of rows into at most 65,536 parts of these sizes, int64 [sum(sizes)].

    The rows of the first part come first, in rising order, then those of the second, and so on.
    Each row draws its part independently; then random rows of parts that have too many move to
    parts that have too few, so every split is equally likely. This takes 11 ns per row for 16 parts
    of 131,072 rows; sorting random keys takes 77 ns.
    """
    counts = np.asarray(sizes, dtype=np.int64)
    rows = int(counts.sum())
    ends = np.cumsum(counts) * 2**16 // rows
    part_of_draw = np.repeat(np.arange(len(counts), dtype=np.uint16), np.diff(ends, prepend=0))
    draws = random.bit_generator.random_raw(-(-rows // 4)).view(np.uint16)[:rows]
    parts = part_of_draw[draws]
    order = np.argsort(parts, kind="stable")
    have = np.bincount(parts, minlength=len(counts))
    if np.array_equal(have, counts):
        return order
    starts = np.cumsum(have) - have
    excess = np.maximum(have - counts, 0)
    moved = np.zeros(rows, dtype=bool)  # by index in `order`
    while excess.any():
        part = np.repeat(np.arange(len(counts)), excess)
        indices = starts[part] + (random.random(len(part)) * have[part]).astype(np.int64)
        indices = np.unique(indices[~moved[indices]])
        moved[indices] = True
        excess -= np.bincount(parts[order[indices]], minlength=len(counts))
    moving = random.permutation(order[moved])
    parts[moving] = np.repeat(np.arange(len(counts)), np.maximum(counts - have, 0))
    return np.argsort(parts, kind="stable")


def _limited(row_counts: Sequence[int], limit_rows: int | None) -> list[RowRange]:
    row_ranges, left = [], sum(row_counts) if limit_rows is None else limit_rows
    for index, rows in enumerate(row_counts):
        if rows and left:
            row_ranges.append(RowRange(index, 0, min(rows, left)))
            left -= row_ranges[-1].num_rows
    return row_ranges


def _partitions(
    row_ranges: Sequence[RowRange], partition_rows: int, costs: Sequence[float]
) -> list[list[RowRange]]:
    """Join neighbouring row ranges into partitions of at most `partition_rows` rows."""
    partitions: list[list[RowRange]] = []
    rows = 0.0
    for row_range in row_ranges:
        count = row_range.num_rows * costs[row_range.row_group]
        if not partitions or rows + count > partition_rows:
            partitions.append([])
            rows = 0
        partitions[-1].append(row_range)
        rows += count
    return partitions


def _cut(partitions: Sequence[list[RowRange]], first: int, last: int) -> list[list[RowRange]]:
    """Return the rows at positions [first, last) of all partitions laid end to end."""
    run, position = [], 0
    for partition in partitions:
        kept = []
        for row_range in partition:
            start, stop = max(first - position, 0), min(last - position, row_range.num_rows)
            if start < stop:
                kept.append(
                    RowRange(row_range.row_group, row_range.start + start, row_range.start + stop)
                )
            position += row_range.num_rows
        if kept:
            run.append(kept)
    return run


def _slices(
    partitions: Sequence[list[RowRange]],
    partition_rows: int,
    lanes: int,
    costs: Sequence[float],
) -> Iterator[list[RowRange]]:
    """Yield partitions of at most `partition_rows` rows; slices of `lanes` of them alternate."""
    waiting, open_lanes = iter(partitions), deque[deque[list[RowRange]]]()
    while True:
        for partition in itertools.islice(waiting, lanes - len(open_lanes)):
            open_lanes.append(deque(_sliced(partition, partition_rows, costs)))
        if not open_lanes:
            return
        lane = open_lanes.popleft()
        yield lane.popleft()
        if lane:
            open_lanes.append(lane)


def _sliced(
    partition: list[RowRange], partition_rows: int, costs: Sequence[float]
) -> list[list[RowRange]]:
    cost = costs[partition[0].row_group]
    if len(partition) > 1 or partition[0].num_rows * cost <= partition_rows:
        return [partition]  # only a single row group can be larger
    parts = _cut_evenly(partition[0], max(1, int(partition_rows / cost)))
    return [_cut_evenly(part, BLOCK_ROWS) for part in parts]


def _cut_evenly(row_range: RowRange, most_rows: int) -> list[RowRange]:
    count = -(-row_range.num_rows // most_rows)
    cuts = [row_range.start + row_range.num_rows * i // count for i in range(count + 1)]
    return [RowRange(row_range.row_group, a, b) for a, b in itertools.pairwise(cuts)]


def _chunks(
    partitions: Iterable[list[RowRange]], parts_per_chunk: int, in_turn: bool
) -> list[ChunkPlan]:
    """Join partitions into chunks; `in_turn`, the first row ranges of all partitions come first."""
    chunks: list[ChunkPlan] = []
    position = 0
    partitions = iter(partitions)
    while group := list(itertools.islice(partitions, parts_per_chunk)):
        lanes: dict[int, list[RowRange]] = {}  # slices of one row group must stay in order
        for partition in group:
            lanes.setdefault(partition[0].row_group, []).extend(partition)
        turns = itertools.zip_longest(*lanes.values()) if in_turn else lanes.values()
        row_ranges = [row_range for turn in turns for row_range in turn if row_range is not None]
        chunk = ChunkPlan(len(chunks), position, tuple(row_ranges))
        chunks.append(chunk)
        position += chunk.num_rows
    return chunks


def _batch_sizes(rows: int, least: int, most: int, batch_size: int, drop_last: bool) -> list[int]:
    """Return a rank's batch sizes, if it has `rows` rows, and ranks have `least` to `most`."""
    if drop_last:
        return [batch_size] * (least // batch_size)
    steps = -(-most // batch_size)
    if least < steps:
        raise ValueError(
            f"batch_size={batch_size} cannot give all ranks equally many steps: one has {most} "
            f"rows, another {least}. Use a larger batch_size, or drop_last=True."
        )
    sizes = [batch_size] * (steps - 1)
    last = rows - sum(sizes)
    if last == 0:  # another rank has one row more, and so one batch more: match it
        sizes[-1], last = sizes[-1] - 1, 1
    return [*sizes, last]
