"""Whatever the files, filters, parts and slices: the same rows, in order, read in bounded steps."""

import os
import pickle
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from tutorlib.workflow.write import RowShare

from tutorlib.parquet import ParquetSource, with_encoded_strings

ROWS = 120
TABLE = pa.table(
    {
        "row": np.arange(ROWS),
        "x": pa.array([None if k % 7 == 0 else k % 10 for k in range(ROWS)]),
        "f": np.where(np.arange(ROWS) % 9, np.arange(ROWS) / 4, np.nan),
        "s": [f"s{k % 5}" for k in range(ROWS)],
        "l": [[k] * (k % 4) for k in range(ROWS)],
    }
)
FILTERS = [  # as the source takes them, and as Python sees a row
    (None, lambda row: True),
    ([("x", ">", 3)], lambda row: row["x"] is not None and row["x"] > 3),
    ([("f", "<", 20)], lambda row: row["f"] < 20),
    ([("row", "<", 50)], lambda row: row["row"] < 50),
    (
        [("s", "in", ["s1", "s3"]), ("row", "!=", 3)],
        lambda row: row["row"] % 5 in (1, 3) and row["row"] != 3,
    ),
]


def assert_rows(got, want):
    got = got if isinstance(got, pa.Table) else got.to_arrow()
    assert got.column_names == want.column_names
    np.testing.assert_equal(got.to_pydict(), want.to_pydict())


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_source_has_the_rows_that_pass_in_order(data):
    filters, passes = data.draw(st.sampled_from(FILTERS))
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, ROWS - 1), max_size=3))), ROWS]
    names = data.draw(st.permutations(TABLE.column_names))[: data.draw(st.integers(1, 5))]
    with tempfile.TemporaryDirectory() as folder:
        for k, start in enumerate(cuts[:-1]):
            part = TABLE.slice(start, cuts[k + 1] - start)
            size = data.draw(st.integers(1, 60))
            pq.write_table(part, f"{folder}/{k}.parquet", row_group_size=size)
        source = ParquetSource(data.draw(st.sampled_from([folder, TABLE])), filters)
        rows = [k for k, row in enumerate(TABLE.to_pylist()) if passes(row)]
        for _ in range(data.draw(st.integers(0, 2))):  # parts of a split, and parts of these
            share = RowShare(0, 2**63, data.draw(st.integers(0, 5)))
            rows = [rows[k] for k in share(0, len(rows)).tolist()]
            source = source.choose(share)
        if data.draw(st.booleans()):
            source = pickle.loads(pickle.dumps(with_encoded_strings(source)))
        want, first, step = TABLE.take(rows).select(names), 0, data.draw(st.integers(1, 50))
        assert source.num_rows == len(rows)
        for position, group in enumerate(source.row_groups):
            expected = want.slice(first, group.num_rows)
            first += group.num_rows
            assert_rows(source.read(position, names), expected)
            assert_rows(source.table(position, names), expected)
            start = data.draw(st.integers(0, group.num_rows))
            stop = data.draw(st.integers(start, group.num_rows))
            assert_rows(source.read(position, names, start, stop), expected[start:stop])
            sizes = []
            for chunk in source.steps(position, names, step, start, stop):
                at = start + sum(sizes)
                assert_rows(chunk, expected.slice(at, chunk.num_rows))
                sizes.append(chunk.num_rows)
            assert sizes == [min(step, stop - at) for at in range(start, stop, step)]
        assert [chunk.num_rows for chunk in source.chunks(names, rows=step)] == [
            min(step, len(rows) - at) for at in range(0, len(rows), step)
        ]


def test_steps_decode_about_a_step_at_a_time_and_close_their_file(tmp_path):
    rng = np.random.default_rng(0)
    table = pa.table({name: rng.random(1_000_000) for name in "abc"})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10**6, use_dictionary=False)
    for filters in (None, [("a", "<", 0.001)]):
        source = ParquetSource(tmp_path, filters)
        before, opened, most = pa.total_allocated_bytes(), len(os.listdir("/proc/self/fd")), 0
        steps = source.steps(0, ["a", "b", "c"], 10_000)
        for chunk in steps:
            most = max(most, pa.total_allocated_bytes() - before)
            del chunk
        steps = source.steps(0, ["a", "b", "c"], 10)
        next(steps)
        steps.close()
        assert len(os.listdir("/proc/self/fd")) == opened
        assert most < table.nbytes / 4
