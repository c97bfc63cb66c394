"""On a GPU: what cuDF decodes is what Arrow decodes, and says as well what it cannot."""

import datetime
import re
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.gpu import ON_GPU, run
from tutorlib.columns import Masked, Ragged, Strings, to_host
from tutorlib.parquet import ParquetError, ParquetSource

pytestmark = ON_GPU
ROWS = 700


def table():
    """Columns of every kind that may stand in a chunk."""
    rows = np.arange(ROWS)
    made = {name: pa.array((rows % 100).astype(name)) for name in ("int8", "uint8", "int16")}
    made |= {name: pa.array((rows * 7).astype(name)) for name in ("uint16", "int32", "uint32")}
    made |= {name: pa.array((rows * 7).astype(name)) for name in ("int64", "uint64")}
    made |= {name: pa.array((rows / 8).astype(name)) for name in ("float32", "float64")}
    made["bool"] = pa.array(rows % 3 == 0)
    made["int nulls"] = pa.array([None if i % 5 == 0 else i for i in range(ROWS)], pa.int32())
    made["float nulls"] = pa.array([None if i % 5 == 0 else i / 2 for i in range(ROWS)])
    made["bool nulls"] = pa.array([None if i % 5 == 0 else i % 2 == 0 for i in range(ROWS)])
    made["all null"] = pa.array([None] * ROWS, pa.int64())
    made["text"] = pa.array([f"text {i % 9} ü" * (i % 4) for i in range(ROWS)])
    made["text nulls"] = pa.array([None if i % 5 == 0 else str(i) for i in range(ROWS)])
    made["large text"] = pa.array([str(i) for i in range(ROWS)], pa.large_string())
    made["dictionary"] = pa.array([f"d{i % 7}" for i in range(ROWS)]).dictionary_encode()
    made["lists"] = pa.array([list(range(i % 4)) for i in range(ROWS)], pa.list_(pa.int64()))
    made["null lists"] = pa.array([None if i % 5 == 0 else [i] * (i % 3) for i in range(ROWS)])
    made["lists with nulls"] = pa.array([[i, None][: i % 3] for i in range(ROWS)])
    made["lists of texts"] = pa.array([["a", "bc", ""][: i % 4] for i in range(ROWS)])
    made["lists of floats"] = pa.array([[0.5, None][: i % 3] for i in range(ROWS)])
    made["fixed lists"] = pa.array([[i, i + 1] for i in range(ROWS)], pa.list_(pa.int32(), 2))
    day = datetime.date(2020, 1, 1)
    made["date"] = pa.array([day + datetime.timedelta(days=i) for i in range(ROWS)])
    made["time"] = pa.array(rows, pa.timestamp("us"))
    made["a.b"] = pa.array(rows)
    return pa.table(made)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "a.parquet"
    pq.write_table(table(), path, row_group_size=300)
    return path


@pytest.fixture
def space():
    from tutorlib.memory import gpu_space

    space = gpu_space()
    with space.work():
        yield space


def host(column):
    """A column of the GPU as it would be on the CPU."""
    if isinstance(column, Masked):
        return Masked(host(column.values), host(column.valid))
    if isinstance(column, Ragged):
        return Ragged(host(column.values), host(column.offsets))
    if isinstance(column, Strings):
        return Strings(host(column.data), host(column.offsets))
    return to_host(column)


def assert_equal(ours, theirs, name):
    ours = host(ours)
    assert type(ours) is type(theirs), name
    np.testing.assert_equal(ours.tolist(), theirs.tolist(), err_msg=name)
    if isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype, name


@pytest.mark.parametrize("name", table().column_names)
def test_every_kind_of_column_is_that_of_the_cpu(path, space, name):
    ours, theirs = ParquetSource(path, device="gpu"), ParquetSource(path)
    for position in range(3):
        assert_equal(ours.read(position, [name])[name], theirs.read(position, [name])[name], name)
        parts = (position, [name], 17, 61)
        assert_equal(ours.read(*parts)[name], theirs.read(*parts)[name], name)


WRITTEN = {
    "snappy": {"compression": "snappy"},
    "zstd": {"compression": "zstd"},
    "lz4": {"compression": "lz4"},
    "gzip": {"compression": "gzip"},
    "plain": {"compression": "none", "use_dictionary": False},
    "split": {"use_dictionary": False, "use_byte_stream_split": ["int32", "int64", "float32"]},
    "delta": {"use_dictionary": False, "column_encoding": {"int64": "DELTA_BINARY_PACKED"}},
    "pages of version 2": {"data_page_version": "2.0"},
    "small pages": {"data_page_size": 256},
}


@pytest.mark.parametrize("how", WRITTEN)
def test_however_it_was_written(tmp_path, space, how):
    names = ["int32", "int64", "float32", "float64", "int nulls", "text", "lists"]
    pq.write_table(
        table().select(names), tmp_path / "a.parquet", row_group_size=300, **WRITTEN[how]
    )
    ours, theirs = ParquetSource(tmp_path, device="gpu"), ParquetSource(tmp_path)
    for position in range(3):
        chunk = ours.read(position)
        for name in names:
            assert_equal(chunk[name], theirs.read(position)[name], f"{how}: {name}")


def test_numbers_are_shown_where_cudf_put_them(path, space):
    chunk = ParquetSource(path, device="gpu").read(0, ["int32", "lists"])
    for array in (chunk["int32"], chunk["lists"].values):
        assert type(array.data.mem).__name__ == "UnownedMemory"
        assert array.data.ptr % 256 == 0


@pytest.mark.parametrize("saves", [False, True])
def test_slices_of_all_sizes(path, space, saves):
    ours, theirs = ParquetSource(path, device="gpu"), ParquetSource(path)
    if saves:
        ours.save_memory()
    names = ["int64", "float nulls", "text", "lists with nulls"]
    for start, stop in [(0, 1), (1, 100), (100, 299), (299, 300), (5, 5), (0, 300)]:
        chunk, want = ours.read(1, names, start, stop), theirs.read(1, names, start, stop)
        for name in names:
            assert_equal(chunk[name], want[name], f"{name} [{start}, {stop})")


def test_rows_that_a_filter_leaves(path, space):
    ours = ParquetSource(path, filters=[("int32", ">", 1500)], device="gpu")
    theirs = ParquetSource(path, filters=[("int32", ">", 1500)])
    assert len(ours) == len(theirs)
    for position in range(len(ours)):
        for name in ("int32", "text", "lists"):
            want = theirs.read(position, [name])[name]
            assert_equal(ours.read(position, [name])[name], want, name)


def test_files_of_another_filesystem(space):
    fsspec = pytest.importorskip("fsspec")
    filesystem = fsspec.filesystem("memory")
    with filesystem.open("/gpu-test/a.parquet", "wb") as file:
        pq.write_table(table().select(["int64"]), file)
    ours = ParquetSource("memory:///gpu-test/a.parquet", device="gpu")
    np.testing.assert_array_equal(to_host(ours.read(0)["int64"]), np.arange(ROWS) * 7)


def test_threads_read_side_by_side(path):
    from tutorlib.memory import gpu_space

    ours, theirs, wrong = ParquetSource(path, device="gpu"), ParquetSource(path), []
    names = ["int64", "float32", "text", "lists"]

    def work(number):
        try:
            for turn in range(20):
                position = (number + turn) % 3
                with gpu_space().work():
                    chunk = ours.read(position, names, 10, 90)
                    for name in names:
                        assert_equal(chunk[name], theirs.read(position, [name], 10, 90)[name], name)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


DAMAGED = """
import sys
from tutorlib.parquet import ParquetError, ParquetSource
from tutorlib.memory import gpu_space
source = ParquetSource(sys.argv[1], device="gpu")
with gpu_space().work():
    print(len(source.read(0)["int64"]))
    try:
        source.read(1)
    except ParquetError as error:
        print(error)
"""


def test_a_column_that_cannot_be_decoded_is_named(tmp_path):
    """In a process of its own: what damaged data may do to CUDA would stay for the next test."""
    path = tmp_path / "a.parquet"
    columns = table().select(["int64", "float64"])
    pq.write_table(columns, path, row_group_size=300, compression="zstd", use_dictionary=False)
    leaf = pq.read_metadata(path).row_group(1).column(1)
    data = bytearray(path.read_bytes())
    frame = data.index(b"\x28\xb5\x2f\xfd", leaf.data_page_offset)  # where Zstandard data begin
    data[frame : frame + 40] = b"\xff" * 40
    path.write_bytes(data)
    rows, said = run(DAMAGED, path).split("\n", 1)
    assert rows == "300"
    assert re.search(r"row group 1 of .*a\.parquet, column 'float64': cuDF cannot read it", said)


def test_a_file_that_has_changed_is_refused(tmp_path, space):
    pq.write_table(table().select(["int64"]), tmp_path / "a.parquet")
    source = ParquetSource(tmp_path, device="gpu")
    pq.write_table(table().select(["int64", "int32"]), tmp_path / "a.parquet")
    with pytest.raises(ParquetError, match="the file has changed since it was opened"):
        source.read(0)


FULL = """
import sys
import rmm.mr
limit = rmm.mr.LimitingResourceAdaptor(rmm.mr.CudaAsyncMemoryResource(), int(sys.argv[2]))
rmm.mr.set_current_device_resource(limit)
from tutorlib.loader import KerasSequenceLoader
loader = KerasSequenceLoader(sys.argv[1], 4096, ["label"], device="gpu")
try:
    print(sum(len(labels) for _, labels in loader))
except MemoryError as error:
    print(error)
"""


def test_where_memory_ends_it_is_read_in_small_steps_or_says_what_to_change(tmp_path):
    rows = 2_000_000
    columns = {f"x{i}": np.random.default_rng(i).random(rows, np.float32) for i in range(20)}
    columns["label"] = np.ones(rows, np.float32)
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=rows)
    assert run(FULL, tmp_path, 4 * 2**30) == str(rows)
    said = run(FULL, tmp_path, 64 * 2**20)
    assert "limit_tensorflow_memory()" in said
    assert "a.parquet" in said or "for batches" in said
