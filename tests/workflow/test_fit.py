"""States of row ranges are merged in one way, whatever order they come in."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.ops import bits
from tutorlib.columns import Chunk
from tutorlib.ops import LogOp, Normalize, TargetEncoding
from tutorlib.parquet import stored
from tutorlib.workflow import Workflow
from tutorlib.workflow import fit as fitting


def shape(count, order):
    """How the states of so many ranges are merged, as nested tuples, if they come in an order."""
    merger = fitting.OrderedMerge(tuple, count)
    for place in order:
        assert merger.result is None
        merger.add(place, place)
    return merger.result


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 700), st.randoms(use_true_random=False))
def test_the_order_in_which_states_come_does_not_matter(count, shuffled):
    order = list(range(count))
    shuffled.shuffle(order)
    assert shape(count, order) == shape(count, range(count))


def flat(nested):
    return [nested] if isinstance(nested, int) else [leaf for part in nested for leaf in flat(part)]


@pytest.mark.parametrize("count", [1, 2, 8, 9, 64, 65, 73, 600])
@pytest.mark.parametrize("step", [1, 8, 64])
def test_a_task_of_whole_groups_merges_as_all_ranges_together_do(count, step):
    whole = shape(count, range(count))
    assert flat(whole) == list(range(count))
    level = []
    for start in range(0, count, step):
        merger = fitting.OrderedMerge(tuple, min(step, count - start))
        for place in range(start, min(start + step, count)):
            merger.add(place - start, place)
        level.append(merger.result)
    while len(level) > 1:
        groups = [level[start : start + 8] for start in range(0, len(level), 8)]
        level = [tuple(group) if len(group) > 1 else group[0] for group in groups]
    assert level[0] == whole


def test_any_number_of_threads_learns_the_same_bits(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    columns = {"x": rng.lognormal(0, 9, 30_000), "k": rng.integers(0, 50, 30_000)}
    table = pa.table({**columns, "row": np.arange(30_000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7_001)
    monkeypatch.setattr(fitting, "RANGE_ROWS", 500)  # ranges are cut within row groups
    want = None
    for threads in (1, 2, 7):
        groups = ["x"] >> Normalize(), ["k"] >> TargetEncoding("x", "row")
        fitted = Workflow(*groups).fit(tmp_path, threads=threads)
        learned = [bits(group.ops[0]) for group in fitted.groups]
        want = want or learned
        assert learned == want


def test_a_row_range_is_at_most_its_limit_and_ranges_cover_all_rows(tmp_path):
    rows = pa.table({"x": np.arange(300_005)})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=300_000)
    ranges = fitting.row_ranges_in(fitting.as_source(tmp_path))
    assert [r.num_rows for r in ranges] == [262_144, 37_856, 5]
    parts = fitting.split_by_rows(ranges, 100_000)
    assert [sum(r.num_rows for r in part) for part in parts] == [100_000, 100_000, 100_000, 5]


def test_after_an_error_no_op_is_fitted_and_the_error_is_that_of_the_first_range(monkeypatch):
    monkeypatch.setattr(stored, "TABLE_ROWS", 100)
    values = [np.full(100, 1.0 if k != 3 else -5.0) for k in range(6)]
    values[5] = np.full(100, -9.0)
    workflow = Workflow(["x"] >> LogOp() >> Normalize())
    with pytest.raises(ValueError, match=r"'x': LogOp .* got -5.0 .*row group 3 of"):
        workflow.fit([Chunk({"x": v}) for v in values], threads=2)
    with pytest.raises(ValueError, match="Call fit"):
        workflow.transform(Chunk({"x": values[0]}))


def test_threads_are_refused_with_a_client():
    with pytest.raises(ValueError, match="with client="):
        Workflow(["x"] >> Normalize()).fit(Chunk({"x": np.ones(3)}), object(), threads=2)
