"""EpochPlan: each row once, equal steps, order a function of (seed, epoch)."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tutorlib.loader import EpochPlan
from tutorlib.loader.plan import _random_split, blocks_of

layouts = st.fixed_dictionaries(
    {
        "row_counts": st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(sum),
        "batch_size": st.integers(1, 40),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 2**63),
        "epoch": st.integers(0, 5),
        "partition_rows": st.integers(1, 60),
        "parts_per_chunk": st.integers(1, 4),
        "world_size": st.integers(1, 5),
    }
)


def rows_of(plan, row_counts):
    """The rows of the source, in the order in which the plan's batches hold them."""
    firsts = np.concatenate([[0], np.cumsum(row_counts)])
    groups = [np.full(plan.group_rows(group), -1) for group in range(plan.num_groups)]
    for chunk in plan.chunks:
        blocks = [
            np.arange(row_range.start + start, row_range.start + stop) + firsts[row_range.row_group]
            for row_range in chunk.row_ranges
            for start, stop in blocks_of(row_range)
        ]
        assert chunk.block_rows == [len(block) for block in blocks]
        for number, (block, row_slices) in enumerate(
            zip(blocks, plan.row_slices(chunk.index), strict=True)
        ):
            order = plan.order(chunk.index, number, row_slices)
            rows = block if order is None else block[order]
            for row_slice in row_slices:
                first, last = plan.chunks_of(row_slice.group)
                assert first <= chunk.index <= last
                target = groups[row_slice.group][row_slice.first :][
                    : row_slice.stop - row_slice.start
                ]
                assert (target == -1).all()
                target[:] = rows[row_slice.start : row_slice.stop]
    batches = []
    for number, group in enumerate(groups):
        order = plan.group_order(number)
        rows = group if order is None else group[order]
        sizes = plan.group_sizes(number)
        batches += np.split(rows, np.cumsum(sizes)[:-1])
    return batches


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 8 rows and groups of up to 40, so that small layouts have many."""
    monkeypatch.setattr("tutorlib.loader.plan.BLOCK_ROWS", 8)
    monkeypatch.setattr("tutorlib.loader.plan.GROUP_ROWS", 40)


QUIET = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@settings(max_examples=300, **QUIET)
@given(layouts)
def test_ranks_together_hold_each_row_once_in_equal_numbers_of_steps(layout):
    row_counts = layout.pop("row_counts")
    world_size = layout["world_size"]
    if sum(row_counts) < world_size:
        with pytest.raises(ValueError, match="too few"):
            EpochPlan(row_counts, rank=0, **layout)
        return
    if layout["batch_size"] == 1 and sum(row_counts) % world_size:
        with pytest.raises(ValueError, match="equally many steps"):
            EpochPlan(row_counts, rank=0, **layout)
        return
    plans = [EpochPlan(row_counts, rank=rank, **layout) for rank in range(world_size)]
    batches = [rows_of(plan, row_counts) for plan in plans]
    together = np.sort(np.concatenate([np.concatenate(b) for b in batches]))
    np.testing.assert_array_equal(together, np.arange(sum(row_counts)))
    assert len({len(plan) for plan in plans}) == 1
    for plan, rank_batches in zip(plans, batches, strict=True):
        assert [len(b) for b in rank_batches] == plan.batch_sizes
        assert min(plan.batch_sizes) > 0
        assert max(plan.batch_sizes) <= layout["batch_size"]


def full_batches(row_counts, layout):
    """The plans of all ranks with `drop_last`, where there is a row for each."""
    assume(sum(row_counts) >= layout["world_size"])
    ranks = range(layout["world_size"])
    return [EpochPlan(row_counts, rank=rank, drop_last=True, **layout) for rank in ranks]


@settings(max_examples=150, **QUIET)
@given(layouts)
def test_drop_last_leaves_full_batches_on_every_rank(layout):
    row_counts = layout.pop("row_counts")
    world_size, batch_size = layout["world_size"], layout["batch_size"]
    plans = full_batches(row_counts, layout)
    sizes = [plan.batch_sizes for plan in plans]
    assert all(size == sizes[0] for size in sizes)
    assert set(sizes[0]) <= {batch_size}
    rows = np.concatenate([np.concatenate([[], *rows_of(p, row_counts)]) for p in plans])
    assert (
        len(np.unique(rows)) == len(rows) > sum(row_counts) - world_size * batch_size - world_size
    )


@settings(max_examples=50, **QUIET)
@given(st.integers(1, 200), st.integers(1, 200))
def test_limit_rows_takes_the_first_rows(limit, batch_size):
    plan = EpochPlan([50, 0, 50, 50], batch_size=batch_size, limit_rows=limit, partition_rows=60)
    rows = np.sort(np.concatenate(rows_of(plan, [50, 0, 50, 50])))
    np.testing.assert_array_equal(rows, np.arange(min(limit, 150)))


@settings(max_examples=300, **QUIET)
@given(layouts)
def test_slices_of_a_row_group_come_in_order_and_make_it_up(layout):
    row_counts = layout.pop("row_counts")
    world_size, partition_rows = layout["world_size"], layout["partition_rows"]
    plans = full_batches(row_counts, layout)
    row_ranges = [
        row_range for plan in plans for chunk in plan.chunks for row_range in chunk.row_ranges
    ]
    for group, rows in enumerate(row_counts):
        slices = [row_range for row_range in row_ranges if row_range.row_group == group]
        assert sum(row_range.num_rows for row_range in slices) == rows
        for before, after in itertools.pairwise(slices):
            assert before.stop == after.start
        assert not rows or (slices[0].start, slices[-1].stop) == (0, rows)
        assert max((row_range.num_rows for row_range in slices), default=0) <= partition_rows
        # No more than it takes: one a partition, and a block of 8 rows, and where a rank begins.
        assert len(slices) <= math.ceil(rows / partition_rows) + rows / 8 + world_size - 1
    for plan in plans:
        most = partition_rows * layout["parts_per_chunk"]
        assert all(0 < chunk.num_rows <= most for chunk in plan.chunks)
        firsts = np.cumsum([0, *(chunk.num_rows for chunk in plan.chunks)])
        assert [chunk.first for chunk in plan.chunks] == firsts[:-1].tolist()


def test_slices_of_different_row_groups_are_read_in_turn():
    """Each chunk has a slice of each of four row groups: threads need not wait for each other."""
    plan = EpochPlan([100] * 4, batch_size=10, partition_rows=20, parts_per_chunk=4)
    assert len(plan.chunks) == 5
    for chunk in plan.chunks:
        groups = [row_range.row_group for row_range in chunk.row_ranges]
        assert all(sorted(turn) == [0, 1, 2, 3] for turn in zip(*[iter(groups)] * 4, strict=True))
        for group in range(4):
            row_ranges = [
                row_range for row_range in chunk.row_ranges if row_range.row_group == group
            ]
            start = 20 * chunk.index
            assert (row_ranges[0].start, row_ranges[-1].stop) == (start, start + 20)


def test_slices_without_shuffling_are_the_source_in_order():
    plan = EpochPlan([90, 10], batch_size=7, shuffle=False, partition_rows=20, parts_per_chunk=4)
    assert [chunk.num_rows for chunk in plan.chunks] == [72, 28]
    np.testing.assert_array_equal(np.concatenate(rows_of(plan, [90, 10])), np.arange(100))


def test_a_group_needs_only_the_chunks_that_give_it_rows():
    plan = EpochPlan([16] * 8, batch_size=20, partition_rows=16, parts_per_chunk=2)
    giving = [set() for _ in range(plan.num_groups)]
    for chunk in plan.chunks:
        for row_slices in plan.row_slices(chunk.index):
            for row_slice in row_slices:
                giving[row_slice.group].add(chunk.index)
    assert [plan.chunks_of(group) for group in range(plan.num_groups)] == [
        (min(chunks), max(chunks)) for chunks in giving
    ]


def test_order_depends_on_seed_and_epoch_alone():
    def order(**changes):
        settings = {"seed": 1, "epoch": 0, "partition_rows": 10, "parts_per_chunk": 3}
        plan = EpochPlan([10] * 9, batch_size=7, **{**settings, **changes})
        return np.concatenate(rows_of(plan, [10] * 9)).tolist()

    assert order() == order()
    assert order() != order(seed=2)
    assert order() != order(epoch=1)
    assert order(seed=2, epoch=1) != order(seed=1, epoch=2)


@pytest.mark.parametrize(("batch_size", "group_batches"), [(32, 1), (8, 2)])
def test_every_pair_of_rows_shares_a_batch_equally_often(batch_size, group_batches):
    """A batch is a uniform choice of the rows: neighbours meet as often as any other two."""
    near, far, epochs = 0, 0, 400
    for epoch in range(epochs):
        plan = EpochPlan([64], batch_size=batch_size, epoch=epoch, partition_rows=64)
        assert plan.group_batches == group_batches
        batch_of = np.empty(64, int)
        for number, rows in enumerate(rows_of(plan, [64])):
            batch_of[rows] = number
        near += np.mean(batch_of[:-1] == batch_of[1:])
        far += np.mean(batch_of[:32] == batch_of[32:])
    assert near / epochs == pytest.approx((batch_size - 1) / 63, abs=0.01)
    assert far / epochs == pytest.approx((batch_size - 1) / 63, abs=0.01)


def test_the_leftover_of_a_chunk_is_shuffled_too():
    """The last, smaller batch must not always be made of the last rows of the source."""
    last = []
    for epoch in range(100):
        plan = EpochPlan([100], batch_size=64, epoch=epoch, partition_rows=100)
        last.append(99 in rows_of(plan, [100])[-1])
    assert np.mean(last) == pytest.approx(0.36, abs=0.15)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"rank": 2, "world_size": 2}, r"rank must be in \[0, world_size=2\), got 2"),
        ({"seed": -1}, r"seed must be in \[0, 2\*\*64\), got -1"),
        ({"limit_rows": 0}, "limit_rows must be at least 1, got 0"),
    ],
)
def test_a_setting_out_of_range_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        EpochPlan([10], **{"batch_size": 4, **change})


# ---- random splits -------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    counts=st.one_of(
        st.lists(st.integers(1, 50), min_size=1, max_size=20),
        st.lists(st.integers(1, 3), min_size=300, max_size=300),
        st.lists(st.just(1), min_size=1, max_size=400),
        st.tuples(st.integers(1, 3), st.integers(1000, 5000)),
    ),
    seed=st.integers(0, 2**32),
)
def test_a_split_has_each_row_once_in_parts_of_the_right_sizes_in_rising_order(counts, seed):
    order = _random_split(np.random.Generator(np.random.Philox(seed)), counts)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(sum(counts)))
    for part in np.split(order, np.cumsum(counts)[:-1]):
        assert (np.diff(part) > 0).all()


@pytest.mark.parametrize(
    "counts", [(1, 1, 1), (2, 1, 2), (1, 4), (3, 3), (1, 1, 1, 1, 1), (4, 1, 1)], ids=str
)
def test_every_split_is_equally_likely(counts):
    splits = math.factorial(sum(counts)) // math.prod(math.factorial(count) for count in counts)
    expected = 150
    random = np.random.Generator(np.random.Philox(7))
    seen = Counter(tuple(_random_split(random, counts)) for _ in range(splits * expected))
    assert len(seen) == splits
    chi_square = sum((times - expected) ** 2 for times in seen.values()) / expected
    degrees = splits - 1  # of freedom: chi-square has this mean, and twice that as its variance
    assert abs(chi_square - degrees) < 4.5 * math.sqrt(2 * degrees)


def test_rows_of_a_large_split_go_to_each_part_alike():
    """Neither end of a block is favoured, and neighbours are not kept together or apart."""
    rows, parts, draws = 256, 16, 400
    part_of = np.empty((draws, rows), int)
    random = np.random.Generator(np.random.Philox(7))
    for draw in range(draws):
        order = _random_split(random, [rows // parts] * parts)
        part_of[draw, order] = np.repeat(np.arange(parts), rows // parts)
    times = np.stack([np.bincount(column, minlength=parts) for column in part_of.T])
    expected = draws / parts
    assert ((times - expected) ** 2).sum() / expected / (rows * (parts - 1)) == pytest.approx(
        1, abs=0.1
    )
    together = np.mean(part_of[:, :-1] == part_of[:, 1:])
    assert together == pytest.approx((rows / parts - 1) / (rows - 1), abs=0.004)


def test_every_chunk_block_group_rank_epoch_and_seed_has_an_order_of_its_own(monkeypatch):
    monkeypatch.setattr("tutorlib.loader.plan.BLOCK_ROWS", 64)

    def orders(**changes):
        settings = {"seed": 1, "epoch": 0, "world_size": 2, "rank": 0, "partition_rows": 128}
        plan = EpochPlan([128] * 8, batch_size=16, **{**settings, **changes})
        for chunk in plan.chunks:
            for block, row_slices in enumerate(plan.row_slices(chunk.index)):
                yield tuple(plan.order(chunk.index, block, row_slices))
        for group in range(plan.num_groups):
            yield tuple(plan.group_order(group))

    changes = [{}, {"seed": 2}, {"seed": 2**64 - 1}, {"epoch": 1}, {"rank": 1}]
    found = [order for change in changes for order in orders(**change)]
    assert {len(order) for order in found} == {64, 32}  # of blocks, of groups of two batches
    assert len(found) == len(set(found)) == len(changes) * (8 + 16)


def test_no_two_draws_of_any_ranks_share_a_random_stream(monkeypatch):
    philox, drawn = np.random.Philox, []

    def recording(*, key, counter):
        drawn.append((*key.tolist(), *counter.tolist()))
        return philox(key=key, counter=counter)

    monkeypatch.setattr(np.random, "Philox", recording)
    monkeypatch.setattr("tutorlib.loader.plan.BLOCK_ROWS", 64)
    for_all, own = set(), []
    for rank in range(4):
        plan = EpochPlan([128] * 8, batch_size=16, partition_rows=128, rank=rank, world_size=4)
        for_all.update(drawn)  # the order of partitions
        drawn.clear()
        for chunk in plan.chunks:
            for block, row_slices in enumerate(plan.row_slices(chunk.index)):
                plan.order(chunk.index, block, row_slices)
        for group in range(plan.num_groups):
            plan.group_order(group)
        own += drawn
        drawn.clear()
    assert len(for_all) == 1
    assert len({*own, *for_all}) == len(own) + 1 == 4 * (2 + 4 + 8) + 1


def test_an_order_stays_the_same_from_version_to_version():
    """A saved state continues under a newer tutorlib or NumPy: renew these rows only knowingly."""
    row_counts = [5, 3, 4]
    plan = EpochPlan(
        row_counts, batch_size=5, seed=42, epoch=1, partition_rows=4, parts_per_chunk=2
    )
    assert [rows.tolist() for rows in rows_of(plan, row_counts)] == [
        [5, 6, 7, 0, 1],
        [8, 10, 11, 2, 3],
        [9, 4],
    ]
