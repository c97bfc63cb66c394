"""Row groups that are read slice by slice: each is decoded once, and kept open for its next slice.

A row group may be larger than the memory one wants to spend on it. A stream decodes it from its
first row on, a batch at a time, and stands where the last slice ended. Does not belong here: what a
file is and what its rows mean (`parquet.py`).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol

import pyarrow as pa

# A stream of Criteo's 40 columns holds about 40 MB: a page a column and the rows left of a batch.
OPEN_STREAMS = 16


class RowStream(Protocol):
    """Gives slices of one row group, in order: `Stream`, or a device's decoded row group."""

    def read(self, start: int, stop: int, /) -> Any:
        """Return rows [start, stop)."""

    def close(self) -> None:
        """Release what it holds."""


class Stream:
    """The rows of one row group, in order, from one open file.

    Args:
        batches: record batches of the row group, from its first row on.
        close: closes the file they come from.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], close: Callable[[], None]) -> None:
        self._batches, self.close = batches, close
        self._row = 0  # row of the row group with which the next batch begins
        self._left: pa.RecordBatch | None = None  # decoded, behind the last slice

    def read(self, start: int, stop: int) -> pa.Table:
        """Return rows [start, stop), at least one; what lies before is decoded and dropped.

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
    """Open streams by key: a slice goes to the stream that stands at or before its first row.

    Safe with several threads: one that wants the slice behind the one that is being read waits for
    it, for decoding the same rows again takes longer. At most `limit` streams that nobody is
    reading stay open; the one not used for longest is closed. A child process begins with none.

    Args:
        limit: streams to keep open.

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
        """Start again without closing anything: a child process must not touch its parent's."""
        self._changed = threading.Condition()
        self._kept: list[_KeptRows] = []  # the one used last at the end
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
            key: what the stream is of: row group and columns.
            start: first row.
            stop: row behind the last.
            num_rows: rows of the row group; a stream that has come to its end is closed.
            open_stream: opens a stream at row 0; called if none stands at or before `start`.

        Raises:
            EOFError: if the row group has fewer rows than `stop`.
            pyarrow.ArrowException: if it cannot be decoded.
            OSError: if the file cannot be read.
        """
        kept = self._take(key, start, stop)
        ends_well = False
        try:
            if kept.stream is None:
                kept.stream = open_stream()
            table = kept.stream.read(start, stop)
            ends_well = stop < num_rows
            return table
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
        """The stream of this key that stands nearest before `start`, or will when it is free."""
        fitting = [kept for kept in self._kept if kept.key == key and kept.row <= start]
        return max(fitting, key=lambda kept: kept.row, default=None)

    def _give_back(self, kept: _KeptRows, *, keep: bool) -> None:
        with self._changed:
            kept.busy = False
            dropped = []
            if kept in self._kept:  # else this is a child process, or closed meanwhile
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
        """Close all streams; one that is being read, as soon as its slice is."""
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
    """A stream that is kept, or being opened, and the row at which it stands when it is free."""

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
