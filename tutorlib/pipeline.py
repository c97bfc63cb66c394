"""Pipeline: threads that read, pack and cut chunks into batches, a bounded way ahead.

One pipeline serves one pass over an epoch. Work comes in two kinds of task: *fill* (read one piece,
transform it, pack it into its chunk) and *batch* (gather one batch from its chunks). A task is
queued only when it can run to its end without waiting, so threads never block one another and any
number of them, even one, gets through. Ahead of the consumer are at most `batches_ahead` batches
and, besides the chunks that those need, one more chunk. Does not belong here: what a task does.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tutorlib.packing import HostBatch, Layout, PackedChunk, gather_batch
from tutorlib.plan import EpochPlan, Piece


class Stopwatch:
    """Seconds and counts by name, added up from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: Counter[str] = Counter()

    def add(self, **amounts: float) -> None:
        """Add to the named sums."""
        with self._lock:
            self._sums.update(amounts)

    def sums(self) -> dict[str, float]:
        """Return the sums so far."""
        with self._lock:
            return dict(self._sums)


class Pipeline:
    """Makes the batches of a plan, from number `first_batch` on, in order.

    Args:
        plan: what to make.
        layout: how rows are packed.
        fill: reads a piece and packs it into a chunk from the given row on; called from several
            threads.
        finish: turns a `HostBatch` into what the consumer gets; called from several threads.
        threads: worker threads; they start with the first `next_batch`.
        batches_ahead: batches made before they are asked for.
        stopwatch: where seconds are added: shuffle, convert (sums over the threads) and wait.
        first_batch: number of the first batch.
    """

    def __init__(
        self,
        plan: EpochPlan,
        layout: Layout,
        fill: Callable[[Piece, PackedChunk, int], None],
        finish: Callable[[HostBatch], Any],
        *,
        threads: int,
        batches_ahead: int,
        stopwatch: Stopwatch,
        first_batch: int = 0,
    ) -> None:
        self._plan, self._layout, self._fill, self._finish = plan, layout, fill, finish
        self._batches_ahead, self._stopwatch = batches_ahead, stopwatch
        self._changed = threading.Condition()
        self._tasks: list[tuple[tuple[int, int], int, Callable[[], None]]] = []
        self._ticket = itertools.count()
        self._chunks: dict[int, PackedChunk] = {}
        self._tasks_left: dict[int, int] = {}  # of chunks that are being filled
        self._done: dict[int, Any] = {}
        self._next_out = first_batch  # the next batch to hand out
        self._next_made = first_batch  # the next batch to queue
        self._next_chunk = self._first_chunk(first_batch)
        self._last_chunk = plan.batch_parts(len(plan) - 1)[-1][0] if len(plan) else -1
        self._users: Counter[int] = Counter()  # queued batch tasks that still read a chunk
        self._error: BaseException | None = None
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"tutorlib-reader-{i}", daemon=True)
            for i in range(threads)
        ]

    def _first_chunk(self, batch: int) -> int:
        return self._plan.batch_parts(batch)[0][0] if batch < len(self._plan) else 0

    def next_batch(self) -> Any:
        """Return the next batch; waits for it.

        Raises:
            StopIteration: after the last batch, or once closed.
            Exception: what a task raised, as soon as it did, on the caller's thread.
        """
        started = time.perf_counter()
        with self._changed:
            if self._closed or self._next_out >= len(self._plan):
                raise StopIteration
            self._pump()
            if self._threads and self._threads[0].ident is None:
                for thread in self._threads:
                    thread.start()
            while self._error is None and self._next_out not in self._done and not self._closed:
                self._changed.wait()
            if self._error is None and not self._closed:
                batch = self._done.pop(self._next_out)
                self._next_out += 1
                self._pump()
                self._stopwatch.add(wait=time.perf_counter() - started)
                return batch
            error = self._error
        self.close()
        if error is None:
            raise StopIteration
        raise error

    def close(self) -> None:
        """Stop the threads, wait for them and let go of all memory. May be called again."""
        with self._changed:
            self._closed = True
            self._tasks.clear()
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join()
        with self._changed:
            self._chunks.clear()
            self._done.clear()

    def _pump(self) -> None:
        """Queue every task that can run now. Called with the lock held."""
        while True:
            batch = self._next_made
            parts = self._plan.batch_parts(batch) if batch < len(self._plan) else []
            wanted = parts[-1][0] + 1 if parts else self._last_chunk
            while self._next_chunk <= min(wanted, self._last_chunk):
                self._queue_chunk(self._next_chunk)
                self._next_chunk += 1
            ready = all(i in self._chunks and i not in self._tasks_left for i, _, _ in parts)
            if not parts or not ready or batch >= self._next_out + self._batches_ahead:
                break
            self._users.update(index for index, _, _ in parts)
            self._next_made += 1
            self._queue((parts[0][0], 0), lambda b=batch, p=parts: self._make_batch(b, p))
        self._changed.notify_all()

    def _queue(self, priority: tuple[int, int], task: Callable[[], None]) -> None:
        heapq.heappush(self._tasks, (priority, next(self._ticket), task))

    def _queue_chunk(self, index: int) -> None:
        chunk_plan = self._plan.chunks[index]
        chunk = self._chunks[index] = PackedChunk(self._layout, chunk_plan.num_rows)
        self._tasks_left[index] = len(chunk_plan.pieces) + 1
        self._queue((index, 1), lambda: self._order(index, chunk))
        first = 0
        for piece in chunk_plan.pieces:
            self._queue((index, 1), lambda p=piece, f=first: self._fill_piece(index, chunk, p, f))
            first += piece.num_rows

    def _order(self, index: int, chunk: PackedChunk) -> None:
        started = time.perf_counter()
        chunk.order = self._plan.order(index)
        self._stopwatch.add(shuffle=time.perf_counter() - started)
        self._task_done(index, chunk)

    def _fill_piece(self, index: int, chunk: PackedChunk, piece: Piece, first: int) -> None:
        self._fill(piece, chunk, first)
        self._task_done(index, chunk)

    def _task_done(self, index: int, chunk: PackedChunk) -> None:
        with self._changed:
            self._tasks_left[index] -= 1
            last = self._tasks_left[index] == 0
        if last:
            chunk.finish()
            with self._changed:
                del self._tasks_left[index]
                self._pump()

    def _make_batch(self, batch: int, parts: list[tuple[int, int, int]]) -> None:
        started = time.perf_counter()
        with self._changed:
            sources = [(self._chunks[i], start, stop) for i, start, stop in parts]
        host = gather_batch(self._layout, sources)
        gathered = time.perf_counter()
        result = self._finish(host)
        self._stopwatch.add(
            shuffle=gathered - started,
            convert=time.perf_counter() - gathered,
            rows=host.num_rows,
            batches=1,
        )
        with self._changed:
            self._done[batch] = result
            self._users.subtract(index for index, _, _ in parts)
            self._release()
            self._changed.notify_all()

    def _release(self) -> None:
        """Let go of chunks that no batch needs any more. Called with the lock held."""
        made = self._next_made
        needed = self._first_chunk(made) if made < len(self._plan) else len(self._plan.chunks)
        for index in [i for i in self._chunks if i < needed and not self._users[i]]:
            del self._chunks[index]

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._tasks and not self._closed and self._error is None:
                    self._changed.wait()
                if self._closed or self._error is not None:
                    return
                _, _, task = heapq.heappop(self._tasks)
            try:
                task()
                del task  # it holds its chunk
            except BaseException as error:  # handed to the consumer's thread, whatever it is
                with self._changed:
                    self._error = self._error or error
                    self._changed.notify_all()
                return
