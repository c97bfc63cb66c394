"""Buffers: aligned, and never used again while anything still shows them."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutorlib.columns import Chunk
from tutorlib.loader import KerasSequenceLoader
from tutorlib.memory import BufferPool, aligned, aligned_empty
from tutorlib.parquet import ParquetSink

MIB = 2**20


@given(
    st.lists(st.integers(1, 30_000), min_size=1, max_size=3),
    st.sampled_from(["u1", "i4", "f8", "V12"]),
)
def test_memory_starts_at_a_multiple_of_64_bytes(shape, dtype):
    pool = BufferPool(limit_bytes=MIB)
    for array in (aligned_empty((shape[0],), dtype), pool.empty((shape[0],), dtype)):
        assert array.ctypes.data % 64 == 0
        assert array.shape == (shape[0],)
        assert array.dtype == np.dtype(dtype)


def test_a_copy_is_aligned_and_has_its_own_memory():
    array = np.arange(100)[3:]
    copy = aligned(array)
    np.testing.assert_array_equal(copy, array)
    assert copy.ctypes.data % 64 == 0
    assert not np.shares_memory(copy, array)


@pytest.mark.parametrize("hold", [lambda a: a[5:9, 1], lambda a: a.view("u1"), memoryview])
def test_memory_comes_back_only_when_its_last_view_is_gone(hold):
    pool = BufferPool(limit_bytes=10 * MIB)
    array = pool.empty((1000, 100), np.float32)
    place = array.ctypes.data
    held = hold(array)
    del array
    other = pool.empty((1000, 100), np.float32)
    assert other.ctypes.data != place
    del held
    assert pool.empty((1000, 100), np.float32).ctypes.data == place


def test_more_than_the_limit_is_not_kept():
    pool = BufferPool(limit_bytes=MIB)
    arrays = [pool.empty((MIB // 2,), np.uint8) for _ in range(5)]
    arrays.clear()
    assert pool.free_bytes <= MIB
    pool.clear()
    assert pool.free_bytes == 0


def test_memory_of_other_sizes_makes_room():
    pool = BufferPool(limit_bytes=4 * MIB)
    arrays = [pool.empty((MIB,), np.uint8) for _ in range(4)]
    arrays.clear()
    assert pool.free_bytes == 4 * MIB
    other = pool.empty((2 * MIB,), np.uint8)
    assert pool.free_bytes == 2 * MIB
    more = pool.empty((8 * MIB,), np.uint8)  # what is needed is given
    assert pool.free_bytes == 0
    del other, more
    assert pool.free_bytes <= 4 * MIB


def test_threads_never_get_the_same_memory():
    pool, wrong = BufferPool(limit_bytes=64 * MIB), []

    def work(number):
        for _ in range(300):
            array = pool.empty((100_000,), np.int64)
            array[:] = number
            if (array != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("batch_layout", ["columns", "stacked"])
def test_batches_that_are_kept_do_not_change(tmp_path, batch_layout):
    """Tensors of an epoch are held while two more go by; half of them are let go in between."""
    rows = np.arange(200_000)
    columns = {"a": rows.astype(np.int32), "b": (rows % 7).astype(np.int32), "y": rows % 2}
    with ParquetSink(tmp_path / "x.parquet", row_group_rows=30_000) as sink:
        sink.write(Chunk(columns))
    loader = KerasSequenceLoader(
        tmp_path / "x.parquet", 40_000, ["y"], buffer_size=50_000, batch_layout=batch_layout
    )
    name = "a" if batch_layout == "columns" else "categorical"
    held = [inputs[name] for inputs, _ in loader]
    copies = [tensor.numpy().copy() for tensor in held]
    for _ in range(2):
        del held[0], copies[0]
        assert sum(len(inputs[name]) for inputs, _ in loader) == len(rows)
        for tensor, copy in zip(held, copies, strict=True):
            np.testing.assert_array_equal(tensor, copy)


EXIT = """
import sys
import numpy as np
from tutorlib.memory import BufferPool, DevicePool, HostSpace

for number, pool in enumerate((BufferPool(2**30), DevicePool(HostSpace(), 2**30))):
    for holder in (sys, np, BufferPool):
        setattr(holder, f"held_{number}", pool.empty((1000, 1000), np.float32))
"""


def test_memory_that_is_held_until_the_process_ends_says_nothing():
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
