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

Random numbers are drawn from (seed, epoch, rank, chunk). A plan takes 10 microseconds a row group.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from tutorlib.parquet import RowRange

Partition = list[RowRange]


@dataclasses.dataclass(frozen=True)
class ChunkPlan:
    """Row ranges that are read and shuffled together.

    Args:
        index: number of the chunk in the epoch.
        first: position of its first row in all chunks laid end to end.
        row_ranges: in the order in which they are read, one of each row group.
    """

    index: int
    first: int
    row_ranges: list[RowRange]

    @property
    def num_rows(self) -> int:
        """Rows of the chunk."""
        return sum(row_range.num_rows for row_range in self.row_ranges)


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
        partitions = _partitions(row_counts, partition_rows)
        if shuffle:
            order = np.random.default_rng([seed, epoch]).permutation(len(partitions))
            partitions = [partitions[n] for n in order]
        total = sum(row_counts)
        if total < world_size:
            raise ValueError(f"{total} rows are too few for {world_size} ranks")
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.rank = rank
        self.seed = seed
        self.epoch = epoch
        # 2. One run of the sequence per rank, of equal length give or take one row.
        cuts = [total * r // world_size for r in range(world_size + 1)]
        counts = [b - a for a, b in itertools.pairwise(cuts)]
        self.starts = _batch_starts(counts[rank], min(counts), max(counts), batch_size, drop_last)
        self.batch_sizes: np.ndarray = np.diff(self.starts)
        self.num_rows = int(self.batch_sizes.sum())
        # The last two batches may be smaller, all others are full.
        self._full = int((self.batch_sizes == batch_size).sum())
        run = _between(partitions, cuts[rank], cuts[rank + 1])
        # 3. Chunks of the run; slices of large row groups take turns in them.
        parts = list(_in_turn(run, partition_rows, parts_per_chunk if shuffle else 1))
        many = len(parts) == len(run) and len(parts) >= 4 * parts_per_chunk
        first_parts = -(-parts_per_chunk // 2) if many else parts_per_chunk
        self.chunks: list[ChunkPlan] = []
        self.sliced: dict[int, int] = {}
        ends: dict[int, int] = {}
        first = 0
        bounds = [0, *range(first_parts, len(parts), parts_per_chunk), len(parts)]
        for begin, end in itertools.pairwise(bounds):
            chunk = ChunkPlan(len(self.chunks), first, _joined(parts[begin:end]))
            self.chunks.append(chunk)
            first += chunk.num_rows
            for row_range in chunk.row_ranges:
                if row_range.row_group in ends:
                    self.sliced[row_range.row_group] = row_range.stop
                ends[row_range.row_group] = row_range.stop

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
            whole = 0
            stop = min(end, int(self.starts[batch + 1]))
            if position == self.starts[batch]:
                whole = max(0, min((end - position) // self.batch_size, self._full - batch))
                stop = position + whole * self.batch_size if whole else stop
            segments.append(Segment(batch, whole, position - first, stop - first))
            position = stop
        return segments

    def order(self, chunk: int) -> np.ndarray | None:
        """Return which row of a chunk comes at each place of its order, int64 [rows].

        None if rows are not shuffled. The rows of a batch are a uniformly random choice, in rising
        order. 20 ns a row, as for a permutation, and gathering large batches by it is twice as
        fast as by a permutation.
        """
        if not self.shuffle:
            return None
        # Each row gets the number of a batch, as often as the batch has rows here, in random order;
        # sorting by it, which keeps the order of rows with the same number, is the permutation.
        first = self.chunks[chunk].first
        rows = self.chunks[chunk].num_rows
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
        """Return the number of row groups of which the chunk that mixes fewest has rows.

        Slices of a row group count once: they are neighbours. The first chunk may be smaller, and
        the last is a rest: they do not count if there are others.
        """
        chunks = self.chunks[1:-1] or self.chunks[:1]
        counts = [len({part.row_group for part in chunk.row_ranges}) for chunk in chunks]
        return min(counts, default=0)


def _partitions(row_counts: Sequence[int], partition_rows: int) -> list[Partition]:
    """Join neighbouring row groups that have rows; a larger one is a partition by itself.

    Example:
        >>> [[r.row_group for r in p] for p in _partitions([3, 0, 2, 4, 9], 5)]
        [[0, 2], [3], [4]]
    """
    partitions: list[Partition] = []
    rows = 0  # of the latest partition
    for row_group, count in enumerate(row_counts):
        if not count:
            continue
        if not partitions or rows + count > partition_rows:
            partitions.append([])
            rows = 0
        partitions[-1].append(RowRange(row_group, 0, count))
        rows += count
    return partitions


def _between(partitions: Sequence[Partition], first: int, last: int) -> list[Partition]:
    """Return what lies between two positions of whole partitions laid end to end."""
    run = []
    position = 0
    for partition in partitions:
        inside = []
        for row_range in partition:
            start = max(first - position, 0)
            stop = min(last - position, row_range.num_rows)
            if start < stop:
                inside.append(RowRange(row_range.row_group, start, stop))
            position += row_range.num_rows
        if inside:
            run.append(inside)
    return run


def _in_turn(
    partitions: Sequence[Partition], partition_rows: int, lanes: int
) -> Iterator[Partition]:
    """Yield partitions, large ones in slices; as many as there are lanes take turns.

    Example:
        >>> run = [[RowRange(7, 0, 6)], [RowRange(8, 0, 2)], [RowRange(9, 0, 3)]]
        >>> [(r.row_group, r.start, r.stop) for [r] in _in_turn(run, 3, lanes=2)]
        [(7, 0, 3), (8, 0, 2), (7, 3, 6), (9, 0, 3)]
    """
    waiting = iter(partitions)
    taking_turns: collections.deque[list[Partition]] = collections.deque()
    for partition in itertools.islice(waiting, lanes):
        taking_turns.append(_slices(partition, partition_rows))
    while taking_turns:
        slices = taking_turns.popleft()
        yield slices.pop(0)
        if slices:
            taking_turns.append(slices)
        else:
            for partition in itertools.islice(waiting, 1):
                taking_turns.append(_slices(partition, partition_rows))


def _slices(partition: Partition, partition_rows: int) -> list[Partition]:
    """Cut a row group with more rows evenly; any other partition is one slice."""
    rows = sum(row_range.num_rows for row_range in partition)
    count = -(-rows // partition_rows)
    if count == 1:
        return [partition]
    [whole] = partition
    bounds = [whole.start + rows * n // count for n in range(count + 1)]
    return [[RowRange(whole.row_group, a, b)] for a, b in itertools.pairwise(bounds)]


def _joined(parts: Sequence[Partition]) -> list[RowRange]:
    """Return the row ranges of a chunk; successive slices of a row group become one."""
    joined: dict[int, RowRange] = {}
    for row_range in itertools.chain.from_iterable(parts):
        before = joined.get(row_range.row_group, row_range)
        joined[row_range.row_group] = RowRange(row_range.row_group, before.start, row_range.stop)
    return list(joined.values())


def _batch_starts(rows: int, least: int, most: int, batch_size: int, drop_last: bool) -> np.ndarray:
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
