"""Without a GPU: what `device="gpu"` does, by stand-ins for CuPy and pylibcudf."""

import collections
import contextlib
import ctypes
import functools
import gc
import json
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
from tests.support.processes import run
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
    modules = {}
    rmm = cupy_stand_in.install(modules)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    monkeypatch.setattr(tf, "device", lambda name: contextlib.nullcontext())
    monkeypatch.setattr(gpu, "_left", {})
    for name in ("use_gpu", "gpu_memory_bytes"):
        monkeypatch.setattr(gpu, name, functools.cache(getattr(gpu, name).__wrapped__))
    return rmm


@pytest.fixture(scope="module")
def columns():
    return chunk_of(1000)


# ---- how long memory lives -----------------------------------------------------------------------


class Queue:
    """Steps that a GPU is to do, in order: each reads a batch that its loop has dropped."""

    def __init__(self):
        self._steps = collections.deque()
        self.done = []  # what they have read
        self.ends = 0  # waits so far

    def put(self, tensor):
        """Queue a step that reads a tensor."""
        array = np.asarray(tensor)
        self._steps.append((array.ctypes.data, array.copy()))

    def mark(self):
        """Return a wait for what is queued now, as of the backend's stream."""
        queued = len(self.done) + len(self._steps)
        return lambda: self.do(queued)

    def do(self, number):
        """Do the steps up to this number."""
        self.ends += 1
        while len(self.done) < number:
            address, want = self._steps.popleft()
            memory = (ctypes.c_uint8 * want.nbytes).from_address(address)
            self.done.append(np.frombuffer(memory, want.dtype).copy())
            np.testing.assert_array_equal(self.done[-1], want.ravel())


@pytest.mark.parametrize("form", ["nnzs", "padded", "stacked"])
@pytest.mark.parametrize("batch_size", [1, 60])
def test_steps_that_lag_behind_read_whole_batches(rmm, folder, monkeypatch, batch_size, form):
    """A loop drops a batch once its step is queued; the step reads it before a wait has ended."""
    steps = Queue()
    monkeypatch.setattr(bridge, "_mark", steps.mark)
    rows = 0
    for batch in loader_of(folder, batch_size, device="gpu", **FORMS[form]):
        for tensor in tf.nest.flatten(batch):
            if len(tensor):
                steps.put(tensor)
        rows += len(batch[2])
        del batch, tensor
    gc.collect()
    lag = len(steps._steps)
    steps.do(len(steps.done) + lag)
    assert rows == 1000
    assert lag > 0
    assert cupy_stand_in.freed  # not all is kept to the end


def test_whoever_holds_batches_has_them_and_what_is_dropped_is_freed(rmm, folder, monkeypatch):
    """Some batches are held over epochs; the memory of all others is given back."""
    steps = Queue()
    monkeypatch.setattr(bridge, "_mark", steps.mark)
    held = []
    loader = loader_of(folder, 60, device="gpu")
    sizes = []
    for _ in range(4):
        for number, (inputs, *_) in enumerate(loader):
            if number == 3:
                held.append((inputs, {n: np.array(t) for n, t in inputs.items()}))
            del inputs, _
        sizes.append(sum(block.nbytes for block in cupy_stand_in.freed))
    for inputs, want in held:
        for name, tensor in inputs.items():
            np.testing.assert_array_equal(tensor, want[name])
    growth = np.diff(sizes)
    assert min(growth) > 0.8 * max(growth)  # of each epoch
    del inputs, held, tensor
    gc.collect()
    loader.close()
    assert not bridge.memory._dropped
    assert not bridge.memory._noted


def test_memory_is_not_freed_if_the_backend_fails_to_say_what_is_queued(rmm, monkeypatch):
    def fails():
        raise RuntimeError("out of memory")

    memory = bridge.BatchMemory()
    array = memory.empty((4096,), np.float32)
    monkeypatch.setattr(bridge, "_mark", fails)
    del array
    with pytest.raises(RuntimeError, match="out of memory"):
        memory.free_dropped()
    assert not cupy_stand_in.freed
    monkeypatch.setattr(bridge, "_mark", lambda: lambda: None)
    memory.free_dropped()
    assert not cupy_stand_in.freed  # it was dropped before this call, not before an earlier one
    memory.free_dropped()
    assert [block.nbytes for block in cupy_stand_in.freed] == [4 * 4096]


def test_a_reader_waits_for_what_was_queued_a_chunk_before(rmm, folder, monkeypatch):
    """So training goes on: a wait for all that is queued would leave the GPU without work."""
    steps = Queue()
    monkeypatch.setattr(bridge, "_mark", steps.mark)
    lags = []
    loader = loader_of(folder, 60, device="gpu", threads=1)
    loader.close()
    for inputs, *_ in loader:
        steps.put(inputs["row"])
        lags.append(len(steps._steps))
        del inputs, _
    assert len(loader._any_plan().chunks) > 3
    assert min(lags) > 0
    assert steps.ends > 2


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


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError])  # of libcudf; of RMM's allocator
def test_a_gpu_that_has_failed_is_not_taken_for_a_bad_file(rmm, folder, monkeypatch, kind):
    """Every call fails then: neither the files nor less memory are the remedy."""
    calls = []

    def broken(options, stream):
        calls.append(options)
        raise kind("Fatal CUDA error encountered at: x.cu:1: 700 cudaErrorIllegalAddress")

    monkeypatch.setattr(pylibcudf_stand_in.pylibcudf.io.parquet, "read_parquet", broken)
    with pytest.raises(kind, match="cudaErrorIllegalAddress") as error:
        list(loader_of(folder, device="gpu", buffer_size=1000, threads=1))
    assert type(error.value) is kind
    assert "smaller memory_budget" not in str(error.value)
    assert len(calls) <= 2  # no row group is tried again
    assert any("the GPU failed" in note for note in error.value.__notes__)


# ---- calls: each costs a GPU more than most of what it does --------------------------------------

# Of a chunk of 40 columns of 4 bytes, and of a batch; waits are for all that threads have queued.
CALLS_OF_A_CHUNK = {
    "jax": {
        "columns": {"kernels": 51, "allocations": 13, "exports": 2, "waits": 4},
        "stacked": {"kernels": 55, "allocations": 18, "exports": 3, "waits": 4},
    },
    "tensorflow": {  # ids become int64
        "columns": {"kernels": 77, "allocations": 39, "exports": 40 * 32, "waits": 4},
        "stacked": {"kernels": 81, "allocations": 44, "exports": 3 * 32, "waits": 4},
    },
}
COPIES = {"copies to the host": 2, "copies to the device": 1}  # the ends of two dtypes; the order


def of_40_columns(folder, row_group_rows=128):
    """Write 8 files of 512 rows; return the schema."""
    rows = 32 * 128
    names = [f"c{number}" for number in range(40)]
    columns = {name: np.arange(rows, dtype=np.int32) % 97 for name in names[:26]}
    columns |= {name: np.arange(rows, dtype=np.float32) for name in names[26:]}
    with ParquetSink(folder, row_group_rows=row_group_rows, rows_per_file=512) as sink:
        sink.write(Chunk(columns))
    ids = [Column(name, "categorical", "int32", cardinality=97) for name in names[:26]]
    numbers = [Column(name, "continuous", "float32") for name in names[26:39]]
    return Schema([*ids, *numbers, Column("c39", "label", "float32")])


def calls_of(folder, schema, layout):
    """Return {what: number of calls} for a chunk of all rows, in 32 batches."""
    settings = {"device": "gpu", "buffer_size": 4096, "parts_per_chunk": 1, "threads": 1}
    loader = KerasSequenceLoader(folder, 128, schema=schema, batch_layout=layout, **settings)
    cupy_stand_in.counts.clear()
    pylibcudf_stand_in.calls.clear()
    assert len(list(loader)) == 32
    ((*sources,),) = pylibcudf_stand_in.calls
    assert len({path for path, _ in sources}) == len(sources) == 8  # each footer once
    return dict(cupy_stand_in.counts)


@pytest.mark.parametrize("layout", ["columns", "stacked"])
def test_calls_of_a_chunk_are_within_their_budget(rmm, layout, tmp_path):
    schema = of_40_columns(tmp_path / "data")
    made = calls_of(tmp_path / "data", schema, layout)
    budget = {**CALLS_OF_A_CHUNK["tensorflow"][layout], **COPIES}
    assert {what: made[what] for what in budget} == budget


def test_neither_row_groups_nor_files_bring_more_calls(rmm, tmp_path):
    made = []
    for row_group_rows in (128, 32):
        folder = tmp_path / str(row_group_rows)
        schema = of_40_columns(folder, row_group_rows)
        made.append(calls_of(folder, schema, "columns"))
    assert made[0] == made[1]


# ---- on JAX, in a process of its own -------------------------------------------------------------

ON_JAX = """
import gc, itertools, json, sys
import jax, keras, numpy as np
from tests.support import cupy_stand_in
cupy_stand_in.install(sys.modules)
jax.default_backend = lambda: "gpu"
from tests.loader.test_gpu_stand_in import calls_of, of_40_columns
from tests.loader.test_gpu_batches import FORMS, loader_of
from tutorlib.columns import Chunk
from tutorlib.keras_bridge import backend
from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetError, ParquetSink
from tutorlib.schema import Schema

folder, other = sys.argv[1:]
said = {"calls": {}, "batches": 0}

def arrays(batch):
    return [(k, np.asarray(v)) for k, v in keras.tree.flatten_with_path(batch)]

def same(ours, theirs, kinds):
    for one, want in zip(ours, theirs, strict=True):
        said["batches"] += 1
        kinds.update(type(leaf).__module__.split(".")[0] for leaf in keras.tree.flatten(one))
        for (path, array), (place, values) in zip(arrays(one), arrays(want), strict=True):
            assert path == place
            np.testing.assert_array_equal(array, values, strict=True)

held = []  # outlive the memory they were cut from
cases = [(form, 7) for form in FORMS] + [("nnzs", 64), ("stacked", 300), ("a rank in order", 300)]
for (form, batch_size), device in itertools.product(cases, ("gpu", "cpu")):
    kinds = set()
    ours = loader_of(folder, batch_size, device=device, **FORMS[form])
    theirs = loader_of(folder, batch_size, **FORMS[form])
    for _ in range(2):
        batches = list(ours)
        same(batches, list(theirs.as_numpy()), kinds)
        held.append((batches[0], arrays(batches[0])))
    assert "jaxlib" in kinds, kinds
    rest = loader_of(folder, batch_size, device=device, **FORMS[form])
    after = iter(ours)
    for _ in range(min(2, len(ours) - 1)):
        next(after)
    rest.load_state_dict(ours.state_dict())
    same(rest, list(after), kinds)
    del batches, after
gc.collect()
assert cupy_stand_in.freed
for batch, want in held:
    for (_, array), (_, values) in zip(arrays(batch), want, strict=True):
        np.testing.assert_array_equal(array, values)

schema = of_40_columns(other)
compiled = backend._compiled_cut()
for layout in ("columns", "stacked"):
    jax.clear_caches()
    said["calls"][layout] = calls_of(other, schema, layout)
    assert compiled._cache_size() == 1
given = []
put = jax.device_put
jax.device_put = lambda x, *a, **k: given.append(len(x) if isinstance(x, list) else 0) or put(x)
loader = loader_of(other, 128, schema=schema, buffer_size=2048, parts_per_chunk=1, shuffle=False)
assert len(list(loader)) == 32
said["given"] = [count for count in given if count]

# rows that a chunk does not end with, and an order of the files that row groups do not have
losses = []
for device in ("gpu", "cpu", "numpy"):
    jax.default_backend = lambda: "cpu" if device == "numpy" else "gpu"
    some = Schema([*schema][::10] + [schema["c39"]])
    loader = loader_of(other, 50, schema=some, device="cpu" if device == "numpy" else device)
    keras.utils.set_random_seed(0)
    inputs = {n: keras.Input((1,), name=n) for n in some.features.names}
    x = keras.layers.Concatenate()([keras.ops.cast(v, "float32") / 4096 for v in inputs.values()])
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse")
    losses.append(model.fit(loader, epochs=2, verbose=0).history["loss"])
said["losses"] = losses

# a number that JAX's int32 would cut to another one
jax.default_backend = lambda: "gpu"
wide = np.arange(300)
wide[250] = 2**32 + 5
with ParquetSink(other + "/wide", row_group_rows=100) as sink:
    sink.write(Chunk({"id": wide, "x": np.ones(300, np.float32)}))
for device in ("gpu", "cpu"):
    try:
        list(KerasSequenceLoader(other + "/wide", 50, ["x"], cat_names=["id"], device=device))
    except ParquetError as error:
        said[device] = str(error)
print(json.dumps(said))
"""


def test_on_jax_batches_are_cut_out_of_parts(folder, tmp_path):
    """Equal bit for bit to those of the CPU, made on either device; in few calls; also in `fit`."""
    pytest.importorskip("jax")
    environment = {"KERAS_BACKEND": "jax", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    said = json.loads(run(ON_JAX, folder, tmp_path / "other", **environment).splitlines()[-1])
    assert said["batches"] > 3000
    for layout, budget in CALLS_OF_A_CHUNK["jax"].items():
        made = said["calls"][layout]
        assert {what: made[what] for what in budget} == budget
        assert {what: made[what] for what in COPIES} == COPIES
    assert said["given"] == [40] * 2  # arrays of the host, once a chunk
    assert "4294967301 at row 50 does not fit int32" in said["gpu"] == said["cpu"]
    assert said["losses"][0] == said["losses"][1] == pytest.approx(said["losses"][2], rel=1e-5)


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
