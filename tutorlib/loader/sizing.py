"""Sizing: how many rows the loader reads and shuffles together, and what memory that needs.

One formula says what a pass holds at most:

    held = chunk_rows * (2 * batch + decoded) + fixed

`batch` is what a row takes in the batches of a chunk: one chunk is being given out while the next
is filled. `decoded` is what a row takes while its columns wait to be gathered, and `fixed` does not
depend on the chunk: row groups that stay open between two slices, and batches that are converted
ahead. A memory budget is solved for `chunk_rows`; without one, a chunk has about a million rows.
A third chunk begins only while the bytes held leave room for it.

A pure function of row counts, bytes per row and settings: without a budget nothing of it depends on
the machine, so the order of the rows is the same everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from tutorlib.loader.settings import PLANNED_THREADS, LoaderSettings
from tutorlib.parquet import ParquetSource

CHUNK_ROWS = 1_048_576  # rows of an automatic chunk: a fifth of a second of reading
SCAN_ROWS = 131_072  # rows of a chunk that is not shuffled
CHUNK_BYTES = 512 * 2**20  # of an automatic chunk at most, if rows are wide
CHUNK_PARTS = 8  # of an automatic chunk at least: a batch is worth about as many random rows
WHOLE_PARTS = 4  # of an automatic chunk that is enough to read row groups whole
PART_ROWS = 16_384  # of a partition of an automatic chunk at least
OPEN_FRACTION = 0.25  # of the budget, for row groups that are open between two slices
PAGE_BYTES = 2**21  # that an open row group holds for each column: pages, and what is read
DECODE_COPIES = 2  # of a column that a thread decodes: from Arrow, and joined in a batch's type
MATRIX_COPIES = 3  # of a stacked matrix: its columns, its rows in file order, and more of both
TRANSFORM_COPIES = 2  # of decoded columns: as they are stored, and as a transform makes them
ORDER_BYTES = 24  # of a row: its place in the order, twice while it is drawn
OFFSET_BYTES = 8  # of a list
POSITION_BYTES = 8  # of a value of a list while it is gathered
AHEAD_BATCHES = 2  # that are converted at a time, with a memory budget


@dataclasses.dataclass(frozen=True)
class RowBytes:
    """Bytes of one row in the places where the loader holds it.

    Args:
        batch: bytes in a batch.
        decoded: bytes while it waits to be gathered, in addition to its batch.
        opened: bytes of a row group that is open between two of its slices.
        fixed: bytes that do not depend on the rows of a chunk.
    """

    batch: float
    decoded: float
    opened: float = 0
    fixed: float = 0


@dataclasses.dataclass(frozen=True)
class ChunkSize:
    """Rows of partitions and chunks, and the bytes that a pass holds at most, as planned."""

    partition_rows: int
    parts_per_chunk: int
    peak_bytes: int


class BudgetTooSmall(ValueError):
    """A memory budget cannot hold two batches; `least_bytes` would do."""

    def __init__(self, rule: str, least_bytes: int) -> None:
        super().__init__(f"{rule}; give at least {least_bytes:,} bytes, or a smaller batch_size")
        self.rule, self.least_bytes = rule, least_bytes


def chunk_size(
    row_counts: Sequence[int],
    row_bytes: RowBytes,
    *,
    batch_size: int,
    shuffle: bool = True,
    buffer_rows: int | None = None,
    parts_per_chunk: int | None = None,
    budget_bytes: int | None = None,
) -> ChunkSize:
    """Return the sizes that are asked for, as far as the budget allows.

    Shuffle quality depends on sampling many row groups. So row groups are read in slices if a chunk
    cannot hold `WHOLE_PARTS` whole ones.

    Args:
        row_counts: rows of each row group.
        row_bytes: bytes of a row.
        batch_size: rows per batch.
        shuffle: whether the parts of a chunk come from distant parts of the data.
        buffer_rows: rows of a partition; None for chunks of about a million rows and at least four
            batches.
        parts_per_chunk: partitions of a chunk; None for one per row group, at least 8 slices, or 1
            if `buffer_rows` is given.
        budget_bytes: upper limit of `peak_bytes`; None for no limit.

    Raises:
        BudgetTooSmall: if the budget cannot hold two batches and what reading their rows takes.

    Example:
        >>> chunk_size([100] * 50, RowBytes(160, 12), batch_size=10, buffer_rows=300)
        ChunkSize(partition_rows=300, parts_per_chunk=1, peak_bytes=99600)
    """
    total, largest = sum(row_counts), max(row_counts)
    if buffer_rows is None:
        most = max(1, int(CHUNK_BYTES / row_bytes.batch))
        rows = max(CHUNK_ROWS, 4 * batch_size)
        wanted = min(rows if shuffle else max(SCAN_ROWS, batch_size, min(largest, rows)), most)
    else:
        wanted = buffer_rows * (parts_per_chunk or 1)
    opened_bytes, lanes = 0.0, parts_per_chunk or CHUNK_PARTS
    row_cost = 2 * row_bytes.batch + row_bytes.decoded
    if budget_bytes is not None:
        if not shuffle:
            lanes = 1
        if row_bytes.opened:
            lanes = max(1, min(lanes, int(OPEN_FRACTION * budget_bytes / row_bytes.opened)))
        opened_bytes = row_bytes.fixed
        if largest > 1:
            opened_bytes += min(lanes, len(row_counts)) * row_bytes.opened
        most = int((budget_bytes - opened_bytes) / row_cost)
        if most < min(batch_size, total):
            least = int(row_cost * min(batch_size, total) + row_bytes.fixed + row_bytes.opened)
            raise BudgetTooSmall(
                f"memory_budget={budget_bytes:,} bytes cannot hold two batches of {batch_size:,} "
                f"rows of {row_bytes.batch:,.0f} bytes and what reading them takes",
                max(least, int(least / (1 - OPEN_FRACTION))) + 1,
            )
        wanted = min(wanted, most)
    if not shuffle and buffer_rows is None:
        rows, parts = wanted, 1
    elif buffer_rows is not None or parts_per_chunk is not None:
        parts = min(parts_per_chunk or 1, wanted)
        rows = wanted // parts
        if buffer_rows is None:
            rows = max(1, min(rows, max(largest, PART_ROWS), wanted // CHUNK_PARTS))
    elif WHOLE_PARTS * largest <= wanted or largest == 1:
        rows = min(max(largest, PART_ROWS), max(largest, wanted // CHUNK_PARTS))
        rows -= rows % largest  # a partition has whole row groups
        parts = max(1, wanted // rows)
    else:
        parts = min(lanes, wanted)
        rows = max(1, wanted // parts)
    held = min(total, rows * parts)
    return ChunkSize(rows, parts, int(held * row_cost + opened_bytes))


def row_bytes(
    source: ParquetSource,
    columns: Sequence[str],
    layout_bytes: float,
    lists: Mapping[str, tuple[int, int | None]],
    settings: LoaderSettings,
    *,
    whole: bool,
) -> RowBytes:
    """Return the bytes of a row of the widest row group.

    Args:
        source: the files.
        columns: names of the columns to read.
        layout_bytes: bytes of a row in a batch, without lists.
        lists: {column of lists: (bytes of a value in a batch, width if padded)}.
        settings: settings of the loader.
        whole: whether all columns of a chunk are decoded before one is gathered, as for a
            transform, slices of a row group and filters.
    """
    largest = max(range(len(source)), key=lambda n: source.row_groups[n].num_rows)
    stored = {}
    for name in columns:
        kind, is_list = source.column_types[name]
        varies = is_list or kind == "string"  # from row group to row group
        positions = range(len(source)) if varies else (largest,)
        stored[name] = max(source.row_bytes(n, [name]) for n in positions)
    batch, gathering, ahead = layout_bytes, 0.0, 0.0
    for name, (value_bytes, width) in lists.items():
        kind = source.column_types.get(name, ("int64", True))[0]
        itemsize = np.dtype(kind).itemsize if kind in np.sctypeDict else 8
        values = max(0.0, stored.get(name, 64.0) - OFFSET_BYTES) / itemsize
        batch += values * value_bytes + OFFSET_BYTES
        # The lists of all row groups are joined, then positions of values are gathered.
        gathering = max(gathering, values * (value_bytes + POSITION_BYTES) + 2 * OFFSET_BYTES)
        ahead += (width or values) * value_bytes + 2 * OFFSET_BYTES
    widest = sorted(stored.values())[-PLANNED_THREADS:]  # a thread decodes a column at a time
    if whole:
        decoded = sum(stored.values()) * (TRANSFORM_COPIES if settings.memory_budget else 1)
        decoded += PLANNED_THREADS * (8 if layout_bytes else 0)
    else:
        decoded = DECODE_COPIES * sum(widest)
    if settings.stacked:
        decoded += MATRIX_COPIES * layout_bytes
    pages = len(columns) * PAGE_BYTES
    whole_bytes = source.row_groups[largest].num_rows * sum(stored.values())
    return RowBytes(
        batch=batch,
        decoded=decoded + gathering * PLANNED_THREADS + ORDER_BYTES,
        opened=min(pages, whole_bytes),
        fixed=settings.batch_size
        // settings.ranks_held
        * (3 * batch + (AHEAD_BATCHES if lists else 0) * ahead),
    )
