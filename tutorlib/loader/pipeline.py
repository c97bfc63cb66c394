"""Pipeline: threads that do the work of chunks, a bounded distance ahead of the consumer.

A pipeline serves one pass over an epoch. The work of a chunk comes in stages of tasks, each of
which can run to its end without waiting for a later one; so any number of threads makes progress,
even one. Finished chunks go to the consumer in order. Three chunks exist at most: the one that the
consumer is in, and two that are filled or wait for it.

Ctrl-C may interrupt the consumer between any two bytecodes, and the garbage collector may drop a
pass while a thread holds any lock. So the consumer takes no lock: it uses `SimpleQueue`, whose
calls are atomic, and attributes that are written once. Locks are for reader threads alone.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import heapq
import math
import operator
import os
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, Protocol

Task = Callable[[], Any]
CHUNKS = 3  # that exist at a time
NO_TASK = math.inf, 0

_process = [os.getpid()]  # which process this is; asking the system for every batch takes longer
os.register_at_fork(after_in_child=lambda: _process.__setitem__(0, os.getpid()))


class Work(Protocol):
    """What is to be done for one chunk."""

    def stages(self) -> list[list[Task]]:
        """Return the tasks of each stage; a stage begins when the one before it has ended."""

    def finish(self) -> None:
        """Drop what only the tasks needed."""


class Stopwatch:
    """Seconds and counts by name, from any thread; without a lock, each has sums of its own."""

    def __init__(self) -> None:
        self._sums_of_threads: dict[int, dict[str, float]] = {}

    def add(self, **amounts: float) -> None:
        """Add to the named sums."""
        sums = self._sums_of_threads.setdefault(threading.get_ident(), {})
        for name, amount in amounts.items():
            sums[name] = sums.get(name, 0.0) + amount

    @contextlib.contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        """Add the seconds that the block takes."""
        started = time.perf_counter()
        yield
        self.add(**{stage: time.perf_counter() - started})

    def sums(self) -> dict[str, float]:
        """Return the sums so far."""
        total: dict[str, float] = defaultdict(float)
        for sums in list(self._sums_of_threads.values()):
            for name, amount in list(sums.items()):
                total[name] += amount
        return dict(total)


class Pipeline:
    """Does the work of chunks in order.

    Args:
        chunks: number of chunks.
        work_on: returns the work of chunk number k; called once for each, in order.
        threads: number of worker threads; they start with the first `next_work`.
        stopwatch: adds up the seconds of "wait".
        at_end: called when the threads have ended.
        owner: when it is dropped, the threads stop, and nobody waits for them.
    """

    def __init__(
        self,
        chunks: int,
        work_on: Callable[[int], Work],
        *,
        threads: int,
        stopwatch: Stopwatch,
        at_end: Callable[[], None],
        owner: object,
    ) -> None:
        self._chunks, self._work_on = chunks, work_on
        self._stopwatch, self._at_end = stopwatch, at_end
        self._process = _process[0]
        # The consumer's own:
        self._asked = False  # for the threads to start
        # Between the consumer and the threads:
        self._taken = 0  # chunks that the consumer has asked for
        self._tickets: SimpleQueue[Any] = SimpleQueue()  # each has one thread look for a task
        # The callback of the weak reference waits for nothing and has no bytecode: it can neither
        # hang nor be interrupted. Its ticket is the reference.
        self._owner = weakref.ref(owner, self._tickets.put)
        self._results: SimpleQueue[Work | None] = SimpleQueue()  # in order; None: stopped
        self._errors: list[tuple[tuple[float, int], BaseException]] = []  # with the task's place
        self._stopping = self._began = self._ended = False
        self._closers: list[SimpleQueue[None]] = []  # what waits for the threads to end
        # The threads' own, under _lock:
        self._lock = threading.Lock()
        self._begun = self._delivered = 0  # chunks
        self._tasks: list[tuple[int, int, Task]] = []  # a heap of (chunk, number in it, task)
        self._works: dict[int, tuple[Work, list[list[Task]]]] = {}  # with the stages that follow
        self._left: dict[int, int] = {}  # tasks of a chunk's stage that have not ended
        self._num_threads, self._threads = threads, list[threading.Thread]()

    def next_work(self) -> Any:
        """Return the work of the next chunk when it is done; None after the last, or once closed.

        After an interrupt within this call, the pipeline must be closed.

        Raises:
            Exception: what a task raised, on the caller's thread, as soon as the tasks that were
                running then have ended. Of several errors it is that of the first task, so that
                the message does not depend on threads.
        """
        if self._taken >= self._chunks:
            return None
        if not self._asked:
            self._asked = True
            # Thread.start() waits under a lock, which an interrupt would leave held.
            _thread.start_new_thread(self._start, ())
        self._taken += 1
        self._tickets.put(None)
        with self._stopwatch.timing("wait"):
            work = self._results.get()
        return None if self.has_stopped() else work

    def has_stopped(self) -> bool:
        """Return whether the threads were stopped; raises the error of a task that failed.

        Raises:
            RuntimeError: in a fork of the process, which has none of the threads.
        """
        if self._process != _process[0]:
            raise RuntimeError(
                "this pass began before the process was forked, and its threads are not in the "
                "fork; iterate over the loader again"
            )
        if not self._stopping:
            return False
        self.close()
        if self._errors:
            _, error = min(self._errors, key=operator.itemgetter(0))
            self._errors.clear()  # nothing here holds it or its traceback any longer
            raise error
        return True

    def _stop(self) -> None:
        self._stopping = True
        self._tickets.put(None)
        self._results.put(None)

    def close(self) -> None:
        """Stop the threads, wait for them and release all memory. May be called again."""
        if self._process != _process[0]:
            return  # a fork has none of the threads
        self._stop()
        if not self._began:
            return  # a thread that begins from now on finds that it has to stop
        if threading.get_ident() in [thread.ident for thread in self._threads]:
            return  # called from a mapped function: waiting for itself would hang
        ended: SimpleQueue[None] = SimpleQueue()
        self._closers.append(ended)
        if not self._ended:
            ended.get()

    def _start(self) -> None:
        try:
            threading.Thread(target=self._supervise, name="tutorlib-pass", daemon=True).start()
        except BaseException as error:
            self._fail(error)

    def _supervise(self) -> None:
        """Start the threads, wait for their end and release what they held."""
        self._began = True
        atexit.register(self.close)  # a thread must not work while the interpreter goes away
        try:
            for number in range(self._num_threads):
                if not self._stopping:
                    name = f"tutorlib-reader-{number}"
                    thread = threading.Thread(target=self._run, name=name, daemon=True)
                    self._threads.append(thread)
                    thread.start()
        except BaseException as error:
            self._fail(error)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._threads.clear()  # one that never started would hold this pipeline, as its target
        self._works.clear()
        self._tasks.clear()
        while not self._results.empty():
            self._results.get()
        self._results.put(None)
        try:
            self._at_end()
        finally:
            atexit.unregister(self.close)
            self._ended = True
            for closer in list(self._closers):
                closer.put(None)

    def _fail(self, error: BaseException, place: tuple[float, int] = NO_TASK) -> None:
        """Stop, and have the consumer raise the error of a task: (chunk, number in it)."""
        self._errors.append((place, error))
        self._stop()

    def _run(self) -> None:
        place: tuple[float, int] = NO_TASK
        try:
            while True:
                if self._tickets.get() is not None:  # the owner was dropped
                    self._stop()
                if self._stopping:
                    self._tickets.put(None)  # for the next thread
                    return
                with self._lock:
                    self._begin_chunks()
                    if not self._tasks:
                        continue
                    chunk, number, task = heapq.heappop(self._tasks)
                    self._begin_chunks()
                place = chunk, number
                task()
                del task  # it may hold decoded rows
                place = NO_TASK
                with self._lock:
                    self._end_task(chunk)
        except BaseException as error:  # whatever it is: the consumer's thread raises it
            self._fail(error, place)

    def _begin_chunks(self) -> None:
        """Queue the tasks of chunks that may begin; the caller holds the lock."""
        while self._begun < self._chunks:
            # The chunk that the consumer is in, and those that are being filled for it.
            if self._begun - max(0, self._taken - 1) >= CHUNKS:
                return
            work = self._work_on(self._begun)
            self._works[self._begun] = work, work.stages()
            self._begun += 1
            self._begin_stage(self._begun - 1)

    def _begin_stage(self, chunk: int) -> None:
        _, stages = self._works[chunk]
        tasks = stages.pop(0)
        self._left[chunk] = len(tasks)
        # A later stage of an earlier chunk comes before what later chunks do.
        first = 10_000 * (10 - len(stages))  # numbers rise from stage to stage
        for number, task in enumerate(tasks, first):
            heapq.heappush(self._tasks, (chunk, number, task))
            self._tickets.put(None)

    def _end_task(self, chunk: int) -> None:
        """Begin the next stage of a chunk, or deliver the chunks that are done, in order."""
        self._left[chunk] -= 1
        if self._left[chunk]:
            return
        work, stages = self._works[chunk]
        if stages:
            self._begin_stage(chunk)
            return
        work.finish()
        while self._delivered in self._works:
            work, stages = self._works[self._delivered]
            if stages or self._left[self._delivered]:
                return
            del self._works[self._delivered], self._left[self._delivered]
            self._delivered += 1
            self._results.put(work)
