"""Scatterer: what a reader thread does with a row range: read, transform, scatter."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic

import numpy as np

from tutorlib.columns import Chunk, Masked, Ragged, to_host
from tutorlib.loader.batch_group import BatchBuilder, GroupT, ScatterPlan
from tutorlib.loader.pipeline import Stopwatch
from tutorlib.loader.plan import RowSlice
from tutorlib.memory import MemorySpace
from tutorlib.parquet import ParquetError, ParquetSource, RowRange

Transform = Callable[[Chunk], Chunk]


@dataclasses.dataclass(frozen=True)
class Scatterer(Generic[GroupT]):
    """Reads a row range, transforms it, and copies its rows to the batches that they go to.

    It is called from several threads and keeps no reference to the loader that it works for.

    Args:
        source: the files.
        columns: names of the columns to read.
        builder: makes the batches.
        stopwatch: adds up the seconds of "read", "transform" and "scatter".
        transform: takes a chunk of the columns read, returns one of as many rows; None for none.
        names: columns that `transform` has to return.
        step_bytes: bytes of rows that are read, transformed and scattered at a time; None for all
            of a row range.
    """

    source: ParquetSource
    columns: Sequence[str]
    builder: BatchBuilder[GroupT, Any]
    stopwatch: Stopwatch
    transform: Transform | None
    names: Sequence[str]
    step_bytes: int | None = None

    def __call__(self, row_range: RowRange, scatter_plans: list[ScatterPlan[GroupT]]) -> None:
        """Scatter the rows of a row range.

        Raises:
            ParquetError: if the rows cannot be read or a value does not fit; says where.
            MemoryError: if a device has too little memory; says where and what to change.
            RuntimeError: if `transform` raises StopIteration, which would end a loop silently.
            Exception: what `transform` raised, with a note that says where.
        """
        try:
            if self.builder.space is None:
                self._scatter(row_range, scatter_plans)
            else:
                self._scatter_or_retry(self.builder.space, row_range, scatter_plans)
        except ParquetError:
            raise
        except ValueError as error:
            raise ParquetError(
                f"{error} (in {self.source.location(row_range.row_group)})"
            ) from error
        except StopIteration as error:  # it would end the consumer's loop silently
            raise RuntimeError(
                f"map(): the function raised StopIteration; it must return a Chunk for every chunk "
                f"(in {self.source.location(row_range.row_group)})"
            ) from error
        except Exception as error:
            error.add_note(f"in {self.source.location(row_range.row_group)}")
            raise

    def _scatter(self, row_range: RowRange, scatter_plans: list[ScatterPlan[GroupT]]) -> None:
        place = row_range.row_group, self.columns, row_range.start, row_range.stop
        if self.step_bytes is None:
            columns = self.source.columns(*place)
            self._scatter_columns(columns, scatter_plans, row_range.start)
            return
        with contextlib.closing(self.source.steps(*place, self.step_bytes)) as steps:
            began = time.perf_counter()
            for first, end, columns in steps:
                self.stopwatch.add(read=time.perf_counter() - began)
                rows = first - row_range.start, end - row_range.start
                self._scatter_columns(columns, _plans_of_rows(scatter_plans, *rows), first)
                began = time.perf_counter()

    def _scatter_columns(
        self,
        columns: Iterator[tuple[str, Any]],
        scatter_plans: Sequence[ScatterPlan[GroupT]],
        first_row: int,
    ) -> None:
        started, spent = time.perf_counter(), defaultdict[str, float](float)
        columns = _timed(columns, spent, "read")
        if self.transform is not None:
            chunk = Chunk(dict(columns))
            began = time.perf_counter()
            columns = iter(self._transformed(self.transform, chunk).items())
            spent["transform"] = time.perf_counter() - began
            del chunk
        self.builder.scatter(columns, scatter_plans, first_row=first_row)
        scatter = time.perf_counter() - started - sum(spent.values())
        self.stopwatch.add(**spent, scatter=scatter)

    def _transformed(self, transform: Transform, chunk: Chunk) -> Chunk:
        result = transform(chunk)
        if not isinstance(result, Chunk):
            raise ValueError(f"map(): gave a {type(result).__name__}, but a Chunk is needed")
        missing = [name for name in self.names if name not in result]
        if missing or result.num_rows != chunk.num_rows:
            raise ValueError(
                f"map(): gave {result.num_rows} rows with columns {result.names}, but "
                f"{chunk.num_rows} rows with {self.names} are needed"
            )
        for name in self.names:
            _check_lengths(name, result[name])
        return result

    def _scatter_or_retry(
        self, space: MemorySpace, row_range: RowRange, scatter_plans: list[ScatterPlan[GroupT]]
    ) -> None:
        """Scatter; if the device's memory runs out, free what can be freed and try once more."""
        try:
            self._scatter(row_range, scatter_plans)
            return
        except MemoryError:
            pass  # the error is gone from here on, and with it what its traceback holds
        self.source.save_memory()
        self.builder.pool.clear()
        try:
            self._scatter(row_range, scatter_plans)
        except MemoryError as error:
            where = self.source.location(row_range.row_group)
            raise MemoryError(
                f"rows [{row_range.start}, {row_range.stop}) of {where}: they do not fit, not even "
                f"in small steps. {space.advice()} ({error})"
            ) from error


def _check_lengths(name: str, column: Any) -> None:
    """Raise ValueError if a column that a user's code made contradicts itself."""
    if isinstance(column, Ragged):
        offsets, count = column.offsets, len(column.values)
        first, last = to_host(offsets[[0, -1]]).tolist()
        falls = offsets[1:] < offsets[:-1]
        if first != 0 or last != count or falls.any():
            falling = f", falling at row {int(falls.argmax())}" if falls.any() else ""
            raise ValueError(
                f"map(): column {name!r}: the offsets of a Ragged must rise from 0 to the number "
                f"of its values, {count}, got offsets from {first} to {last}{falling}"
            )
        column = column.values
    if isinstance(column, Masked) and len(column.values) != len(column.valid):
        raise ValueError(
            f"map(): column {name!r}: a Masked needs one `valid` for each value, got "
            f"{len(column.valid)} for {len(column.values)} values"
        )


def _plans_of_rows(
    scatter_plans: Sequence[ScatterPlan[GroupT]], first: int, end: int
) -> list[ScatterPlan[GroupT]]:
    """Return where rows [first, end) of a row range go, counted from `first`."""
    result = []
    for scatter_plan in scatter_plans:
        low, high = first - scatter_plan.start, end - scatter_plan.start  # in the block
        start = max(0, low)
        orders, row_slices, count = [], [], 0
        for group, rows in scatter_plan.row_slices:
            # The rows of a row slice keep their order in the block: those of a step are together.
            if scatter_plan.order is None:
                order = np.arange(max(low, rows.start), min(high, rows.stop))
                skipped = max(0, low - rows.start)
            else:
                order = scatter_plan.order[rows.start : rows.stop]
                skipped, stop = np.searchsorted(order, [low, high]).tolist()
                order = order[skipped:stop]
            if len(order):
                orders.append(order - start)
                target = RowSlice(rows.group, rows.first + skipped, count, count + len(order))
                row_slices.append((group, target))
                count += len(order)
        if row_slices:
            begin = scatter_plan.start + start - first
            result.append(ScatterPlan(begin, np.concatenate(orders), row_slices))
    return result


def _timed(
    items: Iterable[tuple[str, Any]], spent: dict[str, float], name: str
) -> Iterator[tuple[str, Any]]:
    """Yield the items, adding the seconds that each took to come to `spent[name]`."""
    items = iter(items)
    while True:
        started = time.perf_counter()
        try:
            item = next(items)
        except StopIteration:
            return
        finally:
            spent[name] += time.perf_counter() - started
        yield item
        del item
