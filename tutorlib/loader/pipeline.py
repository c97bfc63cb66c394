"""Pipeline: threads that read row ranges and make batches, a bounded distance ahead.

A pipeline serves one pass over an epoch. Its threads have two kinds of task. A *scatter* task reads
one row range, transforms it and copies its rows to the groups of batches they belong to. A
*convert* task prepares some batches of a group whose last row has arrived; the consumer makes
tensors of them. A task is queued only when it can run to its end without waiting, so any number of
threads makes progress, even one. Held in memory at any time are the groups of the chunk that the
consumer is in, those of the next chunk, which is being filled, and up to `CONVERT_BATCHES` batches.

Ctrl-C may interrupt the consumer between any two bytecodes, and the garbage collector may drop a
pass while a thread holds any lock. So the consumer takes no lock: it uses `SimpleQueue`, whose
calls are atomic, and attributes that are written once. Locks are for reader threads alone.
"""

from __future__ import annotations

import _thread
import atexit
import functools
import math
import operator
import os
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Generic

from tutorlib.loader.batch_group import ArrayBatches, BatchBuilder, GroupT, ScatterPlan
from tutorlib.loader.plan import EpochPlan, RowSlice, blocks_of
from tutorlib.parquet import RowRange

CONVERT_BATCHES = 32  # at most, of one task: the first of them has to wait for the last

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

    def sums(self) -> dict[str, float]:
        """Return the sums so far."""
        total: dict[str, float] = defaultdict(float)
        for sums in list(self._sums_of_threads.values()):
            for name, amount in list(sums.items()):
                total[name] += amount
        return dict(total)


class Pipeline(Generic[GroupT]):
    """Makes the batches of a plan in order, from `first_batch` on.

    Args:
        plan: which rows each batch has.
        builder: makes groups of batches.
        scatter: reads a row range and copies its rows to groups; called from several threads.
        finish: prepares `ArrayBatches`, called from several threads, and returns a function that
            makes the batches of them, called by the consumer.
        threads: number of worker threads; they start with the first `next_batch`.
        stopwatch: adds up the seconds of "scatter" and "convert" (over all threads) and "wait".
        at_end: called when the threads have ended.
        first_batch: number of the first batch; no chunk before its group's first is read.
        convert_batches: most batches of one task, and how far ahead of the consumer one begins.
    """

    def __init__(
        self,
        plan: EpochPlan,
        builder: BatchBuilder[GroupT, Any],
        scatter: Callable[[RowRange, list[ScatterPlan[GroupT]]], None],
        finish: Callable[[ArrayBatches], Callable[[], Sequence[Any]]],
        *,
        threads: int,
        stopwatch: Stopwatch,
        at_end: Callable[[], None],
        first_batch: int = 0,
        convert_batches: int = CONVERT_BATCHES,
    ) -> None:
        self._plan, self._builder, self._scatter, self._finish = plan, builder, scatter, finish
        self._stopwatch, self._at_end = stopwatch, at_end
        self._convert_batches = convert_batches
        self._process = _process[0]
        # The consumer's own:
        self._next_out = first_batch
        self._received: deque[Any] | None = None  # batches that it has not given out yet
        self._asked = False  # for the threads to start
        # Between the consumer and the threads:
        self._wanted = first_batch  # batch that the consumer waits for, or waited for last
        self._tickets: SimpleQueue[Any] = SimpleQueue()  # each has one thread look for a task
        self._owner: weakref.ref[Any] | None = None
        # What makes the next batches, in order; None: stopped
        self._results: SimpleQueue[list[Callable[[], Sequence[Any]]] | None] = SimpleQueue()
        self._errors: list[tuple[tuple[float, int], BaseException]] = []  # (chunk, block) of each
        self._stopping = self._began = self._ended = False
        self._closers: list[SimpleQueue[None]] = []  # what waits for the threads to end
        # The threads' own, under _lock, but for _row_slices and the making of groups:
        self._lock, self._filling = threading.Lock(), threading.Lock()
        self._row_slices: dict[int, list[list[RowSlice]]] = {}  # of chunks that are being read
        self._scatter_tasks: deque[Callable[[], None]] = deque()
        self._convert_tasks: deque[Callable[[], None]] = deque()  # these go first
        self._ranges_left: dict[int, int] = defaultdict(int)  # row ranges of a chunk to scatter
        self._groups: dict[int, GroupT] = {}  # that are being filled
        self._rows_left: dict[int, int] = {}  # rows that a group still waits for
        self._ordered_groups: dict[int, GroupT] = {}  # in final order, not all converted yet
        # Number of batches, and what makes them, that wait for earlier ones
        self._done: dict[int, tuple[int, list[Callable[[], Sequence[Any]]]]] = {}
        self._next_done = self._next_convert = first_batch
        self._first_group = first_batch // plan.group_batches
        self._next_chunk = plan.chunks_of(self._first_group)[0] if first_batch < len(plan) else 0
        self._threads = [
            threading.Thread(target=self._work, name=f"tutorlib-reader-{i}", daemon=True)
            for i in range(threads)
        ]

    def next_batch(self) -> Any:
        """Return the next batch, and wait for it; None after the last batch, or once closed.

        After an interrupt within this call, the pipeline must be closed: a batch may be lost.

        Raises:
            Exception: what a task raised, on the caller's thread, as soon as the tasks that were
                running then have ended. Of several errors it is that of the first row range, so
                that the message does not depend on threads.
            RuntimeError: in a fork of the process, which has none of the threads.
        """
        if self._process != _process[0]:
            raise RuntimeError(
                "this pass began before the process was forked, and its threads are not in the "
                "fork; iterate over the loader again"
            )
        received = self._received
        if not received:
            if self._next_out >= len(self._plan):
                return None
            received = self._received = self._receive()
        if self._stopping or received is None:
            self.close()
            if self._errors:
                raise self._first_error()
            return None
        self._next_out += 1
        return received.popleft()

    def _receive(self) -> deque[Any] | None:
        """Wait for the next batches; None if the threads were stopped."""
        started = time.perf_counter()
        if not self._asked:
            self._asked = True
            # Thread.start() waits under a lock, which an interrupt would leave held.
            _thread.start_new_thread(self._start, ())
        self._wanted = self._next_out
        self._tickets.put(None)
        makers = self._results.get()
        came = time.perf_counter()
        self._stopwatch.add(wait=came - started)
        if makers is None:
            return None
        received = deque[Any]()
        for make in makers:
            received.extend(make())
        self._stopwatch.add(convert=time.perf_counter() - came)
        return received

    def stop_without(self, owner: Any) -> None:
        """Stop the threads when `owner` is dropped, without waiting for them.

        The callback of the weak reference waits for nothing and has no bytecode: it can neither
        hang nor be interrupted. Its ticket is the reference.
        """
        self._owner = weakref.ref(owner, self._tickets.put)

    @property
    def is_open(self) -> bool:
        """Whether batches can still be taken: its owner exists, or has yet to be named."""
        return not self._stopping and (self._owner is None or self._owner() is not None)

    def _stop(self) -> None:
        self._stopping = True
        self._tickets.put(None)
        self._results.put(None)

    def close(self) -> None:
        """Stop the threads, wait for them and release all memory. May be called again."""
        if self._process != _process[0]:
            return  # a fork has none of the threads
        self._stop()
        self._received = None
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
            for thread in self._threads:
                if not self._stopping:
                    thread.start()
        except BaseException as error:
            self._fail(error)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for held in (self._groups, self._ordered_groups, self._done):
            held.clear()
        self._threads.clear()  # one that never started would hold this pipeline, as its target
        self._scatter_tasks.clear()
        self._convert_tasks.clear()
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

    def _fail(self, error: BaseException, position: tuple[float, int] = (math.inf, 0)) -> None:
        """Stop, and have the consumer raise an error; `position` is a chunk and a block of it."""
        self._errors.append((position, error))
        self._stop()

    def _first_error(self) -> BaseException:
        """Return the error to raise; nothing here holds it or its traceback any longer."""
        _, error = min(self._errors, key=operator.itemgetter(0))
        self._errors.clear()
        return error

    def _read_ahead(self) -> None:
        """Queue chunks up to one per rank after those that the next batch needs; under the lock."""
        _, needed = self._plan.chunks_of(self._wanted // self._plan.group_batches)
        _, last = self._plan.chunks_of(self._plan.num_groups - 1)
        while self._next_chunk <= min(needed + self._plan.num_ranks, last):
            self._queue_chunk(self._next_chunk)
            self._next_chunk += 1

    def _queue_chunk(self, index: int) -> None:
        block = 0
        for row_range in self._plan.chunks[index].row_ranges:
            task = functools.partial(self._scatter_range, index, row_range, block)
            self._scatter_tasks.append(task)
            self._tickets.put(None)
            self._ranges_left[index] += 1
            block += len(blocks_of(row_range))

    def _row_slices_of(self, chunk: int) -> list[list[RowSlice]]:
        """Return where the rows of a chunk go; computed for the first row range that asks."""
        with self._filling:
            if chunk not in self._row_slices:
                self._row_slices[chunk] = self._plan.row_slices(chunk)
            return self._row_slices[chunk]

    def _group(self, number: int) -> GroupT:
        """Return a group that is being filled; made for the first row range with rows for it."""
        with self._filling:  # not _lock: memory of a device may take its time
            if number not in self._groups:
                rows = self._plan.group_rows(number)
                group = self._builder.new_group(rows)
                with self._lock:
                    self._rows_left[number], self._groups[number] = rows, group
            return self._groups[number]

    def _scatter_range(self, chunk: int, row_range: RowRange, first_block: int) -> None:
        started = time.perf_counter()
        slices_of_blocks = self._row_slices_of(chunk)
        scatter_plans = []
        arrived: dict[int, int] = defaultdict(int)  # rows by group
        for block, (start, _) in enumerate(blocks_of(row_range), start=first_block):
            row_slices = [s for s in slices_of_blocks[block] if s.group >= self._first_group]
            if row_slices:
                targets = [(self._group(row_slice.group), row_slice) for row_slice in row_slices]
                order = self._plan.order(chunk, block, slices_of_blocks[block])
                scatter_plans.append(ScatterPlan(start, order, targets))
            for row_slice in row_slices:
                arrived[row_slice.group] += row_slice.stop - row_slice.start
        self._stopwatch.add(scatter=time.perf_counter() - started)
        if scatter_plans:
            try:
                self._scatter(row_range, scatter_plans)
            except BaseException as error:
                self._fail(error, (chunk, first_block))
                return
        del scatter_plans
        with self._lock:
            full = {}
            for number, rows in arrived.items():
                self._rows_left[number] -= rows
                if not self._rows_left[number]:
                    full[number] = self._groups.pop(number)
                    del self._rows_left[number]
            self._ranges_left[chunk] -= 1
            if not self._ranges_left[chunk]:
                del self._ranges_left[chunk], self._row_slices[chunk]
        for number in sorted(full):
            self._close(number, full.pop(number))

    def _close(self, number: int, group: GroupT) -> None:
        started = time.perf_counter()
        group.close(self._plan.group_sizes(number), self._plan.group_order(number))
        self._stopwatch.add(scatter=time.perf_counter() - started)
        with self._lock:
            self._ordered_groups[number] = group
            self._queue_convert_tasks()

    def _queue_convert_tasks(self) -> None:
        """Queue the next batches that can be made, not too far ahead; called under the lock."""
        while self._next_convert <= self._wanted + self._convert_batches:
            number, first = divmod(self._next_convert, self._plan.group_batches)
            if number not in self._ordered_groups:
                break
            last = len(self._plan.group_sizes(number))
            stop = min(first + self._convert_batches, last)
            group = self._ordered_groups[number]
            if stop == last:
                del self._ordered_groups[number]
            task = functools.partial(self._convert, group, range(first, stop), self._next_convert)
            self._convert_tasks.append(task)
            self._tickets.put(None)
            self._next_convert += stop - first

    def _convert(self, group: GroupT, which: range, first: int) -> None:
        started = time.perf_counter()
        rows, makers = 0, []
        for arrays in group.batches(which):
            makers.append(self._finish(arrays))
            rows += arrays.num_rows * len(arrays.lists)
        self._stopwatch.add(convert=time.perf_counter() - started, rows=rows, batches=len(which))
        with self._lock:
            self._done[first] = len(which), makers
            while self._next_done in self._done:
                count, makers = self._done.pop(self._next_done)
                self._next_done += count
                self._results.put(makers)

    def _work(self) -> None:
        try:
            with self._builder.work():
                self._run_tasks()
        except BaseException as error:  # whatever it is: the consumer's thread raises it
            self._fail(error)

    def _run_tasks(self) -> None:
        while True:
            if self._tickets.get() is not None:  # the owner was dropped
                self._stop()
            if self._stopping:
                self._tickets.put(None)  # for the next thread
                return
            with self._lock:
                self._read_ahead()
                self._queue_convert_tasks()
                tasks = self._convert_tasks or self._scatter_tasks
                task = tasks.popleft() if tasks else None
            if task is not None:
                task()
            del task  # it may hold a group


def refuse_second(
    pipeline: Pipeline[Any], running: Sequence[weakref.ref[Pipeline[Any]]], budget: int | None
) -> None:
    """Raise RuntimeError if an earlier pass over a loader with a budget is open.

    Args:
        pipeline: of the new pass.
        running: the pipelines of the loader, in order: of passes that begin on several threads, the
            first one goes on.
        budget: bytes, for messages; None for any number of passes.
    """
    pipelines = [ref() for ref in running[:]]
    earlier = pipelines[: pipelines.index(pipeline)]
    if budget is not None and any(other is not None and other.is_open for other in earlier):
        pipeline.close()
        raise RuntimeError(
            f"memory_budget={budget:,} bytes holds one pass at a time, but another pass over "
            "this loader is open. Take its last batch, close() it or the loader, or use a "
            "second KerasSequenceLoader, which has a budget of its own"
        )
