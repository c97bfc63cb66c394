"""Sizing: how many rows the loader reads and shuffles together, and what memory that needs.

A pure function of row counts, bytes per row and settings. Nothing is read for it, and without a
budget nothing of it depends on the machine, so the order of the rows is the same everywhere.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

from tutorlib.loader.plan import BLOCK_ROWS, GROUP_ROWS

CHUNK_ROWS = 1_048_576  # rows of an automatic chunk: a fifth of a second of reading
MOST_ROWS = 10**9 - 1  # of a chunk: NumPy's multivariate hypergeometric draw takes no more
CHUNK_BYTES = 512 * 2**20  # of an automatic chunk at most, if rows are wide
CHUNK_PARTS = 8  # of an automatic chunk at least: a batch is worth about as many random rows
PART_ROWS = 16_384  # of a partition of an automatic chunk at least
ORDER_BYTES = 32  # of a row of the block being scattered: its part and its index, both twice
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
    """

    batch: float
    reading: float
    slicing: float = 0
    stream: float = 0


@dataclasses.dataclass(frozen=True)
class ChunkSize:
    """Rows of partitions and chunks.

    Args:
        partition_rows: most rows of a partition.
        parts_per_chunk: partitions of a chunk.
        peak_bytes: bytes that the loader holds at most, as planned.
    """

    partition_rows: int
    parts_per_chunk: int
    peak_bytes: int

    @property
    def chunk_rows(self) -> int:
        """Most rows of a chunk."""
        return self.partition_rows * self.parts_per_chunk


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
        ValueError: if the budget cannot hold two batches and what reading their rows takes.

    Example:
        >>> chunk_size([100] * 50, RowBytes(160, 12), batch_size=10, threads=2, buffer_rows=300)
        ChunkSize(partition_rows=300, parts_per_chunk=1, peak_bytes=200800)
    """
    total, largest = sum(row_counts), max(row_counts)
    if buffer_rows is None:
        widest = max(1, int(CHUNK_BYTES / row_bytes.batch))
        wanted_rows = min(max(CHUNK_ROWS, 4 * batch_size), widest)
        part_rows = min(max(largest, PART_ROWS), -(-wanted_rows // CHUNK_PARTS))
        parts = parts_per_chunk or wanted_rows // part_rows
    else:
        parts = parts_per_chunk or 1
        wanted_rows = min(buffer_rows * parts, MOST_ROWS)
    allowed = STREAM_BYTES if budget_bytes is None else STREAM_FRACTION * budget_bytes
    lanes = max(1, min(parts, int(allowed / max(1, row_bytes.stream)))) if shuffle else 1
    # Chunks of at least this many rows read row groups whole. Row groups of one row always are.
    least_whole = largest * (lanes if parts_per_chunk else -(-lanes // 2)) if largest > 1 else 1

    def peak_bytes(chunk_rows: int, opened: int) -> int:
        """Return the bytes held with `opened` row groups read in slices at a time; 0: whole."""
        range_rows = min(largest, chunk_rows, BLOCK_ROWS if opened else total)
        held = 2 * min(total, max(chunk_rows, batch_size))
        held += threads * min(GROUP_ROWS, total, chunk_rows)  # a group is put in order by copying
        reading = threads * range_rows * (row_bytes.slicing if opened else row_bytes.reading)
        order = threads * min(BLOCK_ROWS, range_rows) * ORDER_BYTES
        streams = (opened + 1) * row_bytes.stream if opened else 0  # one may be opened twice
        return int(held * row_bytes.batch + reading + order + streams)

    def most_rows(candidates: range, opened: int) -> int:
        """Return the last of the candidates that is within the budget, 0 if none is."""
        if budget_bytes is None:
            return candidates[-1] if candidates else 0
        fitting = bisect.bisect_right(
            candidates, budget_bytes, key=lambda rows: peak_bytes(min(rows, total), opened)
        )
        return candidates[fitting - 1] if fitting else 0

    for opened in (0, lanes, 1):  # one row group after the other is the last resort
        if opened:
            candidates = range(1, min(wanted_rows + 1, least_whole, opened * largest))
        else:
            candidates = range(least_whole, wanted_rows + 1)
        if chunk_rows := most_rows(candidates, opened):
            parts = min(opened or parts, chunk_rows if opened else chunk_rows // largest)
            peak = peak_bytes(min(chunk_rows, total), opened)
            return ChunkSize(chunk_rows // parts, parts, peak)
    raise ValueError(
        f"memory_budget={budget_bytes:,} bytes cannot hold two batches of {batch_size:,} rows "
        f"of {row_bytes.batch:,.0f} bytes and what reading them takes; give at least "
        f"{peak_bytes(1, 1 if largest > 1 else 0):,} bytes, or a smaller batch_size"
    )
