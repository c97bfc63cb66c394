"""Sizing: how many rows the loader reads and shuffles together, and what memory that needs.

One formula says what a pass holds at most::

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
import functools
from collections.abc import Sequence

import numpy as np

from tutorlib.loader.layout import Layout
from tutorlib.loader.settings import PLANNED_THREADS, LoaderSettings
from tutorlib.memory import host_memory_bytes
from tutorlib.parquet import ParquetSource
from tutorlib.schema import Schema

CHUNK_ROWS = 1_048_576  # rows of an automatic chunk: a fifth of a second of reading
SCAN_ROWS = 262_144  # rows of a chunk that is not shuffled
CHUNK_BYTES = 512 * 2**20  # of an automatic chunk at most, if rows are wide
CHUNK_PARTS = 8  # of an automatic chunk at least: a batch is worth about as many random rows
WHOLE_PARTS = 4  # of an automatic chunk that is enough to read row groups whole
PART_ROWS = 16_384  # of a partition of an automatic chunk at least
PLANNED_FRACTION = 7 / 8  # of the budget, for rows that wait: the rest lets several tasks decode
OPEN_FRACTION = 0.7  # of that, for row groups that are open between two slices
DECODE_COPIES = 1 + 1 / WHOLE_PARTS  # of a column that a thread joins, row group by row group
MATRIX_COPIES = 4  # of a stacked matrix: its columns, its rows in file order, and more of both
TRANSFORM_COPIES = 2  # of decoded columns: as they are stored, and as a transform makes them
TEXT_COPIES = 3  # of the texts of a row group, while a dictionary of them is made
ORDER_BYTES = 18  # of a row: its place in the order, twice while it is drawn, and its batch
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
        most: words that say what takes most of `opened` and `fixed`.
    """

    batch: float
    decoded: float
    opened: float = 0
    fixed: float = 0
    most: str = ""


@dataclasses.dataclass(frozen=True)
class ChunkSize:
    """Rows of partitions and chunks, and what they take.

    Args:
        partition_rows: rows of a partition.
        parts_per_chunk: partitions of a chunk.
        peak_bytes: bytes that a pass holds at most, as planned.
        row_bytes: bytes of a row in a batch.
    """

    partition_rows: int
    parts_per_chunk: int
    peak_bytes: int
    row_bytes: float


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
        parts_per_chunk: partitions of a chunk; None for whole row groups, 8 slices of larger ones,
            or 1 if `buffer_rows` is given.
        budget_bytes: upper limit of `peak_bytes`; None for no limit.

    Raises:
        ValueError: if the budget cannot hold two batches and what reading their rows takes.

    Example:
        >>> chunk_size([100] * 50, RowBytes(160, 12), batch_size=10, buffer_rows=300)
        ChunkSize(partition_rows=300, parts_per_chunk=1, peak_bytes=99600, row_bytes=160)
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
        share = PLANNED_FRACTION * budget_bytes
        if not shuffle:
            lanes = 1
        least = row_cost * min(batch_size, total) + row_bytes.fixed
        if row_bytes.opened:
            room = min(OPEN_FRACTION * share, share - least)
            lanes = max(1, min(lanes, int(room / row_bytes.opened)))
        opened_bytes = row_bytes.fixed
        whole_rows = min(wanted, (share - opened_bytes) / row_cost) / WHOLE_PARTS
        automatic = shuffle and buffer_rows is None and parts_per_chunk is None
        if largest > (whole_rows if automatic else 1):
            opened_bytes += min(lanes, len(row_counts)) * row_bytes.opened
        most = int((share - opened_bytes) / row_cost)
        if most < min(batch_size, total):
            # A larger budget has more decoded at a time.
            enough = int(1.25 * (least + row_bytes.opened) / PLANNED_FRACTION + 1)
            raise ValueError(
                f"memory_budget={budget_bytes:,} bytes cannot hold two batches of "
                f"{batch_size:,} rows of {row_bytes.batch:,.0f} bytes and what reading them takes"
                f"{row_bytes.most}; give at least {enough:,} bytes, a smaller batch_size, or "
                "row groups of another size (ParquetSink(row_group_rows=...))"
            )
        wanted = min(wanted, most)
    if not shuffle and buffer_rows is None:
        parts = 2 if 2 * largest <= wanted else 1
        rows = wanted // parts
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
    return ChunkSize(rows, parts, int(held * row_cost + opened_bytes), row_bytes.batch)


def size_of_chunks(
    source: ParquetSource,
    columns: Sequence[str],
    schema: Schema,
    layout: Layout | None,
    settings: LoaderSettings,
    *,
    transformed: bool,
    on_gpu: bool = False,
) -> ChunkSize:
    """Return what `buffer_size` says, within the memory budget.

    Args:
        source: the files.
        columns: names of the columns to read.
        schema: schema of the batches.
        layout: how the columns lie in a batch; None while it is not known.
        settings: settings of the loader.
        transformed: whether a mapped workflow or function transforms what is read.
        on_gpu: whether a GPU decodes and gathers.

    Raises:
        ValueError: if the budget cannot hold two batches, or cannot bound padded lists; says what
            would do.
    """
    lists = [column.name for column in schema if column.multi_hot]
    form, budget = settings.multi_hot, settings.memory_budget
    if budget is not None and form.form == "padded" and lists and not form.max_length:
        raise ValueError(
            "multi_hot='padded' with a memory_budget needs a longest list: without it, one long "
            f"list of {lists} sets the width of its whole batch, which nothing bounds. Give "
            "MultiHot('padded', max_length=...), cut the lists in the data "
            "(pyarrow.compute.list_slice), or use multi_hot='nnzs'"
        )
    counts = [group.num_rows for group in source.row_groups]
    by_row = functools.partial(_row_bytes, source, columns, lists, layout, settings)
    partial = not all(map(source.is_whole, range(len(source))))
    whole = transformed or on_gpu or partial
    row, buffer_rows = by_row(whole=whole), settings.buffer_size
    if buffer_rows is not None and buffer_rows < 1:
        memory = host_memory_bytes()
        if on_gpu:
            from tutorlib.gpu.memory import gpu_memory_bytes

            memory = gpu_memory_bytes()
        buffer_rows = max(1, buffer_rows * memory / row.batch)
    sized = functools.partial(
        chunk_size,
        counts,
        batch_size=settings.batch_size,
        shuffle=bool(settings.shuffle),
        buffer_rows=None if buffer_rows is None else int(buffer_rows),
        parts_per_chunk=settings.parts_per_chunk,
        budget_bytes=budget,
    )
    size = sized(row)
    if budget is not None and not whole and size.partition_rows < max(counts):
        size = sized(by_row(whole=True))  # slices are decoded all columns at once
    return size


def _row_bytes(
    source: ParquetSource,
    columns: Sequence[str],
    lists: Sequence[str],
    layout: Layout | None,
    settings: LoaderSettings,
    *,
    whole: bool,
) -> RowBytes:
    """Return the bytes of a row of the widest row group.

    With `whole`, all columns of a chunk are decoded before one is gathered, as for a transform,
    slices of a row group and filters.
    """
    largest = max(range(len(source)), key=lambda n: source.row_groups[n].num_rows)
    stored = {}
    for name in columns:
        kind, is_list = source.column_types[name]
        varies = is_list or kind == "string"  # from row group to row group
        positions = range(len(source)) if varies else (largest,)
        stored[name] = max(source.row_bytes(n, [name]) for n in positions)
    layout_bytes = float(layout.row_bytes) if layout else 8.0 * len(columns)
    batch, gathering, ahead = layout_bytes, 0.0, 0.0
    width = settings.multi_hot.max_length if settings.multi_hot.form == "padded" else None
    for name in lists:
        value_bytes = layout.dtypes[name].itemsize if layout else 8
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
    # An open row group is decoded whole, or read in steps, whichever takes less.
    rows = source.row_groups[largest].num_rows
    opened = min(rows * sum(stored.values()), source.stream_bytes(largest, columns))
    texts = [name for name in columns if source.column_types[name] == ("string", False)]
    text_bytes = TEXT_COPIES * source.stored_bytes(largest, texts)
    footers = source.footer_bytes
    widest_name = max(stored, key=stored.__getitem__)
    most = (
        f" ({source.location(largest)} takes {opened:,.0f} bytes while it is open, column "
        f"{widest_name!r} {rows * stored[widest_name]:,.0f} if it is decoded whole)"
    )
    if text_bytes > max(opened, footers):
        most = f" ({source.location(largest)} takes {text_bytes:,.0f} bytes, column {texts[0]!r}"
        most += ", while ids are made of its texts)"
    elif footers > opened:
        most = (
            f" (the footers of {len(source.files):,} files with {len(source):,} row groups take "
            f"{footers:,.0f} bytes)"
        )
    ahead_bytes = 3 * batch + (AHEAD_BATCHES * ahead if lists else 0)
    return RowBytes(
        batch=batch,
        decoded=decoded + gathering * PLANNED_THREADS + ORDER_BYTES,
        opened=opened,
        fixed=settings.batch_size * ahead_bytes + footers + text_bytes,
        most=most,
    )
