"""Pipeline: threads that read pieces and deal their rows out to batches, a bounded way ahead.

One pipeline serves one pass over an epoch. Its only kind of task is *one piece*: read it, transform
it, copy its rows into the batches they belong to. A task never waits for another, so any number of
threads, even one, gets through; a batch is handed out when its last row has arrived. At any time
there are the batches of the chunk that the consumer is in and of the next chunk, which is being
filled. Does not belong here: what a task does to a piece.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from tutorlib.batching import Delivery, HostBatch, Layout, OpenBatch
from tutorlib.plan import EpochPlan, Piece

Deal = Callable[[Piece, list[Delivery]], None]


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
        layout: how the columns lie in batches.
        deal: reads a piece and copies its rows to where they go; called from several threads.
        finish: turns a `HostBatch` into what the consumer gets; called from several threads.
        threads: worker threads; they start with the first `next_batch`.
        stopwatch: where seconds are added: shuffle, convert (sums over the threads) and wait.
        first_batch: number of the first batch; rows of earlier ones are not kept.
    """

    def __init__(
        self,
        plan: EpochPlan,
        layout: Layout,
        deal: Deal,
        finish: Callable[[HostBatch], Any],
        *,
        threads: int,
        stopwatch: Stopwatch,
        first_batch: int = 0,
    ) -> None:
        self._plan, self._layout, self._deal, self._finish = plan, layout, deal, finish
        self._stopwatch = stopwatch
        self._changed = threading.Condition()
        self._tasks: deque[Callable[[], None]] = deque()
        self._open: dict[int, OpenBatch] = {}
        self._rows_left: Counter[int] = Counter()  # of open batches
        self._done: dict[int, Any] = {}
        self._first_batch = self._next_out = first_batch
        self._next_chunk = plan.chunk_of(first_batch) if first_batch < len(plan) else 0
        self._error: BaseException | None = None
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"tutorlib-reader-{i}", daemon=True)
            for i in range(threads)
        ]

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
            self._read_ahead()
            if self._threads[0].ident is None:
                for thread in self._threads:
                    thread.start()
            while self._error is None and self._next_out not in self._done and not self._closed:
                self._changed.wait()
            if self._error is None and not self._closed:
                batch = self._done.pop(self._next_out)
                self._next_out += 1
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
            self._open.clear()
            self._done.clear()

    def _read_ahead(self) -> None:
        """Queue chunks up to the one behind those that the next batch needs; under the lock."""
        last_row = self._plan.last_chunk_of(self._next_out)
        last = min(last_row + 1, self._plan.last_chunk_of(len(self._plan) - 1))
        while self._next_chunk <= last:
            self._queue_chunk(self._next_chunk)
            self._next_chunk += 1
        self._changed.notify_all()

    def _queue_chunk(self, index: int) -> None:
        block = 0
        for piece in self._plan.chunks[index].pieces:
            self._tasks.append(lambda i=index, p=piece, b=block: self._deal_piece(i, p, b))
            block += len(piece.blocks())

    def _open_batch(self, number: int) -> OpenBatch:
        """Return the batch `number`, made by whichever piece gets there first."""
        with self._changed:
            if number not in self._open:
                rows = self._plan.batch_sizes[number]
                self._open[number] = OpenBatch(self._layout, rows)
                self._rows_left[number] = rows
            return self._open[number]

    def _deal_piece(self, chunk: int, piece: Piece, first_block: int) -> None:
        started = time.perf_counter()
        deal = self._plan.deal(chunk)
        deliveries, arrived = [], Counter()
        for number, (start, _) in enumerate(piece.blocks(), start=first_block):
            places = [place for place in deal.places(number) if place[0] >= self._first_batch]
            arrived.update({batch: stop - begin for batch, _, begin, stop in places})
            targets = [(self._open_batch(batch), *rest) for batch, *rest in places]
            deliveries.append(Delivery(start, self._plan.order(chunk, number), targets))
        self._stopwatch.add(shuffle=time.perf_counter() - started)
        if arrived:
            self._deal(piece, deliveries)
        for batch, rows in arrived.items():
            self._rows_arrived(batch, rows)

    def _rows_arrived(self, number: int, rows: int) -> None:
        with self._changed:
            self._rows_left[number] -= rows
            if self._rows_left[number]:
                return
            del self._rows_left[number]
            batch = self._open.pop(number)
        started = time.perf_counter()
        result = self._finish(batch.close())
        self._stopwatch.add(convert=time.perf_counter() - started, rows=batch.num_rows, batches=1)
        with self._changed:
            if not self._closed:
                self._done[number] = result
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._tasks and not self._closed and self._error is None:
                    self._changed.wait()
                if self._closed or self._error is not None:
                    return
                task = self._tasks.popleft()
            try:
                task()
            except BaseException as error:  # handed to the consumer's thread, whatever it is
                with self._changed:
                    self._error = self._error or error
                    self._changed.notify_all()
                return
