"""ChunkReader and ChunkWork: from row ranges of files to the parts of a chunk.

A chunk is a few tasks, which threads do at once. A task decodes some columns of all row ranges and
has them gathered (`gather.py`). What must be decoded with all its columns is decoded by tasks of
its own before: rows for a transform, slices of a row group, and small row groups.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from tutorlib.columns import (
    Array,
    Chunk,
    Masked,
    Ragged,
    array_namespace,
    flat_values,
    is_array,
    to_host,
)
from tutorlib.loader.gather import Gatherer, Part, errors_at
from tutorlib.loader.layout import Field, Layout
from tutorlib.loader.pipeline import Stopwatch, Task
from tutorlib.loader.plan import ChunkPlan, RankPlan, RowRange
from tutorlib.memory import BufferPool, Growth
from tutorlib.parquet import ParquetError, ParquetSource
from tutorlib.schema import Column, listed

TASK_COLUMNS = 8  # at least, that one task decodes and gathers; with a memory budget, one
CHUNK_TASKS = 16  # of a wide table: decoding a few columns reads the footer of all
READING_TASKS = 16  # of a chunk whose row groups are decoded with all columns, at most
STEPS = 64  # of a memory budget, of which a thread decodes one before it transforms it
STREAM_ROWS = 16_384  # of a slice that are decoded at a time, with a memory budget

Transform = Callable[[Chunk], Chunk]
Owner = tuple[ChunkPlan, str]  # of decoded rows: a chunk and the first of some columns, "" for all


class ChunkReader:
    """Decodes row ranges, within a budget, for one pass over a loader.

    It is called from several threads and keeps no reference to the loader that it works for.

    Args:
        source: the files.
        columns: names of the columns to read.
        layout: how the columns lie in a batch.
        pool: gives the memory of batches.
        stopwatch: adds up the seconds of "read", "transform" and "gather".
        transform: takes a chunk of the columns read, returns one of as many rows; None for none.
        held_bytes: bytes that decoded rows and batches may take together; None for any number.
        small_rows: a row group of at most so many rows is decoded in one call.
        fills_missing: whether `transform` may make integers of NaN, as a Workflow does.
        growth: of the process, with a memory budget; None without one.
    """

    def __init__(
        self,
        source: ParquetSource,
        columns: Sequence[str],
        layout: Layout,
        pool: BufferPool,
        stopwatch: Stopwatch,
        transform: Transform | None,
        held_bytes: int | None = None,
        *,
        small_rows: int = 0,
        fills_missing: bool = False,
        growth: Growth | None = None,
    ) -> None:
        self.source, self.columns, self.layout, self.pool = source, columns, layout, pool
        self.stopwatch, self._transform = stopwatch, transform
        self.gatherer = Gatherer(source, layout, pool, stopwatch)
        self._small_rows = small_rows
        self.held_bytes, self._fills_missing, self.growth = held_bytes, fills_missing, growth
        kinds = [source.column_types[name] for name in columns]
        self._rows_differ = any(kind == "string" or is_list for kind, is_list in kinds)
        self._decoded: dict[Owner, int] = {}  # bytes that wait to be gathered
        self._streams: dict[tuple[int, int], _Stream] = {}  # by rank and row group

    def work_on(self, plan: RankPlan, chunk: ChunkPlan, first_batch: int) -> ChunkWork:
        """Return the work that a chunk is; asked for in the order of the chunks.

        Args:
            plan: plan of the chunk's rank.
            chunk: the chunk.
            first_batch: batches before this one are not made.
        """
        for row_range in chunk.row_ranges:
            place = chunk.rank, row_range.row_group
            if row_range.row_group in plan.sliced and place not in self._streams:
                stop = plan.sliced[row_range.row_group]
                self._streams[place] = _Stream(self, row_range.start, stop)
        return ChunkWork(self, plan, chunk, first_batch)

    def reads_by_column(self, plan: RankPlan, chunk: ChunkPlan) -> bool:
        """Return whether a task reads some columns of all row ranges, not all of some ranges.

        A chunk then holds few decoded columns at a time. But a transform needs all columns, slices
        of a row group are decoded in order, and small row groups faster in one call.
        """
        source = self.source
        if self._transform is not None or source.device == "gpu" or not source.is_local:
            return False
        for row_range in chunk.row_ranges:
            if row_range.row_group in plan.sliced or not source.is_whole(row_range.row_group):
                return False
        return chunk.num_rows > self._small_rows * len(chunk.row_ranges)

    def decoded(self, owner: Owner, row_range: RowRange, names: Sequence[str]) -> Chunk:
        """Return columns of a row range as they are stored, or what the transform makes of them.

        They count as held until the owner's are released.

        Raises:
            ParquetError: if the rows cannot be read, or do not fit the budget.
            RuntimeError: if `transform` raises StopIteration, which would end a loop silently.
            Exception: what `transform` raised, with a note that says where.
        """
        made: list[Chunk] = []
        first = row_range.start
        with contextlib.closing(self._pieces(owner, row_range, names)) as pieces:
            while True:
                with self.stopwatch.timing("read"):
                    piece = next(pieces, None)
                if piece is None:
                    break
                if self._transform is not None:
                    rows = f"rows [{first}, {first + piece.num_rows}) of "
                    place = errors_at(self.source, row_range, rows)
                    with self.stopwatch.timing("transform"), place:
                        piece = self._transformed(self._transform, piece)
                if self.held_bytes is not None:
                    self._check_held(owner, row_range, sum(c.nbytes for c in piece.values()))
                made.append(piece)
                first += piece.num_rows
        return made[0] if len(made) == 1 else Chunk.concat(made)

    def _pieces(self, owner: Owner, row_range: RowRange, names: Sequence[str]) -> Generator[Chunk]:
        """Yield the rows of a range: at once, or in small steps if a transform makes them smaller.

        Text takes far more memory than the ids that a Workflow makes of it.
        """
        stream = self._streams.get((owner[0].rank, row_range.row_group))
        place = row_range.row_group, names
        if stream is not None:
            yield stream.read(row_range)
        elif self.held_bytes is not None and self._transform is not None:
            row = max(1.0, self.source.row_bytes(*place))
            step = max(1, min(STREAM_ROWS, int(self.held_bytes / STEPS / row)))
            yield from self.source.steps(*place, step, row_range.start, row_range.stop)
        else:
            yield self.source.read(*place, row_range.start, row_range.stop)

    def _check_held(self, owner: Owner, row_range: RowRange, nbytes: int) -> None:
        """Refuse lists or strings that are far longer than their row group's mean."""
        self._decoded[owner] = self._decoded.get(owner, 0) + nbytes
        held = sum(list(self._decoded.values())) + self.pool.used_bytes
        # Rows of numbers are as wide as planned: what is held beside them is the consumer's.
        if self._rows_differ and self.held_bytes is not None and held > self.held_bytes:
            raise ParquetError(
                f"rows [{row_range.start}, {row_range.stop}) of "
                f"{self.source.location(row_range.row_group)}: they decode to {nbytes:,} bytes, "
                f"with which {held:,} bytes are held, more than memory_budget allows. Rows were "
                "planned with the mean length of lists and strings. Write the files with smaller "
                "row groups (ParquetSink(row_group_rows=...)), or give a larger memory_budget of "
                f"at least {2 * held:,} bytes"
            )

    def has_room(self, nbytes: float, budget: Any) -> bool:
        """Return whether a chunk whose batches take `nbytes` fits the budget beside what is held.

        Args:
            nbytes: bytes of the batches of the chunk.
            budget: bytes; None for any number.
        """
        if budget is None:
            return True
        unfinished = sum(list(self._decoded.values()))
        return self.pool.used_bytes + unfinished + 2 * nbytes <= budget

    def step_rows(self, row_range: RowRange) -> int:
        """Return how many rows of a row group are decoded at a time, to be given in slices."""
        if self.held_bytes is None:
            return row_range.num_rows
        return min(row_range.num_rows, STREAM_ROWS)

    def release(self, owner: Owner) -> None:
        """Note that decoded rows are dropped."""
        self._decoded.pop(owner, None)

    def _transformed(self, transform: Transform, chunk: Chunk) -> Chunk:
        made_by = "the Workflow"
        if not self._fills_missing:
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
            lacks = f", without {listed(missing, result.names)}" if missing else ""
            raise ValueError(
                f"map(): gave {result.num_rows} rows with columns {listed(result.names)}{lacks}, "
                f"but {chunk.num_rows} rows with {listed(names)} are needed"
            )
        for name in names:
            _check_lengths(name, result[name])
            if not self._fills_missing:
                _check_missing(name, chunk, result[name])
        return result

    def close(self) -> None:
        """Close the row groups that are open between two slices, and files that are idle."""
        for stream in self._streams.values():
            stream.close()
        self.source.close()


class ChunkWork:
    """The work that one chunk is: tasks for threads, and the parts that they make.

    Attributes:
        chunk: the chunk.
        parts: `Part` of each segment of the chunk, complete when all tasks are done.
    """

    def __init__(
        self, reader: ChunkReader, plan: RankPlan, chunk: ChunkPlan, first_batch: int
    ) -> None:
        self._reader, self._plan, self.chunk = reader, plan, chunk
        self.parts = [Part(segment) for segment in plan.segments(chunk.index, first_batch)]
        self._by_column = reader.reads_by_column(plan, chunk)
        self._pieces: dict[int, Chunk] = {}  # by number of the row range
        self._ordering = threading.Lock()
        self._picks: Array | None = None

    def stages(self) -> list[list[Task]]:
        """Return the tasks of each stage; a stage may begin when the one before it has ended."""
        layout, reader = self._reader.layout, self._reader
        gathering: list[Task] = []
        columns: list[Field] = []
        for field in layout.fields:
            if field.width == 1:
                columns.append(field)
            else:
                gathering.append(functools.partial(self._gather, [field]))
        size = 1
        if reader.held_bytes is None:
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
        """Return the order of the chunk's rows, where the columns are; None if not shuffled."""
        with self._ordering:
            if self._picks is None and self._plan.shuffle:
                with self._reader.stopwatch.timing("gather"):
                    order = self._plan.order(self.chunk.index)
                    self._picks = self._reader.gatherer.library.asarray(order)
            return self._picks

    def _read(self, numbers: Iterable[int]) -> None:
        """Decode all columns of some row ranges."""
        reader = self._reader
        for number in numbers:
            row_range = self.chunk.row_ranges[number]
            self._pieces[number] = reader.decoded((self.chunk, ""), row_range, reader.columns)

    def _gather(self, fields: Sequence[Field], lists: Column | None = None) -> None:
        """Make the arrays of some fields, or of a column of lists, in all parts."""
        reader, ranges = self._reader, self.chunk.row_ranges
        columns = [lists] if lists else []
        for field in fields:
            columns += field.columns
        names = [column.name for column in columns]
        owner = self.chunk, names[0]
        rows: Iterable[Chunk] = map(self._pieces.__getitem__, range(len(ranges)))
        if self._by_column:
            rows = (reader.decoded(owner, row_range, names) for row_range in ranges)
        if len(fields) > 1:
            rows = list(rows)  # each field needs them; for a single one, they come one by one
        order = self._order()
        for field in fields:
            pieces = zip(ranges, rows, strict=True)
            reader.gatherer.scalars(field, pieces, self.chunk.num_rows, self.parts, order)
        if lists:
            reader.gatherer.lists(lists, zip(ranges, rows, strict=True), self.parts, order)
        reader.gatherer.synchronize()
        if self._by_column:
            reader.release(owner)

    def finish(self) -> None:
        """Drop what the tasks no longer need."""
        self._pieces.clear()
        self._picks = None
        self._reader.release((self.chunk, ""))
        if self._reader.growth is not None:
            self._reader.growth.give_back()


class _Stream:
    """A row group whose slices are read in order, by whatever thread comes with the next one."""

    def __init__(self, reader: ChunkReader, start: int, stop: int) -> None:
        self._reader, self._position, self._stop = reader, start, stop
        self._steps: Generator[Chunk] | None = None
        self._turn, self._closed = threading.Condition(), False

    def read(self, row_range: RowRange) -> Chunk:
        """Return the rows of a slice; waits until the slice before it has been read."""
        reader = self._reader
        with self._turn:
            self._turn.wait_for(lambda: self._closed or self._position == row_range.start)
            if self._closed:
                raise ParquetError(f"reading row group {row_range.row_group} was stopped")
            rows = row_range.num_rows
            if self._steps is None:
                self._left = Chunk({})
                step = reader.step_rows(row_range)
                place = row_range.row_group, reader.columns, step, row_range.start, self._stop
                self._steps = reader.source.steps(*place)
            try:
                pieces, count = [self._left] if self._left.num_rows else [], self._left.num_rows
                while count < rows:
                    pieces.append(next(self._steps))
                    count += pieces[-1].num_rows
                whole = Chunk.concat(pieces) if len(pieces) > 1 else pieces[0]
                self._left = whole.slice(rows, count) if count > rows else Chunk({})
                self._position = row_range.stop
                if row_range.start + count == self._stop:  # the last row has been decoded
                    self._steps.close()
            except BaseException:
                self._closed = True
                raise
            finally:
                self._turn.notify_all()
            return whole.slice(0, rows) if count > rows else whole

    def close(self) -> None:
        """Close the file, and stop whatever waits."""
        with self._turn:
            self._closed = True
            if self._steps is not None:
                self._steps.close()
            self._steps, self._left = None, Chunk({})
            self._turn.notify_all()


def _check_missing(name: str, chunk: Chunk, column: Any) -> None:
    """Raise ValueError if NaN, of which a comparison makes False, has become an integer."""
    before: Any = flat_values(chunk[name]) if name in chunk else None
    made = flat_values(column)
    if not (is_array(before) and is_array(made) and before.dtype.kind == "f" != made.dtype.kind):
        return
    missing = array_namespace(before).isnan(before)
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
