"""DevicePool: what a consumer may still be working on is neither used again nor freed."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutorlib.memory import DevicePool, HostSpace

MIB = 2**20


class Watched(HostSpace):
    """Notes what was waited for and what was asked for, in order."""

    def __init__(self, limit_bytes=None):
        super().__init__(limit_bytes)
        self.events = []

    def finish_consumers(self):
        self.events.append("waited")

    def allocate(self, nbytes):
        self.events.append(nbytes)
        return super().allocate(nbytes)


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=3), st.sampled_from(["u1", "i4", "f8"]))
def test_arrays_start_aligned_and_have_their_shape(shape, dtype):
    shape = tuple(min(length, 50) for length in shape)
    array = DevicePool(HostSpace(), MIB).empty(shape, dtype)
    assert array.shape == shape
    assert array.dtype == np.dtype(dtype)
    assert array.ctypes.data % HostSpace.alignment == 0


@pytest.mark.parametrize("hold", [lambda a: a[5:9, 1], lambda a: a.view("u1"), memoryview])
def test_memory_comes_back_only_when_its_last_view_is_gone(hold):
    pool = DevicePool(HostSpace(), 10 * MIB)
    array = pool.empty((1000, 100), np.float32)
    address, held = array.ctypes.data, hold(array)
    del array
    other = pool.empty((1000, 100), np.float32)
    assert other.ctypes.data != address
    del held
    assert pool.empty((1000, 100), np.float32).ctypes.data == address


def test_what_came_back_is_waited_for_before_it_is_used_again():
    space = Watched()
    pool = DevicePool(space, 10 * MIB)
    pool.empty((MIB,), np.uint8)
    first = space.events.copy()
    pool.empty((MIB,), np.uint8)
    pool.empty((MIB,), np.uint8)
    assert space.events == [*first, "waited", "waited"]


def test_one_wait_is_enough_for_all_that_came_back():
    space = Watched()
    pool = DevicePool(space, 10 * MIB)
    arrays = [pool.empty((MIB,), np.uint8) for _ in range(4)]
    space.events.clear()
    arrays.clear()
    again = [pool.empty((MIB,), np.uint8) for _ in range(4)]
    assert space.events == ["waited"]
    assert len(again) == 4


def test_memory_is_freed_only_after_waiting():
    space = Watched()
    pool = DevicePool(space, limit_bytes=0)
    pool.empty((MIB,), np.uint8)
    space.events.clear()
    pool.clear()
    assert space.events == ["waited"]
    assert pool.free_bytes == 0
    pool.empty((MIB,), np.uint8)
    space.events.clear()
    del pool
    gc.collect()
    assert space.events == ["waited"]  # a pool that goes does not take it from under a consumer


def test_more_than_the_limit_is_not_kept():
    pool = DevicePool(HostSpace(), limit_bytes=2 * MIB)
    arrays = [pool.empty((MIB,), np.uint8) for _ in range(5)]
    arrays.clear()
    assert pool.free_bytes == 5 * MIB  # a consumer may still read it
    held = pool.empty((100,), np.uint8)
    assert pool.free_bytes <= 2 * MIB
    assert len(held) == 100


def test_free_memory_is_given_up_before_one_says_that_there_is_none():
    class OneAtATime(Watched):
        """Has one piece of memory."""

        def allocate(self, nbytes):
            if len(pool._free.get(4 * MIB, [])):
                raise MemoryError("only one")
            return super().allocate(nbytes)

    space = OneAtATime()
    pool = DevicePool(space, 10 * MIB)
    pool.empty((4 * MIB,), np.uint8)
    assert len(pool.empty((6 * MIB,), np.uint8)) == 6 * MIB


def test_room_is_made_elsewhere_before_one_says_that_there_is_none():
    class Full(Watched):
        def allocate(self, nbytes):
            if "relieved" not in self.events:
                raise MemoryError("full")
            return super().allocate(nbytes)

    space = Full()
    pool = DevicePool(space, MIB, relieve=lambda: space.events.append("relieved"))
    assert len(pool.empty((100,), np.uint8)) == 100
    pool.empty((MIB,), np.uint8)
    assert space.events.count("relieved") == 1


def test_where_there_is_none_it_says_what_to_change():
    pool = DevicePool(HostSpace(limit_bytes=MIB), MIB)
    with pytest.raises(MemoryError, match=r"no 2\.0 MiB for batches \(.*\)\. Give a smaller "):
        pool.empty((2 * MIB,), np.uint8)
    assert pool.empty((MIB // 2,), np.uint8) is not None


def test_a_copy_has_memory_of_its_own():
    array = np.arange(10)
    copy = DevicePool(HostSpace(), MIB).copy(array)
    np.testing.assert_array_equal(copy, array)
    assert not np.shares_memory(copy, array)
