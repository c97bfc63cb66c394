"""Pipeline: threads that read pieces and deal their rows out to batches, a bounded way ahead.

One pipeline serves one pass over an epoch. It has two kinds of task. *Deal*: read one piece,
transform it, copy its rows into the groups of batches they belong to. *Cut*: make some batches of a
group whose last row has arrived. A task is queued only when it can run to its end without waiting,
so any number of threads, even one, gets through. At any time there are the groups of the chunk that
the consumer is in and of the next chunk, which is being filled, and up to `CUT_BATCHES` batches
that are cut but not yet taken. Does not belong here: what a task does to a piece.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from tutorlib.loader.host_batches import Group, HostBatch, ScatterPlan
from tutorlib.loader.layout import Layout
from tutorlib.loader.plan import EpochPlan, RowSlice, blocks_of
from tutorlib.memory import BufferPool, DevicePool
from tutorlib.parquet import RowRange

CUT_BATCHES = 64  # made at a time, at most: the first of them has to wait for the last


class Stopwatch:
    """Seconds and counts by name, added up from any thread."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._new_lock()

    def _new_lock(self) -> None:
        self._lock, self._process = threading.Lock(), os.getpid()

    def add(self, **amounts: float) -> None:
        """Add to the named sums."""
        if self._process != os.getpid():
            self._new_lock()  # a thread that is not in this fork may have held the old one
        with self._lock:
            self._sums.update(amounts)

    def sums(self) -> dict[str, float]:
        """Return the sums so far."""
        self.add()
        with self._lock:
            return dict(self._sums)


class Pipeline:
    """Makes the batches of a plan, from number `first_batch` on, in order.

    Args:
        plan: what to make.
        layout: how the columns lie in batches.
        deal: reads a piece and copies its rows to where they go; called from several threads.
        finish: turns a `HostBatch` into what the consumer gets; called from several threads.
        threads: worker threads; they start with the first `next_batch`.
        stopwatch: where seconds are added: scatter, convert (sums over the threads) and wait.
        pool: where the memory of batches comes from.
        at_end: called when the threads have ended.
        new_group: makes a group of batches, of (layout, rows, pool): `Group` or `DeviceGroup`.
        working: gives the context in which each thread does its work.
        first_batch: number of the first batch; nothing before its group is read.
    """

    def __init__(
        self,
        plan: EpochPlan,
        layout: Layout,
        scatter: Callable[[RowRange, list[ScatterPlan]], None],
        finish: Callable[[HostBatch], Any],
        *,
        threads: int,
        stopwatch: Stopwatch,
        pool: BufferPool | DevicePool,
        at_end: Callable[[], None] = lambda: None,
        new_group: Callable[[Layout, int, Any], Any] = Group,
        working: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        first_batch: int = 0,
    ) -> None:
        self._plan, self._layout, self._scatter, self._finish = plan, layout, scatter, finish
        self._stopwatch, self._pool, self._at_end = stopwatch, pool, at_end
        self._new_group, self._working = new_group, working
        self._changed = threading.Condition()
        self._dealing = threading.Lock()
        self._deals: deque[Callable[[], None]] = deque()
        self._cuts: deque[Callable[[], None]] = deque()  # these go first
        self._row_slices: dict[int, list[list[RowSlice]]] = {}  # of chunks that are being read
        self._pieces_left: Counter[int] = Counter()
        self._groups: dict[int, Group] = {}  # that are being filled
        self._rows_left: Counter[int] = Counter()
        self._whole: dict[int, Group] = {}  # closed, not yet cut up
        self._done: dict[int, Any] = {}  # batches
        self._next_out = self._next_cut = first_batch
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
                "these batches were begun before the process was forked, and their threads are not "
                "in the fork; iterate over the loader anew"
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
                self._queue_cuts()
                self._stopwatch.add(wait=time.perf_counter() - started)
                return batch
            error = self._error
        self.close()
        if error is None:
            raise StopIteration
        try:
            raise error
        finally:  # its traceback leads here: without a way back, all is let go of with the error
            self._error = error = None

    def close(self) -> None:
        """Stop the threads, wait for them and let go of all memory. May be called again."""
        if self._process != os.getpid():
            return  # a fork has none of the threads, and one of them may have held the lock
        with self._changed:
            self._closed = True
            self._deals.clear()
            self._cuts.clear()
            self._changed.notify_all()
        if threading.current_thread() in self._threads:
            return  # the garbage collector, maybe with the lock held: to wait would be for ever
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        with self._changed:
            self._groups.clear()
            self._whole.clear()
            self._done.clear()
        self._at_end()

    def _read_ahead(self) -> None:
        """Queue chunks up to the one behind those that the next batch needs; under the lock."""
        _, needed = self._plan.chunks_of(self._next_out // self._plan.group_batches)
        _, last = self._plan.chunks_of(self._plan.num_groups - 1)
        while self._next_chunk <= min(needed + 1, last):
            self._queue_chunk(self._next_chunk)
            self._next_chunk += 1
        self._changed.notify_all()

    def _queue_chunk(self, index: int) -> None:
        block = 0
        for row_range in self._plan.chunks[index].row_ranges:
            self._deals.append(functools.partial(self._scatter_range, index, row_range, block))
            self._pieces_left[index] += 1
            block += len(blocks_of(row_range))

    def _row_slices_of(self, chunk: int) -> list[list[RowSlice]]:
        """Return how a chunk is dealt out; worked out by the first piece that asks."""
        with self._dealing:
            if chunk not in self._row_slices:
                self._row_slices[chunk] = self._plan.row_slices(chunk)
            return self._row_slices[chunk]

    def _group(self, number: int) -> Group:
        """Return a group that is being filled; made by the first piece that has rows for it."""
        with self._dealing:  # not the consumer's lock: a device may have to be waited for
            if number not in self._groups:
                rows = self._plan.group_rows(number)
                group = self._new_group(self._layout, rows, self._pool)
                with self._changed:
                    self._rows_left[number], self._groups[number] = rows, group
            return self._groups[number]

    def _scatter_range(self, chunk: int, row_range: RowRange, first_block: int) -> None:
        started = time.perf_counter()
        shares_of_blocks = self._row_slices_of(chunk)
        scatter_plans = []
        arrived: Counter[int] = Counter()
        for block, (start, _) in enumerate(blocks_of(row_range), start=first_block):
            row_slices = [s for s in shares_of_blocks[block] if s.group >= self._first_group]
            if row_slices:
                targets = [(self._group(row_slice.group), row_slice) for row_slice in row_slices]
                order = self._plan.order(chunk, block, shares_of_blocks[block])
                scatter_plans.append(ScatterPlan(start, order, targets))
            for row_slice in row_slices:
                arrived[row_slice.group] += row_slice.stop - row_slice.start
        self._stopwatch.add(scatter=time.perf_counter() - started)
        if scatter_plans:
            self._scatter(row_range, scatter_plans)
        del scatter_plans
        with self._changed:
            self._rows_left.subtract(arrived)
            whole = [number for number in arrived if not self._rows_left[number]]
            groups = {number: self._groups.pop(number) for number in whole}
            self._pieces_left[chunk] -= 1
            if not self._pieces_left[chunk]:
                del self._row_slices[chunk]
        for number in sorted(groups):
            self._close(number, groups.pop(number))

    def _close(self, number: int, group: Group) -> None:
        started = time.perf_counter()
        group.close(self._plan.group_sizes(number), self._plan.group_order(number))
        self._stopwatch.add(scatter=time.perf_counter() - started)
        with self._changed:
            self._whole[number] = group
            self._queue_cuts()

    def _queue_cuts(self) -> None:
        """Queue the next batches that can be made, not too far ahead; called under the lock."""
        while self._next_cut <= self._next_out + CUT_BATCHES:
            number, first = divmod(self._next_cut, self._plan.group_batches)
            if number not in self._whole:
                break
            last = len(self._plan.group_sizes(number))
            stop = min(first + CUT_BATCHES, last)
            group = self._whole.pop(number) if stop == last else self._whole[number]
            task = functools.partial(self._cut, group, range(first, stop), self._next_cut)
            self._cuts.append(task)
            self._next_cut += stop - first
        self._changed.notify_all()

    def _cut(self, group: Group, which: range, first: int) -> None:
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
            with self._working():
                self._tasks()
        except BaseException as error:  # handed to the consumer's thread, whatever it is
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _tasks(self) -> None:
        while True:
            with self._changed:
                while not (self._cuts or self._deals or self._closed or self._error):
                    self._changed.wait()
                if self._closed or self._error is not None:
                    return
                task = (self._cuts or self._deals).popleft()
            task()
            del task  # it may hold a group
