"""Plans and sizes by drawn layouts: each row once, equal steps, slices in order, in a budget."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tutorlib.loader.plan import EpochPlan
from tutorlib.loader.settings import RowBytes, chunk_size

row_counts = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(sum)
layouts = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 40),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 2**64 - 1),
        "epoch": st.integers(0, 5),
        "partition_rows": st.integers(1, 60),
        "parts_per_chunk": st.integers(1, 4),
        "world_size": st.integers(1, 5),
    }
)


def plans_of(counts, layout, **more):
    """The plan of each rank; no example if there are too few rows for the ranks."""
    assume(sum(counts) >= layout["world_size"])
    ranks = range(layout["world_size"])
    return [EpochPlan(counts, rank=rank, **layout, **more) for rank in ranks]


def batches_of(plan, counts, first_batch=0):
    """The rows of the source that each batch holds."""
    firsts = np.cumsum([0, *counts])
    batches = [[] for _ in range(len(plan))]
    for chunk in plan.chunks:
        ranges = [np.arange(r.start, r.stop) + firsts[r.row_group] for r in chunk.row_ranges]
        rows, order = np.concatenate(ranges), plan.order(chunk.index)
        assert len(rows) == chunk.num_rows
        rows = rows if order is None else rows[order]
        for segment in plan.segments(chunk.index, first_batch):
            pieces = np.split(rows[segment.start : segment.stop], max(1, segment.batches))
            for number, piece in enumerate(pieces):
                batches[segment.batch + number] += piece.tolist()
    return batches


@settings(max_examples=100)
@given(row_counts, layouts)
def test_ranks_together_hold_each_row_once_in_equal_numbers_of_steps(counts, layout):
    if layout["batch_size"] == 1:
        assume(sum(counts) % layout["world_size"] == 0)
    plans = plans_of(counts, layout)
    batches = [batches_of(plan, counts) for plan in plans]
    rows = list(itertools.chain(*itertools.chain(*batches)))
    assert sorted(rows) == list(range(sum(counts)))
    assert layout["shuffle"] or rows == sorted(rows)
    assert len({len(plan) for plan in plans}) == 1
    for plan, of_rank in zip(plans, batches, strict=True):
        sizes = [len(batch) for batch in of_rank]
        assert sizes == np.diff(plan.starts).tolist()
        assert 0 < min(sizes) <= max(sizes) <= layout["batch_size"]


@settings(max_examples=100)
@given(row_counts, layouts)
def test_drop_last_leaves_full_batches_on_every_rank(counts, layout):
    plans, size = plans_of(counts, layout, drop_last=True), layout["batch_size"]
    batches = [batches_of(plan, counts) for plan in plans]
    assert len({len(of_rank) for of_rank in batches}) == 1
    rows = list(itertools.chain(*itertools.chain(*batches)))
    assert {len(batch) for of_rank in batches for batch in of_rank} <= {size}
    left_out = sum(counts) - len(rows)
    assert len(rows) == len(set(rows))
    assert left_out < layout["world_size"] * (size + 1)


@settings(max_examples=100)
@given(row_counts, layouts)
def test_slices_of_a_row_group_come_in_order_and_make_it_up(counts, layout):
    plans = plans_of(counts, layout, drop_last=True)
    chunks = [chunk for plan in plans for chunk in plan.chunks]
    for group, rows in enumerate(counts):
        slices = [r for chunk in chunks for r in chunk.row_ranges if r.row_group == group]
        ends = [(r.start, r.stop) for r in slices]
        if not layout["shuffle"] or layout["world_size"] == 1:
            assert all(before[1] == after[0] for before, after in itertools.pairwise(ends))
        assert sum(r.num_rows for r in slices) == rows
        assert not rows or (min(ends)[0], max(ends)[1]) == (0, rows)
        for plan in plans:
            own = [chunk for chunk in plan.chunks for r in chunk.row_ranges if r.row_group == group]
            assert (group in plan.sliced) == (len(own) > 1)
    most = layout["partition_rows"] * layout["parts_per_chunk"]
    for plan in plans:
        assert all(0 < chunk.num_rows <= most for chunk in plan.chunks)
        firsts = itertools.accumulate((chunk.num_rows for chunk in plan.chunks), initial=0)
        assert [chunk.first for chunk in plan.chunks] == list(firsts)[:-1]


@settings(max_examples=100)
@given(row_counts, layouts, st.floats(0, 1, exclude_max=True))
def test_a_resumed_plan_gives_the_rest_and_reads_no_chunk_before_it(counts, layout, resume):
    plans = plans_of(counts, layout, drop_last=True)
    assume(len(plans[0]))
    first = int(resume * len(plans[0]))
    for plan in plans:
        whole, rest = batches_of(plan, counts), batches_of(plan, counts, first)
        assert rest == [[]] * first + whole[first:]
        assert plan.batch_sizes.tolist() == [layout["batch_size"]] * len(plan)
        needed = [c.index for c in plan.chunks if plan.segments(c.index, first)]
        assert [chunk.index for chunk in plan.chunks_from(first)] == needed
        assert plan.chunks_from(len(plan)) == []


def test_slices_of_different_row_groups_are_read_in_turn():
    """Each chunk has a slice of each of four row groups: a batch is a mixture of all of them."""
    plan = EpochPlan([100] * 4, batch_size=10, partition_rows=20, parts_per_chunk=4)
    assert len(plan.chunks) == 5
    for chunk in plan.chunks:
        ranges = sorted((r.row_group, r.start, r.stop) for r in chunk.row_ranges)
        start = 20 * chunk.index
        assert ranges == [(group, start, start + 20) for group in range(4)]
    assert plan.row_groups_per_chunk() == 4


@pytest.mark.parametrize(
    ("row_groups", "parts", "want"),
    [(16, 4, [2, 4, 4, 4, 2]), (20, 5, [3, 5, 5, 5, 2]), (15, 4, [4, 4, 4, 3])],
)
def test_the_first_of_many_chunks_has_half_as_many_partitions(row_groups, parts, want):
    """So the first batch comes sooner; of few chunks it would make one more."""
    made = {"batch_size": 10, "partition_rows": 10, "parts_per_chunk": parts}
    plan = EpochPlan([10] * row_groups, **made)
    assert [len(chunk.row_ranges) for chunk in plan.chunks] == want


def test_a_chunk_of_more_batches_than_16_bits_count_is_dealt_at_random_too():
    rows = 2**16 + 2**14
    order = EpochPlan([rows], batch_size=1, partition_rows=rows).order(0)
    assert np.sort(order).tolist() == list(range(rows))
    places = np.empty(rows, int)
    places[order] = np.arange(rows)
    for numbers in (order, places):
        assert np.mean(np.diff(numbers) > 0) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("batch_size", [32, 8])
def test_every_pair_of_rows_shares_a_batch_equally_often(batch_size):
    """A batch is a uniform choice of the rows: neighbours meet as often as any other two."""
    near, far, epochs = 0, 0, 400
    for epoch in range(epochs):
        plan = EpochPlan([64], batch_size=batch_size, epoch=epoch, partition_rows=64)
        batch_of = np.empty(64, int)
        for number, rows in enumerate(batches_of(plan, [64])):
            batch_of[rows] = number
        near += np.mean(batch_of[:-1] == batch_of[1:])
        far += np.mean(batch_of[:32] == batch_of[32:])
    assert near / epochs == pytest.approx((batch_size - 1) / 63, abs=0.01)
    assert far / epochs == pytest.approx((batch_size - 1) / 63, abs=0.01)


def test_every_chunk_rank_epoch_and_seed_has_an_order_of_its_own():
    changes = [{}, {"seed": 2}, {"seed": 2**64 - 1}, {"epoch": 1}, {"rank": 1}]
    orders = []
    for change in changes:
        made = {"seed": 1, "world_size": 2, "partition_rows": 128, **change}
        plan = EpochPlan([128] * 8, batch_size=16, **made)
        orders += [tuple(plan.order(chunk.index)) for chunk in plan.chunks]
    assert len(set(orders)) == len(orders) == 5 * 4


def test_an_order_stays_the_same_from_version_to_version():
    """A saved state continues under a newer tutorlib or NumPy: renew these rows only knowingly."""
    made = {"seed": 42, "epoch": 1, "partition_rows": 4, "parts_per_chunk": 2}
    plan = EpochPlan([5, 3, 4], batch_size=5, **made)
    assert batches_of(plan, [5, 3, 4]) == [[0, 8, 9, 10, 11], [1, 2, 3, 5, 6], [4, 7]]


# ---- sizes ---------------------------------------------------------------------------------------

QUIET = {"suppress_health_check": [HealthCheck.filter_too_much], "max_examples": 100}
costs = st.builds(
    RowBytes,
    batch=st.integers(4, 400),
    decoded=st.integers(0, 800),
    opened=st.just(0) | st.integers(0, 100_000),
    fixed=st.just(0) | st.integers(0, 100_000),
)
sizes = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 5000),
        "shuffle": st.booleans(),
        "buffer_rows": st.none() | st.integers(1, 10_000),
        "parts_per_chunk": st.none() | st.integers(1, 20),
    }
)
full_counts = st.lists(st.integers(1, 5000), min_size=1, max_size=20)
budgets = st.floats(3, 9).map(lambda exponent: int(10**exponent))


@settings(**QUIET)
@given(full_counts, costs, sizes, budgets)
def test_the_plan_stays_within_the_budget_or_is_refused_with_one_that_is_enough(
    counts, row, layout, budget
):
    try:
        size = chunk_size(counts, row, budget_bytes=budget, **layout)
    except ValueError as error:
        message = str(error)
        assert f"memory_budget={budget:,} bytes cannot hold 3 chunks of one batch" in message
        advised = int(re.search(r"at least ([\d,]+) bytes", message)[1].replace(",", ""))
        assert advised > budget
        budget = advised
        size = chunk_size(counts, row, budget_bytes=budget, **layout)
    assert size.peak_bytes <= budget
    plan = EpochPlan(
        counts,
        batch_size=layout["batch_size"],
        shuffle=layout["shuffle"],
        partition_rows=size.partition_rows,
        parts_per_chunk=size.parts_per_chunk,
    )
    rows = max(chunk.num_rows for chunk in plan.chunks)
    assert rows * 3 * (row.batch + row.decoded) <= size.peak_bytes + 1


@pytest.mark.parametrize(
    ("counts", "changes", "want"),
    [
        ([100] * 50, {"buffer_rows": 300, "parts_per_chunk": 4}, (300, 4)),  # as asked for
        ([100] * 50, {"buffer_rows": 300}, (300, 1)),
        ([1_000_000] * 20, {}, (131_072, 8)),  # eight row groups in slices, ...
        ([65_536] * 100, {}, (65_536, 16)),  # ... or as many whole ones as make a million rows
        ([1_000_000] * 20, {"row": RowBytes(4096, 4)}, (16_384, 8)),  # 512 MiB of wide rows
        ([1000] * 3, {"shuffle": False}, (131_072, 2)),
    ],
)
def test_sizes_worked_out_by_hand(counts, changes, want):
    arguments = {"row": RowBytes(160, 12), "batch_size": 10, **changes}
    size = chunk_size(counts, arguments.pop("row"), **arguments)
    assert (size.partition_rows, size.parts_per_chunk) == want


def test_row_groups_that_stay_open_between_slices_count_with_and_without_a_budget():
    row = RowBytes(160, 12, opened=5_000_000)
    asked = {"batch_size": 10, "buffer_rows": 1000, "parts_per_chunk": 4}
    size = chunk_size([1_000_000] * 20, row, **asked)
    assert size.peak_bytes == 3 * 4000 * (160 + 12) + 4 * 5_000_000
    assert chunk_size([1_000_000] * 20, row, **asked, budget_bytes=10**9) == size
    assert chunk_size([1000] * 20, row, **asked).peak_bytes == 3 * 4000 * (160 + 12)  # none is open
