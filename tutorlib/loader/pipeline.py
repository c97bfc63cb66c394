"""Pipeline: threads that read row ranges and make batches, a bounded distance ahead.

A pipeline serves one pass over an epoch. Its threads have two kinds of task. A *scatter* task reads
one row range, transforms it and copies its rows to the groups of batches they belong to. A
*convert* task makes some batches of a group whose last row has arrived. A task is queued only when
it can run to its end without waiting, so any number of threads makes progress, even one. Held in
memory at any time are the groups of the chunk that the consumer is in, those of the next chunk,
which is being filled, and up to `CONVERT_BATCHES` finished batches.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Generic

from tutorlib.loader.batch_group import ArrayBatch, BatchBuilder, GroupT, ScatterPlan
from tutorlib.loader.plan import EpochPlan, RowSlice, blocks_of
from tutorlib.parquet import RowRange

CONVERT_BATCHES = 64  # at most, of one task: the first of them has to wait for the last


class Stopwatch:
    """Seconds and counts by name, added up from any thread."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._new_lock()

    def _new_lock(self) -> None:
        self._lock, self._process = threading.Lock(), os.getpid()

    def add(self, **amounts: float) -> None:
        """Add to the named sums."""
        if self._process != os.getpid():
            self._new_lock()  # a thread that this fork does not have may have held the old one
        with self._lock:
            for name, amount in amounts.items():
                self._sums[name] += amount

    def sums(self) -> dict[str, float]:
        """Return the sums so far."""
        self.add()
        with self._lock:
            return dict(self._sums)


class Pipeline(Generic[GroupT]):
    """Makes the batches of a plan in order, from `first_batch` on.

    Args:
        plan: which rows each batch has.
        builder: makes groups of batches.
        scatter: reads a row range and copies its rows to groups; called from several threads.
        finish: turns an `ArrayBatch` into what the consumer gets; called from several threads.
        threads: number of worker threads; they start with the first `next_batch`.
        stopwatch: adds up the seconds of "scatter" and "convert" (over all threads) and "wait".
        at_end: called when the threads have ended.
        first_batch: number of the first batch; no chunk before its group's first is read.
    """

    def __init__(
        self,
        plan: EpochPlan,
        builder: BatchBuilder[GroupT, Any],
        scatter: Callable[[RowRange, list[ScatterPlan[GroupT]]], None],
        finish: Callable[[ArrayBatch], Any],
        *,
        threads: int,
        stopwatch: Stopwatch,
        at_end: Callable[[], None],
        first_batch: int = 0,
    ) -> None:
        self._plan, self._builder, self._scatter, self._finish = plan, builder, scatter, finish
        self._stopwatch, self._at_end = stopwatch, at_end
        self._changed = threading.Condition()  # guards all that follows, but for the two below
        self._filling = threading.Lock()  # guards _row_slices, and the making of groups
        self._row_slices: dict[int, list[list[RowSlice]]] = {}  # of chunks that are being read
        self._scatter_tasks: deque[Callable[[], None]] = deque()
        self._convert_tasks: deque[Callable[[], None]] = deque()  # these go first
        self._ranges_left: dict[int, int] = defaultdict(int)  # row ranges of a chunk to scatter
        self._groups: dict[int, GroupT] = {}  # that are being filled
        self._rows_left: dict[int, int] = {}  # rows that a group still waits for
        self._ordered_groups: dict[int, GroupT] = {}  # in final order, not all converted yet
        self._done: dict[int, Any] = {}  # finished batches
        self._next_out = self._next_convert = first_batch
        self._first_group = first_batch // plan.group_batches
        self._next_chunk = plan.chunks_of(self._first_group)[0] if first_batch < len(plan) else 0
        self._error: BaseException | None = None
        self._closed = False
        self._process = os.getpid()
        self._threads = [
            threading.Thread(target=self._work, name=f"tutorlib-reader-{i}", daemon=True)
            for i in range(threads)
        ]

    def next_batch(self) -> Any:
        """Return the next batch; waits for it.

        Raises:
            StopIteration: after the last batch, or once closed.
            Exception: what a task raised, on the caller's thread, as soon as the tasks that were
                running then have ended.
            RuntimeError: in a fork of the process, which has none of the threads.
        """
        if self._process != os.getpid():
            raise RuntimeError(
                "this pass began before the process was forked, and its threads are not in the "
                "fork; iterate over the loader again"
            )
        started = time.perf_counter()
        with self._changed:
            if self._closed or self._next_out >= len(self._plan):
                raise StopIteration
            self._read_ahead()
            if self._threads[0].ident is None:
                for thread in self._threads:
                    thread.start()
            while self._error is None and self._next_out not in self._done and not self._closed:
                self._changed.wait()
            if self._error is None and not self._closed:
                batch = self._done.pop(self._next_out)
                self._next_out += 1
                self._queue_convert_tasks()
                self._stopwatch.add(wait=time.perf_counter() - started)
                return batch
            error = self._error
        self.close()
        self._error = None
        if error is None:
            raise StopIteration
        try:
            raise error
        finally:  # breaks the cycle with its traceback, so that all is freed with the error
            del error

    def close(self) -> None:
        """Stop the threads, wait for them and release all memory. May be called again."""
        if self._process != os.getpid():
            return  # a fork has none of the threads, and one of them may have held the lock
        with self._changed:
            self._closed = True
            self._scatter_tasks.clear()
            self._convert_tasks.clear()
            self._changed.notify_all()
        if threading.current_thread() in self._threads:
            return  # called by the garbage collector, maybe under the lock: waiting would hang
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        with self._changed:
            self._groups.clear()
            self._ordered_groups.clear()
            self._done.clear()
        self._at_end()

    def _read_ahead(self) -> None:
        """Queue chunks up to the one after those that the next batch needs; under the lock."""
        _, needed = self._plan.chunks_of(self._next_out // self._plan.group_batches)
        _, last = self._plan.chunks_of(self._plan.num_groups - 1)
        while self._next_chunk <= min(needed + 1, last):
            self._queue_chunk(self._next_chunk)
            self._next_chunk += 1
        self._changed.notify_all()

    def _queue_chunk(self, index: int) -> None:
        block = 0
        for row_range in self._plan.chunks[index].row_ranges:
            task = functools.partial(self._scatter_range, index, row_range, block)
            self._scatter_tasks.append(task)
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
        with self._filling:  # not the consumer's lock: memory of a device may take its time
            if number not in self._groups:
                rows = self._plan.group_rows(number)
                group = self._builder.new_group(rows)
                with self._changed:
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
            self._scatter(row_range, scatter_plans)
        del scatter_plans
        with self._changed:
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
        with self._changed:
            self._ordered_groups[number] = group
            self._queue_convert_tasks()

    def _queue_convert_tasks(self) -> None:
        """Queue the next batches that can be made, not too far ahead; called under the lock."""
        while self._next_convert <= self._next_out + CONVERT_BATCHES:
            number, first = divmod(self._next_convert, self._plan.group_batches)
            if number not in self._ordered_groups:
                break
            last = len(self._plan.group_sizes(number))
            stop = min(first + CONVERT_BATCHES, last)
            group = self._ordered_groups[number]
            if stop == last:
                del self._ordered_groups[number]
            task = functools.partial(self._convert, group, range(first, stop), self._next_convert)
            self._convert_tasks.append(task)
            self._next_convert += stop - first
        self._changed.notify_all()

    def _convert(self, group: GroupT, which: range, first: int) -> None:
        started = time.perf_counter()
        rows, results = 0, {}
        for number, index in enumerate(which, start=first):
            batch = group.batch(index)
            results[number] = self._finish(batch)
            rows += batch.num_rows
        self._stopwatch.add(convert=time.perf_counter() - started, rows=rows, batches=len(which))
        with self._changed:
            if not self._closed:
                self._done.update(results)
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            with self._builder.work():
                self._run_tasks()
        except BaseException as error:  # whatever it is: the consumer's thread raises it
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _run_tasks(self) -> None:
        while True:
            with self._changed:
                while not (
                    self._convert_tasks or self._scatter_tasks or self._closed or self._error
                ):
                    self._changed.wait()
                if self._closed or self._error is not None:
                    return
                task = (self._convert_tasks or self._scatter_tasks).popleft()
            task()
            del task  # it may hold a group
