"""Filters and keys in names of folders: rows that do not pass do not exist."""

import datetime
import decimal
import math
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tutorlib.columns import Chunk, Masked, Strings
from tutorlib.parquet import ParquetError, ParquetSource

ROWS = 1000


DAY = pc.field("day")


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=ROWS)
    x[::7] = np.nan
    return pa.table(
        {
            "day": np.arange(ROWS) // 100,  # sorted: the statistics of a row group tell
            "C1": rng.integers(0, 5, ROWS).astype("int32"),
            "x": pa.array(x, mask=np.arange(ROWS) % 11 == 0),
            "n": pa.array([None if k % 3 == 0 else k % 10 for k in range(ROWS)]),
            "s": [f"s{k % 4}" for k in range(ROWS)],
            "t": pa.array([datetime.datetime(2024, 1, 1 + k // 100) for k in range(ROWS)]),
            "g": [list(range(k % 4)) for k in range(ROWS)],
            "row": np.arange(ROWS),
        }
    )


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("filters")
    for k in range(2):
        half = table.slice(k * ROWS // 2, ROWS // 2)
        pq.write_table(half, folder / f"{k}.parquet", row_group_size=80)
    return folder


FILTERS = [
    [("day", "<", 6)],
    [("day", "<", 6), ("C1", "in", [1, 2])],
    [[("day", "==", 3)], [("C1", "==", 0), ("s", "!=", "s1")]],
    [("C1", "not in", [0, 3])],
    [("n", ">", 4)],
    [("n", "!=", 4)],
    [("x", "<", 100.0)],  # all but NaN and null
    pc.field("x") != 0.5,  # also NaN
    [("x", ">=", 0), ("day", ">", 2)],
    [("t", "<", datetime.datetime(2024, 1, 4))],
    pc.field("n").is_null(),
    ~(pc.field("x") < 0),
    pc.field("x").is_nan(),
    (pc.field("s") == "s2") | (DAY == 0),
    pc.field("day").isin([9]),
    pc.starts_with(pc.field("s"), "s3"),
    [("s", "in", ["s1", None])],
    [("n", "not in", [None, 4])],
    [("t", "in", [np.datetime64("2024-01-04T00:00", "ns")])],
    pc.field("t").isin(["2024-01-04"]),  # Arrow's statistics cannot compare text with times
]


DAY_4 = datetime.datetime(2024, 1, 4)


@pytest.mark.parametrize(
    ("filters", "same"),
    [
        ([("C1", "in", np.array([1, 2]))], (pc.field("C1") == 1) | (pc.field("C1") == 2)),
        ([("C1", "==", np.int8(2))], pc.field("C1") == 2),
        ([("s", "==", np.str_("s2"))], pc.field("s") == "s2"),
        ([("t", ">=", datetime.date(2024, 1, 4))], pc.field("t") >= DAY_4),
        ([("t", ">=", pd.Timestamp("2024-01-04"))], pc.field("t") >= DAY_4),
    ],
)
def test_values_of_a_condition_are_compared_in_the_type_of_the_column(folder, filters, same):
    source, want = ParquetSource(folder, filters), ParquetSource(folder, same)
    assert source.row_groups == want.row_groups
    assert [c["row"].tolist() for c in source.chunks(["row"])] == [
        c["row"].tolist() for c in want.chunks(["row"])
    ]


@pytest.mark.parametrize(
    "value", ["2024-01-31", datetime.datetime(2024, 1, 31), datetime.date(2024, 1, 31)]
)
def test_a_time_without_a_zone_is_refused_where_times_have_one(value):
    times = [datetime.datetime(2024, 1, day, tzinfo=datetime.UTC) for day in (30, 31)]
    table = pa.table({"t": times})
    for operator, given in (("<", value), ("in", [value])):
        with pytest.raises(ValueError, match="filters"):
            ParquetSource(table, filters=[("t", operator, given)])
    assert ParquetSource(table, filters=[("t", "<", times[1])]).num_rows == 1


def test_statistics_are_not_believed_about_nan_within_a_struct(tmp_path):
    structs = [{"a": 1.0, "z": "q"}, {"a": float("nan"), "z": "r"}, {"a": 1.0, "z": "q"}]
    pq.write_table(
        pa.table({"s": structs, "row": range(3), "a": [7, 7, 7]}), tmp_path / "x.parquet"
    )
    for filters, want in ((pc.field("s", "a") != 1, [1]), (pc.field("s", "a") == 1, [0, 2]),
                          (pc.field("s", "z") == "r", [1])):  # fmt: skip
        assert ParquetSource(tmp_path, filters).read(0, ["row"])["row"].tolist() == want


def test_a_filter_on_a_float_column_takes_row_groups_without_rows(tmp_path):
    rows = pa.table({"x": [0.5, 1.5], "row": [0, 1]})
    with pq.ParquetWriter(tmp_path / "x.parquet", rows.schema) as writer:
        for part in (rows.slice(0, 0), rows, rows.slice(0, 0)):
            writer.write_table(part)
    pq.write_table(rows.slice(0, 0), tmp_path / "y.parquet")
    source = ParquetSource(tmp_path, [("x", ">", 1)])
    assert [chunk["row"].tolist() for chunk in source.chunks()] == [[1]]
    assert ParquetSource(tmp_path / "y.parquet", [("x", ">", 1)]).num_rows == 0


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_the_rows_that_pass_are_those_that_arrow_lets_pass(folder, table, filters):
    """Arrow filters a table in memory, where no statistics can mislead it about NaN."""
    expression = pq.filters_to_expression(filters)
    want = table.filter(expression)
    source = ParquetSource(folder, filters=filters)
    assert source.num_rows == want.num_rows == sum(g.num_rows for g in source.row_groups)
    assert all(group.num_rows for group in source.row_groups)
    assert len(list(source.chunks())) == len(source)
    for columns in (None, ["row"], ["g", "row", "s"]):
        got = Chunk.concat(list(source.chunks(columns)))
        wanted = want if columns is None else want.select(columns)
        pd.testing.assert_frame_equal(
            got.to_pandas(), Chunk.from_arrow(wanted).to_pandas(), check_dtype=False
        )


def only_pages_of(table, path, *names, **options):
    """Write a file in which nothing but the pages of these columns can be read."""
    pq.write_table(table, path, **options)
    data, footer = bytearray(path.read_bytes()), pq.read_metadata(path)
    for index in range(footer.num_row_groups):
        group = footer.row_group(index)
        for k in range(group.num_columns):
            leaf = group.column(k)
            if leaf.path_in_schema.split(".")[0] not in names:
                start = leaf.dictionary_page_offset or leaf.data_page_offset
                end = start + leaf.total_compressed_size
                data[start:end] = b"\xff" * (end - start)
    path.write_bytes(data)


def test_what_the_statistics_decide_is_not_read(table, tmp_path):
    only_pages_of(table, tmp_path / "x.parquet", row_group_size=100)
    source = ParquetSource(tmp_path, filters=(DAY >= 2) & (DAY != 5))
    assert source.num_rows == 700
    assert [group.index for group in source.row_groups] == [2, 3, 4, 6, 7, 8, 9]


def test_counting_reads_the_columns_of_the_filter_only(table, tmp_path):
    only_pages_of(table, tmp_path / "x.parquet", "C1", row_group_size=100)
    source = ParquetSource(tmp_path, filters=[("C1", "==", 3)])
    assert source.num_rows == int((table["C1"].to_numpy() == 3).sum())
    with pytest.raises(ParquetError, match=r"row group 0 of .*parquet, column .n.: cannot be read"):
        ParquetSource(tmp_path, filters=[("n", "==", 3)])


def test_statistics_are_not_believed_about_nan(tmp_path):
    """Min and max ignore NaN: by them all rows are 1, so all pass ==, and none passes !=."""
    pq.write_table(pa.table({"x": [1.0, float("nan"), 1.0]}), tmp_path / "x.parquet")
    assert ParquetSource(tmp_path, filters=[("x", "==", 1.0)]).num_rows == 2
    assert ParquetSource(tmp_path, filters=[("x", "!=", 1.0)]).num_rows == 1
    assert ParquetSource(tmp_path, filters=pc.field("x") != 1.0).num_rows == 1
    assert ParquetSource(tmp_path, filters=[("x", "<", 5.0)]).num_rows == 2


def test_statistics_are_not_believed_about_decimals(tmp_path):
    """Of decimals with a fixed length, parquet-mr 1.8.2 wrote bounds that do not hold."""
    one, two = (decimal.Decimal(n) for n in (1, 2))
    table = pa.table({"d": pa.array([one, one, two], pa.decimal128(20))})
    path = tmp_path / "x.parquet"
    pq.write_table(table, path, use_dictionary=False, compression="none")
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    stored = [number.to_bytes(9, "big") for number in (1, 2)]
    path.write_bytes(data[:start] + data[start:].replace(stored[1], stored[0]))
    assert pq.read_metadata(path).row_group(0).column(0).statistics.max == one
    for condition, rows in (("==", 2), ("!=", 1), (">", 1), ("<", 0)):
        assert ParquetSource(tmp_path, [("d", condition, one)]).num_rows == rows


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ([("hour", "<", 6)], r"filters \(hour < 6\): No match for FieldRef.Name\(hour\). There "),
        ([("s", "<", 6)], r"filters \(s < 6\): .* no kernel matching input types \(string, int8\)"),
        ([("t", "<", "2024-01-04")], r"no kernel matching input types \(timestamp\[us\], string\)"),
        (DAY + 1, "Filter expression must evaluate to bool"),
        ([("s", "in", "s1")], r"'in' takes a list, such as"),
        ([[("day", "<", 6)], [("s", "not in", {"s1"})]], r"'not in' takes a list, such as"),
        ([("s", "in", ["s1", 1])], "Expected bytes, got a 'int'"),
        (pc.field("t") < datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "Cannot compare time"),
        (pc.field(1) > 2, r"a column has a name here, not a number: pyarrow.compute.field\('name'"),
        ([("day", "~", 6)], r"filters must be a pyarrow.compute.Expression or a list of"),
        ("day < 6", "filters must be a pyarrow.compute.Expression or a list of"),
        ([], "filters must be a pyarrow.compute.Expression or a list of"),
    ],
)
def test_a_filter_that_does_not_fit_is_refused(folder, filters, message):
    with pytest.raises(ValueError, match=message):
        ParquetSource(folder, filters=filters)


def test_a_comparison_that_arrow_lacks_is_refused_with_a_remedy_that_works(tmp_path):
    half = pa.array([1, 2, math.nan], pa.float16())
    (tmp_path / "day=2024-01-01").mkdir()
    pq.write_table(pa.table({"h": half}), tmp_path / "day=2024-01-01" / "a.parquet")
    words = r"kernel.*; give a value of the column's type, or cast the column in an expression"
    for condition in (("h", ">", 1.5), ("day", "<", datetime.date(2024, 1, 2))):
        with pytest.raises(ValueError, match=words):
            ParquetSource(tmp_path, [condition])
    assert ParquetSource(tmp_path, pc.field("h").cast("float32") > 1.5).num_rows == 1
    for rows, day in ((0, 1), (3, 2)):
        early = pc.field("day").cast("date32") < datetime.date(2024, 1, day)
        assert ParquetSource(tmp_path, early).num_rows == rows


def write_days(root, days, table, name="day"):
    for day in days:
        (root / f"{name}={day}").mkdir(parents=True)
        pq.write_table(table, root / f"{name}={day}" / "part_0.parquet", row_group_size=3)


@pytest.fixture
def small():
    return pa.table({"x": np.arange(5)})


def test_keys_are_columns(tmp_path, small):
    write_days(tmp_path / "d", [3, 10], small)
    source = ParquetSource(tmp_path / "d")
    assert source.column_types == {"x": ("int64", False), "day": ("int64", False)}
    assert source.row_bytes(0, ["x", "day"]) == 16
    chunk = Chunk.concat(list(source.chunks(["day", "x"])))
    assert chunk.names == ["day", "x"]
    assert chunk["day"].tolist() == [3] * 5 + [10] * 5  # files are sorted by number
    assert chunk["x"].tolist() == [*range(5)] * 2
    assert source.read(0, ["day"], 1, 2)["day"].tolist() == [3]
    assert source.read(0, ["x", "day"], 1, 2)["day"].tolist() == [3]
    assert source.read(0, ["day"], 2, 2).num_rows == 0
    copy = pickle.loads(pickle.dumps(source))
    assert copy.read(0)["day"].tolist() == [3] * 3


def test_keys_that_are_not_all_integers_are_texts_and_may_be_null(tmp_path, small):
    write_days(tmp_path / "a", ["3", "x%2Fy"], small)
    source = ParquetSource(tmp_path / "a")
    assert source.column_types["day"] == ("string", False)
    assert isinstance(source.read(0)["day"], Strings)
    assert [source.read(k)["day"].tolist()[0] for k in (0, 2)] == ["3", "x/y"]
    assert source.row_bytes(2, ["day"]) == 3 + 8
    write_days(tmp_path / "b", ["3", "__HIVE_DEFAULT_PARTITION__"], small)
    source = ParquetSource(tmp_path / "b")
    assert source.column_types["day"] == ("int64", False)
    column = Chunk.concat(list(source.chunks()))["day"]
    assert isinstance(column, Masked)
    assert column.tolist() == [3] * 5 + [None] * 5


def test_filters_on_keys_leave_whole_files_unread(tmp_path, small):
    small = small.append_column("f", pa.array(np.zeros(5)))
    write_days(tmp_path / "d", [1, 2, 3], small)
    for day in (1, 3):
        path = tmp_path / "d" / f"day={day}" / "part_0.parquet"
        only_pages_of(small, path, write_statistics=False, row_group_size=3)
    even = pc.bit_wise_and(pc.field("x"), 1) == 0  # nothing that statistics could answer
    for condition in (even, even & (pc.field("f") > -1)):
        source = ParquetSource(tmp_path / "d", filters=(DAY == 2) & condition)
        assert Chunk.concat(list(source.chunks()))["x"].tolist() == [0, 2, 4]
    assert ParquetSource(tmp_path / "d", filters=[("day", ">", 1)]).num_rows == 10
    with pytest.raises(ParquetError, match=r"row group 0 of .*day=3.*cannot be read"):
        ParquetSource(tmp_path / "d", filters=(DAY == 3) & even)


def test_a_key_that_a_path_lacks_is_null_and_one_that_a_file_has_as_a_column_is_refused(
    tmp_path, small
):
    write_days(tmp_path / "d", [3], small)
    write_days(tmp_path / "d", [4], small, name="hour")
    source = ParquetSource(tmp_path / "d")
    assert [source.read(k, ["day"])["day"].tolist()[0] for k in (0, 2)] == [3, None]
    assert [source.read(k, ["hour"])["hour"].tolist()[0] for k in (0, 2)] == [None, 4]
    assert ParquetSource(tmp_path / "d", [("hour", "==", 4)]).num_rows == 5
    write_days(tmp_path / "e", [3], small, name="x")
    with pytest.raises(ParquetError, match=r"'x' is a column in the file and a key in the path"):
        ParquetSource(tmp_path / "e")
    assert ParquetSource(f"{tmp_path}/e/**/*.parquet").num_rows == small.num_rows
