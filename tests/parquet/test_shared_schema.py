"""Files whose columns differ: what they share is read, and what differs is said or refused."""

import datetime
import pickle
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tutorlib.parquet import ParquetError, ParquetSink, ParquetSource

DAY = datetime.datetime(2024, 2, 29, 7)
COMMON = {  # {name: (values of the first file, of the second, type of both)}
    "integers": (pa.array([1], pa.int32()), pa.array([2**40]), "int64"),
    "unsigned": (pa.array([1], pa.uint8()), pa.array([-2], pa.int16()), "int16"),
    "floats": (pa.array([0.5], pa.float32()), pa.array([0.1]), "float64"),
    "times": (pa.array([DAY], pa.timestamp("ms")), pa.array([DAY]), "datetime64[us]"),
    "null integers": (pa.nulls(1), pa.array([3]), "int64"),
    "null floats": (pa.array([0.5]), pa.nulls(1), "float64"),
    "null strings": (pa.nulls(1), pa.array(["a"]), "string"),
    "null lists": (pa.array([[1]]), pa.nulls(1), "int64"),
}
SAME = {  # stored in several ways, but of one type
    "strings": (pa.array(["a"]), pa.array(["b"], pa.large_string()), "string"),
    "encoded": (pa.array(["a"]).dictionary_encode(), pa.array(["b"]), "string"),
}
CONTRADICTIONS = {
    "text and number": (pa.array(["a"]), pa.array([1]), "int64 in .*b.parquet, but string in "),
    "list and number": (pa.array([1]), pa.array([[1]]), "a list of int64 in .*, but int64 in "),
    "integer and float": (pa.array([1]), pa.array([1.0]), "float64 in .*, but int64 in "),
    "time and number": (pa.array([DAY]), pa.array([1]), r"int64 in .*, but datetime64\[us\] in "),
}


def folder_of(path, one, two):
    rest = pa.table({"x": [0.5], "y": [1.0]})
    pq.write_table(
        one if isinstance(one, pa.Table) else rest.append_column("c", one), path / "a.parquet"
    )
    pq.write_table(
        two if isinstance(two, pa.Table) else rest.append_column("c", two), path / "b.parquet"
    )
    return path


def doubts_of(path):
    with warnings.catch_warnings(record=True, action="always") as said:
        source = ParquetSource(path)
    return source, [str(one.message) for one in said]


@pytest.mark.parametrize("name", COMMON | SAME)
def test_types_with_a_common_wider_one_are_read_as_that(tmp_path, name):
    one, two, kind = (COMMON | SAME)[name]
    source, said = doubts_of(folder_of(tmp_path, one, two))
    assert source.column_types["c"][0] == kind
    for position, array in ((0, one), (1, two)):
        column = source.read(position, ["c"])["c"]
        whole = source.read(position)["c"]
        (step,) = [chunk["c"] for chunk in source.steps(position, ["c"], 999)]
        want = [None if v != v or v is None else v for v in array.to_pylist()]
        for found in (column, whole, step):
            assert [None if v != v else v for v in found.tolist()] == want
    assert len(said) == (name in COMMON)
    assert not said or "column 'c' is read as " in said[0]


def test_promoted_columns_are_filtered_as_others(tmp_path):
    folder_of(tmp_path, *COMMON["integers"][:2])
    with pytest.warns(UserWarning, match="'c' is read as int64"):
        some = ParquetSource(tmp_path, filters=[("c", ">", 1)])
    assert some.read(0, ["c"])["c"].tolist() == [2**40]


def test_a_column_that_a_day_lacks_is_null_where_a_dataset_says_so(tmp_path):
    for day in ("01", "02"):
        (tmp_path / f"day={day}").mkdir()
        table = pa.table({"x": [1, 2], "new": [3, None]}).select(["x", "new"][: int(day)])
        pq.write_table(table, tmp_path / f"day={day}" / "a.parquet")
    with pytest.warns(UserWarning, match="'new' is in .*, but not in .*day=01"):
        source = ParquetSource(tmp_path)
    assert source.column_types["day"] == ("string", False)
    with pytest.raises(ParquetError, match=r"read it as null there, give pyarrow.dataset.dataset"):
        source.read(0, ["new"])
    schema = pa.schema([("x", pa.int64()), ("new", pa.int64()), ("day", pa.string())])
    data = ds.dataset(tmp_path, partitioning="hive", schema=schema)
    rows = [chunk.to_arrow().to_pylist() for chunk in ParquetSource(data).chunks(rows=4)]
    assert rows == [data.to_table().to_pylist()]
    for some in ([("new", "==", 3)], [("day", "==", "02"), ("x", "<", 2)]):
        (chunk,) = ParquetSource(data, filters=some).chunks()
        assert chunk.to_arrow().to_pylist() == rows[0][2:3]
    assert pickle.loads(pickle.dumps(ParquetSource(data))).num_rows == 4
    with pytest.raises(ValueError, match="Pass filters= instead"):
        ParquetSource(data.filter(pc.field("x") > 1))
    assert ParquetSource(ds.dataset(pa.table({"x": [5]}))).read(0)["x"].tolist() == [5]


def test_a_column_without_any_value_has_the_type_that_a_reader_expects(tmp_path):
    pq.write_table(pa.table({"x": [1, 2], "y": pa.nulls(2)}), tmp_path / "a.parquet")
    source = ParquetSource(tmp_path)
    assert source.column_types["y"] == ("null", False)
    assert np.isnan(source.read(0)["y"]).all()
    for kind in (("string", False), ("int64", False), ("int32", True), ("(2,)float32", False)):
        typed = source.with_types({"y": kind, "x": ("string", False)})
        assert typed.column_types == {"x": ("int64", False), "y": kind}
        found = typed.read(0)["y"].tolist()
        assert found == [None] * 2 or kind[0] == "(2,)float32" or found == [[], []]


def test_nulls_in_a_later_file_only_do_not_hinder_a_filter(tmp_path):
    for name, values in (("a", [1, 3]), ("b", [None, 5])):
        with ParquetSink(tmp_path / f"{name}.parquet") as sink:
            sink.write(pa.table({"x": pa.array(values), "s": ["u", "v"]}))
    passing = ParquetSource(tmp_path, filters=[("x", ">", 2)])
    assert [x for chunk in passing.chunks() for x in chunk["x"].tolist()] == [3, 5]
    assert ParquetSource(tmp_path, filters=[("s", "in", [])]).num_rows == 0
    assert ParquetSource(tmp_path, filters=[("s", "not in", [])]).num_rows == 4


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_said_and_refused_only_where_the_column_is_used(tmp_path, name):
    one, two, words = CONTRADICTIONS[name]
    source, said = doubts_of(folder_of(tmp_path, one, two))
    assert list(source.column_types) == ["x", "y"]
    assert np.concatenate([chunk["x"] for chunk in source.chunks()]).tolist() == [0.5, 0.5]
    with pytest.raises(
        ParquetError, match=rf"no columns \['c'\] \('c' is {words}.*a\.parquet; write"
    ):
        source.read(1, ["c"])
    (message,) = said
    assert "cannot be used" in message


def test_additional_and_missing_and_double_columns_are_left_out_and_said(tmp_path):
    one = pa.table({"x": [0.5], "gone": [1], "y": [0.0]})
    names = ["y", "x", "twice", "twice", "new"]
    two = pa.Table.from_arrays([pa.array([v]) for v in (1.0, 1.5, 1, 2, 3)], names=names)
    source, said = doubts_of(folder_of(tmp_path, one, two))
    assert list(source.column_types) == ["x", "y"]
    assert source.read(1).to_arrow().to_pylist() == [{"x": 1.5, "y": 1.0}]
    (message,) = said
    assert "'gone' is in " in message
    assert "'new' is in " in message
    assert "'twice' is in " in message
    assert "more than once" in message
    with pytest.raises(ParquetError, match=r"no columns \['new'\] \('new' is in .*, but not in "):
        source.read(0, ["new"])
    own = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["i", "i", "x"])
    pq.write_table(own, tmp_path / "own.parquet")
    with pytest.warns(UserWarning, match="'i' is in .*own.parquet more than once"):
        assert ParquetSource(tmp_path / "own.parquet").read(0).to_arrow().to_pylist() == [{"x": 3}]


def test_files_with_equal_leaves_in_other_groups_are_told_apart(tmp_path):
    """Parquet's leaves alone are equal: the column's name is that of the group around it."""
    values = pa.array([{"v": 1}, {"v": 2}])
    for name in ("one", "other"):
        table = pa.table({"x": [0.5, 1.0], name: values})
        pq.write_table(table, tmp_path / f"{name}.parquet", store_schema=False)
    with pytest.warns(UserWarning, match="'one' is in .*, but not in .*other.parquet"):
        source = ParquetSource(tmp_path)
    assert [*source.column_types] == ["x"]


def test_files_of_the_same_columns_share_one_schema_in_memory(tmp_path):
    for number in range(3):
        pq.write_table(pa.table({"x": [number]}), tmp_path / f"{number}.parquet")
    pq.write_table(pa.table({"x": pa.array([3], pa.int32())}), tmp_path / "3.parquet")
    with pytest.warns(UserWarning, match="'x' is read as int64"):
        source = ParquetSource(tmp_path)
    first, *same, other = (stored.schema for stored in source._stored)
    assert all(schema is first for schema in same)
    assert other.field("x").type == pa.int32()
