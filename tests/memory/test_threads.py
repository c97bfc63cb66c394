"""map_on_threads: results in order; after an error nothing begins and nothing is left running."""

import threading
import time
from concurrent.futures import CancelledError

import pytest

from tutorlib.memory import map_on_threads


def test_results_have_the_order_of_the_items():
    def slow_at_first(number):
        time.sleep(0.02 / (number + 1))
        return number

    assert map_on_threads(slow_at_first, range(20), threads=4) == list(range(20))
    assert map_on_threads(slow_at_first, [], threads=4) == []


def test_no_more_threads_run_than_asked_for():
    running, most, lock = 0, 0, threading.Lock()

    def call(_):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1

    map_on_threads(call, range(20), threads=3)
    assert most == 3


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
    assert threading.active_count() == before
    assert told == [True]
    assert sorted(begun) == [0, 1]


def test_of_errors_at_the_same_time_one_is_raised():
    barrier = threading.Barrier(4)

    def call(number):
        barrier.wait()
        raise ValueError(f"item {number}")

    with pytest.raises(ValueError, match="item"):
        map_on_threads(call, range(4), threads=4)


def test_a_call_that_ends_early_does_not_hide_the_error_of_a_later_item():
    stop = threading.Event()

    def call(number):
        if number == 1:
            raise KeyError("item 1")
        stop.wait(timeout=60)
        raise CancelledError

    with pytest.raises(KeyError, match="item 1"):
        map_on_threads(call, range(2), threads=2, stop=stop)


def test_on_one_thread_the_item_that_fails_is_the_last_that_begins():
    begun = []

    def call(number):
        begun.append(number)
        if number == 3:
            raise KeyError("item 3")

    with pytest.raises(KeyError, match="item 3"):
        map_on_threads(call, range(100_000), threads=1)
    assert begun == [0, 1, 2, 3]
