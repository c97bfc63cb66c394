"""ParquetSource and ParquetSink: the same rows out as in, from whatever files and tables."""

import datetime
import os
import pickle
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tutorlib.columns import Chunk, Masked, Ragged, Strings, encoded_column
from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import (
    ParquetError,
    ParquetSink,
    ParquetSource,
)
from tutorlib.workflow import split_rows
from tutorlib.workflow.split import RowShare


def every_kind(rows=10):
    """A chunk with each kind of column."""
    table = pa.table(
        {
            "i": np.arange(rows, dtype="int32"),
            "f": np.linspace(0, 1, rows, dtype="float32"),
            "n": pa.array([None if k % 3 == 0 else k for k in range(rows)]),
            "nan": pa.array([None if k % 4 == 0 else float(k) for k in range(rows)]),
            "s": [f"tëxt {k}" for k in range(rows)],
            "l": [list(range(k % 3)) for k in range(rows)],
            "ls": pa.array([None if k % 5 == 0 else ["a", "b"][: k % 3] for k in range(rows)]),
        }
    )
    return Chunk.from_arrow(table)


def test_every_kind_of_column_comes_back(tmp_path):
    chunk = every_kind()
    kinds = [np.ndarray, np.ndarray, Masked, np.ndarray, Strings, Ragged, Ragged]
    assert [type(column) for column in chunk.values()] == kinds
    with ParquetSink(tmp_path / "x.parquet", row_group_rows=4) as sink:
        sink.write(chunk)
    stored = pq.read_metadata(tmp_path / "x.parquet").row_group(0).column(0)
    assert stored.compression == "LZ4"
    assert "BYTE_STREAM_SPLIT" in stored.encodings
    source = ParquetSource(tmp_path / "x.parquet")
    assert [group.num_rows for group in source.row_groups] == [4, 4, 2]
    assert source.column_types["l"] == ("int64", True)
    assert source.column_types["ls"] == ("string", True)
    back = Chunk.concat(list(source.chunks()))
    for name in chunk:
        pd.testing.assert_series_equal(back.to_pandas()[name], chunk.to_pandas()[name])


def test_numbers_in_lists_are_split_by_bytes_too_and_texts_keep_their_dictionary(tmp_path):
    with ParquetSink(tmp_path / "x.parquet") as sink:
        sink.write(every_kind())
    group = pq.read_metadata(tmp_path / "x.parquet").row_group(0)
    leaves = {group.column(k).path_in_schema: group.column(k) for k in range(group.num_columns)}
    for path, leaf in leaves.items():
        is_text = path.startswith(("s", "ls"))
        assert leaf.has_dictionary_page == is_text, path
        assert ("BYTE_STREAM_SPLIT" in leaf.encodings) != is_text, path


def null_at(rows):
    """A table of ten rows with nulls in a number, in lists and in the lists' elements."""
    table = {
        "always": pa.array(range(10)),
        "number": pa.array([None if k in rows["number"] else k for k in range(10)]),
        "lists": pa.array([None if k in rows["lists"] else [k] for k in range(10)]),
        "elements": pa.array([[None, k] if k in rows["elements"] else [k] for k in range(10)]),
    }
    return pa.table(table)


def nullable_in(path):
    fields = pq.read_schema(path)
    names = {field.name for field in fields if field.nullable}
    return names | {
        f"{n}[]" for n in ("lists", "elements") if fields.field(n).type.value_field.nullable
    }


def nulls_in(table):
    inner = {n: pc.list_flatten(table[n]).null_count for n in ("lists", "elements")}
    names = {name for name in table.column_names if table[name].null_count}
    return names | {f"{n}[]" for n, nulls in inner.items() if nulls}


EVERYTHING = {"always", "number", "lists", "lists[]", "elements", "elements[]"}
places = st.sets(st.integers(0, 9), max_size=2)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.fixed_dictionaries(dict.fromkeys(("number", "lists", "elements"), places)),
    written=st.integers(1, 10),
    row_group_rows=st.integers(1, 4),
    single=st.booleans(),
)
def test_each_file_allows_the_nulls_of_its_first_row_group_or_all(
    rows, written, row_group_rows, single
):
    table = null_at(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("x.parquet" if single else "x")
        sizes = {"row_group_rows": row_group_rows, "rows_per_file": max(4, row_group_rows)}
        with ParquetSink(path, **sizes) as sink:
            for start in range(0, 10, written):
                sink.write(table.slice(start, written))
        files = [path] if single else sorted(path.glob("*.parquet"))
        assert os.listdir(folder) == [path.name]
        first = 0
        for file in files:
            stored = pq.read_table(file, partitioning=None)
            part = table.slice(first, stored.num_rows)
            assert stored.to_pylist() == part.to_pylist()
            assert single or stored.num_rows <= max(4, row_group_rows)
            expected = nulls_in(part)
            early = nulls_in(part.slice(0, row_group_rows))
            assert nullable_in(file) == (expected if early == expected else EVERYTHING)
            groups = pq.read_metadata(file)
            sizes = [groups.row_group(k).num_rows for k in range(groups.num_row_groups)]
            assert set(sizes[:-1]) <= {row_group_rows}
            first += stored.num_rows
        assert first == 10
        numbers = Chunk.concat(list(ParquetSource(path).chunks(["number"])))
        assert numbers.to_arrow()["number"].to_pylist() == table["number"].to_pylist()


def test_nulls_that_come_late_rewrite_a_file_once(tmp_path, monkeypatch):
    opened = []

    class Counted(pq.ParquetWriter):
        def __init__(self, *arguments, **options):
            opened.append(arguments[0])
            super().__init__(*arguments, **options)

    monkeypatch.setattr(pq, "ParquetWriter", Counted)
    columns = {f"c{c}": pa.array([None if k == c + 1 else k for k in range(12)]) for c in range(10)}
    with ParquetSink(tmp_path / "x.parquet", row_group_rows=1) as sink:
        sink.write(pa.table(columns))
    assert len(opened) == 2
    assert pq.read_table(tmp_path / "x.parquet").equals(pa.table(columns))


def test_a_given_schema_is_kept_as_it_is(tmp_path):
    fields = [pa.field("x", pa.int32()), pa.field("y", pa.int32(), nullable=False)]
    with ParquetSink(tmp_path / "x.parquet", schema=pa.schema(fields)) as sink:
        sink.write(Chunk({"x": np.arange(3), "y": np.arange(3)}))
        with pytest.raises(ValueError, match=r"'y'.* null"):
            sink.write(pa.table({"x": [1], "y": pa.array([None], pa.int64())}))
    assert pq.read_schema(tmp_path / "x.parquet").equals(pa.schema(fields))


def test_an_error_while_writing_leaves_nothing(tmp_path):
    def fail(path):
        with ParquetSink(path, row_group_rows=2) as sink:
            sink.write(Chunk({"i": np.arange(5)}))
            raise KeyboardInterrupt

    for name in ("folder", "file.parquet"):
        with pytest.raises(KeyboardInterrupt):
            fail(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_column_is_named(tmp_path):
    with ParquetSink(tmp_path / "x.parquet") as sink:
        sink.write(Chunk({"i": np.arange(2)}))
    with pytest.raises(ParquetError, match=r"x\.parquet: no columns \['j'\]; it has \['i'\]"):
        ParquetSource(tmp_path / "x.parquet").read(0, ["i", "j"])


def test_rows_with_other_columns_are_refused(tmp_path):
    def write():
        with ParquetSink(tmp_path / "x.parquet") as sink:
            sink.write(Chunk({"a": np.arange(2)}))
            sink.write(Chunk({"a": np.arange(2), "b": np.arange(2)}))

    with pytest.raises(ValueError, match=r"rows have the columns \['a', 'b'\], but earlier"):
        write()
    assert not (tmp_path / "x.parquet").exists()


pl = pytest.importorskip("polars")


MEMORY = pa.table(
    {
        "id": np.arange(1000),
        "x": pa.array(np.arange(1000) / 8, pa.float32()),
        "name": [f"n{k % 7}" for k in range(1000)],
        "tags": [[k % 3] * (k % 4) for k in range(1000)],
        "maybe": [None if k % 5 == 0 else k for k in range(1000)],
    }
)


def rows_of(source):
    chunks = [source.read(n, list(source.column_types)) for n in range(len(source.row_groups))]
    return Chunk.concat(chunks).to_arrow().to_pydict()


KINDS = {
    "Table": lambda: MEMORY,
    "Table in many chunks": lambda: pa.Table.from_batches(MEMORY.to_batches(max_chunksize=99)),
    "RecordBatch": lambda: MEMORY.combine_chunks().to_batches()[0],
    "RecordBatchReader": lambda: MEMORY.to_reader(max_chunksize=300),
    "polars": lambda: pl.from_arrow(MEMORY),
    "Chunk": lambda: Chunk.from_arrow(MEMORY),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_memory_are_a_source_of_the_same_rows_and_identity(kind):
    source = ParquetSource(KINDS[kind]())
    assert rows_of(source) == MEMORY.to_pydict()
    expected = ParquetSource(MEMORY).fingerprint()
    if kind in ("polars", "Chunk"):  # their strings are large_string
        assert source.fingerprint()["chosen_rows"] == expected["chosen_rows"]
    else:
        assert source.fingerprint() == expected
    assert "row group 0 of the rows in memory" in source.location(0)


def test_a_fingerprint_tells_any_row_in_memory():
    rows = np.arange(300_000)
    want = ParquetSource(pa.table({"x": rows})).fingerprint()
    for place in (0, 150_000, -1):
        changed = rows.copy()
        changed[place] += 1
        have = ParquetSource(pa.table({"x": changed})).fingerprint()
        assert {name for name in want if have[name] != want[name]} == {"footers"}


def test_equal_rows_have_one_identity_also_as_a_part_of_others():
    """Where a part ends within a byte of bits, the rest of it are those of other rows."""
    kinds = {"b": pa.bool_(), "n": pa.int64(), "v": pa.list_(pa.float32(), 2), "s": pa.string()}
    rows = [
        {
            "b": k % 3 > 0,
            "n": k % 2 or None,
            "v": None if k % 5 == 0 else [k, None if k % 4 == 0 else 1],
            "s": None if k % 7 == 0 else f"s{k}",
        }
        for k in range(40)
    ]
    whole = pa.Table.from_pylist(rows, pa.schema(kinds))
    for start, stop in ((0, 11), (3, 14), (8, 16), (29, 40)):
        alone = pa.Table.from_pylist(rows[start:stop], whole.schema)
        part = whole.slice(start, stop - start)
        assert ParquetSource(part).fingerprint() == ParquetSource(alone).fingerprint()


def test_a_pandas_frame_is_a_source_and_its_plain_index_is_no_column():
    frame = pd.DataFrame({"a": [3, 1, 2], "c": pd.Categorical(["u", "v", "u"])}, index=[9, 8, 7])
    source = ParquetSource(frame[frame.a != 1])
    assert rows_of(source) == {"a": [3, 2], "c": ["u", "u"]}
    sparse = pd.DataFrame({"x": pd.arrays.SparseArray([0.0, 1.0])})
    with pytest.raises(TypeError, match=r"'x' .* sparse: df.astype\({'x': 'float64'}\) makes"):
        ParquetSource(sparse)
    assert ParquetSource(sparse.astype({"x": "float64"})).read(0)["x"].tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"index \['a'\] is not a column. df.reset_index\(\)"):
        ParquetSource(frame.set_index("a"))


def test_a_pickled_source_outlives_its_original():
    source = ParquetSource(MEMORY)
    part = split_rows(source, {"a": 0.5, "b": 0.5})["b"]
    sent = pickle.dumps(part)
    del source, part
    part = pickle.loads(sent)
    assert rows_of(part)["id"] == list(range(500, 1000))


def test_an_arrow_file_is_refused_with_what_reads_it(tmp_path):
    pa.feather.write_feather(MEMORY, str(tmp_path / "rows.feather"))
    with pytest.raises(ParquetError, match=r"rows.feather: not a whole .*pyarrow.feather.read_tab"):
        ParquetSource(tmp_path / "*.feather")
    assert rows_of(ParquetSource(pa.feather.read_table(tmp_path / "rows.feather")))


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        ({"x": [1]}, "got a dict. Values need the names of their columns"),
        ([np.arange(3)], r"got a list. Values need the names of their columns"),
        (np.arange(3), r"got a numpy.ndarray. Values need the names"),
        (pd.Series([1]), r"got a pandas[.a-z]*.Series. Values need the names"),
        (3, "got a int"),
    ],
    ids=str,
)
def test_what_is_no_source_is_refused_with_what_to_do(data, remedy):
    with pytest.raises(TypeError, match=rf"^the data must be a path of Parquet.*{remedy}"):
        ParquetSource(data)


def test_csv_files_are_refused_with_what_converts_them(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    for path, error in ((tmp_path / "a.csv", ParquetError), (tmp_path, FileNotFoundError)):
        with pytest.raises(error, match=r"by DuckDB: COPY \(FROM 'data.csv'\) TO 'data.parquet'"):
            ParquetSource(path)


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


CONTRADICTIONS = {
    "text and number": (pa.array(["a"]), pa.array([1]), "int64 in .*b.parquet, but string in .*"),
    "list and number": (pa.array([1]), pa.array([[1]]), "list<.*int64> in .*, but int64 in "),
    "time zones": (
        pa.array([DAY], pa.timestamp("us", "UTC")),
        pa.array([DAY], pa.timestamp("us", "Asia/Tokyo")),
        r"timestamp\[us, tz=Asia/Tokyo\] in .*b.parquet, but timestamp\[us, tz=UTC\] in ",
    ),
    "time and number": (pa.array([DAY]), pa.array([1]), r"int64 in .*, but timestamp\[us\] in "),
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


@pytest.mark.parametrize("name", COMMON)
def test_types_with_a_common_wider_one_are_read_as_that(tmp_path, name):
    one, two, kind = (COMMON)[name]
    source, said = doubts_of(folder_of(tmp_path, one, two))
    assert source.column_types["c"][0] == kind
    for position, array in ((0, one), (1, two)):
        column = source.read(position, ["c"])["c"]
        whole = source.read(position)["c"]
        (step,) = [Chunk.from_arrow(rows)["c"] for rows in source.tables(position, ["c"], 999)]
        want = [None if v != v or v is None else v for v in array.to_pylist()]
        for found in (column, whole, step):
            assert [None if v != v else v for v in found.tolist()] == want
    assert not said


def test_integers_in_one_file_and_floats_in_another_are_said(tmp_path):
    folder_of(tmp_path, pa.array([1]), pa.array([0.5]))
    words = r"'c' is int64 in .*a\.parquet, double in .*b\.parquet: it is read as double"
    with pytest.warns(UserWarning, match=words):
        assert ParquetSource(tmp_path).column_types["c"] == ("float64", False)


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_refused_and_names_both_files(tmp_path, name):
    one, two, words = CONTRADICTIONS[name]
    folder_of(tmp_path, one, two)
    with pytest.raises(ParquetError, match=rf"column 'c' is {words}.*a\.parquet: write both"):
        ParquetSource(tmp_path)


def test_a_column_that_a_file_lacks_is_null_there(tmp_path):
    one = pa.table({"x": [0.5], "gone": [1], "y": [0.0]})
    two = pa.table({"y": [1.0], "x": [1.5], "new": ["a"]})
    source, said = doubts_of(folder_of(tmp_path, one, two))
    rows = pa.concat_tables([source.table(k, list(source.column_types)) for k in range(2)])
    assert rows.to_pydict() == {
        "x": [0.5, 1.5], "gone": [1, None], "y": [0.0, 1.0], "new": [None, "a"],
    }  # fmt: skip
    assert source.read(1, ["gone"])["gone"].tolist() == [None]
    assert not said
    loader = KerasSequenceLoader(source, 2, cat_names=["gone"], label_names=["y"])
    with pytest.raises(ParquetError, match=r"'gone': null or NaN at row 0.*b\.parquet"):
        list(loader)


def test_a_column_that_a_file_has_twice_is_refused(tmp_path):
    own = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["i", "i", "x"])
    pq.write_table(own, tmp_path / "own.parquet")
    for data in (tmp_path, own):
        with pytest.raises(ParquetError, match=r"names must be unique, got twice: \['i'\]"):
            ParquetSource(data)


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


@settings(max_examples=60, deadline=None)
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
            source = pickle.loads(pickle.dumps(source.with_strings_as(encoded_column)))
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
            at = start
            for chunk in source.tables(position, names, step, start, stop):
                assert_rows(chunk, expected.slice(at, chunk.num_rows))
                assert chunk.num_rows <= step
                at += chunk.num_rows
            assert at == stop


@pytest.mark.parametrize("filters", [None, [("x", ">=", 1000)]], ids=str)
def test_a_part_of_many_rows_is_whole(tmp_path, filters):
    """Parts are decoded 65,536 rows at a time."""
    rows, first = np.arange(200_000), 1000 if filters else 0
    pq.write_table(pa.table({"x": rows}), tmp_path / "a.parquet", row_group_size=len(rows))
    source = ParquetSource(tmp_path, filters)
    for start, stop in ((0, 65_536), (0, 65_537), (10, 150_000), (131_072, 199_000 - first)):
        have = source.read(0, ["x"], start, stop)["x"]
        np.testing.assert_array_equal(have, rows[first + start : first + stop])


def test_tables_decode_about_a_step_at_a_time_and_close_their_file(tmp_path):
    rng = np.random.default_rng(0)
    table = pa.table({name: rng.random(1_000_000) for name in "abc"})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10**6, use_dictionary=False)
    for filters in (None, [("a", "<", 0.001)]):
        source = ParquetSource(tmp_path, filters)
        before, opened, most = pa.total_allocated_bytes(), len(os.listdir("/proc/self/fd")), 0
        steps = source.tables(0, ["a", "b", "c"], 10_000)
        for chunk in steps:
            most = max(most, pa.total_allocated_bytes() - before)
            del chunk
        steps = source.tables(0, ["a", "b", "c"], 10)
        next(steps)
        steps.close()
        assert len(os.listdir("/proc/self/fd")) == opened
        assert most < table.nbytes / 4


def test_a_row_has_the_bytes_of_all_numbers_of_its_vectors(tmp_path):
    vectors = pa.array([[1.0] * 6] * 5, pa.list_(pa.float32(), 6))
    table = pa.table({"v": vectors, "n": pa.array(range(5), pa.int16()), "t": [DAY] * 5})
    pq.write_table(table, tmp_path / "x.parquet")
    for source in (ParquetSource(tmp_path), ParquetSource(table)):
        sizes = [source.row_bytes(0, [name]) for name in ("v", "n", "t")]
        assert sizes == [6 * 4, 2, 8]
        assert source.row_bytes(0, ["v", "n", "t"]) == sum(sizes)


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
    assert source.row_bytes(0, ["s.list"]) == 8 + 8
    for name in ("a.b", "s", "s.list"):
        assert source.read(0, [name])[name].tolist() == table[name].to_pylist()
    with pytest.raises(ParquetError, match=r"column 'a': .*store its parts"):
        source.read(0, ["a"])
