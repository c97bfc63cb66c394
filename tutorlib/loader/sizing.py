"""Sizing: how many rows the loader reads and shuffles together, and what memory that needs.

A pure function of row counts, bytes per row and settings. Nothing is read for it, and without a
budget nothing of it depends on the machine, so the order of the rows is the same everywhere.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Sequence

from tutorlib.loader.plan import BLOCK_ROWS, GROUP_ROWS

CHUNK_ROWS = 1_048_576  # rows of an automatic chunk: a fifth of a second of reading
MOST_ROWS = 10**9 - 1  # of a chunk: NumPy's multivariate hypergeometric draw takes no more
CHUNK_BYTES = 512 * 2**20  # of an automatic chunk at most, if rows are wide
CHUNK_PARTS = 8  # of an automatic chunk at least: a batch is worth about as many random rows
PART_ROWS = 16_384  # of a partition of an automatic chunk at least
ORDER_BYTES = 32  # of a row of the block being scattered: its part and its index, both twice
INDEX_BYTES = 8  # of a row of a row range with several blocks, whose orders are drawn first
STREAM_BYTES = 256 * 2**20  # for row groups that stay open between slices, without a budget
STREAM_FRACTION = 0.25  # of the budget, for the same


@dataclasses.dataclass(frozen=True)
class RowBytes:
    """Bytes of one row in the places where the loader holds it.

    Args:
        batch: bytes in a batch.
        reading: bytes while a thread decodes and transforms it, in addition to its batch.
        slicing: the same if the row group is read in slices.
        stream: bytes of a row group that are held from one of its slices to the next.
        whole_stream: bytes that a stream holds while a thread reads a whole row group.
        ordering: bytes while the batches of a group are put in order, in addition to a copy.
        fixed: bytes that do not depend on the rows of a chunk.
        costs: how many rows a row of each row group counts as, at least 1; None if all count as 1.
            All of the above are bytes of a row that counts as 1.
        lists: bytes of its lists, which `batch` counts several times; only with a budget.
    """

    batch: float
    reading: float
    slicing: float = 0
    stream: float = 0
    whole_stream: float = 0
    ordering: float = 0
    fixed: float = 0
    costs: Sequence[float] | None = None
    lists: float = 0


@dataclasses.dataclass(frozen=True)
class ChunkSize:
    """Rows of partitions and chunks.

    Args:
        partition_rows: most rows of a partition.
        parts_per_chunk: partitions of a chunk.
        peak_bytes: bytes that the loader holds at most, as planned.
        group_rows: most rows of a group of batches.
        opened: row groups that are open between two slices; 0 if all are read whole.
        held_rows: most rows held at a time, as rows that count as 1.
        whole_bytes: a budget with which chunks hold whole row groups; 0 if they never do.
    """

    partition_rows: int
    parts_per_chunk: int
    peak_bytes: int
    group_rows: int = GROUP_ROWS
    opened: int = 0
    held_rows: int = dataclasses.field(default=0, compare=False)
    whole_bytes: int = dataclasses.field(default=0, compare=False)

    @property
    def chunk_rows(self) -> int:
        """Most rows of a chunk."""
        return self.partition_rows * self.parts_per_chunk


class BudgetTooSmall(ValueError):
    """A memory budget cannot hold two batches; `least_bytes` would do, if rows cost the same."""

    def __init__(self, rule: str, least_bytes: int) -> None:
        super().__init__(f"{rule}; give at least {least_bytes:,} bytes, or a smaller batch_size")
        self.rule, self.least_bytes = rule, least_bytes


def chunk_size(
    row_counts: Sequence[int],
    row_bytes: RowBytes,
    *,
    batch_size: int,
    threads: int,
    shuffle: bool = True,
    buffer_rows: int | None = None,
    parts_per_chunk: int | None = None,
    budget_bytes: int | None = None,
) -> ChunkSize:
    """Return the sizes that are asked for, as far as the budget allows.

    Shuffle quality depends on sampling many row groups. So row groups are read in slices if a chunk
    cannot hold as many whole ones as it should have parts (half as many if `parts_per_chunk` is not
    given). A row group that is read in slices stays open, so there may then be fewer parts.

    Args:
        row_counts: rows of each row group.
        row_bytes: bytes of a row.
        batch_size: rows per batch.
        threads: number of reader threads.
        shuffle: whether the parts of a chunk come from distant parts of the data.
        buffer_rows: rows of a partition; None for chunks of about a million rows and at least four
            batches.
        parts_per_chunk: partitions of a chunk; None for one per row group, at least 8, or 1 if
            `buffer_rows` is given.
        budget_bytes: upper limit of `peak_bytes`; None for no limit.

    Raises:
        BudgetTooSmall: if the budget cannot hold two batches and what reading their rows takes.

    Example:
        >>> rows = RowBytes(160, 12)
        >>> size = chunk_size([100] * 50, rows, batch_size=10, threads=2, buffer_rows=300)
        >>> size.partition_rows, size.parts_per_chunk, size.peak_bytes
        (300, 1, 200800)
    """
    costs = row_bytes.costs or [1] * len(row_counts)
    counts = [math.ceil(rows * cost) for rows, cost in zip(row_counts, costs, strict=True)]
    total, largest, widest = sum(counts), max(counts), max(costs)
    batch_rows = batch_size * widest
    if buffer_rows is None:
        most = max(1, int(CHUNK_BYTES / row_bytes.batch))
        wanted_rows = min(max(CHUNK_ROWS, 4 * batch_size), most)
        part_rows = min(max(largest, PART_ROWS), -(-wanted_rows // CHUNK_PARTS))
        parts = parts_per_chunk or wanted_rows // part_rows
    else:
        parts = parts_per_chunk or 1
        wanted_rows = min(buffer_rows * parts, MOST_ROWS)
    allowed = STREAM_BYTES if budget_bytes is None else STREAM_FRACTION * budget_bytes
    lanes = max(1, min(parts, int(allowed / max(1, row_bytes.stream)))) if shuffle else 1
    # Chunks of at least this many rows read row groups whole. Row groups of one row always are.
    can_slice = max(row_counts) > 1
    least_whole = largest * (lanes if parts_per_chunk else -(-lanes // 2)) if can_slice else largest
    least_part = math.ceil(widest)
    wanted_rows = max(wanted_rows, least_part)

    def group_rows(chunk_rows: int) -> int:
        """Return the rows of a group: with a budget, all threads together order one chunk."""
        if budget_bytes is None:
            return GROUP_ROWS
        return min(GROUP_ROWS, max(batch_size, int(chunk_rows / threads / widest)))

    def peak_bytes(chunk_rows: int, opened: int) -> int:
        """Return the bytes held with `opened` row groups read in slices at a time; 0: whole."""
        range_rows = min(largest, chunk_rows, BLOCK_ROWS * widest if opened else total)
        ordered = threads * min(group_rows(chunk_rows) * widest, total, chunk_rows)
        held = 2 * min(total, max(chunk_rows, batch_rows)) + ordered
        reading = threads * range_rows * (row_bytes.slicing if opened else row_bytes.reading)
        order = threads * min(BLOCK_ROWS, range_rows) * ORDER_BYTES
        if range_rows > BLOCK_ROWS:
            order += threads * range_rows * INDEX_BYTES
        # One of the opened row groups may be opened twice.
        streams = (opened + 1) * row_bytes.stream if opened else threads * row_bytes.whole_stream
        rows = held * row_bytes.batch + ordered * row_bytes.ordering + reading + order
        return int(rows + streams + row_bytes.fixed)

    # With another budget, more row groups may stay open, and steps and batches ahead take a part.
    whole = largest * (parts if parts_per_chunk else -(-parts // 2))
    whole_bytes = 0
    if whole <= wanted_rows or total <= wanted_rows:
        opened = 0 if whole <= wanted_rows else lanes
        whole_bytes = int(peak_bytes(min(whole, total), opened) / 0.7)

    def most_rows(candidates: range, opened: int) -> int:
        """Return the last of the candidates that is within the budget, 0 if none is."""
        if budget_bytes is None:
            return candidates[-1] if candidates else 0
        fitting = bisect.bisect_right(
            candidates, budget_bytes, key=lambda rows: peak_bytes(min(rows, total), opened)
        )
        return candidates[fitting - 1] if fitting else 0

    # One row group after the other is the last resort, in slices or else whole.
    for opened, least_rows in (
        (0, least_whole),
        (lanes, least_part),
        (1, least_part),
        (0, largest),
    ):
        end = min(wanted_rows + 1, least_whole, opened * largest) if opened else wanted_rows + 1
        candidates = range(least_rows, end)
        if chunk_rows := most_rows(candidates, opened):
            most_parts = chunk_rows // least_part if opened else chunk_rows // largest
            parts = min(opened or parts, most_parts)
            peak = peak_bytes(min(chunk_rows, total), opened)
            group, held = group_rows(chunk_rows), 2 * min(total, max(chunk_rows, batch_rows))
            part_rows = chunk_rows // parts
            return ChunkSize(part_rows, parts, peak, group, opened, math.ceil(held), whole_bytes)
    sizes = [(largest, 0), (least_part, 1)] if can_slice else [(largest, 0)]
    least_bytes = min(peak_bytes(rows, opened) for rows, opened in sizes if rows <= wanted_rows)
    raise BudgetTooSmall(
        f"memory_budget={budget_bytes:,} bytes cannot hold two batches of {batch_size:,} rows "
        f"of {row_bytes.batch * widest:,.0f} bytes and what reading them takes",
        least_bytes,
    )
