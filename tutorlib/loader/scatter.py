"""Dealing: what a reader thread does with a piece: read it, transform it, deal its rows out.

Does not belong here: the threads (`pipeline.py`), which row goes where (`plan.py`), the copying
(`batching.py`, on a device `device_batches.py`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tutorlib.chunk import Chunk
from tutorlib.loader import device_batches, host_batches
from tutorlib.loader.host_batches import ScatterPlan
from tutorlib.loader.layout import Layout
from tutorlib.loader.pipeline import Stopwatch
from tutorlib.memory import BufferPool, DevicePool
from tutorlib.parquet import ParquetError, ParquetSource, RowRange

Transform = Callable[[Chunk], Chunk]


class Scatterer:
    """Reads a piece, transforms it, and copies its rows to the batches that they go to.

    It is called from several threads, and holds nothing of the loader that it works for.

    Args:
        source: where pieces are.
        columns: to read.
        layout: how the columns lie in batches.
        pool: where the memory of batches comes from; of a device for batches on it.
        stopwatch: where the seconds of "read", "transform" and "scatter" are added.
        transform: is given a chunk of the columns read, and returns one of as many rows.
        names: columns that `transform` has to return.
    """

    def __init__(
        self,
        source: ParquetSource,
        columns: Sequence[str],
        layout: Layout,
        pool: BufferPool | DevicePool,
        stopwatch: Stopwatch,
        transform: Transform | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self._source, self._columns, self._layout = source, columns, layout
        self._pool, self._stopwatch = pool, stopwatch
        self._transform, self._names = transform, list(names)
        self._scatter_rows, self._work = host_batches.scatter, self._scatter
        if isinstance(pool, DevicePool):
            self._scatter_rows = device_batches.scatter
            self._work = device_batches.again_with_less(self._scatter, self._relieve, self._advice)

    def __call__(self, row_range: RowRange, scatter_plans: list[ScatterPlan]) -> None:
        """Deal the rows of a piece out.

        Raises:
            ParquetError: if the piece cannot be read, or a value does not fit; says where.
            Exception: what `transform` raised, with a note that says where.
        """
        try:
            self._work(row_range, scatter_plans)
        except ParquetError:
            raise
        except ValueError as error:
            raise ParquetError(
                f"{error} (in {self._source.location(row_range.row_group)})"
            ) from error
        except Exception as error:
            error.add_note(f"in {self._source.location(row_range.row_group)}")
            raise

    def _scatter(self, row_range: RowRange, scatter_plans: list[ScatterPlan]) -> None:
        started, spent = time.perf_counter(), Counter[str]()
        slice_of_group = row_range.row_group, self._columns, row_range.start, row_range.stop
        read = _timed(self._source.columns(*slice_of_group), spent, "read")
        if self._transform is not None:
            chunk = Chunk(dict(read))
            began = time.perf_counter()
            read = self._transformed(chunk).items()
            spent["transform"] = time.perf_counter() - began
        self._scatter_rows(self._layout, read, scatter_plans, self._pool, first_row=row_range.start)
        scatter = time.perf_counter() - started - spent.total()
        self._stopwatch.add(**spent, scatter=scatter)

    def _transformed(self, chunk: Chunk) -> Chunk:
        result = self._transform(chunk)
        if not isinstance(result, Chunk):
            raise ValueError(f"map(): gave a {type(result).__name__}, but a Chunk is needed")
        missing = [name for name in self._names if name not in result]
        if missing or result.num_rows != chunk.num_rows:
            raise ValueError(
                f"map(): gave {result.num_rows} rows with columns {result.names}, but "
                f"{chunk.num_rows} rows with {self._names} are needed"
            )
        return result

    def _relieve(self) -> None:
        self._source.save_memory()
        self._pool.clear()

    def _advice(self, row_range: RowRange, _: list[ScatterPlan]) -> str:
        place = self._source.location(row_range.row_group)
        rows = f"rows [{row_range.start}, {row_range.stop}) of {place}"
        advice = self._pool.space.advice()
        return f"{rows}: they do not fit, nor do they in small steps. {advice}"


def _timed(items: Iterable[Any], spent: Counter[str], name: str) -> Iterator[Any]:
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
