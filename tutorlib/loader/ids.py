"""Ids of the rows of each batch, of any Arrow type, read beside the batches."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tutorlib.loader.plan import EpochPlan
from tutorlib.parquet import ParquetSource


def ids_of_batches(
    plan: EpochPlan, source: ParquetSource, names: Sequence[str], first_batch: int = 0
) -> Iterator[pa.Table]:
    """Yield the named columns of the rows of each batch, in the order of the batch.

    The plan alone says which rows a batch has. Memory: these columns of the chunks from which a
    group of batches has rows, two to three.

    Args:
        plan: plan of the epoch.
        source: the files.
        names: columns of any Arrow type.
        first_batch: number of the first batch.
    """
    source = source.at(None)  # with open files of its own
    tables: dict[int, pa.Table] = {}  # by chunk
    rows_of: dict[int, dict[int, list[tuple[int, np.ndarray]]]] = {}
    first_group, skipped = divmod(first_batch, plan.group_batches)
    with contextlib.closing(source):
        for group in range(first_group, plan.num_groups):
            first, last = plan.chunks_of(group)
            for chunk in range(first, last + 1):
                if chunk not in tables:
                    row_ranges = plan.chunks[chunk].row_ranges
                    parts = [source.table(r.row_group, names, r.start, r.stop) for r in row_ranges]
                    tables[chunk], rows_of[chunk] = pa.concat_tables(parts), _rows(plan, chunk)
            for chunk in [chunk for chunk in tables if chunk < first]:
                del tables[chunk], rows_of[chunk]
            picks, base = np.empty(plan.group_rows(group), np.int64), 0
            for chunk in range(first, last + 1):
                for start, rows in rows_of[chunk][group]:
                    picks[start : start + len(rows)] = base + rows
                base += tables[chunk].num_rows
            order = plan.group_order(group)
            whole = pa.concat_tables(tables.values())
            picks = picks if order is None else picks[order]
            if (np.diff(picks) == 1).all():
                ids = whole.slice(int(picks[0]), len(picks))  # ten times as fast
            else:
                ids = whole.take(pa.array(picks))
            start = 0
            for number, size in enumerate(plan.group_sizes(group)):
                if number >= skipped:
                    yield ids.slice(start, size)
                start += size
            skipped = 0


def _rows(plan: EpochPlan, chunk: int) -> dict[int, list[tuple[int, np.ndarray]]]:
    """Return for each group of batches (its first row, rows of the chunk that follow there)."""
    rows_of, first = defaultdict(list), 0
    row_slices = plan.row_slices(chunk)
    for block, rows in enumerate(plan.chunks[chunk].block_rows):
        order = plan.order(chunk, block, row_slices[block])
        for part in row_slices[block]:
            picked = (
                np.arange(part.start, part.stop) if order is None else order[part.start : part.stop]
            )
            rows_of[part.group].append((part.first, first + picked))
        first += rows
    return rows_of
