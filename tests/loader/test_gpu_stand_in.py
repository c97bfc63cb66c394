"""Without a GPU: what `device="gpu"` does, by stand-ins for CuPy and pylibcudf."""

import ctypes
import functools
import gc
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
from tutorlib.columns import Chunk, Masked
from tutorlib.gpu import batches as bridge
from tutorlib.gpu import memory as gpu
from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetError, ParquetSink, ParquetSource
from tutorlib.schema import Column, Schema
from tutorlib.workflow import split_rows

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


@pytest.mark.parametrize("batch_size", [1, 60])
def test_steps_that_lag_behind_read_whole_batches(rmm, folder, monkeypatch, batch_size):
    """A loop drops a batch once its step is queued; the step reads it before a wait has ended."""
    queued, read = [], []

    def do_steps():
        for address, want in queued:
            memory = (ctypes.c_uint8 * want.nbytes).from_address(address)
            read.append(np.frombuffer(memory, want.dtype).copy())
            np.testing.assert_array_equal(read[-1], want)
        queued.clear()

    monkeypatch.setattr(bridge, "wait_for_gpu", do_steps)
    for inputs, *_ in loader_of(folder, batch_size, device="gpu"):
        array = np.asarray(inputs["row"])[:, 0]
        queued.append((array.ctypes.data, array.copy()))
        del inputs, array, _
    gc.collect()
    do_steps()
    assert sorted(np.concatenate(read)) == [*range(1000)]
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
def test_batches_are_those_of_the_cpu_and_made_before_they_are_used(rmm, folder, form, batch_size):
    def finished(batches):
        for batch in batches:
            assert not any(cupy_stand_in.exported)
            cupy_stand_in.exported.clear()
            yield batch

    with loader_of(folder, batch_size, device="gpu", **FORMS[form]) as ours:
        assert_same_batches(finished(ours), loader_of(folder, batch_size, **FORMS[form]))
    limit = rmm.mr.LimitingResourceAdaptor.call_args.kwargs["allocation_limit"]
    assert 0 <= 54 * GIB - limit < 256  # a tenth less than what is free


def write(path, columns, row_group_rows=10, **options):
    pq.write_table(pa.table(columns), path, row_group_size=row_group_rows, **options)


def loader_over(path, **settings):
    settings = {"device": "gpu", "shuffle": False, "buffer_size": 1000, **settings}
    return KerasSequenceLoader(path, 10, **settings)


def rows_of(loader):
    return [int(x) for inputs, _ in loader for x in np.asarray(inputs["x"])[:, 0]]


def test_a_chunk_is_one_call_also_of_several_files(rmm, tmp_path):
    for number, name in enumerate("ab"):
        write(tmp_path / f"{name}.parquet", {"x": np.arange(30) + 30 * number})
    assert rows_of(loader_over(tmp_path, cat_names=["x"])) == [*range(60)]
    a, b = (str(tmp_path / f"{name}.parquet") for name in "ab")
    assert pylibcudf_stand_in.calls == [[(a, (0, 1, 2)), (b, (0, 1, 2))]]


def test_files_that_only_libcudf_tells_apart_are_refused_with_a_remedy(rmm, tmp_path):
    price = pa.array([1] * 30).cast(pa.decimal128(21, 2)).cast(pa.decimal128(9, 2))
    for name, is_integer in (("a", False), ("b", True)):  # a column that nobody reads
        columns = {"x": np.arange(30), "price": price}
        write(tmp_path / f"{name}.parquet", columns, store_decimal_as_integer=is_integer)
    with pytest.raises(ParquetError, match=r"6 row groups from .*a\.parquet.* ParquetSink, or use"):
        list(loader_over(tmp_path, cat_names=["x"]))


def test_too_little_memory_says_where_and_what_to_do(rmm, folder, monkeypatch):
    def exhausted(options, stream):
        raise RuntimeError("CUDA error: cudaErrorMemoryAllocation out of memory")

    monkeypatch.setattr(pylibcudf_stand_in.pylibcudf.io.parquet, "read_parquet", exhausted)
    with pytest.raises(MemoryError, match=r"in row group \d of .*smaller memory_budget"):
        list(loader_of(folder, device="gpu", buffer_size=1000))


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


@pytest.mark.parametrize("batch_layout", ["columns", "stacked"])
@pytest.mark.parametrize(
    ("name", "value", "where"),
    [("id", 97, 737), ("x64", 1e39, 737), ("tags", -1, 741), ("x", np.nan, 12), ("small", None, 7)],
)
def test_a_fault_is_named_as_on_the_cpu(rmm, name, value, where, batch_layout, tmp_path):
    rows, said = chunk_of(1000), set()
    if name == "tags":
        rows[name].values[rows[name].offsets[where]] = value
    elif value is None:
        valid = np.arange(1000) != where
        rows = Chunk({**rows, name: Masked(rows[name], valid)})
    else:
        rows[name][where] = value
    with ParquetSink(tmp_path / "a", row_group_rows=100, rows_per_file=400) as sink:
        sink.write(rows)
    settings = {"buffer_size": 1000, "threads": 1, "batch_layout": batch_layout}
    for device in ("cpu", "gpu"):
        row = f"at row {where % 100}\\b"
        with pytest.raises(ParquetError, match=f"column '{name}': .* {row}") as error:
            list(loader_of(tmp_path / "a", device=device, **settings))
        said.add(str(error.value))
    assert len(said) == 1


COLUMNS = {
    "dates": pa.array([1] * 30, pa.date32()),
    "halves": pa.array([1] * 30, pa.float16()),
    "texts": pa.array(["a"] * 30),
    "lists of texts": pa.array([["a"]] * 30),
    "vectors": pa.array([[1.0, 2.0]] * 30, pa.list_(pa.float32(), 2)),
    "a.b": pa.array([1] * 30),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_that_a_gpu_does_not_decode_is_refused_when_the_loader_is_made(
    rmm, name, tmp_path
):
    path = tmp_path / "a.parquet"
    write(path, {"x": np.arange(30), name: COLUMNS[name]})
    role = {"cont_names": [name]} if name in ("halves", "vectors") else {"cat_names": [name]}
    with pytest.raises(ValueError, match=rf"column '{name}': .*\. .*or use device='cpu'"):
        loader_over(path, **role)


def test_rows_that_a_gpu_does_not_decode_are_refused_when_the_loader_is_made(rmm, tmp_path):
    path = tmp_path / "keyed" / "day=7" / "a.parquet"
    path.parent.mkdir(parents=True)
    write(path, {"x": np.arange(30)})
    other = tmp_path / "other"
    other.mkdir()
    write(other / "a.parquet", {"x": np.arange(30)})
    write(other / "b.parquet", {"x": np.arange(30, dtype=np.int32)})
    half = split_rows(ParquetSource(path), {"train": 0.5, "valid": 0.5}, seed=1)["train"]
    part_of_row_groups = "decodes whole row groups, but of some only a part is chosen"
    refused = [
        (path, {"filters": [("x", ">", 5)]}, part_of_row_groups),
        (half, {}, part_of_row_groups),
        (pq.read_table(path), {}, "not rows in memory"),
        (path, {"nulls": "fill"}, "takes no nulls"),
        (other, {}, r"b\.parquet has others than .*a\.parquet"),
        (path.parent.parent, {"cat_names": ["day"]}, "column 'day': .* a key in the paths"),
        (path, {"buffer_size": 9}, "row groups, but one of 10 rows .* buffer_size=10,"),
    ]
    for rows, settings, words in refused:
        with pytest.raises(ValueError, match=f"{words}.*device='cpu'"):
            loader_over(rows, **{"cat_names": ["x"], **settings})
    loader = loader_over(path, cat_names=["x"], buffer_size=10)  # what the last error advises
    assert rows_of(loader) == [*range(30)]
    assert rows_of(loader_over(ParquetSource(path).head(15), cat_names=["x"])) == [*range(15)]
    for asked in (lambda: loader.map(lambda chunk: chunk), loader.as_numpy):
        with pytest.raises(ValueError, match="device='cpu'"):
            asked()
