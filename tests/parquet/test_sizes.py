"""Sizes from footers: the bytes of each column, whatever its name and its neighbours."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tutorlib.parquet import ParquetSource

LISTS = pa.array([[1, 2, 3]] * 100)


@pytest.mark.parametrize("names", [["a.b"], ["a", "a.b"], ["a.b", "a", "a.b.list"], ["a.b.c", "d"]])
def test_names_with_dots_have_the_same_size_as_others(tmp_path, names):
    structs = pa.array([{"x": 1, "y": [1.0]}] * 100)
    table = pa.table({"before": structs, **dict.fromkeys(names, LISTS), "after": range(100)})
    pq.write_table(table, tmp_path / "x.parquet")
    source = ParquetSource(tmp_path / "x.parquet")
    assert [source.sizes.nbytes_per_row([name]) for name in names] == [24] * len(names)
    assert source.sizes.nbytes_per_row(names) == 24 * len(names)


def test_files_may_order_their_columns_differently(tmp_path):
    table = pa.table({"a": LISTS, "a.b": [[1] * 9] * 100})
    pq.write_table(table, tmp_path / "0.parquet")
    pq.write_table(table.select(["a.b", "a"]), tmp_path / "1.parquet")
    source = ParquetSource(tmp_path)
    assert (source.sizes.nbytes_per_row(["a"]), source.sizes.nbytes_per_row(["a.b"])) == (24, 72)
