"""What a loader was given, how many rows it reads and shuffles together, and what that takes.

One formula says what a pass holds at most::

    held = CHUNKS * chunk_rows * (batch + decoded) + open row groups * opened + footers

`batch` is what a row takes in a batch, `decoded` what it takes besides while it is gathered, and
`opened` what a row group takes that stays open between two of its slices. A memory budget is solved
for `chunk_rows`; without one, a chunk has about a million rows.

A pure function of row counts, bytes per row and settings: unless `buffer_size` is a fraction,
nothing of it depends on the machine, so the order of the rows is the same everywhere.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tutorlib.checks import check_bytes, check_choice, check_integer
from tutorlib.loader.layout import Layout, MultiHot
from tutorlib.loader.pipeline import CHUNKS
from tutorlib.memory import host_memory_bytes, usable_cores
from tutorlib.parquet import ParquetSource
from tutorlib.schema import BATCH_LAYOUTS, Schema

CHUNK_ROWS = 1_048_576  # rows of an automatic chunk: a fifth of a second of reading
SCAN_ROWS = 262_144  # rows of a chunk that is not shuffled
CHUNK_BYTES = 512 * 2**20  # of an automatic chunk at most, if rows are wide
CHUNK_PARTS = 8  # of an automatic chunk at least: a batch is worth about as many random rows
WHOLE_PARTS = 4  # of an automatic chunk that is enough to read row groups whole
PART_ROWS = 16_384  # of a partition of an automatic chunk at least
OPEN_FRACTION = 0.7  # of a budget at most, for row groups that are open between two slices
ORDER_BYTES = 18  # of a row: its place in the order, twice while it is drawn, and its batch
OFFSET_BYTES = 8  # of a list
POSITION_BYTES = 8  # of a value of a list while it is gathered
PLANNED_THREADS = 4  # for which a memory budget is divided, so that no order depends on the cores
REMOTE_THREADS = 2  # per core, because they wait for remote files; more cost CPU time
MOST_REMOTE_THREADS = 32
INTEGERS = {  # with the smallest value of each
    "batch_size": 1, "seed": 0, "parts_per_chunk": 1, "global_size": 1, "global_rank": 0,
    "threads": 1,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoaderSettings:
    """The settings of a loader, except for its files and columns.

    Each field is the argument of `KerasSequenceLoader` with that name and is described there.
    Integers are stored as Python's, which JSON can hold.

    Raises:
        ValueError: if an argument is out of range or contradicts another one.
    """

    batch_size: int
    engine: str
    shuffle: bool
    seed: int
    buffer_size: float | None
    parts_per_chunk: int | None
    memory_budget: Any  # bytes, once it is checked
    threads: int | None
    global_size: int | None
    global_rank: int | None
    drop_last: bool
    batch_layout: str
    multi_hot: MultiHot
    nulls: str

    def __post_init__(self) -> None:
        for name, least in INTEGERS.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_integer(name, value, least))
        object.__setattr__(self, "memory_budget", check_bytes("memory_budget", self.memory_budget))
        check_choice("engine", self.engine, ("parquet",))
        check_choice("batch_layout", self.batch_layout, BATCH_LAYOUTS)
        if self.buffer_size is not None and not 0 < self.buffer_size < math.inf:
            raise ValueError(
                f"buffer_size must be above 0 and finite, got {self.buffer_size}; for a chunk of "
                "all rows, give their number"
            )
        size = self.global_size
        rank = self.global_rank
        if (size is None) != (rank is None) or (rank or 0) >= (size or 1):
            raise ValueError(
                "give both of global_size and global_rank, which must be in [0, global_size), or "
                f"neither; got global_size={size}, global_rank={rank}"
            )
        check_choice("nulls", self.nulls, ("error", "fill"))

    @property
    def stacked(self) -> bool:
        """Whether a batch has one matrix for each role instead of one tensor for each column."""
        return self.batch_layout == "stacked"

    def reader_threads(self, *, on_device: bool, remote: bool) -> int:
        """Return the number of reader threads, at least 1.

        A memory budget is planned for four threads, and four keep a GPU busy. Threads that read
        remote files wait most of the time, so there are several per core.

        Args:
            on_device: whether batches are made in a device's memory.
            remote: whether files are on other machines.
        """
        threads = self.threads
        if threads is None:
            threads = usable_cores()
            if remote:
                threads = max(threads, min(REMOTE_THREADS * threads, MOST_REMOTE_THREADS))
            if on_device:
                threads = min(threads, PLANNED_THREADS)
        return threads if self.memory_budget is None else min(threads, PLANNED_THREADS)


class RowBytes(NamedTuple):
    """Bytes of one row in the places where the loader holds it; `fixed` counts once."""

    batch: float  # in a batch
    decoded: float  # while it is gathered, in addition to its batch
    opened: float = 0  # of a row group that is open between two of its slices
    fixed: float = 0  # footers


class ChunkSize(NamedTuple):
    """Rows of a partition, partitions of a chunk, and bytes as planned."""

    partition_rows: int
    parts_per_chunk: int
    peak_bytes: int  # that a pass holds at most
    batch_bytes: int  # of the batches of all chunks that exist


def chunk_size(
    row_counts: Sequence[int],
    row: RowBytes,
    *,
    batch_size: int,
    shuffle: bool = True,
    buffer_rows: int | None = None,
    parts_per_chunk: int | None = None,
    budget_bytes: int | None = None,
) -> ChunkSize:
    """Return the sizes that are asked for, as far as the budget allows.

    Args:
        row_counts: rows of each row group.
        row: bytes of a row.
        batch_size: rows per batch.
        shuffle: whether the parts of a chunk come from distant parts of the data.
        buffer_rows: rows of a partition; None for chunks of about a million rows and at least four
            batches.
        parts_per_chunk: partitions of a chunk; None for whole row groups, 8 slices of larger ones,
            or 1 if `buffer_rows` is given.
        budget_bytes: upper limit of `peak_bytes`; None for no limit.

    Raises:
        ValueError: if the budget cannot hold a chunk of one batch.

    Example:
        >>> chunk_size([100] * 50, RowBytes(160, 12), batch_size=10, buffer_rows=300)
        ChunkSize(partition_rows=300, parts_per_chunk=1, peak_bytes=154800, batch_bytes=144000)
    """
    total = sum(row_counts)
    largest = max(row_counts)
    cost = CHUNKS * (row.batch + row.decoded)
    most_parts = parts_per_chunk or (CHUNK_PARTS if buffer_rows is None else 1)

    def divided(rows: int) -> tuple[int, int]:
        """Return (rows of a partition, partitions) of a chunk."""
        if not shuffle and buffer_rows is None:
            parts = max(1, min(2, rows // largest))
        elif parts_per_chunk or buffer_rows or WHOLE_PARTS * largest > rows:
            parts = min(most_parts, rows)  # slices of row groups that are larger
        else:  # whole row groups
            partition = max(largest, min(PART_ROWS, rows // CHUNK_PARTS))
            partition -= partition % largest
            return partition, rows // partition
        return rows // parts, parts

    # 1. The rows of a chunk that are asked for.
    if buffer_rows is not None:
        wanted = buffer_rows * most_parts
    else:
        wanted = max(CHUNK_ROWS, 4 * batch_size)
        if not shuffle:
            wanted = max(SCAN_ROWS, batch_size, min(largest, wanted))
        wanted = min(wanted, max(1, int(CHUNK_BYTES / row.batch)))

    # 2. Those that fit the budget, beside row groups that stay open between two slices.
    def opened_groups() -> int:
        if divided(wanted)[0] >= largest:
            return 0
        return min(most_parts, len(row_counts)) if shuffle else 1

    open_groups = opened_groups()
    if budget_bytes is not None:
        room = budget_bytes - row.fixed
        least = min(batch_size, total)
        fitting = int(room / cost)
        wanted = max(1, min(wanted, fitting))
        if open_groups := opened_groups():
            free = min(OPEN_FRACTION * room, room - least * cost)
            if open_groups * row.opened > free:
                most_parts = open_groups = max(1, int(free / max(1, row.opened)))
            fitting = int((room - open_groups * row.opened) / cost)
            wanted = max(1, min(wanted, fitting))
        if fitting < least:
            enough = least * cost + row.opened + row.fixed
            raise ValueError(
                f"memory_budget={budget_bytes:,} bytes cannot hold {CHUNKS} chunks of one batch of "
                f"{batch_size:,} rows, {cost / CHUNKS:,.0f} bytes each in a batch and while they "
                f"are gathered, an open row group of {row.opened:,.0f} bytes and footers of "
                f"{row.fixed:,.0f} bytes. Give at least {int(enough) + 1:,} bytes, a smaller "
                "batch_size, or row groups of another size (ParquetSink(row_group_rows=...))"
            )
    # 3. Partitions.
    rows, parts = divided(wanted)
    peak = min(total, rows * parts) * cost + open_groups * row.opened + row.fixed
    return ChunkSize(rows, parts, int(peak), int(CHUNKS * rows * parts * row.batch))


def size_of_chunks(
    row_counts: Sequence[int], row: RowBytes, settings: LoaderSettings, *, on_gpu: bool = False
) -> ChunkSize:
    """Return what `buffer_size` and `parts_per_chunk` say, within the memory budget.

    Args:
        row_counts: rows of each row group.
        row: bytes of a row.
        settings: settings of the loader.
        on_gpu: whether a GPU decodes and gathers.

    Raises:
        ValueError: if the budget cannot hold a chunk of one batch; says what would do.
    """
    buffer_rows = settings.buffer_size
    if buffer_rows is not None and buffer_rows < 1:
        memory = host_memory_bytes()
        if on_gpu:
            from tutorlib.gpu.memory import gpu_memory_bytes

            memory = gpu_memory_bytes()
        rows = buffer_rows * memory / (CHUNKS * (row.batch + row.decoded))
        buffer_rows = max(1, rows / (settings.parts_per_chunk or 1))
    return chunk_size(
        row_counts,
        row,
        batch_size=settings.batch_size,
        shuffle=bool(settings.shuffle),
        buffer_rows=None if buffer_rows is None else int(buffer_rows),
        parts_per_chunk=settings.parts_per_chunk,
        budget_bytes=settings.memory_budget,
    )


def bytes_of_row(
    source: ParquetSource,
    columns: Sequence[str],
    schema: Schema,
    layout: Layout | None,
    settings: LoaderSettings,
    *,
    transformed: bool,
) -> RowBytes:
    """Return the bytes of a row of the widest row group; lists count with their mean length.

    Args:
        source: the files.
        columns: names of the columns to read.
        schema: schema of the batches.
        layout: how the columns lie in a batch; None while it is not known.
        settings: settings of the loader.
        transformed: whether a mapped workflow or function transforms what is read.
    """
    largest = max(range(len(source)), key=lambda n: source.row_groups[n].num_rows)
    stored = {}
    for name in columns:
        kind, is_list = source.column_types[name]
        varies = is_list or kind == "string"  # from row group to row group
        positions = range(len(source)) if varies else (largest,)
        stored[name] = max(source.row_bytes(n, [name]) for n in positions)
    layout_bytes = float(layout.row_bytes) if layout else 8.0 * len(columns)
    batch = layout_bytes
    # A matrix is gathered from one in the order of the files; a transform makes other columns.
    decoded = ORDER_BYTES + sum(stored.values()) + layout_bytes * (settings.stacked + transformed)
    padded = settings.multi_hot.form == "padded"
    for name in (column.name for column in schema if column.multi_hot):
        value_bytes = layout.dtypes[name].itemsize if layout else 8
        kind = source.column_types.get(name, ("int64", True))[0]
        itemsize = np.dtype(kind).itemsize if kind in np.sctypeDict else 8
        values = max(0.0, stored.get(name, 64.0) - OFFSET_BYTES) / itemsize
        width = (settings.multi_hot.max_length or values) if padded else 0.0
        batch += (values + width) * value_bytes + OFFSET_BYTES
        # The lists of all row groups are joined, then positions of values are gathered.
        decoded += values * (value_bytes + POSITION_BYTES) + 2 * OFFSET_BYTES
    # A row group in slices is decoded at once, or page by page if that takes less.
    rows = source.row_groups[largest].num_rows
    opened = min(rows * sum(stored.values()), source.stream_bytes(largest, columns))
    return RowBytes(batch, decoded, opened, source.footer_bytes)
