"""Memory: pools and limits; and a memory_budget, measured in processes of their own."""

import itertools
import re
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.memory import allowed_bytes, drawn, growth
from tutorlib import memory
from tutorlib.gpu.memory import missing_for_gpu, parse_allocation
from tutorlib.loader import KerasSequenceLoader, MultiHot
from tutorlib.memory import BufferPool, aligned_empty, host_memory_bytes, resolve_device
from tutorlib.parquet.files import COLUMN_CHUNK_BYTES

MIB, GIB = 2**20, 2**30
# ---- memory for batches --------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "dtype"), [(1, "u1"), (1000, "i4"), (30_001, "V12")])
def test_memory_starts_at_a_multiple_of_64_bytes(rows, dtype):
    for make in (aligned_empty, BufferPool(limit_bytes=MIB).empty):
        array = make((rows, 3), dtype)
        assert array.ctypes.data % 64 == 0
        assert (array.shape, array.dtype) == ((rows, 3), np.dtype(dtype))


@pytest.mark.parametrize("hold", [lambda a: a[5:9, 1], lambda a: a.view("u1"), memoryview])
def test_memory_comes_back_only_when_its_last_view_is_gone(hold):
    pool = BufferPool(limit_bytes=10 * MIB)
    array = pool.empty((1000, 100), np.float32)
    place, held = array.ctypes.data, hold(array)
    del array
    assert pool.used_bytes > 0
    other = pool.empty((1000, 100), np.float32)
    assert other.ctypes.data != place
    del held
    assert pool.empty((1000, 100), np.float32).ctypes.data == place


def test_a_pool_frees_what_it_keeps_beyond_its_limit_before_it_takes_new_memory():
    pool = BufferPool(limit_bytes=4 * MIB)
    arrays = [pool.empty((MIB,), np.uint8) for _ in range(6)]
    arrays.clear()
    assert pool.free_bytes == 6 * MIB
    other = pool.empty((2 * MIB,), np.uint8)
    assert pool.free_bytes == 2 * MIB
    more = pool.empty((8 * MIB,), np.uint8)  # what is needed is given
    assert (pool.free_bytes, pool.used_bytes) == (0, 10 * MIB)
    del other, more
    third = pool.empty((3 * MIB,), np.uint8)
    assert pool.free_bytes + third.nbytes <= 4 * MIB
    pool.clear()
    assert pool.free_bytes == 0


def test_memory_that_is_lent_when_a_pool_is_cleared_is_not_kept_when_it_comes_back():
    pool = BufferPool(limit_bytes=4 * MIB)
    early, late = (pool.empty((MIB,), np.uint8) for _ in range(2))
    del early
    pool.clear()
    del late
    assert (pool.free_bytes, pool.used_bytes) == (0, 0)


def test_a_loader_keeps_the_memory_of_its_batches_until_it_is_closed():
    loader = KerasSequenceLoader(pa.table({"x": np.arange(100_000.0)}), 50_000)
    held = list(loader)
    assert loader._pool.free_bytes > 0
    loader.close()
    assert loader._pool.free_bytes == 0
    del held
    assert loader._pool.free_bytes == 0


@pytest.mark.parametrize("batch_layout", ["columns", "stacked"])
@pytest.mark.parametrize("batch_size", [100, 40_000])
def test_batches_share_no_memory_and_stay_as_they_are_while_any_part_is_held(
    tmp_path, batch_layout, batch_size
):
    rows = np.arange(160_000)
    columns = {"a": rows.astype(np.int32), "b": (rows % 7).astype(np.int32), "y": rows % 2}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=30_000)
    made = {"buffer_size": 50_000, "batch_layout": batch_layout}
    loader = KerasSequenceLoader(tmp_path, batch_size, ["y"], **made)
    arrays = [np.from_dlpack(t) for inputs, label in loader for t in (*inputs.values(), label)]
    places = sorted((array.ctypes.data, array.nbytes) for array in arrays)
    assert all(place % 64 == 0 for place, _ in places)
    assert all(a + nbytes <= b for (a, nbytes), (b, _) in itertools.pairwise(places))
    del arrays
    held, copies = [], []
    for _ in range(3):
        for number, (inputs, label) in enumerate(loader):
            if number % max(1, 4096 // batch_size) == 0:
                kept = [*inputs.values(), label][number % 2]
                held.append(kept if number % 2 else kept.numpy())  # an array may share its memory
                copies.append(np.array(kept, copy=True))
    for kept, copy in zip(held, copies, strict=True):
        np.testing.assert_array_equal(kept, copy)


def test_batches_in_the_order_of_the_files_are_aligned_in_whichever_row_a_chunk_begins(tmp_path):
    pq.write_table(pa.table({"x": np.arange(3000, dtype="f4")}), tmp_path / "x.parquet", 1000)
    made = {"cont_names": ["x"], "buffer_size": 1000, "shuffle": False}
    loader = KerasSequenceLoader(tmp_path, 64, **made)
    arrays = [batch["x"] for batch, _ in loader.as_numpy()]
    assert all(array.ctypes.data % 64 == 0 for array in arrays)
    assert np.concatenate(arrays).ravel().tolist() == list(range(3000))


# ---- threads and limits --------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "want"), [("0.5", 4 * GIB), (8192, 8 * GIB)])
def test_below_one_is_a_share_and_above_are_mebibytes(text, want):
    assert parse_allocation(text, 8 * GIB) == want


@pytest.mark.parametrize("text", ["half", "0", "nan", "2048"])
def test_what_is_no_amount_or_too_much_is_refused(text):
    with pytest.raises(ValueError, match=rf"TF_MEMORY_ALLOCATION='{text}'"):
        parse_allocation(text, GIB)


def test_a_device_and_its_memory_are_told(monkeypatch):
    assert 2**28 < host_memory_bytes() < 2**50
    assert resolve_device(None) == "cpu"
    with pytest.raises(ValueError, match="device must be one of"):
        resolve_device("tpu")
    if missing_for_gpu() is not None:
        with pytest.raises(ValueError, match=r"device='gpu' needs.*pip install 'tutorlib\[gpu\]'"):
            resolve_device("gpu")


@pytest.mark.skipif(sys.platform != "linux", reason="has no control groups")
@pytest.mark.parametrize(
    "texts",
    [{"cpu.max": "50000 100000"}, {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}],
)
def test_a_cpu_quota_limits_the_cores_and_the_reader_threads(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    *_, top = memory.cgroup_folders(Path("/proc/self/cgroup").read_text(), "cpu")
    top.mkdir(exist_ok=True)
    for name, text in texts.items():
        (top / name).write_text(text)
    assert memory.usable_cores() == 1
    loader = KerasSequenceLoader(pa.table({"x": np.arange(10.0)}), 5)
    assert loader.describe()["threads"] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="has no control groups")
@pytest.mark.parametrize("name", ["memory.max", "memory.limit_in_bytes"])
def test_a_limit_of_memory_is_what_a_fraction_is_taken_of(name, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    *_, top = memory.cgroup_folders(Path("/proc/self/cgroup").read_text(), "memory")
    top.mkdir(exist_ok=True)
    (top / name).write_text(f"{64 * MIB}\n")
    assert host_memory_bytes() == 64 * MIB
    loader = KerasSequenceLoader(pa.table({"x": np.arange(10.0)}), 5, buffer_size=0.5)
    assert MIB < loader._size.batch_bytes < 32 * MIB
    (top / name).write_text("max\n")
    assert host_memory_bytes() > 2**28


# ---- a budget, measured --------------------------------------------------------------------------

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm")
QUICK = (0, 1)  # seeds, of small budgets
IDLE_BYTES = 80 * MIB  # that the C library keeps after epochs; malloc_trim() gives most of it back


@LINUX
@pytest.mark.parametrize(
    "seed", [s if s in QUICK else pytest.param(s, marks=pytest.mark.slow) for s in range(20)]
)
def test_a_process_grows_by_no_more_than_a_memory_budget_promises(seed, tmp_path):
    layout = drawn(seed, most_mib=64 if seed in QUICK else 512)
    values = growth(layout, tmp_path).values
    budget = layout.arguments["memory_budget"]
    assert values["planned_bytes"] <= budget
    assert values["peak_bytes"] <= allowed_bytes(budget), layout
    footers = COLUMN_CHUNK_BYTES * len(layout.columns) * layout.row_groups  # which stay
    assert values["idle_bytes"] - footers <= IDLE_BYTES, layout  # a closed loader holds no chunk


@pytest.mark.parametrize("batch_layout", ["columns", "stacked"])
def test_the_budget_that_a_refusal_names_is_accepted(tmp_path, batch_layout):
    columns = {f"f{k}": np.arange(60_000, dtype="float32") for k in range(20)}
    table = pa.table({**columns, "g": [[1, 2, 3]] * 60_000})
    pq.write_table(table, tmp_path / "data.parquet", row_group_size=20_000)
    made = {"batch_size": 4096, "batch_layout": batch_layout}
    with pytest.raises(ValueError, match=r"cannot hold 3 chunks of one batch") as refused:
        KerasSequenceLoader(tmp_path, memory_budget=100_000, **made)
    least = int(re.search(r"at least ([\d,]+) bytes", str(refused.value))[1].replace(",", ""))
    loader = KerasSequenceLoader(tmp_path, memory_budget=least, **made)
    assert loader.describe()["peak_bytes"] <= least
    assert sum(1 for _ in loader) == len(loader)


@pytest.fixture
def small(tmp_path):
    lists = pa.array([[1] * (k % 5) for k in range(1000)])
    pq.write_table(pa.table({"x": range(1000), "g": lists}), tmp_path / "x.parquet", 100)
    return tmp_path / "x.parquet"


def test_threads_are_at_most_three_chunks_ahead_without_a_budget(small):
    rows = []
    loader = KerasSequenceLoader(small, 10, buffer_size=50)
    loader.map(lambda chunk: rows.append(chunk.num_rows) or chunk)
    for number, _ in enumerate(loader):
        time.sleep(0.005)  # the threads get as far as they may
        assert sum(rows) <= 50 * (number // 5 + 3)


def test_a_budget_is_for_four_threads_at_most():
    table = pa.table({"x": np.arange(10.0)})
    for budget, threads, want in ((None, 9, 9), ("1MB", 9, 4), ("1MB", 3, 3)):
        loader = KerasSequenceLoader(table, 5, threads=threads, memory_budget=budget)
        assert loader.describe()["threads"] == want


def test_a_budget_holds_padded_lists_in_their_width():
    rows, width, budget = 50_000, 200, 32 * MIB
    offsets = pa.array(np.arange(0, 2 * rows + 1, 2), pa.int32())
    table = pa.table({"g": pa.ListArray.from_arrays(offsets, pa.array(np.ones(2 * rows, int)))})
    made = {"cat_names": ["g"], "memory_budget": budget}
    chunk_rows = {}
    for form in ("nnzs", MultiHot("padded"), MultiHot("padded", max_length=width)):
        loader = KerasSequenceLoader(table, 500, multi_hot=form, **made)
        chunk_rows[form] = loader.describe()["chunk_rows"]
    narrow, short, wide = chunk_rows.values()
    assert narrow == short == rows  # two ids in each
    assert 500 <= wide <= budget / (3 * 8 * width)


def test_a_budget_holds_what_a_mapped_function_makes():
    table = pa.table({f"x{k}": np.arange(50_000.0) for k in range(8)})
    loader = KerasSequenceLoader(table, 500, memory_budget=4 * MIB)
    before = loader.describe()["chunk_rows"]
    after = loader.map(lambda rows: rows).describe()
    assert 500 <= after["chunk_rows"] < 0.9 * before
    assert after["peak_bytes"] <= 4 * MIB


@pytest.mark.parametrize("parts", [None, 8])
def test_a_fraction_of_the_memory_holds_all_chunks_that_exist(parts):
    made = {"buffer_size": 0.5, "parts_per_chunk": parts}
    loader = KerasSequenceLoader(pa.table({"x": np.arange(1000.0)}), 100, **made)
    batches = loader._size.batch_bytes  # the data have fewer rows
    assert 0.05 * host_memory_bytes() < batches < 0.5 * host_memory_bytes()
