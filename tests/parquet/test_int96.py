"""Timestamps of Spark and Hive, which are stored as INT96 and go beyond the range of ns."""

import datetime
import struct

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tutorlib import ParquetSource, Workflow
from tutorlib.columns import Chunk
from tutorlib.ops import Categorify
from tutorlib.parquet import ParquetError

LAST = datetime.datetime(9999, 12, 31)
TIMES = [datetime.datetime(2024, 2, 29, 7, 5), LAST, None, datetime.datetime(1, 1, 1)]
ROWS = pa.table({"t": pa.array(TIMES, pa.timestamp("us")), "x": [0, 1, 2, 3]})


def written(path, rows=ROWS, **options):
    """A file of one row group for two rows, with INT96 unless options say otherwise."""
    options = {"use_deprecated_int96_timestamps": True, **options}
    pq.write_table(rows, path, row_group_size=2, **options)
    return path


@pytest.mark.parametrize("store_schema", [True, False])
def test_dates_beyond_the_range_of_ns_come_as_they_are(tmp_path, store_schema):
    source = ParquetSource(written(tmp_path / "a.parquet", store_schema=store_schema))
    assert source.column_types["t"] == ("datetime64[us]", False)
    assert Chunk.concat(list(source.chunks()))["t"].tolist() == TIMES
    lists = pa.table({"t": pa.array([[LAST], [], None, TIMES], pa.list_(pa.timestamp("us")))})
    source = ParquetSource(written(tmp_path / "b.parquet", lists))
    assert Chunk.concat(list(source.chunks()))["t"].tolist() == lists["t"].to_pylist()
    fitted = Workflow(["t"] >> Categorify()).fit(tmp_path / "a.parquet")
    assert fitted.transform(ROWS)["t"].tolist() == [4, 5, 1, 3]


@pytest.mark.parametrize(
    ("condition", "passing"),
    [(pc.field("t") < datetime.datetime(1800, 1, 1), [3]), ([("t", "in", [LAST])], [1])],
)
def test_filters_compare_such_dates(tmp_path, condition, passing):
    source = ParquetSource(written(tmp_path / "a.parquet"), filters=condition)
    assert source.num_rows == len(passing)
    assert Chunk.concat(list(source.chunks()))["x"].tolist() == passing


@pytest.mark.parametrize("order", [1, -1])
def test_a_folder_may_mix_int96_and_microseconds_of_one_arrow_schema(tmp_path, order):
    names = ["a.parquet", "b.parquet"][::order]
    written(tmp_path / names[0])
    written(tmp_path / names[1], use_deprecated_int96_timestamps=False)
    source = ParquetSource(tmp_path, filters=[("t", ">", datetime.datetime(2100, 1, 1))])
    assert source.column_types["t"] == ("datetime64[us]", False)
    assert Chunk.concat(list(source.chunks()))["t"].tolist() == [LAST, LAST]


def test_a_date_that_the_ns_of_another_file_cannot_hold_is_refused_with_its_file(tmp_path):
    written(tmp_path / "a.parquet")
    near = pa.table({"t": ROWS["t"].slice(0, 1).cast(pa.timestamp("ns")), "x": [9]})
    options = {"use_deprecated_int96_timestamps": False, "version": "2.6"}
    written(tmp_path / "b.parquet", near, **options)
    with pytest.raises(ParquetError, match=r"a\.parquet, column 't': .*out of bounds"):
        list(ParquetSource(tmp_path).chunks())


def with_day(path, day, **options):
    """A file whose second row, in row group 0, has the day with this number since 1970."""
    times = pa.table({"t": pa.array([0, 86_400_000_000] * 2, pa.timestamp("us")), "x": range(4)})
    written(path, times, use_dictionary=False, compression="none", **options)
    data = path.read_bytes()
    stored = struct.pack("<qI", 0, 2_440_589)  # nanoseconds of the day, and the Julian day
    path.write_bytes(data.replace(stored, struct.pack("<qI", 0, 2_440_588 + day), 1))
    return path


@pytest.mark.parametrize("names", [None, ["t"], ["x", "t"]])
@pytest.mark.parametrize("day", [106_751_992, 150_000_000, 4_186_877_979])
def test_a_time_that_microseconds_cannot_hold_is_refused_and_no_other_date(tmp_path, day, names):
    source = ParquetSource(with_day(tmp_path / "a.parquet", day))
    place = r"row group 0 of .*a\.parquet, column 't': .*out of bounds.*as a null"
    with pytest.raises(ParquetError, match=place):
        source.read(0, names)
    with pytest.raises(ParquetError, match=place):
        source.read(0, names, 0, 1)
    with pytest.raises(ParquetError, match=place):  # Arrow's date, 1677 or so, would pass
        ParquetSource(source.files, [("t", "<", datetime.datetime(9000, 1, 1))])
    assert source.read(0, ["x"])["x"].tolist() == [0, 1]
    assert source.read(1).num_rows == 2


def test_the_last_day_that_microseconds_hold_comes_as_it_is(tmp_path):
    source = ParquetSource(with_day(tmp_path / "a.parquet", 106_751_991))
    assert source.read(0)["t"].astype(int).tolist() == [0, 106_751_991 * 86_400_000_000]
