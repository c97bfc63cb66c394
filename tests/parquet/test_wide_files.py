"""Files with many columns, and columns whose names look like paths."""

import cProfile
import pstats

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tutorlib.parquet import ParquetError, ParquetSource


def calls_to_open(path):
    profile = cProfile.Profile()
    with profile:
        source = ParquetSource(path)
    assert source.num_rows == 2
    return pstats.Stats(profile).total_calls


@pytest.mark.parametrize("value", [[1], "abcd", 1.5], ids=["lists", "strings", "numbers"])
def test_the_work_of_opening_grows_with_the_number_of_columns(tmp_path, value):
    calls = {}
    for width in (20, 100, 200):
        path = tmp_path / f"{width}.parquet"
        pq.write_table(pa.table({f"c{k}": [value] * 2 for k in range(width)} | {"y": [0, 1]}), path)
        calls[width] = calls_to_open(path)  # the first one also pays for imports
    assert calls[200] < 2.2 * calls[100]


def test_a_column_has_the_bytes_of_its_own_leaves_whatever_its_name(tmp_path):
    table = pa.table(
        {
            "a": pa.array([{"b": 1, "c": [2, 3]}] * 2),
            "a.b": [[1, 2, 3]] * 2,
            "m": pa.array([[("k", 1)]] * 2, pa.map_(pa.string(), pa.int64())),
            "s": ["abcdefgh"] * 2,
            "s.list": [[7.0]] * 2,
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    source = ParquetSource(tmp_path)
    assert source.row_bytes(0, ["a.b"]) == 3 * 8 + 8
    assert source.row_bytes(0, ["s.list"]) == 8  # lists of one float each: vectors
    assert source.null_count("a.b") == 0
    for name in ("a.b", "s", "s.list"):
        assert source.read(0, [name])[name].tolist() == table[name].to_pylist()
    with pytest.raises(ParquetError, match=r"column 'a': .*store its parts"):
        source.read(0, ["a"])
