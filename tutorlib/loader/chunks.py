"""From row ranges to the arrays of batches: decode, transform, check, gather.

A chunk is a few tasks, which threads do at once (`ChunkWork`). A task has `ChunkReader` decode some
columns of all row ranges, and `Gatherer` check them, join them and gather them once by the chunk's
order (`EpochPlan.order`) into aligned memory, where the batches lie one after the other. What must
be decoded with all its columns is decoded by tasks of its own before: rows for a transform, slices
of a row group, and small row groups.

Calls into NumPy are few and long, so that threads do not fight for the interpreter lock. Columns of
a stacked matrix become rows of it first: gathering whole rows of 26 columns is as fast as gathering
two columns. On a GPU the arrays are CuPy's, and steps are few and large too: one task decodes all
columns of all row groups of a chunk, another checks and gathers them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tutorlib.columns import (
    Array,
    Chunk,
    Masked,
    Ragged,
    flat_values,
    gather_rows,
    is_array,
)
from tutorlib.loader.layout import Field, Layout
from tutorlib.loader.pipeline import Stopwatch, Task
from tutorlib.loader.plan import ChunkPlan, EpochPlan, RowRange, Segment
from tutorlib.memory import LESS_MEMORY, BufferPool, is_aligned
from tutorlib.parquet import ParquetError, ParquetSource
from tutorlib.schema import Column, listed

TASK_COLUMNS = 8  # at least, that one task decodes and gathers
CHUNK_TASKS = 16  # of a wide table: decoding a few columns reads the footer of all
READING_TASKS = 16  # of a chunk whose row groups are decoded with all columns, at most
SMALL_BYTES = 2**20  # a row group of so few bytes is decoded in one call
MATRIX_ROWS = 16_384  # rows of a stacked matrix that are made at a time

Pieces = Iterable[tuple[RowRange, Chunk]]
Transform = Callable[[Chunk], Chunk]


@dataclasses.dataclass
class Part:
    """The arrays of a segment: `batches` whole batches of `rows` rows, or a piece of one.

    Args:
        segment: where it belongs.
        scalars: {name of a field: array [batches, at least rows, width]}.
        lists: {name of a column: `Ragged` of each batch}.
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
    """Makes the arrays of batches, in memory of the host or of a GPU, where the columns are.

    Args:
        source: the files, for messages.
        layout: how the columns lie in a batch.
        pool: gives the memory of batches on a CPU.
        stopwatch: adds up the seconds of "gather".
        library: numpy, or cupy for columns and batches on a GPU.

    Attributes:
        library: as given.
    """

    def __init__(
        self,
        source: ParquetSource,
        layout: Layout,
        pool: BufferPool,
        stopwatch: Stopwatch,
        library: Any = np,
    ) -> None:
        self._source, self._layout, self._pool, self._stopwatch = source, layout, pool, stopwatch
        self.library = library
        self._step = 16 if library is np else 64  # rows: every batch begins aligned

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
        # The checked values of all row ranges, one after the other.
        matrix: Any = None
        first = 0
        for row_range, chunk in pieces:
            cells = []
            with self._stopwatch.timing("gather"), errors_at(self._source, row_range):
                for column in field.columns:
                    values, start = chunk[column.name], row_range.start
                    cells.append(self._layout.cells(column, values, first_row=start))
                if matrix is None:
                    matrix = self.empty((total, field.width), field.dtype)
                _interleave(cells, matrix[first : first + row_range.num_rows])
            first += row_range.num_rows
        with self._stopwatch.timing("gather"):
            self.gather_rows(field, matrix, parts, order)

    def gather_rows(
        self, field: Field, matrix: Array, parts: Sequence[Part], order: Array | None
    ) -> None:
        """Put the rows of a matrix into the parts: whole batches side by side, pieces alone."""
        for part in parts:
            segment, rows, batches = part.segment, part.rows, part.segment.batches or 1
            stride = -(-rows // self._step) * self._step if batches > 1 else rows
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
                self._take(matrix, chosen, out.reshape(-1, field.width))
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
            self.gather_lists(column.name, self._concatenated(checked), parts, order)

    def _concatenated(self, parts: Sequence[Ragged]) -> Ragged:
        """Return lists one after the other, with values in the memory of batches."""
        if len(parts) == 1:
            return parts[0]
        values = self.empty((sum(len(part.values) for part in parts),), parts[0].values.dtype)
        self.library.concatenate([part.values for part in parts], out=values)
        first, offsets = 0, [parts[0].offsets[:1]]
        for part in parts:
            offsets.append(part.offsets[1:] + first)
            first += len(part.values)
        return Ragged(values, self.library.concatenate(offsets))

    def gather_lists(
        self, name: str, lists: Ragged, parts: Sequence[Part], order: Array | None
    ) -> None:
        """Put the lists of a column into the parts."""
        for part in parts:
            segment, rows = part.segment, part.rows
            if order is None:
                positions, offsets = None, lists.offsets[segment.start : segment.stop + 1]
            else:
                chosen = order[segment.start : segment.stop]
                positions, offsets = gather_rows(lists.offsets, chosen, self.library)
            bounds = offsets[:: max(rows, 1)].tolist()
            made = part.lists[name] = []
            for number, (first, last) in enumerate(itertools.pairwise(bounds)):
                values = self.empty((last - first,), lists.values.dtype)
                if positions is None:
                    values[...] = lists.values[first:last]
                elif last > first:
                    self._take(lists.values, positions[first:last], values)
                mine = offsets[number * rows : (number + 1) * rows + 1] - first
                made.append(Ragged(values, mine))

    def joined(self, parts: Sequence[Part]) -> Part:
        """Return the batch that has the rows of these pieces."""
        rows = sum(part.rows for part in parts)
        joined = Part(Segment(parts[0].segment.batch, 1, 0, rows))
        for name, first in parts[0].scalars.items():
            out = self.empty((1, rows, first.shape[2]), first.dtype)
            arrays = [part.scalars[name] for part in parts]
            self.library.concatenate(arrays, axis=1, out=out)
            joined.scalars[name] = out
        for name in parts[0].lists:
            joined.lists[name] = [self._concatenated([part.lists[name][0] for part in parts])]
        return joined

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return memory for batches, aligned."""
        memory = self._pool if self.library is np else self.library  # RMM aligns to 256 bytes
        return memory.empty(shape, dtype)

    def _take(self, array: Array, rows: Array, out: Array) -> None:
        """Write some rows of an array to `out`."""
        if self.library is np:
            np.take(array, rows, axis=0, out=out, mode="clip")  # other modes copy `out` first
        else:
            self.library.take(array, rows, axis=0, out=out)


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
            raise MemoryError(f"{error} ({where}). {LESS_MEMORY}") from error
        error.add_note(where)
        raise


@dataclasses.dataclass(eq=False)
class ChunkReader:
    """Decodes row ranges for one pass over a loader.

    It is called from several threads and keeps no reference to the loader that it works for.

    Args:
        source: the files.
        columns: names of the columns to read.
        layout: how the columns lie in a batch.
        pool: gives the memory of batches.
        gives_back: whether memory that Arrow has freed goes back to the system after each chunk,
            as a budget needs; the next chunk then takes new pages.
        stopwatch: adds up the seconds of "read", "transform" and "gather".
        transform: takes a chunk of the columns read, returns one of as many rows; None for none.
        fills_missing: whether `transform` may make integers of NaN, as a Workflow does.
        on_gpu: whether chunks are decoded and gathered by a GPU.
    """

    source: ParquetSource
    columns: Sequence[str]
    layout: Layout
    pool: BufferPool
    gives_back: bool
    stopwatch: Stopwatch
    transform: Transform | None
    fills_missing: bool = False
    on_gpu: bool = False

    def __post_init__(self) -> None:
        library = np
        if self.on_gpu:
            import cupy

            library = cupy
        self.gatherer = Gatherer(self.source, self.layout, self.pool, self.stopwatch, library)
        self.turn = threading.Condition()  # of slices, which are read in order
        self._streams: dict[int, _Stream] = {}  # by row group
        self._last: list[_Stream] = []  # whose last slices are planned

    def work_on(self, plan: EpochPlan, chunk: ChunkPlan, first_batch: int) -> ChunkWork:
        """Return the work that a chunk is; asked for in the order of the chunks.

        Args:
            plan: plan of the epoch.
            chunk: the chunk.
            first_batch: batches before this one are not made.
        """
        streams = {}
        for row_range in chunk.row_ranges:
            row_group = row_range.row_group
            stop = plan.sliced.get(row_group)
            if stop is None:
                continue
            if row_group not in self._streams:
                self._last = [stream for stream in self._last if not stream.has_ended]
                self._streams[row_group] = _Stream(self, row_range.start, stop, self._last)
            streams[row_group] = self._streams[row_group]
            if row_range.stop == stop:
                self._last.append(self._streams.pop(row_group))
        return ChunkWork(self, plan, chunk, first_batch, streams)

    def reads_by_column(self, plan: EpochPlan, chunk: ChunkPlan) -> bool:
        """Return whether a task reads some columns of all row ranges, not all of some ranges.

        A chunk then holds few decoded columns at a time. But a transform needs all columns, slices
        of a row group are decoded in order, and small row groups faster in one call.
        """
        source = self.source
        if self.transform is not None or not source.is_local:
            return False
        for row_range in chunk.row_ranges:
            if row_range.row_group in plan.sliced or not source.is_whole(row_range.row_group):
                return False
        return chunk.num_rows * self.layout.row_bytes > SMALL_BYTES * len(chunk.row_ranges)

    def decoded(
        self, row_range: RowRange, names: Sequence[str], stream: _Stream | None = None
    ) -> Chunk:
        """Return columns of a row range as they are stored, or what the transform makes of them.

        Args:
            row_range: the rows.
            names: the columns to read.
            stream: gives the rows of a row group that is read in slices.

        Raises:
            ParquetError: if the rows cannot be read.
            RuntimeError: if `transform` raises StopIteration, which would end a loop silently.
            Exception: what `transform` raised, with a note that says where.
        """
        group, start, stop = row_range.row_group, row_range.start, row_range.stop
        with self.stopwatch.timing("read"):
            if stream is None:
                chunk = self.source.read(group, names, start, stop)
            else:
                chunk = stream.read(row_range)
        if self.transform is None:
            return chunk
        place = errors_at(self.source, row_range, f"rows [{start}, {stop}) of ")
        with self.stopwatch.timing("transform"), place:
            return self._transformed(self.transform, chunk)

    def _transformed(self, transform: Transform, chunk: Chunk) -> Chunk:
        made_by = "the Workflow"
        if not self.fills_missing:
            made_by = f"function {getattr(transform, '__qualname__', type(transform).__name__)}"
        try:
            result = transform(chunk)
        except StopIteration as error:
            raise RuntimeError(
                "map(): the function raised StopIteration; it must return a Chunk for every chunk"
            ) from error
        except ValueError as error:
            raise ValueError(f"map(): {made_by} raised {type(error).__name__}: {error}") from error
        except Exception as error:
            error.add_note(f"raised by {made_by} of map()")
            raise
        names = [*self.layout.dtypes]
        if not isinstance(result, Chunk):
            raise ValueError(f"map(): gave a {type(result).__name__}, but a Chunk is needed")
        missing = [name for name in names if name not in result]
        if missing or result.num_rows != chunk.num_rows:
            lacks = f", without {listed(missing)}" if missing else ""
            raise ValueError(
                f"map(): gave {result.num_rows} rows with columns {listed(result.names)}{lacks}, "
                f"but {chunk.num_rows} rows with {listed(names)} are needed"
            )
        for name in names:
            _check_lengths(name, result[name])
            if not self.fills_missing:
                _check_missing(name, chunk, result[name])
        return result

    def close(self) -> None:
        """Close the row groups that are open between two slices, and the files."""
        for stream in (*self._streams.values(), *self._last):
            stream.close()
        self.source.close()


class ChunkWork:
    """The work that one chunk is: tasks for threads, and the parts that they make.

    Attributes:
        chunk: the chunk.
        parts: `Part` of each segment of the chunk, complete when all tasks are done.
    """

    def __init__(
        self,
        reader: ChunkReader,
        plan: EpochPlan,
        chunk: ChunkPlan,
        first_batch: int,
        streams: Mapping[int, _Stream],
    ) -> None:
        self._reader, self._plan, self.chunk, self._streams = reader, plan, chunk, streams
        self.parts = [Part(segment) for segment in plan.segments(chunk.index, first_batch)]
        self._by_column = reader.reads_by_column(plan, chunk)
        self._pieces: dict[int, Chunk] = {}  # by number of the row range
        self._decoded: dict[str, Any] = {}  # columns on a GPU, of whole row groups
        self._ordering = threading.Lock()
        self._picks: Array | None = None

    def stages(self) -> list[list[Task]]:
        """Return the tasks of each stage; a stage may begin when the one before it has ended."""
        layout, reader = self._reader.layout, self._reader
        if reader.on_gpu:
            return [[self._order, self._decode_on_gpu], [self._gather_on_gpu]]
        gathering: list[Task] = []
        columns: list[Field] = []
        for field in layout.fields:
            if field.width == 1:
                columns.append(field)
            else:
                gathering.append(functools.partial(self._gather, [field]))
        size = max(TASK_COLUMNS, len(columns) // CHUNK_TASKS)
        for first in range(0, len(columns), size):
            gathering.append(functools.partial(self._gather, columns[first : first + size]))
        for column in layout.ragged.values():
            gathering.append(functools.partial(self._gather, [], column))
        if self._by_column:
            return [[self._order, *gathering]]
        reading: list[Task] = []
        numbers = range(len(self.chunk.row_ranges))
        size = -(-len(numbers) // READING_TASKS)
        for first in range(0, len(numbers), size):
            reading.append(functools.partial(self._read, numbers[first : first + size]))
        return [[self._order, *reading], gathering]

    def _order(self) -> Array | None:
        """Return the order of the chunk's rows; None if they are not shuffled."""
        with self._ordering:
            if self._picks is None and self._plan.shuffle:
                place = errors_at(self._reader.source, self.chunk.row_ranges[0])
                with self._reader.stopwatch.timing("gather"), place:
                    self._picks = self._plan.order(self.chunk.index)
            return self._picks

    def _read(self, numbers: Iterable[int]) -> None:
        """Decode all columns of some row ranges."""
        reader, ranges = self._reader, [self.chunk.row_ranges[number] for number in numbers]
        try:
            for number, row_range in zip(numbers, ranges, strict=True):
                stream = self._streams.get(row_range.row_group)
                self._pieces[number] = reader.decoded(row_range, reader.columns, stream)
        except BaseException:
            for row_range in ranges:
                if row_range.row_group in self._streams:
                    self._streams[row_range.row_group].fail()
            raise
        if self._streams:
            pa.default_memory_pool().release_unused()  # of this thread

    def _gather(self, fields: Sequence[Field], lists: Column | None = None) -> None:
        """Make the arrays of some fields, or of a column of lists, in all parts."""
        reader, ranges = self._reader, self.chunk.row_ranges
        columns = [lists] if lists else []
        for field in fields:
            columns += field.columns
        names = [column.name for column in columns]
        rows: Iterable[Chunk] = map(self._pieces.__getitem__, range(len(ranges)))
        if self._by_column:
            rows = (reader.decoded(row_range, names) for row_range in ranges)
        if len(fields) > 1:
            rows = list(rows)  # each field needs them; for a single one, they come one by one
        order = self._order()
        for field in fields:
            pieces = zip(ranges, rows, strict=True)
            reader.gatherer.scalars(field, pieces, self.chunk.num_rows, self.parts, order)
        if lists:
            reader.gatherer.lists(lists, zip(ranges, rows, strict=True), self.parts, order)

    def _decode_on_gpu(self) -> None:
        """Decode all columns of the chunk's row groups, in one call."""
        from tutorlib.gpu.decoding import decode

        reader, groups = self._reader, [r.row_group for r in self.chunk.row_ranges]
        try:
            with reader.stopwatch.timing("read"):
                self._decoded = decode(reader.source, groups, reader.columns)
        except ParquetError:
            self._name_fault()
            raise

    def _gather_on_gpu(self) -> None:
        """Make the arrays of all columns in all parts, from the columns that a GPU has decoded."""
        from tutorlib.gpu.decoding import refused

        reader, columns = self._reader, self._decoded
        layout, gatherer = reader.layout, reader.gatherer
        place = errors_at(reader.source, self.chunk.row_ranges[0])
        with reader.stopwatch.timing("gather"), place:
            if refused(columns, layout):
                self._name_fault()
                raise ValueError("cuDF reads values that Arrow does not find. Use device='cpu'")
            order = self._places()
            for field in layout.fields:
                rows = len(columns[field.columns[0].name])
                matrix = gatherer.empty((rows, field.width), field.dtype)
                for number, column in enumerate(field.columns):
                    matrix[:, number] = columns[column.name]
                gatherer.gather_rows(field, matrix, self.parts, order)
            for name in layout.ragged:
                lists = columns[name]
                values = lists.values.astype(layout.dtypes[name], copy=False)
                gatherer.gather_lists(name, Ragged(values, lists.offsets), self.parts, order)
            gatherer.library.cuda.get_current_stream().synchronize()  # consumers have their own

    def _places(self) -> Array | None:
        """Return `_order` on the GPU, as places among all rows of the chunk's row groups."""
        source, order = self._reader.source, self._order()
        places, first = [], 0
        for row_range in self.chunk.row_ranges:
            places.append(np.arange(first + row_range.start, first + row_range.stop))
            stored, index = source.stored(row_range.row_group)
            first += stored.row_counts[index]
        if first > self.chunk.num_rows:  # another rank or nobody has the rest of a row group
            rows = np.concatenate(places)
            order = rows if order is None else rows[order]
        return None if order is None else self._reader.gatherer.library.asarray(order)

    def _name_fault(self) -> None:
        """Raise the error of a CPU for rows that a GPU refuses, if it has one: it names a place."""
        layout, source = self._reader.layout, self._reader.source
        for column in layout.columns:
            check = layout.list_cells if column.multi_hot else layout.cells
            for row_range in self.chunk.row_ranges:
                rows = source.read(row_range.row_group, [column.name])
                with errors_at(source, row_range):
                    check(column, rows[column.name])

    def finish(self) -> None:
        """Drop what the tasks no longer need."""
        self._pieces.clear()
        self._decoded = {}
        self._picks = None
        if self._reader.gives_back:
            pa.default_memory_pool().release_unused()  # of this thread


class _Stream:
    """A row group whose slices are read in order, by whatever thread comes with the next one.

    Slices wait only for slices of earlier tasks, so there is always one that can be read.

    Args:
        reader: reads the row group.
        start: first row.
        stop: end of the last slice.
        before: row groups of earlier chunks, which are read to their ends first: as many are open
            as a chunk has parts.
    """

    def __init__(
        self, reader: ChunkReader, start: int, stop: int, before: Iterable[_Stream]
    ) -> None:
        self._reader, self._position, self._stop = reader, start, stop
        self._before, self._failed = tuple(before), False
        self._steps: Generator[Chunk] | None = None
        self._left: list[Chunk] = []  # rows that were decoded with an earlier slice

    @property
    def has_ended(self) -> bool:
        """Whether the last slice has been read, or one could not be read."""
        return self._position == self._stop or self._failed

    def _may_read(self, row_range: RowRange) -> bool:
        first = all(stream.has_ended for stream in self._before)
        return self._failed or (first and self._position == row_range.start)

    def fail(self) -> None:
        """Have those who wait for a slice give up: the slice before it is not read."""
        with self._reader.turn:
            self._failed = True
            self._reader.turn.notify_all()

    def read(self, row_range: RowRange) -> Chunk:
        """Return the rows of a slice; waits until it is its turn."""
        reader, rows = self._reader, row_range.num_rows
        with reader.turn:
            reader.turn.wait_for(lambda: self._may_read(row_range))
            if self._failed:
                raise ParquetError(f"reading row group {row_range.row_group} was stopped")
        self._before = ()
        if self._steps is None:
            self._steps = self._decoded(row_range)
        pieces = self._left
        count = sum(piece.num_rows for piece in pieces)
        while count < rows:
            pieces.append(next(self._steps))
            count += pieces[-1].num_rows
        last = pieces.pop()
        cut = last.num_rows - (count - rows)
        self._left = [last.slice(cut, last.num_rows)] if count > rows else []
        # A copy, so that the row group goes when its last rows were given.
        chunk = Chunk.concat([*pieces, last.slice(0, cut), last.slice(cut, cut)])
        with reader.turn:
            self._position = row_range.stop
            if self.has_ended:
                self.close()
            reader.turn.notify_all()
        return chunk

    def _decoded(self, first: RowRange) -> Generator[Chunk]:
        """Yield the rows from the first slice on, at once or about a slice at a time.

        Whichever takes less memory: pages and dictionaries of all columns are more than the rows
        if these are fewer than about a million.
        """
        source, place = self._reader.source, (first.row_group, self._reader.columns)
        rows = source.row_groups[first.row_group].num_rows
        if rows * source.row_bytes(*place) <= source.stream_bytes(*place):
            yield source.read(*place, first.start, self._stop)
        else:
            yield from source.steps(*place, first.num_rows, first.start, self._stop)

    def close(self) -> None:
        """Close the file."""
        if self._steps is not None:
            self._steps.close()
        self._steps, self._left = None, []


def _check_missing(name: str, chunk: Chunk, column: Any) -> None:
    """Raise ValueError if NaN, of which a comparison makes False, has become an integer."""
    before: Any = flat_values(chunk[name]) if name in chunk else None
    made = flat_values(column)
    if not (is_array(before) and is_array(made) and before.dtype.kind == "f" != made.dtype.kind):
        return
    missing = np.isnan(before)
    if missing.any():
        raise ValueError(
            f"map(): column {name!r}: the function made {made.dtype} of {int(missing.sum())} "
            "missing values, which came as NaN. Give floats in which NaN stays NaN, or a number "
            "that you choose for it (numpy.nan_to_num)"
        )


def _check_lengths(name: str, column: Any) -> None:
    """Raise ValueError if a column that a user's code made contradicts itself."""
    if isinstance(column, Ragged):
        offsets, count = column.offsets, len(column.values)
        first, last = offsets[[0, -1]].tolist()
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
