"""Streams: row groups that are decoded once while they are read in slices.

A row group may need more memory than its reader may use. A stream decodes it from the first row, a
record batch at a time, and keeps its position between slices.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol

import pyarrow as pa

OPEN_STREAMS = 16  # one of Criteo's 40 columns holds about 40 MB: a page a column, half a batch


class RowStream(Protocol):
    """Slices of one row group, in order: `Stream`, or a row group decoded on a device."""

    def read(self, start: int, stop: int, /) -> Any:
        """Return rows [start, stop)."""

    def close(self) -> None:
        """Release the memory and the file."""


class Stream:
    """The rows of one row group, in order, from one open file.

    Args:
        batches: record batches of the row group, from its first row on.
        close: closes the file.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], close: Callable[[], None]) -> None:
        self._batches, self.close = batches, close
        self._row = 0  # first row of the next batch
        self._left: pa.RecordBatch | None = None  # decoded rows after the last slice

    def read(self, start: int, stop: int) -> pa.Table:
        """Return rows [start, stop), at least one; rows before `start` are decoded and dropped.

        Raises:
            EOFError: if the row group has fewer rows.
            pyarrow.ArrowException: if it cannot be decoded.
        """
        parts = []
        while self._row < stop:
            batch = self._left if self._left is not None else next(self._batches, None)
            if batch is None:
                raise EOFError(f"the rows end at {self._row}, before {stop}")
            first, last = max(start - self._row, 0), min(stop - self._row, batch.num_rows)
            if first < last:
                parts.append(batch.slice(first, last - first))
            self._left = batch.slice(last) if last < batch.num_rows else None
            self._row += last
        return pa.Table.from_batches(parts)


class Streams:
    """Open streams by key; a slice is read from the nearest stream that has not passed its start.

    Thread-safe: a thread waits for another thread's slice if its own follows in the same stream,
    since decoding the rows again would take longer. At most `limit` idle streams stay open; the
    least recently used is closed first. A forked process starts with no streams.

    Args:
        limit: number of idle streams to keep open.

    Example:
        >>> batches = pa.table({"x": range(6)}).to_batches(max_chunksize=2)
        >>> streams = Streams()
        >>> def open_stream():
        ...     print("opened")
        ...     return Stream(iter(batches), lambda: None)
        >>> streams.read("row group 0", 1, 3, 6, open_stream)["x"].to_pylist()
        opened
        [1, 2]
        >>> streams.read("row group 0", 3, 6, 6, open_stream)["x"].to_pylist()
        [3, 4, 5]
    """

    def __init__(self, limit: int = OPEN_STREAMS) -> None:
        self.limit = limit
        self.forget()
        _ALL.add(self)

    def forget(self) -> None:
        """Start empty without closing anything: a forked process must not close its parent's."""
        self._changed = threading.Condition()
        self._kept: list[_KeptRows] = []  # most recently used last
        self._waiting: list[tuple[Hashable, int]] = []

    def __len__(self) -> int:
        return len(self._kept)

    def read(
        self,
        key: Hashable,
        start: int,
        stop: int,
        num_rows: int,
        open_stream: Callable[[], RowStream],
    ) -> Any:
        """Return rows [start, stop) of the row group `key`.

        Args:
            key: identifies row group and columns.
            start: first row, at least 0.
            stop: end, above `start`.
            num_rows: rows of the row group; a stream that reaches its end is closed.
            open_stream: opens a stream at row 0; called if no open stream can reach `start`.

        Raises:
            EOFError: if the row group has fewer rows than `stop`.
            pyarrow.ArrowException: if it cannot be decoded.
            OSError: if the file cannot be read.
        """
        with self.hold(key, start, stop, num_rows, open_stream) as stream:
            return stream.read(start, stop)

    @contextlib.contextmanager
    def hold(
        self,
        key: Hashable,
        start: int,
        stop: int,
        num_rows: int,
        open_stream: Callable[[], RowStream],
    ) -> Iterator[RowStream]:
        """Give a stream to this thread alone, which must read [start, stop) from it in order.

        The arguments are those of `read`.
        """
        kept = self._take(key, start, stop)
        ends_well = False
        try:
            if kept.stream is None:
                kept.stream = open_stream()
            yield kept.stream
            ends_well = stop < num_rows
        finally:
            self._give_back(kept, keep=ends_well)

    def _take(self, key: Hashable, start: int, stop: int) -> _KeptRows:
        with self._changed:
            self._waiting.append((key, start))
            try:
                while (best := self._best(key, start)) is not None:
                    sooner = any(
                        other == key and best.row <= row < start for other, row in self._waiting
                    )
                    if not best.busy and not sooner:
                        break
                    self._changed.wait()
            finally:
                self._waiting.remove((key, start))
                self._changed.notify_all()
            if best is None:
                best = _KeptRows(key)
                self._kept.append(best)
            best.busy, best.row = True, stop
            return best

    def _best(self, key: Hashable, start: int) -> _KeptRows | None:
        """Return the stream of this key nearest to `start`, counting where busy ones will stop."""
        fitting = [kept for kept in self._kept if kept.key == key and kept.row <= start]
        return max(fitting, key=lambda kept: kept.row, default=None)

    def _give_back(self, kept: _KeptRows, *, keep: bool) -> None:
        with self._changed:
            kept.busy = False
            dropped = []
            if kept in self._kept:  # not after a fork or `close`
                self._kept.remove(kept)
                if keep:
                    self._kept.append(kept)
                else:
                    dropped.append(kept)
                idle = [other for other in self._kept if not other.busy]
                dropped += idle[: max(0, len(idle) - self.limit)]
            else:
                dropped.append(kept)
            self._drop(dropped)

    def close(self) -> None:
        """Close all streams; a busy one is closed when its slice has been read."""
        with self._changed:
            idle = [kept for kept in self._kept if not kept.busy]
            self._kept = []
            self._drop(idle)

    def _drop(self, dropped: list[_KeptRows]) -> None:
        for kept in dropped:
            if kept in self._kept:
                self._kept.remove(kept)
            if kept.stream is not None:
                kept.stream.close()
        self._changed.notify_all()


class _KeptRows:
    """A stream, None while it is being opened, and the row at which its last slice stops."""

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.stream: RowStream | None = None
        self.row = 0
        self.busy = True


_ALL: weakref.WeakSet[Streams] = weakref.WeakSet()


def _forget_all() -> None:
    for streams in _ALL:
        streams.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
