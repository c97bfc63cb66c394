"""Gatherer: checked rows of a chunk to the arrays of its batches.

The rows of a chunk have one order (`RankPlan.order`). Each column is checked and joined over the
row ranges of the chunk, then gathered once by that order into aligned memory, where the batches lie
one after the other. Calls into NumPy are few and long, so that threads do not fight for the
interpreter lock. Columns of a stacked matrix become rows of it first: gathering whole rows of 26
columns is as fast as gathering two columns. On a GPU the arrays are CuPy's; nothing else differs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tutorlib.columns import (
    Array,
    Chunk,
    Ragged,
    array_namespace,
    concat_columns,
    gather_rows,
    to_host,
)
from tutorlib.loader.layout import Field, Layout
from tutorlib.loader.pipeline import Stopwatch
from tutorlib.loader.plan import RowRange, Segment
from tutorlib.loader.sizing import values_per_row
from tutorlib.memory import BufferPool, is_aligned
from tutorlib.parquet import ParquetError, ParquetSource
from tutorlib.schema import Column

MATRIX_ROWS = 16_384  # rows of a stacked matrix that are made at a time

Pieces = Iterable[tuple[RowRange, Chunk]]


@dataclasses.dataclass
class Part:
    """The arrays of a segment: `batches` whole batches of `rows` rows, or a piece of one.

    Args:
        segment: where it belongs.
        scalars: {name of a field: array [batches, at least rows, width]}.
        lists: {name of a column: `Ragged` of each batch}; values may be padded after the last list.
    """

    segment: Segment
    scalars: dict[str, Array] = dataclasses.field(default_factory=dict)
    lists: dict[str, list[Ragged]] = dataclasses.field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of each batch, or of the piece."""
        return (self.segment.stop - self.segment.start) // (self.segment.batches or 1)

    def some(self, first: int, count: int) -> Part:
        """Return some successive batches."""
        which, start = slice(first, first + count), self.segment.start + first * self.rows
        return Part(
            Segment(self.segment.batch + first, count, start, start + count * self.rows),
            {name: array[which] for name, array in self.scalars.items()},
            {name: lists[which] for name, lists in self.lists.items()},
        )


class Gatherer:
    """Makes the arrays of batches, in memory of the device where the columns are.

    Args:
        source: the files, for messages and the mean lengths of lists.
        layout: how the columns lie in a batch.
        pool: gives the memory of batches on a CPU.
        stopwatch: adds up the seconds of "gather".

    Attributes:
        library: numpy or cupy, of whose arrays the columns and batches are.
    """

    def __init__(
        self, source: ParquetSource, layout: Layout, pool: BufferPool, stopwatch: Stopwatch
    ) -> None:
        self._source, self._layout, self._pool, self._stopwatch = source, layout, pool, stopwatch
        self.library: Any = np
        if source.device == "gpu":
            import cupy

            self.library = cupy
        self._mean_lengths = values_per_row(source) if layout.multi_hot.bucketed else {}

    def scalars(
        self, field: Field, pieces: Pieces, total: int, parts: Sequence[Part], order: Array | None
    ) -> None:
        """Gather the values of a field into each part: checked, in the dtype of a batch.

        Args:
            field: the field.
            pieces: the row ranges of the chunk, with their rows.
            total: rows of the chunk.
            parts: the parts of the chunk.
            order: which row comes at each place, int64 [rows]; None for the order of the pieces.
        """
        # The checked values of all row ranges, one after the other.
        matrix: Any = None
        first = 0
        for row_range, chunk in pieces:
            cells = []
            with self._stopwatch.timing("gather"), errors_at(self._source, row_range):
                for column in field.columns:
                    values = chunk[column.name]
                    cells.append(self._layout.cells(column, values, first_row=row_range.start))
                if matrix is None:
                    matrix = self.empty((total, field.width), field.dtype)
                _interleave(cells, matrix[first : first + row_range.num_rows])
            first += row_range.num_rows
        with self._stopwatch.timing("gather"):
            self._gather_rows(field, matrix, parts, order)

    def _gather_rows(
        self, field: Field, matrix: Array, parts: Sequence[Part], order: Array | None
    ) -> None:
        """Put the rows of a matrix into the parts: whole batches side by side, pieces alone."""
        for part in parts:
            segment, rows, batches = part.segment, part.rows, part.segment.batches or 1
            stride = self._stride(rows, batches)
            if order is None:
                shape = batches, rows, field.width
                unordered = matrix[segment.start : segment.stop].reshape(shape)
                if stride == rows and is_aligned(unordered):
                    part.scalars[field.name] = unordered
                    continue
            out = self.empty((batches, stride, field.width), field.dtype)
            if order is None:
                out[:, :rows] = unordered
            else:
                chosen = order[segment.start : segment.stop]
                if stride > rows:  # the rows between two batches are not used
                    padded = self.library.zeros((batches, stride), np.int64)
                    padded[:, :rows] = chosen.reshape(batches, rows)
                    chosen = padded.reshape(-1)
                _take(matrix, chosen, out.reshape(-1, field.width))
            part.scalars[field.name] = out[:, :rows]

    def lists(
        self, column: Column, pieces: Pieces, parts: Sequence[Part], order: Array | None
    ) -> None:
        """Gather the lists of a column into each part, every batch in aligned memory of its own.

        Arguments are those of `scalars`.
        """
        checked = []
        for row_range, chunk in pieces:
            values, first_row = chunk[column.name], row_range.start
            with self._stopwatch.timing("gather"), errors_at(self._source, row_range):
                checked.append(self._layout.list_cells(column, values, first_row=first_row))
        with self._stopwatch.timing("gather"):
            self._gather_lists(column.name, concat_columns(checked), parts, order)

    def _gather_lists(
        self, name: str, lists: Ragged, parts: Sequence[Part], order: Array | None
    ) -> None:
        """Put the lists of a column into the parts."""
        for part in parts:
            segment, rows = part.segment, part.rows
            if order is None:
                ordered = lists.slice(segment.start, segment.stop)
                positions, offsets = None, ordered.offsets
            else:
                positions, offsets = gather_rows(lists.offsets, order[segment.start : segment.stop])
            made = part.lists[name] = []
            bounds = to_host(offsets[:: max(rows, 1)]).tolist()
            for number, (first, last) in enumerate(itertools.pairwise(bounds)):
                count = last - first
                length = count
                if segment.batches:
                    length = self._num_values(name, rows, count)
                values = self.empty((length,), lists.values.dtype)
                if positions is None:
                    values[:count] = ordered.values[first:last]
                elif count:
                    _take(lists.values, positions[first:last], values[:count])
                # Padding repeats the last value: any other could be an id that no row has.
                values[count:] = values[count - 1 : count] if count else 0
                mine = offsets[number * rows : (number + 1) * rows + 1] - first
                made.append(Ragged(values, mine))

    def joined(self, parts: Sequence[Part], batches: int) -> Part:
        """Return batches of which each has the rows of one batch, or piece, of every part."""
        rows = sum(part.rows for part in parts)
        joined = Part(Segment(parts[0].segment.batch, batches, 0, batches * rows))
        stride = self._stride(rows, batches)
        for name, first in parts[0].scalars.items():
            out = self.empty((batches, stride, first.shape[2]), first.dtype)[:, :rows]
            arrays = [part.scalars[name] for part in parts]
            array_namespace(out).concatenate(arrays, axis=1, out=out)
            joined.scalars[name] = out
        for name in parts[0].lists:
            of_batches = zip(*(part.lists[name] for part in parts), strict=True)
            joined.lists[name] = [self._joined_lists(name, lists) for lists in of_batches]
        return joined

    def _joined_lists(self, name: str, lists: Sequence[Ragged]) -> Ragged:
        """Return lists one after the other, with values padded as those of a whole batch."""
        rows = sum(map(len, lists))
        counts = [int(one.offsets[-1]) for one in lists]
        length = self._num_values(name, rows, sum(counts))
        values = self.empty((length,), lists[0].values.dtype)
        first, offsets = 0, [lists[0].offsets[:1]]
        for one, count in zip(lists, counts, strict=True):
            values[first : first + count] = one.values[:count]
            offsets.append(one.offsets[1:] + first)
            first += count
        values[first:] = values[first - 1 : first] if first else 0
        return Ragged(values, array_namespace(values).concatenate(offsets))

    def _num_values(self, name: str, rows: int, count: int) -> int:
        """Return the length of the array for the `count` values of a list column in a batch."""
        return self._layout.multi_hot.num_values(self._mean_lengths.get(name, 0), rows, count)

    def _stride(self, rows: int, batches: int) -> int:
        """Return the rows from one batch to the next, so that each begins aligned."""
        step = 16 if self.library is np else 64
        return -(-rows // step) * step if batches > 1 else rows

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return memory for batches, aligned, on the device of the source."""
        memory = self._pool if self.library is np else self.library  # RMM aligns to 256 bytes
        return memory.empty(shape, dtype)

    def synchronize(self) -> None:
        """Wait for a GPU: consumers work on streams of their own."""
        if self.library is not np:
            self.library.cuda.get_current_stream().synchronize()


@contextlib.contextmanager
def errors_at(source: ParquetSource, row_range: RowRange, rows: str = "") -> Iterator[None]:
    """Have errors name the row group, after words that say which rows of it."""
    try:
        yield
    except ParquetError:
        raise
    except Exception as error:
        where = f"in {rows}{source.location(row_range.row_group)}"
        if isinstance(error, ValueError):
            raise ParquetError(f"{error} ({where})") from error
        if isinstance(error, MemoryError):
            raise MemoryError(
                f"{error} ({where}). Give a smaller memory_budget, buffer_size or batch_size, or "
                "leave the device more memory (limit_tensorflow_memory; "
                "XLA_CLIENT_MEM_FRACTION for JAX)"
            ) from error
        error.add_note(where)
        raise


def _take(array: Any, rows: Any, out: Any) -> None:
    """Write some rows of an array to `out`."""
    if isinstance(array, np.ndarray):
        np.take(array, rows, axis=0, out=out, mode="clip")  # other modes copy `out` first
    else:
        array_namespace(array).take(array, rows, axis=0, out=out)


def _interleave(columns: Sequence[Any], matrix: Any) -> None:
    """Write columns of numbers or vectors side by side into the rows of a matrix.

    Columns are copied side by side in blocks that fit the cache, then transposed: NumPy then writes
    one row after the other, which is twice as fast as writing column by column.
    """
    if len(columns) == 1:
        matrix[...] = columns[0].reshape(matrix.shape)
        return
    if isinstance(matrix, np.ndarray) and all(column.ndim == 1 for column in columns):
        # A little longer than the block, so that columns do not compete for the same cache lines.
        beside = np.empty((len(columns), min(MATRIX_ROWS, len(matrix)) + 16), matrix.dtype)
        for start in range(0, len(matrix), MATRIX_ROWS):
            rows = matrix[start : start + MATRIX_ROWS]
            for target, column in zip(beside, columns, strict=True):
                target[: len(rows)] = column[start : start + MATRIX_ROWS]
            rows[:] = beside[:, : len(rows)].T
        return
    first = 0
    for column in columns:
        width = column.shape[1] if column.ndim == 2 else 1
        matrix[:, first : first + width] = column.reshape(len(matrix), width)
        first += width
