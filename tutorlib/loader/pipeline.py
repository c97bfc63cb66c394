"""Pipeline: threads that do the work of chunks, a bounded distance ahead of the consumer.

A pipeline serves one pass over an epoch. A thread of its own, the driver, has a pool of reader
threads do the tasks of chunks, and hands the chunks to the consumer in order. The pool is first in,
first out, so a task may wait for tasks that were submitted before it: any number of threads makes
progress, even one. Three chunks exist at most: the one that the consumer is in, and two that are
filled or wait for it.

Ctrl-C may interrupt the consumer between any two bytecodes, and the garbage collector may drop a
pass while a thread holds any lock. So the consumer takes no lock: it uses `SimpleQueue`, whose
calls are atomic, and attributes that are written once. Futures have locks: the driver and the
reader threads alone use them.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

Submit = Callable[..., Future[Any]]  # of a pool: a function and its arguments
CHUNKS = 3  # that exist at a time
TAKEN = "the consumer asks for a chunk"
STOP = "the pass is over"  # events, as an ended task is one
READER = "tutorlib-reader"  # name of the threads

_driven: set[Pipeline] = set()  # whose driver runs
_process = [os.getpid()]  # which process this is; asking the system for every batch takes longer
os.register_at_fork(after_in_child=lambda: _process.__setitem__(0, os.getpid()))


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
        begin: `begin(submit, k)` submits the tasks of chunk number k and returns (what they make,
            their futures); called once for each, in order.
        threads: number of reader threads; they start with the first `next_chunk`.
        stopwatch: adds up the seconds of "wait".
        at_end: called when the threads have ended.
        owner: when it is dropped, the threads stop, and nobody waits for them.
    """

    def __init__(
        self,
        chunks: int,
        begin: Callable[[Submit, int], tuple[Any, Sequence[Future[Any]]]],
        *,
        threads: int,
        stopwatch: Stopwatch,
        at_end: Callable[[], None],
        owner: object,
    ) -> None:
        self._chunks = chunks
        self._begin = begin
        self._threads = threads
        self._stopwatch = stopwatch
        self._at_end = at_end
        self._process = _process[0]
        self._taken = 0  # chunks that the consumer has asked for
        self._events: SimpleQueue[Any] = SimpleQueue()  # what the driver waits for
        # The callback of the weak reference waits for nothing and has no bytecode: it can neither
        # hang nor be interrupted. Its event is the reference.
        self._owner = weakref.ref(owner, self._events.put)
        self._results: SimpleQueue[Any] = SimpleQueue()  # in order; None: stopped
        self._stopping = self._began = self._ended = False
        self._error: BaseException | None = None
        self._closers: list[SimpleQueue[None]] = []  # what waits for the threads to end

    def next_chunk(self) -> Any:
        """Return what the tasks of the next chunk made; None after the last, or once closed.

        After an interrupt within this call, the pipeline must be closed.

        Raises:
            Exception: what a task raised, on the caller's thread, as soon as the tasks that were
                running then have ended. Of several errors it is that of the first task, so that
                the message does not depend on threads.
        """
        if self._taken == self._chunks:
            return None
        if not self._taken:
            # Thread.start() waits under a lock, which an interrupt would leave held.
            _thread.start_new_thread(self._start, ())
        self._taken += 1
        self._events.put(TAKEN)
        with self._stopwatch.timing("wait"):
            made = self._results.get()
        return None if self.has_stopped() else made

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
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # whose traceback has this frame
        return True

    def close(self) -> None:
        """Stop the threads, wait for them and release all memory. May be called again."""
        if self._process != _process[0]:
            return  # a fork has none of the threads
        self._stopping = True
        self._events.put(STOP)
        if not self._began:
            return  # a driver that begins from now on finds that it has to stop
        if threading.current_thread().name.startswith(READER):
            return  # called from a mapped function: waiting for itself would hang
        ended: SimpleQueue[None] = SimpleQueue()
        self._closers.append(ended)
        if not self._ended:
            ended.get()

    # ---- the driver's thread ----

    def _start(self) -> None:
        try:
            threading.Thread(target=self._drive, name="tutorlib-pass", daemon=True).start()
        except BaseException as error:  # there is no room for a thread
            self._error = error
            self._stopping = True
            self._results.put(None)

    def _drive(self) -> None:
        self._began = True
        _driven.add(self)
        ahead: deque[tuple[Any, dict[Future[Any], None]]] = deque()  # with tasks that are not done
        try:
            with ThreadPoolExecutor(self._threads, READER) as pool:
                try:
                    self._serve(pool.submit, ahead)
                finally:
                    self._stopping = True
                    pool.shutdown(wait=False, cancel_futures=True)
            for _, tasks in ahead:
                failed = (task for task in tasks if not task.cancelled() and task.exception())
                for task in failed:
                    self._error = self._error or task.exception()
        except BaseException as error:  # whatever it is: the consumer's thread raises it
            self._error = error
        ahead.clear()
        while not self._results.empty():
            self._results.get()
        self._results.put(None)
        try:
            self._at_end()
        finally:
            self._ended = True
            _driven.discard(self)
            for closer in list(self._closers):
                closer.put(None)

    def _serve(self, submit: Submit, ahead: deque[tuple[Any, dict[Future[Any], None]]]) -> None:
        """Begin chunks while there is room, and deliver those that are done, until it is over."""
        begun = 0
        room = CHUNKS - 1  # room for the first chunk comes as the consumer asks for it
        while not self._stopping:
            event = self._events.get()
            if event is TAKEN:
                room += 1
            elif not isinstance(event, Future) or event.exception():
                return
            else:
                for _, tasks in ahead:
                    tasks.pop(event, None)
            while begun < min(room, self._chunks):
                made, begun_tasks = self._begin(submit, begun)
                begun += 1
                ahead.append((made, dict.fromkeys(begun_tasks)))
                for task in begun_tasks:
                    task.add_done_callback(self._events.put)
            while ahead and not ahead[0][1]:
                self._results.put(ahead.popleft()[0])


@atexit.register
def _close_all() -> None:
    """Wait for the threads: the interpreter would abort the process if one of them ran on."""
    for pipeline in list(_driven):
        pipeline.close()
