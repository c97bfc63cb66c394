"""Rows that are not in Parquet files: tables, DataFrames, Arrow files, parts of a split."""

import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from tutorlib.columns import Chunk
from tutorlib.parquet import ParquetError, ParquetSource
from tutorlib.workflow import split_rows
from tutorlib.workflow.fit import as_source

pl = pytest.importorskip("polars")
ROWS = 1000
TABLE = pa.table(
    {
        "id": np.arange(ROWS),
        "x": pa.array(np.arange(ROWS) / 8, pa.float32()),
        "name": [f"n{k % 7}" for k in range(ROWS)],
        "tags": [[k % 3] * (k % 4) for k in range(ROWS)],
        "maybe": [None if k % 5 == 0 else k for k in range(ROWS)],
    }
)


def rows_of(source):
    chunks = [source.read(n, list(source.column_types)) for n in range(len(source.row_groups))]
    return Chunk.concat(chunks).to_arrow().to_pydict()


KINDS = {
    "Table": lambda: TABLE,
    "Table in many chunks": lambda: pa.Table.from_batches(TABLE.to_batches(max_chunksize=99)),
    "RecordBatch": lambda: TABLE.combine_chunks().to_batches()[0],
    "RecordBatchReader": lambda: TABLE.to_reader(max_chunksize=300),
    "polars": lambda: pl.from_arrow(TABLE),
    "Chunk": lambda: Chunk.from_arrow(TABLE),
    "RowSource": lambda: as_source([Chunk.from_arrow(TABLE.slice(k, 500)) for k in (0, 500)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_memory_are_a_source_of_the_same_rows_and_identity(kind):
    source = ParquetSource(KINDS[kind]())
    assert rows_of(source) == TABLE.to_pydict()
    expected = ParquetSource(TABLE).fingerprint()
    if kind in ("polars", "Chunk", "RowSource"):  # their strings are large_string
        assert source.fingerprint()["row_counts"] == expected["row_counts"]
    else:
        assert source.fingerprint() == expected
    assert "row group 0 of the rows in memory" in source.location(0)


def test_a_pandas_frame_is_a_source_and_its_plain_index_is_no_column():
    frame = pd.DataFrame({"a": [3, 1, 2], "c": pd.Categorical(["u", "v", "u"])}, index=[9, 8, 7])
    source = ParquetSource(frame[frame.a != 1])
    assert rows_of(source) == {"a": [3, 2], "c": ["u", "u"]}
    with pytest.raises(ValueError, match=r"index \['a'\] is not a column. df.reset_index\(\)"):
        ParquetSource(frame.set_index("a"))


def test_dictionaries_and_views_become_plain_values():
    frame = pl.DataFrame(
        {
            "c": pl.Series(["u", None, "v"], dtype=pl.Categorical),
            "e": pl.Series(["u", "v", "u"], dtype=pl.Enum(["v", "u"])),
            "l": [["a"], [], ["b", "c"]],
        }
    )
    source = ParquetSource(frame)
    assert source.column_types == {n: ("string", n == "l") for n in "cel"}
    assert rows_of(source) == frame.to_dict(as_series=False)


def test_the_content_is_part_of_the_identity_beyond_what_footers_tell():
    values = np.array([0, 1, 2, 3, 9])
    a, b = (
        ParquetSource(pa.table({"x": values[order]}))
        for order in ([0, 1, 2, 3, 4], [0, 2, 1, 3, 4])
    )
    assert {k for k, v in a.fingerprint().items() if b.fingerprint()[k] != v} == {"footers"}


def test_a_pickled_source_outlives_its_original(tmp_path):
    source = ParquetSource(TABLE)
    part = split_rows(source, {"a": 0.5, "b": 0.5})["b"]
    sent = pickle.dumps([part, ParquetSource(write_arrow(tmp_path / "a.arrow"))])
    del source, part
    part, of_file = pickle.loads(sent)
    assert rows_of(part)["id"] == list(range(500, 1000))
    assert rows_of(of_file) == TABLE.to_pydict()
    assert (part.versions, len(of_file.versions)) == ([], 1)


def test_a_column_of_mixed_types_hinders_only_where_it_is_used():
    frame = pd.DataFrame({"x": [1, 2], "mixed": ["a", 3]})
    with pytest.warns(UserWarning, match="column 'mixed' cannot be used"):
        source = ParquetSource(frame)
    assert source.read(0)["x"].tolist() == [1, 2]


def write_arrow(path, table=TABLE, stream=False, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    options = pa.ipc.IpcWriteOptions(**options)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=300)
    return path


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_arrow_files_are_a_source(tmp_path, stream, compression):
    path = write_arrow(tmp_path / "rows.arrow", stream=stream, compression=compression)
    source = ParquetSource(path)
    assert rows_of(source) == TABLE.to_pydict()
    assert source.files == [str(path)]
    assert source.location(0) == f"row group 0 of {path}"
    pa.feather.write_feather(TABLE, str(tmp_path / "rows.feather"))
    assert rows_of(ParquetSource(tmp_path / "*.feather")) == TABLE.to_pydict()


def test_folders_of_arrow_files_have_their_keys_and_filters(tmp_path):
    for day in (1, 2):
        table = pa.table({"x": np.arange(day * 10, day * 10 + 5)})
        write_arrow(tmp_path / f"day={day}" / "a.arrow", table)
    source = ParquetSource(tmp_path, filters=[("day", "==", 2), ("x", ">", 22)])
    assert rows_of(source) == {"x": [23, 24], "day": [2, 2]}


def test_a_folder_with_parquet_files_is_read_without_its_arrow_files(tmp_path):
    write_arrow(tmp_path / "a.arrow")
    pq.write_table(TABLE.slice(0, 10), tmp_path / "a.parquet")
    assert ParquetSource(tmp_path).num_rows == 10


@pytest.mark.parametrize("stream", [False, True])
def test_damaged_arrow_files_are_refused_by_name(tmp_path, stream):
    path = write_arrow(tmp_path / "rows.arrow", stream=stream)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ParquetError, match=r"rows.arrow: not a whole Arrow file"):
        ParquetSource(path)


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        ({"x": [1]}, "got a dict. Values need the names of their columns"),
        ([np.arange(3)], r"got a list. Values need the names of their columns"),
        (np.arange(3), r"got a numpy.ndarray. Values need the names"),
        (pa.array([1]), r"got a pyarrow.Int64Array. Values need the names"),
        (pd.Series([1]), r"got a pandas.Series. Values need the names"),
        (pd.Index([1]), r"got a pandas.Index. Values need the names"),
        (pl.LazyFrame({"x": [1]}), r"got a polars.LazyFrame. Give its collect\(\)"),
        (None, "got a NoneType"),
        (3, "got a int"),
    ],
    ids=str,
)
def test_what_is_no_source_is_refused_with_what_to_do(data, remedy):
    with pytest.raises(TypeError, match=rf"^the data must be a path of Parquet.*{remedy}"):
        ParquetSource(data)


def test_columns_of_one_name_are_refused():
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])
    with pytest.raises(ValueError, match="the rows in memory: column names must be unique"):
        ParquetSource(table)


def test_csv_files_are_refused_with_the_command_that_converts_them(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    command = "python -m data_prep csv {} --to FOLDER"
    with pytest.raises(ParquetError, match=command.format(f"{tmp_path}/a.csv")):
        ParquetSource(tmp_path / "a.csv")
    with pytest.raises(FileNotFoundError, match=rf"data_prep csv {tmp_path}/\*.csv --to FOLDER"):
        ParquetSource(tmp_path)
