"""chunk_size: within the budget, as large as it allows, the same on every machine."""

import re

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from tutorlib.loader import EpochPlan
from tutorlib.loader.plan import BLOCK_ROWS
from tutorlib.loader.sizing import CHUNK_BYTES, ChunkSize, RowBytes, chunk_size

# Budgets are drawn over six orders of magnitude: many are too small for the layout.
QUIET = {"deadline": None, "suppress_health_check": [HealthCheck.filter_too_much]}
row_bytes = st.builds(
    RowBytes,
    batch=st.integers(4, 400),
    reading=st.integers(4, 400),
    slicing=st.integers(4, 400),
    stream=st.one_of(st.just(0), st.integers(0, 100_000)),
)
settings_without_budget = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 5000),
        "threads": st.integers(1, 8),
        "shuffle": st.booleans(),
        "buffer_rows": st.one_of(st.none(), st.integers(1, 10_000)),
        "parts_per_chunk": st.one_of(st.none(), st.integers(1, 20)),
    }
)
row_counts = st.lists(st.integers(1, 5000), min_size=1, max_size=20)
budgets = st.floats(3, 9).map(lambda exponent: int(10**exponent))


def largest_chunk(counts, size, layout):
    """The rows of the largest chunk of a real plan."""
    plan = EpochPlan(
        counts,
        batch_size=layout["batch_size"],
        shuffle=layout["shuffle"],
        partition_rows=size.partition_rows,
        parts_per_chunk=size.parts_per_chunk,
    )
    return max(chunk.num_rows for chunk in plan.chunks)


ONE_ROW = RowBytes(batch=4, reading=89, slicing=4, stream=0)
PLAIN = {"batch_size": 1, "shuffle": True, "buffer_rows": None, "parts_per_chunk": None}


@settings(max_examples=200, **QUIET)
@given(row_counts, row_bytes, settings_without_budget, budgets)
@example([1], ONE_ROW, {**PLAIN, "threads": 8}, 1000)  # a row group of one row has no slices
@example([1] * 20, ONE_ROW, {**PLAIN, "threads": 8}, 1100)
@example([5] * 20, ONE_ROW, {**PLAIN, "threads": 8}, 4000)
def test_what_is_planned_stays_within_the_budget(counts, row_bytes, layout, budget):
    try:
        size = chunk_size(counts, row_bytes, budget_bytes=budget, **layout)
    except ValueError:
        assume(False)
    assert size.peak_bytes <= budget
    assert size.partition_rows >= 1
    assert size.parts_per_chunk >= 1
    chunk = largest_chunk(counts, size, layout)
    # Two chunks, or batches; a piece for each thread; the row groups that are open for slices.
    held = 2 * min(sum(counts), max(chunk, layout["batch_size"])) * row_bytes.batch
    if size.partition_rows >= max(counts):
        held += min(chunk, max(counts)) * row_bytes.reading * layout["threads"]
    else:
        piece = min(size.partition_rows, BLOCK_ROWS)
        held += piece * row_bytes.slicing * layout["threads"]
        held += (size.parts_per_chunk if layout["shuffle"] else 1) * row_bytes.stream
    assert held <= size.peak_bytes


@settings(max_examples=200, **QUIET)
@given(row_counts, row_bytes, settings_without_budget, budgets)
def test_a_budget_that_is_too_small_is_refused_with_one_that_is_not(
    counts, row_bytes, layout, budget
):
    try:
        chunk_size(counts, row_bytes, budget_bytes=budget, **layout)
    except ValueError as error:
        message = str(error)
        assert f"memory_budget={budget:,} bytes cannot hold two batches of" in message
        least = int(re.search(r"give at least ([\d,]+) bytes", message)[1].replace(",", ""))
        assert least > budget
        chunk_size(counts, row_bytes, budget_bytes=least, **layout)


@settings(max_examples=200, **QUIET)
@given(row_counts, row_bytes, settings_without_budget, budgets, budgets)
def test_a_larger_budget_never_gives_less(counts, row_bytes, layout, budget, more):
    """Neither an error, nor fewer rows a chunk, nor a smaller peak."""
    try:
        small = chunk_size(counts, row_bytes, budget_bytes=budget, **layout)
    except ValueError:
        assume(False)
    large = chunk_size(counts, row_bytes, budget_bytes=budget + more, **layout)
    assume(row_bytes.stream == 0)  # another row group that is kept open may leave fewer rows
    assert large.peak_bytes >= small.peak_bytes
    rows = [size.partition_rows * size.parts_per_chunk for size in (small, large)]
    # Parts of equal size: up to a row a part is left out.
    assert rows[1] > rows[0] - large.parts_per_chunk


@settings(max_examples=200, **QUIET)
@given(row_counts, row_bytes, settings_without_budget)
def test_an_ample_budget_is_as_good_as_none(counts, row_bytes, layout):
    without = chunk_size(counts, row_bytes, **layout)
    ample = chunk_size(counts, row_bytes, budget_bytes=2**40, **layout)
    assert (ample.partition_rows, ample.parts_per_chunk) == (
        without.partition_rows,
        without.parts_per_chunk,
    )
    if layout["buffer_rows"] is None:
        assume(row_bytes.stream * 20 < CHUNK_BYTES)
        rows = without.partition_rows * without.parts_per_chunk
        assert rows * row_bytes.batch <= max(CHUNK_BYTES, row_bytes.batch)


@settings(max_examples=100, **QUIET)
@given(row_counts, row_bytes, settings_without_budget, st.integers(1, 64))
def test_without_a_budget_the_chunks_do_not_depend_on_the_threads(
    counts, row_bytes, layout, threads
):
    """The order of the rows follows from the chunks: it must be the same on every machine."""
    here = chunk_size(counts, row_bytes, **layout)
    there = chunk_size(counts, row_bytes, **{**layout, "threads": threads})
    assert (here.partition_rows, here.parts_per_chunk) == (
        there.partition_rows,
        there.parts_per_chunk,
    )


@settings(max_examples=200, **QUIET)
@given(
    st.integers(1, 50_000), st.integers(1, 20), st.integers(1, 10**6), st.integers(1, 20), budgets
)
def test_row_groups_are_read_whole_where_a_chunk_can_hold_its_parts(
    rows, groups, buffer_rows, parts, budget
):
    try:
        size = chunk_size(
            [rows] * groups,
            RowBytes(100, 10),
            batch_size=1,
            threads=1,
            buffer_rows=buffer_rows,
            parts_per_chunk=parts,
            budget_bytes=budget,
        )
    except ValueError:
        assume(False)
    if size.partition_rows * size.parts_per_chunk >= parts * rows:
        assert size.partition_rows >= rows
        assert size.parts_per_chunk == parts


@pytest.mark.parametrize(
    ("row_counts", "changes", "want"),
    [
        # As asked for.
        ([100] * 50, {"buffer_rows": 300, "parts_per_chunk": 4}, (300, 4)),
        ([100] * 50, {"buffer_rows": 300}, (300, 1)),
        # A row group that a partition cannot hold is read in slices.
        ([1000] * 50, {"buffer_rows": 300, "parts_per_chunk": 4}, (300, 4)),
        # By itself: at least eight row groups of a million rows in all, in slices, ...
        ([1_000_000] * 20, {}, (131_072, 8)),
        # ... or as many whole ones as make that up.
        ([65_536] * 100, {}, (65_536, 16)),
        # Wide rows: 512 MiB a chunk.
        ([1_000_000] * 20, {"row_bytes": RowBytes(4096, 4)}, (16_384, 8)),
        # Open row groups, 50 MB each: no more than 256 MiB of them.
        ([1_000_000] * 20, {"row_bytes": RowBytes(160, 12, stream=5e7)}, (209_715, 5)),
        # A quarter of the budget for open row groups: one of 200 kB, for a moment two.
        # A row in two chunks, read and scattered on 2 threads, which order half a chunk each.
        (
            [1_000_000] * 20,
            {"row_bytes": RowBytes(160, 12, 8, 2e5), "budget_bytes": 1_000_000},
            (600_000 // (3 * 160 + 2 * (8 + 32)), 1),
        ),
        # Few row groups, which a chunk can hold all: they are read whole, without streams.
        (
            [1000] * 3,
            {
                "row_bytes": RowBytes(160, 12, 8, 1e6),
                "buffer_rows": 1000,
                "parts_per_chunk": 8,
                "budget_bytes": 2_200_000,
            },
            (1000, 8),
        ),
    ],
)
def test_examples_worked_out_by_hand(row_counts, changes, want):
    arguments = {"row_bytes": RowBytes(160, 12), "batch_size": 10, "threads": 2, **changes}
    size = chunk_size(row_counts, arguments.pop("row_bytes"), **arguments)
    assert (size.partition_rows, size.parts_per_chunk) == want


def test_the_peak_worked_out_by_hand():
    """Two chunks of 300 rows, a group in order by copying on 2 threads; reading of 100 rows."""
    size = chunk_size([100] * 50, RowBytes(160, 12), batch_size=10, threads=2, buffer_rows=300)
    held = 2 * 300 * 160 + 2 * 300 * 160
    assert size == ChunkSize(300, 1, held + 2 * 100 * 12 + 2 * 100 * 32)
