"""Memory: pools, threads and limits; and a memory_budget, measured in processes of their own.

`pytest -m slow tests/memory` measures all kinds of layouts, MEMORY_SEED=1 with other numbers.
"""

import concurrent.futures
import itertools
import os
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tests.support.loader_memory import MB, Layout, measure
from tutorlib import MultiHot
from tutorlib.gpu.memory import limit_tensorflow_memory, missing_for_gpu, parse_allocation
from tutorlib.loader import KerasSequenceLoader
from tutorlib.memory import BufferPool, aligned_empty, host_memory_bytes, resolve_device
from tutorlib.workflow.threads import map_on_threads

MIB, GIB = 2**20, 2**30
HAS_GPU = bool(tf.config.list_physical_devices("GPU"))

# ---- memory for batches --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["u1", "i4", "f8", "V12"])
@pytest.mark.parametrize("rows", [1, 1000, 30_001])
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


def test_a_pool_keeps_no_more_than_its_limit_and_makes_room_for_other_sizes():
    pool = BufferPool(limit_bytes=4 * MIB)
    arrays = [pool.empty((MIB,), np.uint8) for _ in range(6)]
    arrays.clear()
    assert pool.free_bytes == 4 * MIB
    other = pool.empty((2 * MIB,), np.uint8)
    assert pool.free_bytes == 2 * MIB
    more = pool.empty((8 * MIB,), np.uint8)  # what is needed is given
    assert (pool.free_bytes, pool.used_bytes) == (0, 10 * MIB)
    del other, more
    assert pool.free_bytes <= 4 * MIB
    pool.clear()
    assert pool.free_bytes == 0


def test_a_pool_counts_memory_as_in_use_or_as_kept_each_time_that_it_is_lent():
    pool = BufferPool(limit_bytes=4 * MIB)
    for _ in range(3):
        array = pool.empty((MIB,), np.uint8)
        assert (pool.used_bytes, pool.free_bytes) == (MIB, 0)
        del array
        assert (pool.used_bytes, pool.free_bytes) == (0, MIB)


def test_threads_never_get_the_same_memory():
    pool, wrong = BufferPool(limit_bytes=64 * MIB), []

    def work(number):
        for _ in range(300):
            array = pool.empty((100_000,), np.int64)
            array[:] = number
            if (array != number).any():
                wrong.append(number)

    map_on_threads(work, range(4), threads=4)
    assert not wrong


@pytest.mark.parametrize("batch_layout", ["columns", "stacked"])
@pytest.mark.parametrize("batch_size", [100, 256, 40_000])
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


EXIT = """
import numpy as np, sys
from tutorlib.memory import BufferPool
for holder in (sys, np, BufferPool):
    holder.held = BufferPool(2**30).empty((1000, 1000), np.float32)
"""


def test_memory_that_is_held_until_the_process_ends_says_nothing():
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


# ---- threads and limits --------------------------------------------------------------------------


def test_results_of_threads_have_the_order_of_the_items():
    def slow_at_first(number):
        time.sleep(0.02 / (number + 1))
        return number

    assert map_on_threads(slow_at_first, range(20), threads=4) == list(range(20))
    assert map_on_threads(slow_at_first, [], threads=4) == []


def test_after_an_error_no_item_begins_and_those_that_run_are_told():
    stop, begun, told = threading.Event(), [], []

    def call(number):
        begun.append(number)
        if number == 1:
            raise KeyError("item 1")
        told.append(stop.wait(timeout=60))

    before = threading.active_count()
    with pytest.raises(KeyError, match="item 1"):
        map_on_threads(call, range(100), threads=2, stop=stop)
    assert (threading.active_count(), told) == (before, [True])
    assert len(begun) == 2


@pytest.mark.parametrize(
    ("text", "want"), [("0.5", 4 * GIB), (0.25, 2 * GIB), ("1024", GIB), (8192, 8 * GIB)]
)
def test_below_one_is_a_share_and_above_are_mebibytes(text, want):
    assert parse_allocation(text, 8 * GIB) == want


@pytest.mark.parametrize("text", ["half", "0", "-1", "nan", "2048"])
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


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs an NVIDIA GPU")
def test_after_the_gpu_is_in_use_the_limit_is_refused():
    tf.zeros(1).gpu()
    with pytest.raises(RuntimeError, match="already initialised"):
        limit_tensorflow_memory(0.5)


# ---- a budget, measured --------------------------------------------------------------------------

ALLOWED_BYTES = 32 * MIB  # as the docstring of the loader says
FLOATS = {f"c{k}": "int32" for k in range(20)} | {f"f{k}": "float32" for k in range(20)}
PADDED = {"multi_hot": {"form": "padded", "max_length": 100}}
LAYOUTS = {  # {kind: (rows of row groups, columns, most of the budget, arguments)}
    "numbers": ((50_000,) * 15, FLOATS, 1.1, {}),
    "slices": ((750_000,), FLOATS, 1.1, {}),
    "stacked": ((50_000,) * 15, FLOATS, 1.2, {"batch_layout": "stacked"}),
    "filters": ((4_000_000,), {"c": "int8", "d": "int32"}, 1.1, {"filters": [("c", "<", 50)]}),
    "lists": ((100_000,) * 5, {"g": ("list", "uniform", 4), "x": "int32"}, 1.25, {}),
    "padded": ((100_000,) * 5, {"g": ("list", "sorted", 4), "x": "int32"}, 1.25, PADDED),
    "one wide group": (
        (10_000,) * 6, {"g": ("list", "fixed", [9, 9, 1000, 9, 9, 9]), "x": "int32"}, 1.25, {},
    ),
    "long lists": ((8000,) * 4, {"g": ("list", "sorted", 300)}, 1.25, {}),
    # Two threads each hold a row group's dictionary of 20 MB while they make ids of it.
    "strings": (
        (20_000,) * 4, {"s": ("string", 1000, None), "y": "int32"}, 2.5, {"label_names": ["y"]},
    ),
}  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/clear_refs")
@pytest.mark.parametrize(
    "kind",
    [kind if kind == "slices" else pytest.param(kind, marks=pytest.mark.slow) for kind in LAYOUTS],
)
def test_memory_stays_within_the_budget_or_the_rows_are_refused_by_name(kind, tmp_path):
    rows, columns, most, options = LAYOUTS[kind]
    seed = int(os.environ.get("MEMORY_SEED", 0))
    random = np.random.default_rng([seed, len(kind)])
    budget = (100 if columns is FLOATS else 60) * MB + int(random.integers(20 * MB))
    batch_size = int(random.choice([64, 500, 1000]))
    mapped = "hash" if kind == "strings" else None
    layout = Layout(rows, columns, budget, batch_size, options=options, mapped=mapped)
    measured = measure(layout, tmp_path, seed)
    assert measured["peak"] <= most * budget + ALLOWED_BYTES, (layout, measured)
    assert "memory_budget" in measured.get("refused", "memory_budget"), measured


KINDS = {  # {kind: (a column, bytes of a row of it, how many budgets it may take beside 32 MiB)}
    "numbers": ("float32", 4, 1.25),
    "ids": ("int64", 8, 1.25),
    "lists": (("list", "uniform", 8), 72, 1.75),
    "sorted": (("list", "sorted", 30), 250, 1.75),
    "skewed": (("list", "pareto", 8), 75, 1.75),
    "texts": (("string", 200, None), 208, 2.5),
    "words": (("string", 30, 500), 38, 2.5),
}


QUICK = (0, 6, 14)  # seeds of texts that are refused, of sorted lists, and of stacked numbers


def drawn(seed):
    """Return (a layout of 20 to 120 MB, how many budgets it may take), drawn at random.

    A row group takes 0.02 to 1.3 budgets.
    """
    random = np.random.default_rng(seed)
    kind = str(random.choice(list(KINDS)))
    column, row, most = KINDS[kind]
    count = int(random.integers(10, 60)) if kind in ("numbers", "ids") else 1
    total = int(random.integers(20, 120)) * MB
    groups = int(random.choice([1, 2, 3, 4, 8, 20, 60]))
    rows = max(50, total // groups // (count * row))
    budget = int(max(24 * MIB, total / groups * random.uniform(0.8, 4)))
    options = {"threads": int(random.integers(1, 5))}
    options["shuffle"] = bool(random.random() < 0.8)
    mapped = "hash" if kind in ("texts", "words") else None
    columns = {f"c{k}": column for k in range(count)} | {"y": "int32"}
    options["label_names"] = ["y"]
    if kind in ("numbers", "ids"):
        options["batch_layout"] = str(random.choice(["columns", "stacked"]))
        mapped = [None, "function"][int(random.integers(2))]
        if random.random() < 0.2:
            options["filters"] = [("y", "<", 50)]
    if random.random() < 0.2:
        options["buffer_size"] = int(random.integers(1000, 100_000))
    plain = random.random() < 0.3 and mapped != "hash"
    parquet = {"compression": "none", "use_dictionary": False} if plain else {}
    batch_size = int(random.choice([256, 1000, 4096]))
    more = options, mapped, parquet, 10
    return Layout((rows,) * groups, columns, budget, batch_size, 1, *more), most


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/clear_refs")
@pytest.mark.parametrize(
    "seed",
    [s if s in QUICK else pytest.param(s, marks=pytest.mark.slow) for s in range(40)],
)
def test_a_process_keeps_to_a_memory_budget_over_ten_epochs_of_any_layout(seed, tmp_path):
    layout, most = drawn([seed, int(os.environ.get("MEMORY_SEED", 0))])
    measured = measure(layout, tmp_path)
    assert measured["peak"] <= most * layout.budget + ALLOWED_BYTES, (layout, measured)
    if "refused" in measured:
        assert re.search(r"row group \d+ of .*data\.parquet.* column 'c?\w", measured["refused"])
        assert re.search(r"at least [\d,]+ bytes", measured["refused"])


ADVISED = {  # layouts for which a small budget is refused with one that is accepted
    "one large row group": ({f"f{k}": "float32" for k in range(20)}, (400_000,), {}),
    "lists": ({"g": ("list", "uniform", 40), "x": "int32"}, (5000,) * 4, {}),
    "stacked": (FLOATS, (20_000,) * 3, {"batch_layout": "stacked"}),
    "in order": (FLOATS, (60_000,), {"shuffle": False}),
}


@pytest.mark.parametrize("kind", ADVISED)
def test_the_budget_that_a_refusal_names_is_accepted(tmp_path, kind):
    from tests.support.loader_memory import write

    columns, rows, options = ADVISED[kind]
    write(Layout(rows, columns, 0), tmp_path)
    path = tmp_path / "data.parquet"
    with pytest.raises(ValueError, match=r"cannot hold two batches") as refused:
        KerasSequenceLoader(path, 4096, memory_budget=100_000, **options).describe()
    if kind == "one large row group":
        place = r"row group 0 of .*data\.parquet takes [\d,]+ bytes while it is open, column 'f\d+'"
        assert re.search(place, str(refused.value))
    least = int(re.search(r"at least ([\d,]+) bytes", str(refused.value))[1].replace(",", ""))
    loader = KerasSequenceLoader(path, 4096, memory_budget=least, **options)
    assert loader.describe()["peak_bytes"] <= least
    assert sum(len(next(iter(inputs.values()))) for inputs, _ in loader) > 0


def late_lists(path, row_group_rows):
    """Write 20,000 lists, all but the last tenth of them with one value; returns their values."""
    lengths = np.ones(20_000, np.int64)
    lengths[-2000:] = 2000
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    lists = pa.LargeListArray.from_arrays(offsets, np.arange(offsets[-1]) % 1000)
    pq.write_table(pa.table({"g": lists}), path, row_group_size=row_group_rows)
    return int(offsets[-1])


def values_in(path, budget):
    loader = KerasSequenceLoader(path, 50, memory_budget=budget)
    return sum(inputs["g__values"].shape[0] for inputs, _ in loader)


def test_lists_far_longer_than_the_mean_of_their_row_group_are_refused_with_what_would_do(tmp_path):
    path, small = tmp_path / "x.parquet", tmp_path / "small.parquet"
    count = late_lists(path, 20_000)
    with pytest.raises(ValueError, match=r"rows \[.*row group 0 of .*x\.parquet") as refused:
        values_in(path, 8 * MB)
    assert re.search(r"smaller row groups .* memory_budget of at least [\d,]+", str(refused.value))
    assert values_in(path, 100 * MB) == count
    assert late_lists(small, 1000) == values_in(small, 21 * MB) == count


@pytest.fixture
def small(tmp_path):
    lists = pa.array([[1] * (k % 5) for k in range(1000)])
    pq.write_table(pa.table({"x": range(1000), "g": lists}), tmp_path / "x.parquet", 100)
    return tmp_path / "x.parquet"


def test_a_budget_holds_one_pass_at_a_time_also_one_that_waits_on_another_thread(small):
    began, go_on = threading.Event(), threading.Event()

    def wait(chunk):
        began.set()
        assert go_on.wait(60)
        return chunk

    loader = KerasSequenceLoader(small, 10, memory_budget=50 * MB).map(wait)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        rows = threads.submit(lambda: sum(inputs["x"].shape[0] for inputs, _ in loader))
        assert began.wait(60)
        with pytest.raises(RuntimeError, match=r"memory_budget=50,000,000 .* another pass .* open"):
            loader.peek()
        go_on.set()
        assert rows.result(60) == 1000
    first = iter(loader)
    next(first)
    first.close()
    assert len(list(loader)) == len(loader)
    without = KerasSequenceLoader(small, 10)
    assert len(list(zip(without, without, strict=True))) == len(without)


def test_rows_that_were_given_out_do_not_count_for_a_budget(tmp_path):
    offsets = np.arange(0, 4 * 1_200_000 + 1, 4)
    lists = pa.LargeListArray.from_arrays(offsets, np.arange(offsets[-1]) % 1000)
    pq.write_table(pa.table({"g": lists}), tmp_path / "x.parquet", row_group_size=40_000)
    made = {"buffer_size": 40_000, "memory_budget": 28 * MB}  # 30 row groups of 1.6 MB
    loader = KerasSequenceLoader(tmp_path, 1000, **made)
    assert sum(inputs["g__values"].shape[0] for inputs, _ in loader) == offsets[-1]


def test_threads_are_at_most_three_chunks_ahead_without_a_budget(small):
    rows = []
    loader = KerasSequenceLoader(small, 10, buffer_size=50)
    loader.map(lambda chunk: rows.append(chunk.num_rows) or chunk)
    for number, _ in enumerate(loader):
        time.sleep(0.005)  # the threads get as far as they may
        assert sum(rows) <= 50 * (number // 5 + 3)


def test_batches_of_numbers_that_are_kept_are_no_fault_of_a_budget():
    table = pa.table({"x": np.arange(2_000_000.0)})
    loader = KerasSequenceLoader(table, 1000, memory_budget=4 * MB, shuffle=False)
    kept = [np.asarray(inputs["x"]) for inputs, _ in loader]
    np.testing.assert_array_equal(np.concatenate(kept)[:, 0], np.arange(2_000_000))


def test_padding_within_a_budget_needs_the_longest_list(small):
    made = {"multi_hot": "padded", "memory_budget": 50 * MB}
    with pytest.raises(ValueError, match=r"needs a longest list: .* long list of \['g'\]"):
        KerasSequenceLoader(small, 10, **made)
    KerasSequenceLoader(small, 10, cat_names=["x"], cont_names=[], **made)  # has no lists
    made["multi_hot"] = MultiHot("padded", max_length=4)
    assert len(list(KerasSequenceLoader(small, 10, **made))) == 100
