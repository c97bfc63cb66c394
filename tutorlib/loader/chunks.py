"""From row ranges to the arrays of batches: decode, transform, check, gather.

A chunk is a few tasks, which threads do at once (`ChunkReader.begin`). A task decodes some columns
of all row ranges, and has `Gatherer` check them, join them and gather them once by its order
(`EpochPlan.order`) into aligned memory, where the batches lie one after the other. What must be
decoded with all its columns is decoded by tasks of its own before, for which the others wait: rows
for a transform, slices of a row group, and small row groups.

Calls into NumPy are few and long, so that threads do not fight for the interpreter lock. Columns of
a stacked matrix become rows of it first: gathering whole rows of 26 columns is as fast as gathering
two columns. On a GPU (`gpu/batches.py`) the arrays are CuPy's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pyarrow as pa

from tutorlib.arrays import Array, gather_rows, one_array
from tutorlib.loader.layout import Field, Layout, Lists
from tutorlib.loader.pipeline import Stopwatch, Submit
from tutorlib.loader.plan import ChunkPlan, EpochPlan, RowRange, Segment
from tutorlib.memory import is_aligned
from tutorlib.parquet import ParquetSource
from tutorlib.schema import Column, listed

TASK_COLUMNS = 8  # that one task decodes and gathers, fewer where threads would have no task
CHUNK_TASKS = 16  # of a wide table: decoding a few columns reads the footer of all
READING_TASKS = 16  # of a chunk whose row groups are decoded with all columns, at most
SMALL_BYTES = 2**20  # a row group of so few bytes is decoded in one call
CONVERT_BATCHES = 32  # at most, in one call for each column: the first has to wait for the last
RUN_ROWS = 65_536  # rows of small row ranges that are looked at together
MATRIX_ROWS = 16_384  # rows of a stacked matrix that are made at a time

Piece = tuple[RowRange, pa.Table]
Pieces = Iterable[Piece]
Transform = Callable[[pa.Table], pa.Table]
HandOver = Callable[["Part"], list["Part"]]


@dataclasses.dataclass
class Part:
    """The arrays of a segment: `batches` whole batches of `rows` rows, or a piece of one.

    Args:
        segment: where it belongs.
        scalars: {names of fields: array [batches, fields, at least rows, width]}; on a CPU, each
            field has one of its own.
        lists: {name of a column: `Lists` of each batch}.
    """

    segment: Segment
    scalars: dict[tuple[str, ...], Array] = dataclasses.field(default_factory=dict)
    lists: dict[str, list[Lists]] = dataclasses.field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of each batch, or of the piece."""
        return (self.segment.stop - self.segment.start) // (self.segment.batches or 1)

    def some(self, first: int, count: int) -> Part:
        """Return some successive batches."""
        if count == self.segment.batches:
            return self
        which = slice(first, first + count)
        start = self.segment.start + first * self.rows
        return Part(
            Segment(self.segment.batch + first, count, start, start + count * self.rows),
            {names: array[which] for names, array in self.scalars.items()},
            {name: lists[which] for name, lists in self.lists.items()},
        )

    def blocks(self) -> Iterator[Part]:
        """Yield the batches some at a time: in powers of two, so that there are few shapes."""
        first = 0
        while left := self.segment.batches - first:
            count = min(1 << left.bit_length() - 1, CONVERT_BATCHES)
            yield self.some(first, count)
            first += count


class Gatherer:
    """Makes the arrays of batches, in memory of the host or of a GPU, where the columns are.

    Args:
        source: the files, for messages.
        layout: how the columns lie in a batch.
        pool: the memory of batches.
        stopwatch: adds up the seconds of "gather".
    """

    def __init__(
        self, source: ParquetSource, layout: Layout, pool: Any, stopwatch: Stopwatch
    ) -> None:
        self._source = source
        self._layout = layout
        self._pool = pool
        self._stopwatch = stopwatch

    def scalars(
        self,
        field: Field,
        pieces: Pieces,
        total: int,
        parts: Sequence[Part],
        order: Array | None,
    ) -> None:
        """Gather the values of a field into each part: checked, in the dtype of a batch.

        Args:
            field: the field.
            pieces: the row ranges of the chunk, with their rows.
            total: rows of the chunk.
            parts: the parts of the chunk.
            order: which row comes at each place, int64 [rows]; None for the order of the pieces.
        """
        matrix: Any = None
        first = 0
        for run in _runs(pieces):
            with self._stopwatch.timing("gather"):
                if matrix is None:
                    matrix = self._pool.empty((total, field.width), field.dtype)
                columns = [self._checked(self._layout.cells, c, run) for c in field.columns]
                for cells in zip(*columns, strict=True):  # the columns of a piece
                    last = first + len(cells[0])
                    _interleave(cells, matrix[first:last])
                    first = last
        with self._stopwatch.timing("gather"):
            self._gather_rows(field, matrix, parts, order)

    def _checked(
        self, check: Callable[..., list[Any]], column: Column, run: list[Piece]
    ) -> list[Any]:
        """Return what `check` makes of each piece of a column; an error names the row range."""
        arrays = [one_array(table[column.name]) for _, table in run]
        if all(array.type == arrays[0].type for array in arrays):
            with contextlib.suppress(ValueError):
                return check(column, arrays)
        cells = []
        for (row_range, _), array in zip(run, arrays, strict=True):
            with self._source.errors_at(row_range):
                cells += check(column, [array], first_row=row_range.start)
        return cells

    def _gather_rows(
        self, field: Field, matrix: Array, parts: Sequence[Part], order: Array | None
    ) -> None:
        """Put the rows of a matrix into the parts: whole batches side by side, pieces alone."""
        for part in parts:
            segment = part.segment
            rows = part.rows
            batches = part.segment.batches or 1
            stride = self._stride(rows) if batches > 1 else rows
            if order is None:
                shape = batches, rows, field.width
                unordered = matrix[segment.start : segment.stop].reshape(shape)
                if stride == rows and is_aligned(unordered):
                    part.scalars[(field.name,)] = unordered[:, None]
                    continue
            out = self._pool.empty((batches, stride, field.width), field.dtype)
            if order is None:
                out[:, :rows] = unordered
            else:
                chosen = order[segment.start : segment.stop]
                if stride > rows:  # the rows between two batches are not used
                    padded = np.zeros((batches, stride), np.int64)
                    padded[:, :rows] = chosen.reshape(batches, rows)
                    chosen = padded.reshape(-1)
                self._take(matrix, chosen, out.reshape(-1, field.width))
            part.scalars[(field.name,)] = out[:, None]

    def _stride(self, rows: int) -> int:
        """Return from how many rows on the next batch begins aligned."""
        return -(-rows // self._pool.aligned_rows) * self._pool.aligned_rows

    def lists(
        self, column: Column, pieces: Pieces, parts: Sequence[Part], order: Array | None
    ) -> None:
        """Gather the lists of a column into each part, every batch in aligned memory of its own.

        Arguments are those of `scalars`.
        """
        checked: list[Lists] = []
        for run in _runs(pieces):
            with self._stopwatch.timing("gather"):
                checked += self._checked(self._layout.list_cells, column, run)
        with self._stopwatch.timing("gather"):
            lists = self._concatenated(checked, self._layout.dtypes[column.name])
            self.gather_lists(column.name, lists, parts, order)

    def _concatenated(self, parts: Sequence[Lists], dtype: np.dtype) -> Lists:
        """Return lists one after the other, with values of a dtype in the memory of batches."""
        if len(parts) == 1 and parts[0].values.dtype == dtype:
            return parts[0]
        values = self._pool.empty((sum(len(part.values) for part in parts),), dtype)
        first = 0
        offsets = [parts[0].offsets[:1]]
        for part in parts:
            last = first + len(part.values)
            values[first:last] = part.values
            offsets.append(part.offsets[1:] + first)
            first = last
        return Lists(values, self._pool.library.concatenate(offsets))

    def gather_lists(
        self, name: str, lists: Lists, parts: Sequence[Part], order: Array | None
    ) -> None:
        """Put the lists of a column into the parts."""
        for part in parts:
            segment = part.segment
            rows = part.rows
            if order is None:
                positions = None
                offsets = lists.offsets[segment.start : segment.stop + 1]
            else:
                chosen = order[segment.start : segment.stop]
                positions, offsets = gather_rows(lists.offsets, chosen, self._pool.library)
            bounds = offsets[:: max(rows, 1)].tolist()
            made = part.lists[name] = []
            for number, (first, last) in enumerate(itertools.pairwise(bounds)):
                values = self._pool.empty((last - first,), lists.values.dtype)
                if positions is None:
                    values[...] = lists.values[first:last]
                elif last > first:
                    self._take(lists.values, positions[first:last], values)
                mine = offsets[number * rows : (number + 1) * rows + 1] - first
                made.append(Lists(values, mine))

    def joined(self, parts: Sequence[Part]) -> Part:
        """Return the batch that has the rows of these pieces."""
        rows = sum(part.rows for part in parts)
        joined = Part(Segment(parts[0].segment.batch, 1, 0, rows))
        for names, first in parts[0].scalars.items():
            shape = 1, len(names), self._stride(rows), first.shape[3]
            out = joined.scalars[names] = self._pool.empty(shape, first.dtype)
            start = 0
            for part in parts:
                out[:, :, start : start + part.rows] = part.scalars[names][:, :, : part.rows]
                start += part.rows
        for name in parts[0].lists:
            lists = [part.lists[name][0] for part in parts]
            joined.lists[name] = [self._concatenated(lists, lists[0].values.dtype)]
        return joined

    def _take(self, array: Array, rows: Array, out: Array) -> None:
        """Write some rows of an array to `out`."""
        if self._pool.library is np:
            np.take(array, rows, axis=0, out=out, mode="clip")  # other modes copy `out` first
        else:
            self._pool.library.take(array, rows, axis=0, out=out)


def _runs(pieces: Pieces) -> Iterator[list[Piece]]:
    """Yield pieces one by one, small ones together: a call for each would take longer than it."""
    run: list[Piece] = []
    rows = 0
    for piece in pieces:
        run.append(piece)
        rows += piece[0].num_rows
        if rows >= RUN_ROWS:
            yield run
            run = []
            rows = 0
    if run:
        yield run


def _interleave(columns: Sequence[Any], matrix: Any) -> None:
    """Write columns of numbers or vectors side by side into the rows of a matrix.

    Columns are copied side by side in blocks that fit the cache, then transposed: NumPy then writes
    one row after the other, which is twice as fast as writing column by column.
    """
    if len(columns) == 1:
        matrix[...] = columns[0].reshape(matrix.shape)
        return
    if all(column.ndim == 1 for column in columns):
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


@dataclasses.dataclass(eq=False)
class ChunkReader:
    """Decodes row ranges for one pass over a loader.

    Its tasks run on several threads and keep no reference to the loader that they work for.

    Args:
        source: the files.
        columns: names of the columns to read.
        layout: how the columns lie in a batch.
        pool: gives the memory of batches.
        gives_back: whether memory that Arrow has freed goes back to the system at the end of each
            chunk, as a budget needs; the next one then takes new pages.
        stopwatch: adds up the seconds of "read", "transform" and "gather".
        transform: takes a table of the columns read, returns one of as many rows; None for none.
        threads: number of reader threads.
        made_by: what errors call `transform`.
        on_gpu: whether chunks are decoded and gathered by a GPU.
        hand_over: gives the batches of a part to Keras's backend, in some parts; None where the
            consumer's thread does it.
    """

    source: ParquetSource
    columns: Sequence[str]
    layout: Layout
    pool: Any
    gives_back: bool
    stopwatch: Stopwatch
    transform: Transform | None
    threads: int
    made_by: str = ""
    on_gpu: bool = False
    hand_over: HandOver | None = None

    def __post_init__(self) -> None:
        self.gatherer = Gatherer(self.source, self.layout, self.pool, self.stopwatch)
        self._slices: dict[int, _Slices] = {}  # of row groups that are open, by their numbers
        self._reading: list[Future[Any]] = []  # tasks that read the slices of the latest chunk

    def begin(
        self, submit: Submit, plan: EpochPlan, chunk: ChunkPlan, first_batch: int
    ) -> tuple[list[Part], list[Future[Any]]]:
        """Submit the tasks of a chunk; the chunks of a pass begin in their order.

        Args:
            submit: of a pool that is first in, first out.
            plan: plan of the epoch.
            chunk: the chunk.
            first_batch: batches before this one are not made.

        Returns:
            A `Part` for each segment of the chunk, complete when all tasks are done; and the tasks.
        """
        parts = [Part(segment) for segment in plan.segments(chunk.index, first_batch)]
        order = submit(self._order, plan, chunk)
        if self.on_gpu:
            from tutorlib.gpu.batches import make_parts

            tasks = [order, submit(make_parts, self, chunk, parts, order)]
        else:
            tasks = [order, *self._begin_on_cpu(submit, plan, chunk, parts, order)]
        if self.hand_over is not None:
            tasks.append(submit(self._hand_over, self.hand_over, parts, [*tasks]))
        return parts, tasks

    def _begin_on_cpu(
        self,
        submit: Submit,
        plan: EpochPlan,
        chunk: ChunkPlan,
        parts: Sequence[Part],
        order: Future[Any],
    ) -> list[Future[Any]]:
        reading: list[Future[Any]] = []
        if not self._reads_by_column(plan, chunk):
            size = -(-len(chunk.row_ranges) // READING_TASKS)
            for first in range(0, len(chunk.row_ranges), size):
                some = chunk.row_ranges[first : first + size]
                reading.append(submit(self._read, plan, some, self._reading))
            self._reading = reading if plan.sliced else []
        gathering = []
        for lists in self.layout.ragged.values():  # first, because they take longest
            gathering.append(submit(self._gather_lists, lists, chunk, reading, order, parts))
        for fields in self._fields_of_tasks():
            gathering.append(submit(self._gather, fields, chunk, reading, order, parts))
        if self.gives_back:
            gathering.append(submit(pa.default_memory_pool().release_unused))
        return [*reading, *gathering]

    def _fields_of_tasks(self) -> Iterator[list[Field]]:
        """Yield the fields that one task gathers: a matrix, or some columns."""
        columns = [field for field in self.layout.fields if field.width == 1]
        for field in self.layout.fields:
            if field.width > 1:
                yield [field]
        size = min(TASK_COLUMNS, -(-len(columns) // self.threads))  # each thread has a task
        size = max(size, len(columns) // CHUNK_TASKS, 1)
        for first in range(0, len(columns), size):
            yield columns[first : first + size]

    def _reads_by_column(self, plan: EpochPlan, chunk: ChunkPlan) -> bool:
        """Return whether a task reads some columns of all row ranges, not all of some ranges.

        A chunk then holds few decoded columns at a time. But a transform needs all columns, slices
        of a row group are decoded in order, and small row groups faster in one call.
        """
        source = self.source
        if self.transform is not None or not source.is_local:
            return False
        for row_range in chunk.row_ranges:
            if row_range.row_group in plan.sliced:
                return False
        return chunk.num_rows * self.layout.row_bytes > SMALL_BYTES * len(chunk.row_ranges)

    # ---- tasks, on reader threads ----

    def _order(self, plan: EpochPlan, chunk: ChunkPlan) -> Array | None:
        """Return the order of the chunk's rows, as the tasks of the device need it."""
        place = self.source.errors_at(chunk.row_ranges[0])
        with self.stopwatch.timing("gather"), place:
            if self.on_gpu:
                from tutorlib.gpu.batches import decoded_rows

                return decoded_rows(self.source, plan, chunk)
            return plan.order(chunk.index)

    def _read(
        self, plan: EpochPlan, ranges: Sequence[RowRange], earlier: Sequence[Future[Any]]
    ) -> list[pa.Table]:
        """Return all columns of some row ranges, once the slices of the chunk before are read.

        They are read in order, and as many row groups are open as a chunk has parts.
        """
        for task in earlier:
            task.result()
        rows = []
        for row_range in ranges:
            rows.append(
                self._decoded(row_range, self.columns, plan.sliced.get(row_range.row_group))
            )
        return rows

    def _rows(
        self, chunk: ChunkPlan, names: Sequence[str], reading: Sequence[Future[Any]]
    ) -> Pieces:
        """Yield (row range, its rows) of a chunk, of some columns unless tasks read them all."""
        if reading:
            rows = itertools.chain.from_iterable(task.result() for task in reading)
            yield from zip(chunk.row_ranges, rows, strict=True)
        else:
            for row_range in chunk.row_ranges:
                yield row_range, self._decoded(row_range, names)

    def _gather(
        self,
        fields: Sequence[Field],
        chunk: ChunkPlan,
        reading: Sequence[Future[Any]],
        order: Future[Any],
        parts: Sequence[Part],
    ) -> None:
        """Make the arrays of some fields in all parts."""
        names = [column.name for field in fields for column in field.columns]
        pieces = self._rows(chunk, names, reading)
        if len(fields) > 1:
            pieces = list(pieces)  # each field needs them; for a single one, they come one by one
        for field in fields:
            self.gatherer.scalars(field, pieces, chunk.num_rows, parts, order.result())

    def _gather_lists(
        self,
        lists: Column,
        chunk: ChunkPlan,
        reading: Sequence[Future[Any]],
        order: Future[Any],
        parts: Sequence[Part],
    ) -> None:
        """Make the arrays of a column of lists in all parts."""
        pieces = self._rows(chunk, [lists.name], reading)
        self.gatherer.lists(lists, pieces, parts, order.result())

    def _hand_over(
        self, hand_over: HandOver, parts: list[Part], earlier: Sequence[Future[Any]]
    ) -> None:
        """Give whole batches to Keras's backend, ahead of their use; pieces are joined first."""
        for task in earlier:
            task.result()
        with self.stopwatch.timing("gather"):
            given: list[Part] = []
            for part in parts:
                given.extend(hand_over(part) if part.segment.batches else [part])
            parts[:] = given

    def _decoded(
        self, row_range: RowRange, names: Sequence[str], sliced_to: int | None = None
    ) -> pa.Table:
        """Return columns of a row range as they are stored, or what the transform makes of them.

        Args:
            row_range: the rows.
            names: the columns to read.
            sliced_to: the end of the last slice of its row group; None if it is not sliced.

        Raises:
            ParquetError: if the rows cannot be read.
            RuntimeError: if `transform` raises StopIteration, which would end a loop silently.
            Exception: what `transform` raised, with a note that says where.
        """
        group = row_range.row_group
        start = row_range.start
        stop = row_range.stop
        with self.stopwatch.timing("read"):
            if sliced_to is None:
                table = self.source.table(group, names, start, stop)
            else:
                if group not in self._slices:
                    self._slices[group] = _Slices(self.source, names, row_range, sliced_to)
                table = self._slices[group].read(row_range.num_rows)
                if stop == sliced_to:
                    self._slices.pop(group).close()
        if self.transform is None:
            return table
        place = self.source.errors_at(row_range, f"rows [{start}, {stop}) of ")
        with self.stopwatch.timing("transform"), place:
            return self._transformed(self.transform, table)

    def _transformed(self, transform: Transform, table: pa.Table) -> pa.Table:
        try:
            result = transform(table)
        except StopIteration as error:
            raise RuntimeError(
                "map(): the function raised StopIteration; it must return a table for every table"
            ) from error
        except ValueError as error:
            raise ValueError(
                f"map(): {self.made_by} raised {type(error).__name__}: {error}"
            ) from error
        except Exception as error:
            error.add_note(f"raised by {self.made_by} of map()")
            raise
        names = [*self.layout.dtypes]
        if not isinstance(result, pa.Table):
            raise ValueError(
                f"map(): gave a {type(result).__name__}, but a pyarrow Table is needed"
            )
        missing = [name for name in names if name not in result.column_names]
        if missing or result.num_rows != table.num_rows:
            lacks = f", without {listed(missing)}" if missing else ""
            raise ValueError(
                f"map(): gave {result.num_rows} rows with columns {listed(result.column_names)}"
                f"{lacks}, but {table.num_rows} rows with {listed(names)} are needed"
            )
        return result

    def close(self) -> None:
        """Close the row groups that are open between two slices, and the files."""
        for slices in self._slices.values():
            slices.close()
        self.source.close()


class _Slices:
    """The rows of a large row group, read in order.

    They are decoded at once or about a slice at a time, whichever takes less memory: pages and
    dictionaries of all columns are more than the rows if these are fewer than about a million.

    Args:
        source: the files.
        names: the columns to read.
        first: the first slice.
        stop: end of the last slice.
    """

    def __init__(
        self, source: ParquetSource, names: Sequence[str], first: RowRange, stop: int
    ) -> None:
        place = (first.row_group, names)
        step = first.num_rows
        rows = source.row_groups[first.row_group].num_rows
        if rows * source.row_bytes(*place) <= source.stream_bytes(*place):
            step = rows
        self._steps = source.tables(*place, step, first.start, stop)
        self._left: list[pa.Table] = []  # rows that were decoded with an earlier slice

    def read(self, rows: int) -> pa.Table:
        """Return the next rows."""
        pieces = self._left
        count = sum(piece.num_rows for piece in pieces)
        while count < rows:
            pieces.append(next(self._steps))
            count += pieces[-1].num_rows
        last = pieces.pop()
        cut = last.num_rows - (count - rows)
        self._left = [last.slice(cut)] if count > rows else []
        # A copy, so that the row group goes when its last rows were given.
        return pa.concat_tables([*pieces, last.slice(0, cut), last.slice(0, 0)]).combine_chunks()

    def close(self) -> None:
        """Close the file."""
        self._steps.close()
        self._left = []
