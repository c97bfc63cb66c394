"""ParquetSource and ParquetSink: the same rows out as in, whole files or none."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tutorlib.columns import Chunk, Masked, Ragged, Strings
from tutorlib.parquet import ParquetError, ParquetSink, ParquetSource, fast_encoding


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


@pytest.mark.parametrize("encoding", ["fast", "default"])
def test_every_kind_of_column_comes_back(tmp_path, encoding):
    chunk = every_kind()
    kinds = [np.ndarray, np.ndarray, Masked, np.ndarray, Strings, Ragged, Ragged]
    assert [type(column) for column in chunk.values()] == kinds
    with ParquetSink(tmp_path / "x.parquet", row_group_rows=4, encoding=encoding) as sink:
        sink.write(chunk)
    source = ParquetSource(tmp_path / "x.parquet")
    assert [group.num_rows for group in source.row_groups] == [4, 4, 2]
    assert source.column_types["l"] == ("int64", True)
    assert source.column_types["ls"] == ("string", True)
    back = Chunk.concat(list(source.chunks()))
    for name in chunk:
        pd.testing.assert_series_equal(back.to_pandas()[name], chunk.to_pandas()[name])


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


places = st.sets(st.integers(0, 9), max_size=2)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.fixed_dictionaries(dict.fromkeys(("number", "lists", "elements"), places)),
    written=st.integers(1, 10),
    row_group_rows=st.integers(1, 4),
    single=st.booleans(),
    encoding=st.sampled_from(["fast", "default"]),
)
def test_each_file_allows_nulls_just_where_it_has_some(
    rows, written, row_group_rows, single, encoding
):
    table = null_at(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("x.parquet" if single else "x")
        options = {"row_group_rows": row_group_rows, "encoding": encoding}
        with ParquetSink(path, rows_per_file=max(4, row_group_rows), **options) as sink:
            for start in range(0, 10, written):
                sink.write(table.slice(start, written))
        files = [path] if single else sorted(path.glob("*.parquet"))
        assert os.listdir(folder) == [path.name]
        first = 0
        for file in files:
            stored = pq.read_table(file, partitioning=None)
            part = table.slice(first, stored.num_rows)
            assert stored.to_pylist() == part.to_pylist()
            expected = {name for name in part.column_names if part[name].null_count}
            inner = {n: pc.list_flatten(part[n]).null_count for n in ("lists", "elements")}
            assert nullable_in(file) == expected | {f"{n}[]" for n, nulls in inner.items() if nulls}
            groups = pq.read_metadata(file)
            sizes = [groups.row_group(k).num_rows for k in range(groups.num_row_groups)]
            assert set(sizes[:-1]) <= {row_group_rows}
            first += stored.num_rows
        assert first == 10
        numbers = Chunk.concat(list(ParquetSource(path).chunks(["number"])))
        assert numbers.to_arrow()["number"].to_pylist() == table["number"].to_pylist()


def test_a_given_schema_is_kept_as_it_is(tmp_path):
    fields = [pa.field("x", pa.int32()), pa.field("y", pa.int32(), nullable=False)]
    with ParquetSink(tmp_path / "x.parquet", schema=pa.schema(fields)) as sink:
        sink.write(Chunk({"x": np.arange(3), "y": np.arange(3)}))
        with pytest.raises(ValueError, match=r"'y'.* null"):
            sink.write(pa.table({"x": [1], "y": pa.array([None], pa.int64())}))
    assert pq.read_schema(tmp_path / "x.parquet").equals(pa.schema(fields))


def test_the_fast_encoding_is_what_it_says(tmp_path):
    with ParquetSink(tmp_path / "x.parquet") as sink:
        sink.write(every_kind())
    group = pq.read_metadata(tmp_path / "x.parquet").row_group(0)
    encodings = {group.column(k).path_in_schema: group.column(k) for k in range(group.num_columns)}
    assert "BYTE_STREAM_SPLIT" in encodings["i"].encodings
    assert "BYTE_STREAM_SPLIT" in encodings["l.list.element"].encodings
    assert encodings["s"].compression == "LZ4"
    assert fast_encoding(pa.schema([("s", pa.string())]))["use_byte_stream_split"] is False
    assert fast_encoding(pa.schema([("s", pa.string())]))["use_dictionary"] == ["s"]


def test_an_error_while_writing_leaves_nothing(tmp_path):
    def fail(path):
        with ParquetSink(path, row_group_rows=2) as sink:
            sink.write(Chunk({"i": np.arange(5)}))
            raise KeyboardInterrupt

    for name in ("folder", "file.parquet"):
        with pytest.raises(KeyboardInterrupt):
            fail(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_target_is_only_replaced_when_asked(tmp_path):
    def write(value, **options):
        with ParquetSink(tmp_path / "d", **options) as sink:
            sink.write(Chunk({"i": np.full(3, value)}))

    write(1)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        write(2)
    assert ParquetSource(tmp_path / "d").read(0)["i"].tolist() == [1, 1, 1]
    write(3, overwrite=True)
    assert ParquetSource(tmp_path / "d").read(0)["i"].tolist() == [3, 3, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_file_that_changed_after_opening_is_noticed(tmp_path):
    path = tmp_path / "x.parquet"
    with ParquetSink(path) as sink:
        sink.write(Chunk({"i": np.arange(1000)}))
    source = ParquetSource(path)
    with ParquetSink(path, overwrite=True) as sink:
        sink.write(Chunk({"i": np.arange(7)}))
    with pytest.raises(ParquetError, match="row group 0 of"):
        source.read(0)


def test_folders_globs_and_lists_are_expanded(tmp_path):
    for name in ("b", "a"):
        with ParquetSink(tmp_path / f"{name}.parquet") as sink:
            sink.write(Chunk({"i": np.array([ord(name)])}))
    (tmp_path / "_SUCCESS.parquet").write_text("not data")
    (tmp_path / "notes.txt").write_text("not data")

    def order(paths):
        return [chr(chunk["i"][0]) for chunk in ParquetSource(paths).chunks()]

    assert order(tmp_path) == order(str(tmp_path / "[ab].parquet")) == ["a", "b"]
    assert order([tmp_path / "b.parquet", tmp_path / "a.parquet"]) == ["b", "a"]
    with pytest.raises(FileNotFoundError, match="empty"):
        ParquetSource([])


def test_links_to_a_file_or_to_its_folder_are_the_file_itself(tmp_path):
    (tmp_path / "a").mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a" / "1.parquet")
    (tmp_path / "b").symlink_to(tmp_path / "a", target_is_directory=True)
    (tmp_path / "a" / "2.parquet").symlink_to(tmp_path / "a" / "1.parquet")
    first = tmp_path / "a" / "1.parquet"
    for second in (tmp_path / "b" / "1.parquet", tmp_path / "a" / "2.parquet"):
        with pytest.raises(ValueError, match="given twice"):
            ParquetSource([first, second])


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
