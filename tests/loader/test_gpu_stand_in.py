"""Without a GPU: what `device="gpu"` does, by stand-ins for CuPy and pylibcudf."""

import ctypes
import functools
import gc
import shutil
import sys
import unittest.mock

import jax
import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tests.loader.test_gpu_batches import FORMS, assert_same_batches, chunk_of, loader_of
from tests.support import cupy_stand_in, pylibcudf_stand_in
from tests.support.gpu import MISSING
from tutorlib.columns import Chunk, Ragged, to_namespace
from tutorlib.gpu import memory as gpu
from tutorlib.gpu import tensors as bridge
from tutorlib.gpu.decoding import _cast
from tutorlib.keras_bridge.backend import tensorflow_maker
from tutorlib.memory import aligned_empty
from tutorlib.ops import Categorify, Normalize
from tutorlib.parquet import ParquetError, ParquetSink, ParquetSource, RowRange
from tutorlib.schema import Column, Schema
from tutorlib.workflow import Workflow, split_rows

pytestmark = pytest.mark.skipif(MISSING is None, reason="a GPU is there: see test_gpu_batches.py")
GIB = 2**30
FILES = {"row_group_rows": 100, "rows_per_file": 400}


@pytest.fixture
def rmm(monkeypatch):
    """Put stand-ins in the place of CuPy, cuDF and RMM, which notes what it is asked."""
    rmm = unittest.mock.MagicMock()
    rmm.mr.CudaMemoryResource = rmm.mr.get_current_device_resource = list
    rooms = ("allocators", "allocators.cupy", "pylibrmm", "pylibrmm.stream")
    for name in ("rmm", *(f"rmm.{room}" for room in rooms)):
        monkeypatch.setitem(sys.modules, name, rmm)
    monkeypatch.setitem(sys.modules, "cupy", cupy_stand_in.cupy)
    monkeypatch.setitem(sys.modules, "pylibcudf", pylibcudf_stand_in.pylibcudf)
    pylibcudf_stand_in.calls.clear()
    cupy_stand_in.freed.clear()
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    monkeypatch.setattr(gpu, "_left", {})
    for name in ("use_gpu", "gpu_memory_bytes"):
        monkeypatch.setattr(gpu, name, functools.cache(getattr(gpu, name).__wrapped__))
    return rmm


@pytest.fixture(scope="module")
def columns():
    return chunk_of(1000)


@pytest.mark.parametrize("rows", [0, 1, 2, 9, 16])
@pytest.mark.parametrize("library", ["tensorflow", "jax"])
def test_dlpack_shares_memory_without_gaps_and_refuses_gaps(library, rows):
    make = tensorflow_maker() if library == "tensorflow" else jax.dlpack.from_dlpack
    whole = aligned_empty((3, 64, 4), np.float32)
    whole[...] = np.arange(whole.size).reshape(whole.shape)
    column, batches = whole.ravel()[:rows], whole.reshape(3, 256, 1)[:, :rows]
    for array in (whole[:, :rows][1], batches[2], batches[:, :, 0][1], column, column[:, None]):
        tensor = make(array)
        assert tuple(tensor.shape) == array.shape
        np.testing.assert_array_equal(np.asarray(tensor), array)
        assert not rows or np.shares_memory(np.asarray(tensor), whole)
    for array in (whole[1, :rows, :1], column[::-1]) if rows > 1 else ():
        with pytest.raises(Exception, match=r"Invalid strides|trivial \(compact\) striding"):
            make(array)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch_size", [1, 7, 300])
def test_batches_are_those_of_the_cpu_and_made_before_they_are_used(rmm, form, batch_size):
    def finished(batches):
        for batch in batches:
            assert not any(cupy_stand_in.exported)
            cupy_stand_in.exported.clear()
            yield batch

    rows, settings = chunk_of(999), FORMS[form]
    with loader_of(rows, batch_size, device="gpu", **settings) as ours:
        assert_same_batches(finished(ours), loader_of(rows, batch_size, **settings))
    limit = rmm.mr.LimitingResourceAdaptor.call_args.kwargs["allocation_limit"]
    assert 0 <= 54 * GIB - limit < 256  # a tenth less than what is free


@pytest.mark.parametrize("batch_size", [1, 7, 60])
def test_steps_that_lag_behind_read_whole_batches(rmm, monkeypatch, batch_size):
    """A loop drops a batch once its step is queued; the step reads it before a wait has ended."""
    queued, read = [], []

    def do_steps():
        for address, want in queued:
            memory = (ctypes.c_uint8 * want.nbytes).from_address(address)
            read.append(np.frombuffer(memory, want.dtype).copy())
            np.testing.assert_array_equal(read[-1], want)
        queued.clear()

    monkeypatch.setattr(bridge, "wait_for_gpu", do_steps)
    for inputs, *_ in loader_of(chunk_of(999), batch_size, device="gpu"):
        array = np.asarray(inputs["row"])[:, 0]
        queued.append((array.ctypes.data, array.copy()))
        del inputs, array, _
    gc.collect()
    do_steps()
    assert sorted(np.concatenate(read)) == [*range(999)]
    assert cupy_stand_in.freed  # not all is kept to the end


def test_memory_that_a_backend_will_take_is_not_free(rmm, monkeypatch):
    monkeypatch.setattr(tf.config, "set_logical_device_configuration", lambda *_: None)
    assert gpu.limit_tensorflow_memory(0.75) == 45 * GIB  # of 60 that are free of 80
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    put = unittest.mock.Mock()
    monkeypatch.setattr(jax, "device_put", put)
    assert gpu.gpu_memory_bytes() == int(15 * GIB * 0.9)
    put.assert_called_once()  # with its first array JAX takes its part


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch_size", [7, 300])
def test_batches_of_files_are_those_of_the_cpu(rmm, folder, form, batch_size):
    with loader_of(folder, batch_size, device="gpu", **FORMS[form]) as ours:
        assert_same_batches(ours, loader_of(folder, batch_size, **FORMS[form]))


def test_batches_of_a_workflow_and_of_a_split_are_those_of_the_cpu(rmm, folder):
    source = ParquetSource(folder)
    workflow = Workflow(["id"] >> Categorify(), ["x"] >> Normalize(), ["label"]).fit(source)
    settings = {"schema": None, "label_names": ["label"], "cat_names": ["id"], "cont_names": ["x"]}
    train = split_rows(source, {"train": 0.7, "valid": 0.3}, seed=1)["train"]
    with loader_of(train, device="gpu", **settings).map(workflow) as ours:
        assert_same_batches(ours, loader_of(train, **settings).map(workflow))


def test_types_that_a_function_makes_of_some_rows_are_not_mixed(rmm, folder):
    """Joined, int64 and uint64 would become float64, which rounds."""

    def wide(chunk):
        rows = chunk["row"] + 2**60
        made = rows.astype(np.uint64) if int(rows[0]) % 200 == 2**60 % 200 else rows
        return chunk.with_columns({"row": made})

    with loader_of(folder, device="gpu", buffer_size=1000).map(wide) as ours:
        assert_same_batches(ours, loader_of(folder, buffer_size=1000).map(wide))


@pytest.mark.parametrize("filters", [None, [("small", ">", 20)]])
@pytest.mark.parametrize("is_split", [False, True])
def test_row_ranges_come_in_the_order_in_which_they_are_named(rmm, folder, filters, is_split):
    source = ParquetSource(folder, filters, device="gpu")
    if is_split:
        source = split_rows(source, {"train": 0.7, "valid": 0.3}, seed=1)["train"]
    names = [*source.column_types]
    for order in ([0, 1, 2], [7, 0, 8, 9, 1, 2, 2], [3]):
        for start, most in ((0, 100), (13, 57), (40, 40)):
            stops = [min(most, source.row_groups[number].num_rows) for number in order]
            ranges = list(map(RowRange, order, [start] * len(order), stops))
            got, want = (s.read_ranges(ranges, names) for s in (source, source.on("cpu")))
            assert got.names == want.names
            for name in names:
                column = to_namespace(got[name], np)
                np.testing.assert_equal(column.tolist(), want[name].tolist(), err_msg=name)


def write(path, columns, row_group_rows=10, **options):
    pq.write_table(pa.table(columns), path, row_group_size=row_group_rows, **options)


def test_a_chunk_of_files_alike_is_one_call_and_other_files_are_read_apart(rmm, tmp_path):
    rows = np.arange(30)
    write(tmp_path / "a.parquet", {"x": rows})
    write(tmp_path / "b.parquet", {"x": rows + 30})
    write(tmp_path / "c.parquet", {"x": (rows + 60).astype(np.int32)})
    source = ParquetSource(tmp_path, device="gpu")
    ranges = [RowRange(number, 0, 10) for number in (5, 1, 0, 6, 7, 2)]
    runs = source.runs(ranges, ["x"])
    assert runs == [ranges[:3], ranges[3:5], ranges[5:]]
    read = np.concatenate([source.read_ranges(run, ["x"])["x"].get() for run in runs])
    assert read.tolist() == [n for k in (50, 10, 0, 60, 70, 20) for n in range(k, k + 10)]
    a, b, c = (str(tmp_path / f"{name}.parquet") for name in "abc")
    calls = [[(b, (2,)), (a, (1, 0))], [(c, (0, 1))], [(a, (2,))]]
    assert pylibcudf_stand_in.calls == calls


def test_files_that_only_libcudf_tells_apart_are_read_one_by_one(rmm, tmp_path):
    rows = np.arange(30)
    price = pa.array([1] * 30).cast(pa.decimal128(21, 2)).cast(pa.decimal128(9, 2))
    # That column, which nobody reads, is stored as bytes in one file, as integers in the other.
    write(tmp_path / "a.parquet", {"x": rows, "price": price})
    write(tmp_path / "b.parquet", {"x": rows + 30, "price": price}, store_decimal_as_integer=True)
    source = ParquetSource(tmp_path, device="gpu")
    (run,) = source.runs([RowRange(4, 0, 10), RowRange(0, 0, 10)], ["x"])
    assert source.read_ranges(run, ["x"])["x"].tolist() == [*range(40, 50), *range(10)]
    assert [len(call) for call in pylibcudf_stand_in.calls] == [2, 1, 1]


@pytest.mark.parametrize("most", [0, 1, 1000])
def test_less_memory_is_enough_for_one_row_group_after_the_other(rmm, folder, most, monkeypatch):
    parquet = pylibcudf_stand_in.pylibcudf.io.parquet

    def exhausted(options, stream):
        if sum(map(len, options.row_groups)) > most:
            raise RuntimeError("CUDA error: cudaErrorMemoryAllocation out of memory")
        return pylibcudf_stand_in.read_parquet(options, stream)

    monkeypatch.setattr(parquet, "read_parquet", exhausted)
    ours = loader_of(folder, device="gpu", buffer_size=1000)
    if most:
        assert_same_batches(ours, loader_of(folder, buffer_size=1000))
        return
    with pytest.raises(MemoryError, match=r"in row group \d of .*smaller memory_budget"):
        list(ours)


def test_a_run_has_a_limit_of_bytes_and_of_files(rmm, tmp_path, monkeypatch):
    for name in "abcd":
        write(tmp_path / f"{name}.parquet", {"x": np.arange(20), "s": ["a"] * 20})
    source = ParquetSource(tmp_path, device="gpu")
    ranges = [RowRange(number, 0, 10) for number in range(8)]
    assert source.runs(ranges, ["x", "s"]) == [ranges]
    monkeypatch.setattr("tutorlib.parquet.source.RUN_FILES", 3)
    assert source.runs(ranges, ["x", "s"]) == [ranges[:6], ranges[6:]]
    monkeypatch.setattr("tutorlib.parquet.source.RUN_BYTES", 2 * 10 * source.row_bytes(0, ["x"]))
    assert list(map(len, source.runs(ranges, ["x"]))) == [2, 2, 2, 2]
    assert list(map(len, source.runs(ranges, ["x", "s"]))) == [1] * 8  # also where one is too large


def test_a_file_that_changed_is_named_as_on_the_cpu(rmm, folder, tmp_path):
    copy, said = tmp_path / "data", set()
    shutil.copytree(folder, copy)
    loaders = {
        device: loader_of(copy, device=device, buffer_size=1000) for device in ("cpu", "gpu")
    }
    (copy / "part_00001.parquet").write_bytes(b"PAR1")
    for loader in loaders.values():
        with pytest.raises(ParquetError, match=r"row group \d of .*00001.*has changed") as error:
            list(loader)
        said.add(str(error.value).partition(" of ")[2])
    assert len(said) == 1


def test_neither_row_groups_nor_columns_bring_more_copies_to_the_host(rmm, tmp_path, monkeypatch):
    copied, get = [], cupy_stand_in.ndarray.get
    monkeypatch.setattr(
        cupy_stand_in.ndarray, "get", lambda self: copied.append(self.shape) or get(self)
    )
    costs = []
    for count, row_group_rows in ((3, 1000), (3, 50), (40, 50)):
        names = [f"c{number}" for number in range(count)]
        columns = {n: np.arange(4000) % 7 for n in names} | {"x": np.arange(4000.0)}
        path = tmp_path / f"{count} {row_group_rows}"
        with ParquetSink(path, row_group_rows=row_group_rows, rows_per_file=1000) as sink:
            sink.write(Chunk(columns))
        ids = [Column(name, "categorical", "int64", cardinality=7) for name in names]
        schema = Schema([*ids, Column("x", "continuous", "float64")])
        settings = {"schema": schema, "device": "gpu", "buffer_size": 1000, "parts_per_chunk": 4}
        copied.clear()
        pylibcudf_stand_in.calls.clear()
        assert len(list(loader_of(path, 128, **settings))) == 32
        costs.append((len(copied), len(pylibcudf_stand_in.calls)))
    assert costs == [(2, 1)] * 3  # the ends of ids, and those of x, of the one chunk


# ---- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows_per_file", [None, 400])
@pytest.mark.parametrize("batch_layout", ["columns", "stacked"])
@pytest.mark.parametrize(
    ("name", "value", "where"),
    [("id", 97, 737), ("x64", 1e39, 737), ("tags", -1, 741), ("holes", np.inf, 12)],
)
def test_a_fault_is_named_as_on_the_cpu(
    rmm, name, value, where, batch_layout, rows_per_file, tmp_path
):
    rows, said = chunk_of(1000), set()
    row = where
    if name == "tags":
        rows[name].values[rows[name].offsets[where]] = value
    else:
        rows[name][where] = value
        rows["weight"][2] = np.nan  # a fault of a field that is checked later
    if rows_per_file:
        with ParquetSink(tmp_path / "a", row_group_rows=100, rows_per_file=400) as sink:
            sink.write(rows)
        rows, row = tmp_path / "a", where % 100
    settings = {"buffer_size": 1000, "threads": 1, "batch_layout": batch_layout}
    for device in ("cpu", "gpu"):
        with pytest.raises(ParquetError, match=f"column '{name}': .* at row {row}\\b") as error:
            list(loader_of(rows, device=device, **settings))
        said.add(str(error.value))
    assert len(said) == 1


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.float16()], ids=str)
def test_a_type_that_a_gpu_cannot_hold_is_refused_with_a_remedy(rmm, kind):
    with pytest.raises(ParquetError, match=r"column 'x': a GPU cannot decode .*device='cpu'"):
        ParquetSource(pa.table({"x": pa.array([1], kind)}), device="gpu").read(0)


def test_lists_get_the_type_that_all_files_share():
    lists = Ragged(np.arange(4, dtype=np.int32), np.array([0, 2, 4]))
    assert _cast(lists, pa.list_(pa.int64())).values.dtype == np.int64
    vectors = _cast(lists, pa.list_(pa.float32(), 2))
    assert (vectors.dtype, vectors.tolist()) == (np.float32, [[0, 1], [2, 3]])
