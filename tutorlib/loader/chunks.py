"""From row ranges to batches as arrays: decode, transform, check, place.

The rows of a chunk have one order (`RankPlan.order`), which gives each row its place in aligned
memory where the batches lie one after the other. A task decodes a row range, checks its columns and
writes them to their places, while they are in the cache. Lists wait for those of all row ranges and
are gathered. Calls into NumPy are few and long, so that threads do not fight for the interpreter
lock. Columns of a stacked matrix become rows of it first, and whole rows go to their places. On a
GPU the arrays are CuPy's; nothing else differs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np

from tutorlib.columns import (
    Chunk,
    Masked,
    Ragged,
    array_namespace,
    concat_columns,
    flat_values,
    gather_rows,
    is_array,
    to_host,
)
from tutorlib.loader.layout import Field, Layout
from tutorlib.loader.pipeline import Stopwatch, Task
from tutorlib.loader.plan import ChunkPlan, EpochPlan, RankPlan, RowRange, Segment
from tutorlib.loader.sizing import PAGE_BYTES, values_per_row
from tutorlib.memory import BufferPool
from tutorlib.parquet import ParquetError, ParquetSource
from tutorlib.schema import Column, listed

TASK_BYTES = 2**23  # of decoded columns, about, for one task
SMALL_BYTES = 2**20  # the same with a memory budget; of a larger row range, one column
STEPS = 64  # of a memory budget, of which a thread decodes one before it transforms it
STREAM_ROWS = 16_384  # of a slice that are decoded at a time, with a memory budget
MATRIX_ROWS = 16_384  # rows of a stacked matrix that are made at a time
GROUP_BATCHES = 32  # at most, that lie one after the other and become tensors in one call

Transform = Callable[[Chunk], Chunk]
Pieces = Sequence[tuple[RowRange, Any]]  # of a column
Places = Any  # in the memory of a chunk's batches: int64 [rows], or a slice if side by side
Owner = tuple[ChunkPlan, str, int]  # of decoded rows: a chunk, the first column, the row range


@dataclasses.dataclass
class Part:
    """The arrays of a segment: `batches` whole batches of `rows` rows, or a piece of one.

    Args:
        segment: where it belongs.
        scalars: {name of a field: array [batches, at least rows, width]}.
        lists: {name of a column: `Ragged` of each batch}; values may be padded after the last list.
    """

    segment: Segment
    scalars: dict[str, Any] = dataclasses.field(default_factory=dict)
    lists: dict[str, list[Ragged]] = dataclasses.field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of each batch, or of the piece."""
        return (self.segment.stop - self.segment.start) // (self.segment.batches or 1)

    def some(self, first: int, count: int) -> Part:
        """Return some successive batches."""
        segment, which = self.segment, slice(first, first + count)
        start, stop = (segment.start + number * self.rows for number in (which.start, which.stop))
        return Part(
            Segment(segment.batch + first, count, start, stop),
            {name: array[which] for name, array in self.scalars.items()},
            {name: lists[which] for name, lists in self.lists.items()},
        )


class ChunkReader:
    """Decodes row ranges and makes the parts of chunks, for one pass over a loader.

    It is called from several threads and keeps no reference to the loader that it works for.

    Args:
        source: the files.
        columns: names of the columns to read.
        layout: how the columns lie in a batch.
        pool: gives the memory of batches.
        stopwatch: adds up the seconds of "read", "transform" and "gather".
        transform: takes a chunk of the columns read, returns one of as many rows; None for none.
        held_bytes: bytes that decoded rows and batches may take together; None for any number.
        fills_missing: whether `transform` may make integers of NaN, as a Workflow does.
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
        fills_missing: bool = False,
    ) -> None:
        self.source, self.columns, self.layout, self.pool = source, columns, layout, pool
        self.stopwatch, self._transform = stopwatch, transform
        self._mean_lengths = values_per_row(source) if layout.multi_hot.bucketed else {}
        self.held_bytes, self._fills_missing = held_bytes, fills_missing
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
        """Return whether a task may decode some of the columns of a row range.

        But a transform needs all columns, and slices of a row group are decoded in order.
        """
        source = self.source
        if self._transform is not None or source.device == "gpu" or not source.is_local:
            return False
        groups = [row_range.row_group for row_range in chunk.row_ranges]
        return all(group not in plan.sliced and source.is_whole(group) for group in groups)

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
        pieces = self._pieces(owner, row_range, names)
        with contextlib.closing(pieces):
            while True:
                started = time.perf_counter()
                piece = next(pieces, None)
                self.stopwatch.add(read=time.perf_counter() - started)
                if piece is None:
                    break
                if self._transform is not None:
                    started = time.perf_counter()
                    end = first + piece.num_rows
                    with self.errors_in(row_range, f"rows [{first}, {end}) of "):
                        piece = self._transformed(self._transform, piece)
                    self.stopwatch.add(transform=time.perf_counter() - started)
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
        group = row_range.row_group
        rows = self.source.row_groups[group].num_rows
        if rows * self.source.row_bytes(group, self.columns) <= len(self.columns) * PAGE_BYTES:
            return rows  # takes no more memory than a file that stays open
        return min(row_range.num_rows, STREAM_ROWS)

    def release(self, owner: Owner) -> None:
        """Note that decoded rows are dropped."""
        self._decoded.pop(owner, None)

    def release_all(self, chunk: ChunkPlan) -> None:
        """Note that all decoded rows of a chunk are dropped."""
        for owner in list(self._decoded):
            if owner[0] is chunk:
                self.release(owner)

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

    @contextlib.contextmanager
    def errors_in(self, row_range: RowRange, rows: str = "") -> Iterator[None]:
        """Have errors name the row group, after words that say which rows of it."""
        where = f"in {rows}{self.source.location(row_range.row_group)}"
        try:
            yield
        except ParquetError:
            raise
        except ValueError as error:
            raise ParquetError(f"{error} ({where})") from error
        except MemoryError as error:
            raise MemoryError(
                f"{error} ({where}). Give a smaller memory_budget, buffer_size or batch_size, or "
                "leave the device more memory (limit_tensorflow_memory; "
                "XLA_CLIENT_MEM_FRACTION for JAX)"
            ) from error
        except Exception as error:
            error.add_note(where)
            raise

    def lists_of(self, column: Column, pieces: Pieces, parts: Sequence[Part], picks: Any) -> None:
        """Gather the lists of a column into each part, every batch in aligned memory of its own."""
        checked = []
        for row_range, values in pieces:
            first_row = row_range.start
            with self.errors_in(row_range):
                checked.append(self.layout.list_cells(column, values, first_row=first_row))
        lists: Ragged = concat_columns(checked) if len(checked) > 1 else checked[0]
        for part in parts:
            segment, rows = part.segment, part.rows
            if picks is None:
                ordered = lists.slice(segment.start, segment.stop)
                positions, offsets = None, ordered.offsets
            else:
                positions, offsets = gather_rows(lists.offsets, picks[segment.start : segment.stop])
            made = part.lists[column.name] = []
            bounds = to_host(offsets[:: max(rows, 1)]).tolist()
            for number, (first, last) in enumerate(itertools.pairwise(bounds)):
                count = last - first
                length = count
                if segment.batches:
                    length = self.num_values(column.name, rows, count)
                values = self.empty((length,), lists.values.dtype)
                if positions is None:
                    values[:count] = ordered.values[first:last]
                elif count:
                    _take(lists.values, positions[first:last], values[:count])
                # Padding repeats the last value: any other could be an id that no row has.
                values[count:] = values[count - 1 : count] if count else 0
                mine = offsets[number * rows : (number + 1) * rows + 1] - first
                made.append(Ragged(values, mine))

    def place(
        self, field: Field, row_range: RowRange, chunk: Chunk, places: Places, out: Any
    ) -> None:
        """Check the values of a field in a row range, and write them to their places in batches."""
        with self.errors_in(row_range):
            cells = [
                self.layout.cells(column, chunk[column.name], first_row=row_range.start)
                for column in field.columns
            ]
        if field.width == 1:
            out[:, 0][places] = cells[0]
        else:
            _place_rows(cells, places, out)

    def num_values(self, name: str, rows: int, count: int) -> int:
        """Return the length of the array for the `count` values of a list column in a batch."""
        return self.layout.multi_hot.num_values(self._mean_lengths.get(name, 0), rows, count)

    @property
    def aligned_rows(self) -> int:
        """Rows that are a multiple of the alignment of batches, whatever their dtype."""
        return 16 if self.source.device == "cpu" else 64

    def stride(self, rows: int, batches: int) -> int:
        """Return the rows from one batch to the next, so that each begins aligned."""
        step = self.aligned_rows
        return -(-rows // step) * step if batches > 1 else rows

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return memory for batches, aligned, on the device of the source."""
        if self.source.device == "cpu":
            return self.pool.empty(shape, dtype)
        import cupy

        return cupy.empty(shape, dtype)  # RMM aligns to 256 bytes

    def wait_for_device(self) -> None:
        """Wait for what this thread has a GPU do: others work on streams of their own."""
        if self.source.device == "gpu":
            import cupy

            cupy.cuda.get_current_stream().synchronize()

    def row_bytes(self, chunk: ChunkPlan) -> float:
        """Return the mean bytes of a decoded row in the first row group of a chunk."""
        return self.source.row_bytes(chunk.row_ranges[0].row_group, self.columns)

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
        segments = plan.segments(chunk.index, first_batch)
        self.parts = [Part(some) for segment in segments for some in _in_groups(segment)]
        self._finding = threading.Lock()
        self._columns: dict[str, Any] = {}  # [rows, width] of each field, in places of the batches
        self._lists: dict[str, dict[int, Any]] = {}  # decoded columns by number of the row range

    def stages(self) -> list[list[Task]]:
        """Return the tasks of each stage; a stage may begin when the one before it has ended.

        A task decodes as many columns of a row range as `TASK_BYTES` allow, or several small row
        ranges. Reading few columns of a wide file takes as long as reading the footer of all.
        """
        layout, reader = self._reader.layout, self._reader
        fields: list[Field | Column] = [*layout.fields, *layout.ragged.values()]
        ranges = list(enumerate(self.chunk.row_ranges))
        rows, row_bytes = self.chunk.num_rows, reader.row_bytes(self.chunk)
        task_bytes = TASK_BYTES if reader.held_bytes is None else SMALL_BYTES
        groups, together = 1, max(1, int(task_bytes / max(1, rows / len(ranges) * row_bytes)))
        if reader.reads_by_column(self._plan, self.chunk):
            largest = max(row_range.num_rows for row_range in self.chunk.row_ranges)
            groups = min(len(fields), -(-int(largest * row_bytes) // task_bytes))
            if reader.held_bytes is not None and groups > 1:
                groups = len(fields)
        together = min(together, -(-len(ranges) // 16))
        size = -(-len(fields) // groups)
        tasks: list[Task] = [
            functools.partial(self._read, fields[i : i + size], ranges[j : j + together], groups)
            for i in range(0, len(fields), size)
            for j in range(0, len(ranges), together)
        ]
        last: list[Task] = [functools.partial(self._gather, c) for c in layout.ragged.values()]
        return [[self._find_places, *tasks], [self._share_out, *last]]

    def _find_places(self) -> None:
        """Find the places of the rows, once, whichever thread comes first."""
        with self._finding:
            _ = self._places
            if not self._reader.layout.ragged:
                self.__dict__.pop("_order", None)

    @functools.cached_property
    def _order(self) -> Any:
        """The order of the chunk's rows, where the columns are; None if not shuffled."""
        order = self._plan.order(self.chunk.index)
        if order is None or self._reader.source.device == "cpu":
            return order
        import cupy

        return cupy.asarray(order)

    @functools.cached_property
    def _firsts(self) -> list[int]:
        """Where each part begins in the memory of the chunk's batches, and where the last ends.

        Rows are written to all batches in turn. If these began in the same set of the cache, they
        would drive each other out of it, so a group of batches begins three cache lines later than
        the one before it ends: four times as fast for batches of 4,096 rows.
        """
        step, firsts = self._reader.aligned_rows, [0]
        for part in self.parts:
            batches = part.segment.batches or 1
            rows = self._reader.stride(part.rows, batches) * batches
            firsts.append(firsts[-1] + -(-rows // step) * step + 3 * step)
        return firsts

    @functools.cached_property
    def _places(self) -> list[Places]:
        """Where the rows of each row range go in the memory of the chunk's batches.

        Rows of no batch of this pass go to the place after the last one.
        """
        started = time.perf_counter()
        order = self._order
        xp = np if order is None else array_namespace(order)
        places = xp.full(self.chunk.num_rows, self._firsts[-1], dtype=np.int64)
        for first, part in zip(self._firsts, self.parts, strict=False):
            batches = part.segment.batches or 1
            starts = first + xp.arange(batches) * self._reader.stride(part.rows, batches)
            rows: Any = slice(part.segment.start, part.segment.stop)
            rows = rows if order is None else order[rows]
            places[rows] = (starts[:, None] + xp.arange(part.rows)).reshape(-1)
        made: list[Places] = []
        row = 0
        for row_range in self.chunk.row_ranges:
            mine, row = places[row : row + row_range.num_rows], row + row_range.num_rows
            side_by_side = order is None and mine[-1] - mine[0] == len(mine) - 1
            made.append(slice(int(mine[0]), int(mine[-1]) + 1) if side_by_side else mine)
        self._reader.stopwatch.add(gather=time.perf_counter() - started)
        return made

    def _read(
        self,
        fields: Sequence[Field | Column],
        ranges: Sequence[tuple[int, RowRange]],
        groups: int,
    ) -> None:
        """Decode some columns of row ranges and write them to their places; keep lists as they are.

        Args:
            fields: which of the columns.
            ranges: row ranges, each with its number.
            groups: number of groups in which the columns are decoded; 1 decodes all at once.
        """
        reader, names = self._reader, self._reader.columns
        if groups > 1:
            names = [c.name for f in fields for c in (f.columns if isinstance(f, Field) else [f])]
        self._find_places()
        for number, row_range in ranges:
            owner = self.chunk, names[0], number
            chunk = reader.decoded(owner, row_range, names)
            started, keeps = time.perf_counter(), False
            for field in fields:
                if isinstance(field, Field):
                    out = self._memory_of(field)
                    reader.place(field, row_range, chunk, self._places[number], out)
                else:
                    self._lists.setdefault(field.name, {})[number] = chunk[field.name]
                    keeps = True
            reader.wait_for_device()
            if not keeps:
                reader.release(owner)
            reader.stopwatch.add(gather=time.perf_counter() - started)

    def _memory_of(self, field: Field) -> Any:
        """Return the memory of a field in all batches of the chunk, and one row for no batch."""
        with self._finding:
            if field.name not in self._columns:
                shape = self._firsts[-1] + 1, field.width
                self._columns[field.name] = self._reader.empty(shape, field.dtype)
                self._reader.wait_for_device()  # other threads work on streams of their own
            return self._columns[field.name]

    def _gather(self, column: Column) -> None:
        """Make the lists of a column in all parts, once those of all row ranges are there."""
        started, decoded = time.perf_counter(), self._lists.pop(column.name)
        pieces = [(part, decoded[number]) for number, part in enumerate(self.chunk.row_ranges)]
        self._reader.lists_of(column, pieces, self.parts, self._order)
        self._reader.wait_for_device()
        self._reader.stopwatch.add(gather=time.perf_counter() - started)

    def _share_out(self) -> None:
        """Give each part its rows of the memory of the chunk's batches."""
        for field in self._reader.layout.fields:
            out = self._columns.pop(field.name)
            for first, part in zip(self._firsts, self.parts, strict=False):
                segment, rows = part.segment, part.rows
                batches = segment.batches or 1
                stride = self._reader.stride(rows, batches)
                mine = out[first : first + batches * stride]
                if not segment.batches and part is self.parts[-1] and first:
                    # It waits for the rest of its batch, and must not hold the others' memory.
                    mine = self._reader.empty(mine.shape, mine.dtype)
                    mine[...] = out[first : first + rows]
                part.scalars[field.name] = mine.reshape(batches, stride, field.width)[:, :rows]
        self._reader.wait_for_device()

    def finish(self) -> None:
        """Drop what the tasks no longer need."""
        for name in ("_places", "_order"):
            self.__dict__.pop(name, None)
        self._reader.release_all(self.chunk)


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


def _take(array: Any, rows: Any, out: Any) -> None:
    """Write some rows of an array to `out`."""
    if isinstance(array, np.ndarray):
        np.take(array, rows, axis=0, out=out, mode="clip")  # other modes copy `out` first
    else:
        array_namespace(array).take(array, rows, axis=0, out=out)


def _in_groups(segment: Segment) -> list[Segment]:
    """Return the batches of a segment in groups of at most `GROUP_BATCHES`."""
    if segment.batches <= GROUP_BATCHES:
        return [segment]
    rows = (segment.stop - segment.start) // segment.batches
    groups = []
    for number in range(0, segment.batches, GROUP_BATCHES):
        batches = min(GROUP_BATCHES, segment.batches - number)
        start = segment.start + number * rows
        groups.append(Segment(segment.batch + number, batches, start, start + batches * rows))
    return groups


def _place_rows(columns: Sequence[Any], places: Places, matrix: Any) -> None:
    """Write columns of numbers or vectors side by side into some rows of a matrix.

    Columns are copied side by side in blocks that fit the cache, then transposed: NumPy then writes
    one row after the other, which is twice as fast as writing column by column. A row is written to
    its place as one value, which takes two thirds of the time of its numbers.
    """
    on_cpu, width = isinstance(matrix, np.ndarray), matrix.shape[1]
    step = MATRIX_ROWS if on_cpu else len(columns[0])
    xp = array_namespace(matrix)
    # A little longer than the block, so that columns do not compete for the same cache lines.
    beside = xp.empty((width, min(step, len(columns[0])) + 16), dtype=matrix.dtype)
    for start in range(0, len(columns[0]), step):
        first, stop = 0, min(start + step, len(columns[0]))
        for column in columns:
            block = column[start:stop].reshape(stop - start, -1).T
            beside[first : first + len(block), : stop - start] = block
            first += len(block)
        rows = beside[:, : stop - start].T.copy()
        if isinstance(places, slice):
            matrix[places.start + start : places.start + stop] = rows
        elif on_cpu:
            _as_values(matrix)[places[start:stop]] = _as_values(rows)
        else:
            matrix[places[start:stop]] = rows


def _as_values(matrix: np.ndarray) -> np.ndarray:
    """Return the rows of a matrix as one value each, over the same memory."""
    return matrix.view(np.dtype((np.void, matrix.itemsize * matrix.shape[1])))[:, 0]


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


class Assembler:
    """Joins the parts of chunks to batches, over the ranks that a process holds.

    Args:
        reader: gives memory.
        plan: plan of the epoch.
        next_work: returns the next finished `ChunkWork`, or None.
        first_batch: number of the first batch.
    """

    def __init__(
        self,
        reader: ChunkReader,
        plan: EpochPlan,
        next_work: Callable[[], ChunkWork | None],
        first_batch: int,
    ) -> None:
        self._reader, self._next_work, self._next = reader, next_work, first_batch
        self._starts = {rank.rank: rank.starts for rank in plan.ranks}
        self._waiting: dict[int, list[Part]] = {rank.rank: [] for rank in plan.ranks}

    def take(self, most: int) -> Part | None:
        """Return the next batches, at most so many, all of equally many rows; None if stopped."""
        runs = []
        for rank, waiting in self._waiting.items():
            while not (waiting and self._complete(rank)):
                work = self._next_work()
                if work is None:
                    return None
                self._waiting[work.chunk.rank] += work.parts
            runs.append(waiting[0])
        count = min(most, *(part.segment.batches for part in runs))
        taken = []
        for waiting, part in zip(self._waiting.values(), runs, strict=True):
            taken.append(part.some(0, count))
            rest = part.segment.batches - count
            waiting[:1] = [part.some(count, rest)] if rest else []
        self._next += count
        return taken[0] if len(taken) == 1 else self._joined(taken, count)

    def _complete(self, rank: int) -> bool:
        """Return whether the first part of a rank has whole batches; joins pieces of one."""
        waiting = self._waiting[rank]
        if waiting[0].segment.batches:
            return True
        rows, starts = 0, self._starts[rank]
        size = int(starts[self._next + 1] - starts[self._next])
        for number, part in enumerate(waiting):
            rows += part.rows
            if rows == size:
                waiting[: number + 1] = [self._joined(waiting[: number + 1], 1)]
                return True
        return False

    def _joined(self, parts: Sequence[Part], batches: int) -> Part:
        """Return batches of which each has the rows of one batch, or piece, of every part."""
        rows = sum(part.rows for part in parts)
        joined = Part(Segment(parts[0].segment.batch, batches, 0, batches * rows))
        stride = self._reader.stride(rows, batches)
        for name, first in parts[0].scalars.items():
            out = self._reader.empty((batches, stride, first.shape[2]), first.dtype)[:, :rows]
            array_namespace(out).concatenate([p.scalars[name] for p in parts], axis=1, out=out)
            joined.scalars[name] = out
        for name in parts[0].lists:
            columns = zip(*(part.lists[name] for part in parts), strict=True)
            joined.lists[name] = [self._joined_lists(name, lists) for lists in columns]
        return joined

    def _joined_lists(self, name: str, lists: Sequence[Ragged]) -> Ragged:
        """Return lists one after the other, with as many values as the reader asks for."""
        rows = sum(map(len, lists))
        counts = [int(one.offsets[-1]) for one in lists]
        length = self._reader.num_values(name, rows, sum(counts))
        values = self._reader.empty((length,), lists[0].values.dtype)
        xp, first, offsets = array_namespace(values), 0, [lists[0].offsets[:1]]
        for one, count in zip(lists, counts, strict=True):
            values[first : first + count] = one.values[:count]
            offsets.append(one.offsets[1:] + first)
            first += count
        values[first:] = values[first - 1 : first] if first else 0
        return Ragged(values, xp.concatenate(offsets))
