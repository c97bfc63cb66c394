"""EpochPlan: which rows are read together, and in which batch each one lands. No I/O.

The plan of an epoch is a pure function of the row counts of the row groups and of the settings. So
its length is known before anything is read, any batch can be found without those before it, and
ranks need no communication. Each canonical rank has a plan of its own (`RankPlan`), in three steps:

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

Random numbers are drawn from (seed, epoch, rank, chunk). A process joins the batches of the
canonical ranks that it holds (`EpochPlan`), so the batches of all processes, one after the other,
are the same for every number of processes.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tutorlib.checks import check_integer, check_positive
from tutorlib.parquet import RowRange

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class ChunkPlan:
    """Row ranges that are read and shuffled together.

    Args:
        rank: number of the canonical rank.
        index: number of the chunk in the rank's epoch.
        first: position of its first row in all chunks of the rank laid end to end.
        row_ranges: its rows, in the order in which they are read.
    """

    rank: int
    index: int
    first: int
    row_ranges: tuple[RowRange, ...]

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


class RankPlan:
    """The order of one canonical rank's rows in one epoch.

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
        chunks: `ChunkPlan` of every chunk, in order.
        sliced: {row group of which successive chunks read slices, in order: end of the last one}.

    Raises:
        ValueError: if a setting is out of range, or there are fewer rows than ranks.

    Example:
        >>> plan = RankPlan([3, 3, 3], batch_size=4, shuffle=False, partition_rows=3)
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
        check_positive(batch_size=batch_size, world_size=world_size)
        check_positive(partition_rows=partition_rows, parts_per_chunk=parts_per_chunk)
        check_integer("epoch", epoch, 0, bits=64)
        check_integer("seed", seed, 0, bits=64)
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be in [0, world_size={world_size}), got {rank}")
        total = sum(row_counts)
        if total < world_size:
            raise ValueError(f"{total} rows are too few for {world_size} ranks")
        self.batch_size, self.shuffle, self.rank = batch_size, shuffle, rank
        self.seed, self.epoch = seed, epoch
        # 1. Partitions, in an order that all ranks share.
        partitions = _partitions(row_counts, partition_rows)
        if shuffle:
            order = np.random.default_rng([seed, epoch]).permutation(len(partitions))
            partitions = [partitions[i] for i in order]
        # 2. One run of the sequence per rank, of equal length give or take one row.
        cuts = [total * r // world_size for r in range(world_size + 1)]
        counts = [b - a for a, b in itertools.pairwise(cuts)]
        self.starts = _batch_starts(counts[rank], min(counts), max(counts), batch_size, drop_last)
        # The last two batches may be smaller, all others are full.
        self._full = int((np.diff(self.starts) == batch_size).sum())
        # 3. Chunks of the run; slices of large row groups take turns in them.
        run = _cut(partitions, cuts[rank], cuts[rank + 1])
        lanes = parts_per_chunk if shuffle else 1
        slices = list(_slices(run, partition_rows, lanes))
        many = len(slices) == len(run) >= 4 * parts_per_chunk
        self.chunks = _chunks(rank, slices, parts_per_chunk, -(-parts_per_chunk // (1 + many)))
        ranges = [row_range for chunk in self.chunks for row_range in chunk.row_ranges]
        counted = Counter(row_range.row_group for row_range in ranges)
        self.sliced = {r.row_group: r.stop for r in ranges if counted[r.row_group] > 1}

    def __len__(self) -> int:
        return len(self.starts) - 1

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

    def first_chunk(self, batch: int) -> int:
        """Return the number of the chunk in which a batch begins."""
        firsts = [chunk.first for chunk in self.chunks]
        return bisect.bisect_right(firsts, int(self.starts[batch])) - 1


class EpochPlan:
    """The batches of a process in one epoch: those of its canonical ranks, joined.

    Args:
        ranks: `RankPlan` of each canonical rank that the process holds, of the same settings.

    Attributes:
        ranks: as given.
        batch_sizes: int64 [batches], rows of every batch; all processes have equally many.
        chunks: `ChunkPlan` of all ranks, in the order in which their first rows are needed.
        num_rows: rows of all batches.

    Example:
        >>> halves = [
        ...     RankPlan([4, 4], batch_size=2, shuffle=False, rank=rank, world_size=2)
        ...     for rank in (0, 1)
        ... ]
        >>> EpochPlan(halves).batch_sizes.tolist()
        [4, 4]
    """

    def __init__(self, ranks: Sequence[RankPlan]) -> None:
        self.ranks = list(ranks)
        self.seed, self.epoch, self.shuffle = ranks[0].seed, ranks[0].epoch, ranks[0].shuffle
        self.batch_sizes: Array = np.sum([np.diff(plan.starts) for plan in ranks], axis=0)
        self.num_rows = int(self.batch_sizes.sum())
        chunks = [chunk for plan in ranks for chunk in plan.chunks]
        self.chunks = sorted(chunks, key=lambda chunk: (chunk.first, chunk.rank))

    def __len__(self) -> int:
        return len(self.batch_sizes)

    def rank_of(self, chunk: ChunkPlan) -> RankPlan:
        """Return the plan of the rank to which a chunk belongs."""
        return self.ranks[chunk.rank - self.ranks[0].rank]

    def chunks_from(self, first_batch: int) -> list[ChunkPlan]:
        """Return the chunks that hold the rows of this batch and of those after it, in order."""
        if first_batch >= len(self):
            return []
        firsts = {plan.rank: plan.first_chunk(first_batch) for plan in self.ranks}
        ends = {plan.rank: int(plan.starts[-1]) for plan in self.ranks}
        return [
            chunk
            for chunk in self.chunks
            if chunk.index >= firsts[chunk.rank] and chunk.first < ends[chunk.rank]
        ]

    def row_groups_per_chunk(self) -> float:
        """Return how many row groups of equal size the chunk mixes that mixes fewest.

        The first chunk of a rank may be smaller, and the last is a rest: they do not count if there
        are others. Of many chunks, which are alike, 32 are looked at.
        """
        ranks = len(self.ranks)
        chunks = self.chunks[ranks:-ranks][:32] or self.chunks[:ranks]
        return min((effective_row_groups(chunk.row_ranges) for chunk in chunks), default=0.0)

    def row_groups_per_rank(self) -> float:
        """Return how many row groups of equal size this process reads in an epoch."""
        return effective_row_groups(part for chunk in self.chunks for part in chunk.row_ranges)


def effective_row_groups(row_ranges: Iterable[RowRange]) -> float:
    """Return how many row groups of equal size would be mixed as well as these row ranges.

    A batch of sorted data tells as much as about so many random rows, whatever its size.

    Example:
        >>> effective_row_groups([RowRange(0, 0, 50), RowRange(1, 0, 50), RowRange(1, 50, 100)])
        1.8

    Source: the effective sample size of L. Kish, Survey Sampling (1965).
    """
    rows: Counter[int] = Counter()
    for row_range in row_ranges:
        rows[row_range.row_group] += row_range.num_rows
    squares = sum(count**2 for count in rows.values())
    return rows.total() ** 2 / squares if squares else 0.0


def _partitions(row_counts: Sequence[int], partition_rows: int) -> list[list[RowRange]]:
    """Join neighbouring row groups into partitions of at most `partition_rows` rows."""
    partitions: list[list[RowRange]] = []
    rows = 0
    for row_group, count in enumerate(row_counts):
        if not count:
            continue
        if not partitions or rows + count > partition_rows:
            partitions.append([])
            rows = 0
        partitions[-1].append(RowRange(row_group, 0, count))
        rows += count
    return partitions


def _cut(partitions: Sequence[list[RowRange]], first: int, last: int) -> list[list[RowRange]]:
    """Return the rows at positions [first, last) of all partitions laid end to end."""
    run, position = [], 0
    for partition in partitions:
        kept = []
        for part in partition:
            start, stop = max(first - position, 0), min(last - position, part.num_rows)
            if start < stop:
                kept.append(RowRange(part.row_group, part.start + start, part.start + stop))
            position += part.num_rows
        if kept:
            run.append(kept)
    return run


def _slices(
    partitions: Sequence[list[RowRange]], partition_rows: int, lanes: int
) -> Iterator[list[RowRange]]:
    """Yield partitions of at most `partition_rows` rows; slices of `lanes` of them alternate."""
    waiting, open_lanes = iter(partitions), deque[deque[list[RowRange]]]()
    while True:
        for partition in itertools.islice(waiting, lanes - len(open_lanes)):
            # Only a partition of a single row group can be larger. It is cut evenly.
            rows, whole = sum(part.num_rows for part in partition), partition[0]
            count = -(-rows // partition_rows) if len(partition) == 1 else 1
            cuts = [whole.start + rows * i // count for i in range(count + 1)]
            slices = [[RowRange(whole.row_group, a, b)] for a, b in itertools.pairwise(cuts)]
            open_lanes.append(deque(slices if count > 1 else [partition]))
        if not open_lanes:
            return
        lane = open_lanes.popleft()
        yield lane.popleft()
        if lane:
            open_lanes.append(lane)


def _chunks(
    rank: int, partitions: Sequence[list[RowRange]], parts_per_chunk: int, parts_of_first: int
) -> list[ChunkPlan]:
    """Join partitions into chunks; neighbouring slices of a row group become one row range."""
    chunks: list[ChunkPlan] = []
    position = 0
    bounds = [0, *range(parts_of_first, len(partitions), parts_per_chunk), len(partitions)]
    for start, stop in itertools.pairwise(bounds):
        ranges: dict[int, RowRange] = {}
        for part in itertools.chain.from_iterable(partitions[start:stop]):
            known = ranges.get(part.row_group, part)
            ranges[part.row_group] = RowRange(part.row_group, known.start, part.stop)
        chunks.append(ChunkPlan(rank, len(chunks), position, tuple(ranges.values())))
        position += chunks[-1].num_rows
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
