"""Batches: one pass over an epoch of a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tutorlib.loader.cursor import EpochCursor
from tutorlib.loader.pipeline import Pipeline


class Batches(Iterator[Any]):
    """The batches of the epoch at which a cursor stands.

    Threads start with the first batch and end with the last.

    Args:
        cursor: gives the epoch and the first batch when the first batch is asked for.
        new_pipeline: returns a pipeline that makes the batches from there on.
        num_batches: batches of an epoch.
        moves: whether each batch moves the cursor; False leaves the loader where it is.
    """

    def __init__(
        self,
        cursor: EpochCursor,
        new_pipeline: Callable[[], Pipeline],
        num_batches: int,
        *,
        moves: bool = True,
    ) -> None:
        self._cursor, self._new_pipeline = cursor, new_pipeline
        self._num_batches, self._moves = num_batches, moves
        self._pipeline: Pipeline | None = None
        self._closed = False

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        self._closed = True  # and so it stays if an interrupt or an error ends this call
        try:
            batch = self._take()
        except BaseException:
            self.close()
            raise
        self._closed = batch is None or self._next == self._num_batches
        if self._closed:
            self.close()
        if batch is None:
            raise StopIteration
        return batch

    def _take(self) -> Any:
        if self._pipeline is None:
            pipeline = self._new_pipeline()
            self._epoch, self._next, _ = self._cursor.position
            pipeline.stop_without(self)
            self._pipeline = pipeline
        batch = self._pipeline.next_batch()
        if batch is not None:
            self._next += 1
            if self._moves:
                self._cursor.advance(self._epoch, self._next, self._num_batches)
        return batch

    def close(self) -> None:
        """Stop the threads of this pass; it then has no more batches."""
        self._closed = True
        if self._pipeline is not None:
            self._pipeline.close()
