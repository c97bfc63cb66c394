"""EpochPlan: which rows are read together, and in which batch each one lands. No I/O.

The plan of an epoch is a pure function of the row counts of the row groups and of the settings. So
its length is known before anything is read, any batch can be found without those before it, and
ranks need no communication. Each rank has a plan of its own, in three steps:

1. Neighbouring row groups form *partitions* of at most `partition_rows`; a larger row group forms
   several, its *slices*. If rows are shuffled, the row groups are put in random order.
2. That sequence is cut into one run per rank, of equal length give or take one row. Each
   `parts_per_chunk` partitions of a run form a *chunk*. The slices of a row group go to successive
   chunks, in order, so that it is read through once. If there are none, and many chunks, the
   first has half as many partitions, so that the first batch comes sooner.
3. The rows of a chunk are dealt at random to the batches that lie in it, by one permutation. Batch
   i holds positions [i * batch_size, (i + 1) * batch_size) of all chunks laid end to end: the rows
   that a chunk has left over begin the next batch. Within a batch, rows keep the order of the
   chunk, so that gathering them goes through memory in one direction.

Random numbers are drawn from (seed, epoch, rank, chunk).

An epoch may have hundreds of thousands of row groups, so its plan is a few arrays. A row of
`ranges`, int64 [row ranges, 3], is a row group, the first row, and one past the last.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
from collections.abc import Sequence

import numpy as np

from tutorlib.parquet import RowRange

Array = np.ndarray


@dataclasses.dataclass(eq=False)
class ChunkPlan:
    """Row ranges that are read and shuffled together.

    Args:
        index: number of the chunk in the epoch.
        first: position of its first row in all chunks laid end to end.
        num_rows: its rows.
        ranges: its row ranges, int64 [row ranges, 3], in the order in which they are read.
    """

    index: int
    first: int
    num_rows: int
    ranges: Array

    @functools.cached_property
    def row_ranges(self) -> tuple[RowRange, ...]:
        """Its row ranges, made when the chunk's turn comes."""
        return tuple(itertools.starmap(RowRange, self.ranges.tolist()))


@dataclasses.dataclass(frozen=True)
class Segment:
    """Successive rows of a chunk's order: whole batches, or a piece of one batch.

    Args:
        batch: number of the batch, or of the first one.
        batches: number of whole batches; 0 for a piece of one.
        start: first row, in the chunk's order.
        stop: one past the last row.
    """

    batch: int
    batches: int
    start: int
    stop: int


class EpochPlan:
    """The order of one rank's rows in one epoch, of settings that are checked.

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

    Attributes:
        starts: int64 [batches + 1], position at which each batch begins, and the end of the last.
        batch_sizes: int64 [batches], rows of every batch; all ranks have equally many batches.
        num_rows: rows of all batches.
        chunks: `ChunkPlan` of every chunk, in order.
        sliced: {row group of which successive chunks read slices, in order: end of the last one}.

    Raises:
        ValueError: if there are fewer rows than ranks, or too few for equally many steps.

    Example:
        >>> plan = EpochPlan([3, 3, 3], batch_size=4, shuffle=False, partition_rows=3)
        >>> plan.starts.tolist(), [chunk.num_rows for chunk in plan.chunks]
        ([0, 4, 8, 9], [3, 3, 3])
        >>> [(s.batch, s.batches, s.start, s.stop) for s in plan.segments(1)]
        [(0, 0, 0, 1), (1, 0, 1, 3)]
    """

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
    ) -> None:
        # 1. Partitions, in an order that all ranks share.
        rng = np.random.default_rng([seed, epoch]) if shuffle else None
        row_groups, positions, owners = _partitions(row_counts, partition_rows, rng)
        total = int(positions[-1])
        if total < world_size:
            raise ValueError(f"{total} rows are too few for {world_size} ranks")
        self.batch_size, self.shuffle, self.rank = batch_size, shuffle, rank
        self.seed, self.epoch = seed, epoch
        # 2. One run of the sequence per rank, of equal length give or take one row.
        cuts = [total * r // world_size for r in range(world_size + 1)]
        counts = [b - a for a, b in itertools.pairwise(cuts)]
        self.starts = _batch_starts(counts[rank], min(counts), max(counts), batch_size, drop_last)
        self.batch_sizes: Array = np.diff(self.starts)
        self.num_rows = int(self.batch_sizes.sum())
        # The last two batches may be smaller, all others are full.
        self._full = int((self.batch_sizes == batch_size).sum())
        first, last = cuts[rank], cuts[rank + 1]
        begin = np.searchsorted(positions, first, side="right") - 1
        end = np.searchsorted(positions, last)
        starts = np.maximum(first - positions[begin:end], 0)
        stops = np.minimum(last, positions[begin + 1 : end + 1]) - positions[begin:end]
        run = np.stack([row_groups[begin:end], starts, stops], axis=1)
        # 3. Chunks of the run; slices of large row groups take turns in them.
        lanes = parts_per_chunk if shuffle else 1
        slices, owners = _slices(run, owners[begin:end], partition_rows, lanes)
        self.chunks = _chunks(slices, owners, parts_per_chunk, unsliced=len(slices) == len(run))
        ranges = np.concatenate([chunk.ranges for chunk in self.chunks])
        again = ranges[np.bincount(ranges[:, 0])[ranges[:, 0]] > 1]
        self.sliced = dict(zip(again[:, 0].tolist(), again[:, 2].tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.batch_sizes)

    def segments(self, chunk: int, first_batch: int = 0) -> list[Segment]:
        """Return the rows of a chunk in order, cut where batches begin.

        Args:
            chunk: number of the chunk.
            first_batch: batches before this one are left out, as on resuming.
        """
        first = self.chunks[chunk].first
        position = max(first, int(self.starts[first_batch]))
        end = min(first + self.chunks[chunk].num_rows, int(self.starts[-1]))
        segments = []
        while position < end:
            batch = int(np.searchsorted(self.starts, position, side="right")) - 1
            whole, stop = 0, min(end, int(self.starts[batch + 1]))
            if position == self.starts[batch]:
                whole = max(0, min((end - position) // self.batch_size, self._full - batch))
                stop = position + whole * self.batch_size if whole else stop
            segments.append(Segment(batch, whole, position - first, stop - first))
            position = stop
        return segments

    def order(self, chunk: int) -> Array | None:
        """Return which row of a chunk comes at each place of its order, int64 [rows].

        None if rows are not shuffled. The rows of a batch are a uniformly random choice, in rising
        order. 20 ns a row, as for a permutation, and gathering large batches by it is twice as
        fast as by a permutation.
        """
        if not self.shuffle:
            return None
        # Each row gets the number of a batch, as often as the batch has rows here, in random order;
        # sorting by it, which keeps the order of rows with the same number, is the permutation.
        first, rows = self.chunks[chunk].first, self.chunks[chunk].num_rows
        bounds = self.starts[(self.starts > first) & (self.starts < first + rows)] - first
        sizes = np.diff(bounds, prepend=0, append=rows)
        dtype = np.uint16 if len(sizes) <= 2**16 else np.uint32  # NumPy sorts 16 bits by radix
        batch_of_row = np.repeat(np.arange(len(sizes), dtype=dtype), sizes)
        np.random.default_rng([self.seed, self.epoch, 1 + self.rank, chunk]).shuffle(batch_of_row)
        return np.argsort(batch_of_row, kind="stable")

    def chunks_from(self, first_batch: int) -> list[ChunkPlan]:
        """Return the chunks that hold the rows of this batch and of those after it, in order."""
        start, end = self.starts[[first_batch, -1]].tolist()
        chunks = []
        for chunk in self.chunks:
            if max(start, chunk.first) < min(end, chunk.first + chunk.num_rows):
                chunks.append(chunk)
        return chunks

    def row_groups_per_chunk(self) -> int:
        """Return the number of row groups of the chunk that mixes fewest.

        The first chunk may be smaller, and the last is a rest: they do not count if there are
        others. Of many chunks, which are alike, 32 are looked at.
        """
        chunks = self.chunks[1:-1][:32] or self.chunks[:1]
        return min((len(np.unique(chunk.ranges[:, 0])) for chunk in chunks), default=0)


def _end_to_end(counts: Array) -> Array:
    """Return where each of some runs of rows begins, laid end to end, and the end of the last."""
    return np.concatenate([[0], np.cumsum(counts)])


def _partitions(
    row_counts: Sequence[int], partition_rows: int, rng: np.random.Generator | None
) -> tuple[Array, Array, Array]:
    """Join neighbouring row groups into partitions of at most `partition_rows` rows.

    Returns:
        The number of each row group that has rows, in the order of the epoch, int64 [n]; the
        position of the first row of each in all rows laid end to end, and the number of rows,
        int64 [n + 1]; and the number of the partition to which each belongs, rising, int64 [n].

    Example:
        >>> [array.tolist() for array in _partitions([3, 0, 2, 4, 9], 5, None)]
        [[0, 2, 3, 4], [0, 3, 5, 9, 18], [0, 0, 1, 2]]
    """
    counts = np.asarray(row_counts, np.int64)
    row_groups = np.flatnonzero(counts)
    positions = _end_to_end(counts[row_groups])
    # A partition that begins with row group i ends before the first one that no longer fits.
    most = positions[:-1] + min(partition_rows, int(positions[-1]))
    ends = np.searchsorted(positions, most, side="right") - 1
    ends = np.maximum(ends, np.arange(1, len(ends) + 1)).tolist()
    bounds = [0]
    while bounds[-1] < len(row_groups):
        bounds.append(ends[bounds[-1]])
    owners = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    if rng is not None:
        places = np.argsort(rng.permutation(len(bounds) - 1))[owners]
        order = np.argsort(places, kind="stable")
        row_groups, owners = row_groups[order], places[order]
        positions = _end_to_end(counts[row_groups])
    return row_groups, positions, owners


def _slices(ranges: Array, owners: Array, partition_rows: int, lanes: int) -> tuple[Array, Array]:
    """Cut large partitions evenly into slices; those of `lanes` partitions take turns.

    Example:
        >>> ranges, owners = np.array([[7, 0, 6], [8, 0, 2], [9, 0, 3]]), np.array([0, 1, 2])
        >>> slices, owners = _slices(ranges, owners, 3, lanes=2)
        >>> slices.tolist(), owners.tolist()
        ([[7, 0, 3], [8, 0, 2], [7, 3, 6], [9, 0, 3]], [0, 1, 2, 3])

    Returns:
        Ranges in the order in which they are read, and the number of the slice of each, or of the
        partition that needs no slices.
    """
    firsts = np.flatnonzero(np.diff(owners, prepend=-1))
    owners = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(owners)))
    row_groups, starts, stops = ranges.T
    # Only a partition of a single row group can be larger than `partition_rows`.
    counts = -(-np.add.reduceat(stops - starts, firsts) // partition_rows)
    # Lane i has the turns i, i + lanes, ...; the lane that is free first takes the next partition.
    lanes = min(lanes, len(counts))
    free, turns = list(range(lanes)), []
    for count in counts.tolist():
        turns.append(free[0])
        heapq.heapreplace(free, free[0] + count * lanes)
    count = counts[owners]
    which = np.repeat(np.arange(len(ranges)), count)
    number = np.arange(len(which)) - np.repeat(_end_to_end(count)[:-1], count)
    turn = np.array(turns)[owners][which] + number * lanes
    rows, first, count = (stops - starts)[which], starts[which], count[which]
    cut = first + rows * number // count, first + rows * (number + 1) // count
    order = np.argsort(turn, kind="stable")
    slices = np.stack([row_groups[which], *cut], axis=1)[order]
    return slices, np.cumsum(np.diff(turn[order], prepend=0) > 0)


def _chunks(
    slices: Array, owners: Array, parts_per_chunk: int, *, unsliced: bool
) -> list[ChunkPlan]:
    """Join slices into chunks; neighbouring slices of a row group become one row range."""
    parts = int(owners[-1]) + 1
    many = unsliced and parts >= 4 * parts_per_chunk
    size = min(parts_per_chunk, parts)
    numbers = (owners + size - -(-size // (1 + many))) // size  # of the chunk of each
    # Slices of a row group come in order: side by side, the first and last of a chunk are its ends.
    order = np.argsort(slices[:, 0], kind="stable")
    beside = np.stack([slices[order, 0], numbers[order]])
    heads = np.flatnonzero(np.any(np.diff(beside, prepend=-1), axis=0))
    tails = np.append(heads[1:], len(order)) - 1
    ranges = slices.copy()
    ranges[order[heads], 2] = slices[order[tails], 2]
    kept = np.sort(order[heads])
    ranges, numbers = ranges[kept], numbers[kept]
    bounds = np.searchsorted(numbers, np.arange(numbers[-1] + 2))
    firsts = _end_to_end(ranges[:, 2] - ranges[:, 1])[bounds].tolist()
    chunks = []
    for index, (begin, end) in enumerate(itertools.pairwise(bounds.tolist())):
        first, last = firsts[index], firsts[index + 1]
        chunks.append(ChunkPlan(index, first, last - first, ranges[begin:end]))
    return chunks


def _batch_starts(rows: int, least: int, most: int, batch_size: int, drop_last: bool) -> Array:
    """Return where a rank's batches begin, if it has `rows` rows, and ranks `least` to `most`."""
    if drop_last:
        return np.arange(least // batch_size + 1) * batch_size
    steps = -(-most // batch_size)
    if least < steps:
        raise ValueError(
            f"batch_size={batch_size} cannot give all ranks equally many steps: one has {most} "
            f"rows, another {least}. Use a larger batch_size, or drop_last=True."
        )
    starts = np.minimum(np.arange(steps + 1) * batch_size, rows)
    if steps > 1 and starts[-2] == rows:  # another rank has one row, and so one batch, more
        starts[-2] -= 1
    return starts
