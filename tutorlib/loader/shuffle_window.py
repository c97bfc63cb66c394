"""Where a shuffle cannot be good: chunks, or ranks, whose rows come from too few row groups.

A shuffle mixes rows within a chunk. If the files are sorted, a batch of a chunk with rows of n row
groups tells as much as about n random rows, whatever its size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tutorlib.loader.plan import EpochPlan
from tutorlib.parquet import RowRange

FEW_ROW_GROUPS = 4  # fewer of them in a chunk, or for a rank, are worth a warning
CHUNKS_SEEN = 32  # chunks of a plan are alike


def effective_row_groups(row_ranges: Iterable[RowRange]) -> float:
    """Return how many row groups of equal size would be mixed as well as these row ranges.

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


def row_groups_per_chunk(plan: EpochPlan) -> float:
    """Return the effective row groups of the chunk that mixes fewest; the last one is a rest."""
    chunks = plan.chunks[: max(1, len(plan.chunks) - plan.num_ranks)][:CHUNKS_SEEN]
    return min((effective_row_groups(chunk.row_ranges) for chunk in chunks), default=0.0)


def row_groups_per_rank(plan: EpochPlan) -> float:
    """Return the effective row groups that a rank reads in an epoch."""
    return effective_row_groups(part for chunk in plan.chunks for part in chunk.row_ranges)


def shuffle_doubts(
    plan: EpochPlan, *, world_size: int, row_groups: int, automatic: bool, budget: bool
) -> str | None:
    """Return why batches of a plan are not well shuffled and what to do, or None.

    Args:
        plan: the plan of an epoch.
        world_size: number of ranks.
        row_groups: number of row groups of the source.
        automatic: whether the loader chose the size of its chunks: it says nothing about a size
            that was asked for.
        budget: whether a memory budget bounds the chunks.
    """
    if not plan.shuffle:
        return None
    doubts = []
    chunks_matter = automatic and len(plan.chunks) > plan.num_ranks
    if chunks_matter and (mixed := row_groups_per_chunk(plan)) < FEW_ROW_GROUPS:
        rows = max(chunk.num_rows for chunk in plan.chunks)
        doubts.append(
            f"a chunk of {rows:,} rows mixes only {mixed:.1f} of {row_groups} row groups, so rows "
            "that are near each other in the files come near each other"
        )
    if world_size > 1 and (read := row_groups_per_rank(plan)) < FEW_ROW_GROUPS:
        doubts.append(
            f"a rank reads only {read:.1f} of {row_groups} row groups in an epoch, so ranks train "
            "on different mixtures if the files are sorted"
        )
    if not doubts:
        return None
    larger = ", or give a larger memory_budget" if budget else ""
    return (
        f"the shuffle is poor: {'; '.join(doubts)}. Write the data in random order, in at least "
        f"{2 * FEW_ROW_GROUPS * world_size} row groups (Workflow.transform_to_parquet(..., "
        "row_group_rows=..., shuffle_seed=0); for sorted rows, of the parts that split_rows(..., "
        f"seed=0) gives, as its docstring shows){larger}. Measure it with shuffle_quality()."
    )
