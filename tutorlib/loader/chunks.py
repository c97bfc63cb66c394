"""From row ranges to batches as arrays: decode, transform, check, gather.

The rows of a chunk have one order (`RankPlan.order`). Each column is decoded, checked, joined over
the row ranges of the chunk, and gathered once by that order into aligned memory, where the batches
lie one after the other. Calls into NumPy are few and long, so that threads do not fight for the
interpreter lock. Columns of a stacked matrix become rows of it first: gathering whole rows of 26
columns is as fast as gathering two columns. On a GPU the arrays are CuPy's; nothing else differs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tutorlib.columns import (
    Chunk,
    Masked,
    Ragged,
    array_namespace,
    flat_values,
    gather_rows,
    is_array,
    to_host,
)
from tutorlib.loader.layout import Field, Layout
from tutorlib.loader.pipeline import Stopwatch, Task
from tutorlib.loader.plan import ChunkPlan, EpochPlan, RankPlan, RowRange, Segment
from tutorlib.loader.settings import PLANNED_THREADS
from tutorlib.loader.sizing import TEXT_COPIES, values_per_row
from tutorlib.memory import BufferPool, Ledger, free_at_once, is_aligned
from tutorlib.parquet import ParquetError, ParquetSource
from tutorlib.schema import listed

TASK_COLUMNS = 8  # at least, that one task decodes and gathers; with a memory budget, one
CHUNK_TASKS = 16  # of a wide table: decoding a few columns reads the footer of all
SMALL_BYTES = 2**20  # a row group of so few bytes is decoded in one call
DECODE_COPIES = 3  # of a column while Arrow decodes it: as stored, its pages, what grows
KEPT_COPIES = 12  # of a column, which each thread's part of Arrow's own allocator keeps
SPARE_BYTES = 2**25  # beyond a quarter more than the memory budget, that a process may grow by
STEPS = 64  # of a memory budget, of which a thread decodes one before it transforms it
STREAM_ROWS = 16_384  # of a slice that are decoded at a time, with a memory budget
LIST_VALUES = 2**18  # of lists, about, that are gathered at a time, with a memory budget
MATRIX_ROWS = 16_384  # rows of a stacked matrix that are made at a time
LONGER_LISTS = (
    "Rows were planned with the mean length of lists and strings. Write the files with smaller row "
    "groups (ParquetSink(row_group_rows=...)), or give a larger memory_budget"
)

Transform = Callable[[Chunk], Chunk]
Pieces = Iterable[tuple[RowRange, Chunk]]
Owner = tuple[ChunkPlan, str]  # of decoded rows: a chunk and the first of some columns, "" for all


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
        ledger: of the memory budget; None without one.
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
        ledger: Ledger | None = None,
    ) -> None:
        self.source, self.columns, self.layout, self.pool = source, columns, layout, pool
        self.stopwatch, self._transform = stopwatch, transform
        self._mean_lengths = values_per_row(source) if layout.multi_hot.bucketed else {}
        self.held_bytes, self._fills_missing, self._ledger = held_bytes, fills_missing, ledger
        kinds = [source.column_types[name] for name in columns]
        self._rows_differ = any(kind == "string" or is_list for kind, is_list in kinds)
        if ledger is not None and self._kept_bytes() > ledger.budget_bytes / 4 + SPARE_BYTES:
            free_at_once()
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
        groups = [row_range.row_group for row_range in chunk.row_ranges]
        if not all(group not in plan.sliced and source.is_whole(group) for group in groups):
            return False
        rows = sum(source.row_groups[group].num_rows for group in groups)
        return rows * source.row_bytes(groups[0], self.columns) > SMALL_BYTES * len(groups)

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
                    with self.places(row_range, f"rows [{first}, {end}) of "):
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
        elif self.held_bytes is not None and (self._transform is not None or len(names) > 1):
            row = max(1.0, self.source.row_bytes(*place))
            step = max(1, min(STREAM_ROWS, int(self.held_bytes / STEPS / row)))
            whole = self._reads_whole(*place)  # then each column has room of its own
            with contextlib.nullcontext() if whole else self.room(self._reading_bytes(*place)):
                yield from self.steps(*place, step, row_range.start, row_range.stop)
        else:
            with self.room(self._decoding_bytes(*place)):
                chunk = self.source.read(*place, row_range.start, row_range.stop)
            yield chunk

    def room(self, nbytes: float) -> contextlib.AbstractContextManager[None]:
        """Return what a task works in that takes so many bytes: it waits until they fit."""
        return contextlib.nullcontext() if self._ledger is None else self._ledger.room(nbytes)

    def _kept_bytes(self) -> float:
        """Return about what Arrow's own allocator would keep of what threads have decoded."""
        source = self.source
        largest = max(range(len(source)), key=lambda n: source.row_groups[n].num_rows)
        rows = source.row_groups[largest].num_rows
        columns = [rows * source.row_bytes(largest, [name]) for name in self.columns]
        return sum(columns) + PLANNED_THREADS * KEPT_COPIES * max(columns)

    def _decoding_bytes(self, row_group: int, names: Sequence[str]) -> float:
        """Return what decoding columns of a whole row group takes, with what comes of it."""
        if self._ledger is None:
            return 0.0
        source, rows = self.source, self.source.row_groups[row_group].num_rows
        decoded = [rows * source.row_bytes(row_group, [name]) for name in names]
        return sum(decoded) + DECODE_COPIES * max(decoded)

    def _check_held(self, owner: Owner, row_range: RowRange, nbytes: int) -> None:
        """Refuse lists or strings that are far longer than their row group's mean."""
        self._decoded[owner] = self._decoded.get(owner, 0) + nbytes
        held = sum(list(self._decoded.values())) + self.pool.used_bytes
        # Rows of numbers are as wide as planned: what is held beside them is the consumer's.
        if self._rows_differ and self.held_bytes is not None and held > self.held_bytes:
            raise ParquetError(
                f"rows [{row_range.start}, {row_range.stop}) of "
                f"{self.source.location(row_range.row_group)}: they decode to {nbytes:,} bytes, "
                f"with which {held:,} bytes are held, more than memory_budget allows. "
                f"{LONGER_LISTS} of at least {2 * held:,} bytes"
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

    def steps(
        self, row_group: int, names: Sequence[str], step: int, start: int, stop: int
    ) -> Generator[Chunk]:
        """Yield rows of a row group in steps; with a memory budget, from whole decoded columns.

        Read in steps, a row group takes pages and dictionaries of all its columns, which is more
        than its rows if there are fewer than about a million.
        """
        source = self.source
        if not self._reads_whole(row_group, names):
            yield from source.steps(row_group, names, step, start, stop)
            return
        columns: dict[str, Any] = {}
        for name in names:
            with self.room(self._decoding_bytes(row_group, [name])):
                columns |= source.read(row_group, [name], start, stop).columns
        whole = Chunk(columns)
        nothing = whole.slice(0, 0)
        for first in range(0, whole.num_rows, step):
            piece = whole.slice(first, min(first + step, whole.num_rows))
            # A copy, so that the row group goes when its last rows were given.
            yield Chunk.concat([piece, nothing])

    def _reads_whole(self, row_group: int, names: Sequence[str]) -> bool:
        """Return whether `steps` decodes a whole row group, because that takes less memory."""
        if self._ledger is None:
            return False
        decoded = self.source.row_groups[row_group].num_rows * self.source.row_bytes(
            row_group, names
        )
        return decoded <= self.source.stream_bytes(row_group, names)

    def _reading_bytes(self, row_group: int, names: Sequence[str]) -> float:
        """Return what reading a row group in steps takes: pages, and texts that are told apart."""
        source = self.source
        if self._ledger is None:
            return 0.0
        texts = [name for name in names if source.column_types[name] == ("string", False)]
        text_bytes = TEXT_COPIES * source.stored_bytes(row_group, texts)
        return source.stream_bytes(row_group, names) + text_bytes

    def room_for_lists(
        self, name: str, ranges: Sequence[RowRange], pieces: Mapping[int, Chunk]
    ) -> contextlib.AbstractContextManager[None]:
        """Return room for joining and gathering the lists of a chunk.

        Raises:
            ParquetError: if they do not fit the budget: they are far longer than planned.
        """
        if self._ledger is None or self.held_bytes is None:
            return contextlib.nullcontext()
        sizes = [pieces[number][name].nbytes for number in range(len(ranges))]
        longest = ranges[int(np.argmax(sizes))]
        needed = sum(sizes) * (2 if len(sizes) > 1 else 1)
        held = sum(list(self._decoded.values())) + self.pool.used_bytes + needed
        if held > self.held_bytes:
            raise ParquetError(
                f"rows [{longest.start}, {longest.stop}) of "
                f"{self.source.location(longest.row_group)}, column {name!r}: the lists of a "
                f"chunk take {sum(sizes):,} bytes, {max(sizes):,} of them here, and {needed:,} "
                f"more while they are gathered, with which {held:,} bytes are held, more than "
                f"memory_budget allows. {LONGER_LISTS} of at least {2 * held:,} bytes"
            )
        return self._ledger.room(needed)

    def give_back(self) -> None:
        """Give free memory back to the system, with a memory budget."""
        if self._ledger is not None:
            self._ledger.give_back()

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

    @contextlib.contextmanager
    def places(self, row_range: RowRange, rows: str = "") -> Iterator[None]:
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

    def lists_of(self, column: Any, pieces: Pieces, parts: Sequence[Part], picks: Any) -> None:
        """Gather the lists of a column into each part, every batch in aligned memory of its own."""
        checked = []
        for row_range, chunk in pieces:
            values, first_row = chunk[column.name], row_range.start
            with self.places(row_range):
                checked.append(self.layout.list_cells(column, values, first_row=first_row))
        lists = self._joined(checked) if len(checked) > 1 else checked[0]
        for part in parts:
            segment, rows = part.segment, part.rows
            step = segment.stop - segment.start
            if self._ledger is not None:  # positions take as much memory as values
                mean = len(lists.values) / max(1, len(lists))
                step = max(1, int(LIST_VALUES / max(1.0, rows * mean))) * rows
            made = part.lists[column.name] = []
            for start in range(segment.start, segment.stop, max(step, 1)):
                some = slice(start, min(start + step, segment.stop))
                made += self._gathered_lists(column.name, lists, some, part, picks)

    def _joined(self, parts: Sequence[Ragged]) -> Ragged:
        """Return lists one after the other, with values in the memory of batches."""
        counts = [len(part.values) for part in parts]
        values = self.empty((sum(counts),), parts[0].values.dtype)
        xp, first, offsets = array_namespace(values), 0, [parts[0].offsets[:1]]
        xp.concatenate([part.values for part in parts], out=values)
        for part, count in zip(parts, counts, strict=True):
            offsets.append(part.offsets[1:] + first)
            first += count
        return Ragged(values, xp.concatenate(offsets))

    def _gathered_lists(
        self, name: str, lists: Ragged, chosen: slice, part: Part, picks: Any
    ) -> list[Ragged]:
        """Return the lists of whole batches of a part, or of a piece, each in memory of its own."""
        rows, made = part.rows, []
        if picks is None:
            ordered = lists.slice(chosen.start, chosen.stop)
            positions, offsets = None, ordered.offsets
        else:
            positions, offsets = gather_rows(lists.offsets, picks[chosen])
        bounds = to_host(offsets[:: max(rows, 1)]).tolist()
        for number, (first, last) in enumerate(itertools.pairwise(bounds)):
            count = last - first
            length = count
            if part.segment.batches:
                length = self.num_values(name, rows, count)
            values = self.empty((length,), lists.values.dtype)
            if positions is None:
                values[:count] = ordered.values[first:last]
            elif count:
                _take(lists.values, positions[first:last], values[:count])
            # Padding repeats the last value: any other could be an id that no row has.
            values[count:] = values[count - 1 : count] if count else 0
            mine = offsets[number * rows : (number + 1) * rows + 1] - first
            made.append(Ragged(values, mine))
        return made

    def scalars_of(
        self, field: Field, pieces: Pieces, total: int, parts: Sequence[Part], picks: Any
    ) -> None:
        """Gather the values of a field into each part: checked, in the dtype of a batch."""
        # The checked values of all row ranges, one after the other.
        matrix: Any = None
        row = 0
        for row_range, chunk in pieces:
            with self.places(row_range):
                cells = [
                    self.layout.cells(column, chunk[column.name], first_row=row_range.start)
                    for column in field.columns
                ]
            if matrix is None:
                matrix = self.empty((total, field.width), field.dtype)
            _interleave(cells, matrix[row : row + row_range.num_rows])
            row += row_range.num_rows
        # Their rows in the chunk's order: whole batches side by side, pieces on their own.
        xp = array_namespace(matrix)
        for part in parts:
            segment, rows = part.segment, part.rows
            batches = segment.batches or 1
            stride = self.stride(rows, batches)
            if picks is None:
                shape = batches, rows, field.width
                unordered = matrix[segment.start : segment.stop].reshape(shape)
                if stride == rows and is_aligned(unordered):
                    part.scalars[field.name] = unordered
                    continue
            out = self.empty((batches, stride, field.width), field.dtype)
            if picks is None:
                out[:, :rows] = unordered
            else:
                chosen = picks[segment.start : segment.stop]
                if stride > rows:
                    padded = xp.zeros((batches, stride), np.int64)
                    padded[:, :rows] = chosen.reshape(batches, rows)
                    chosen = padded.reshape(-1)
                _take(matrix, chosen, out.reshape(-1, field.width))
            part.scalars[field.name] = out[:, :rows]

    def num_values(self, name: str, rows: int, count: int) -> int:
        """Return the length of the array for the `count` values of a list column in a batch."""
        return self.layout.multi_hot.num_values(self._mean_lengths.get(name, 0), rows, count)

    def stride(self, rows: int, batches: int) -> int:
        """Return the rows from one batch to the next, so that each begins aligned."""
        step = 16 if self.source.device == "cpu" else 64
        return -(-rows // step) * step if batches > 1 else rows

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return memory for batches, aligned, on the device of the source."""
        if self.source.device == "cpu":
            return self.pool.empty(shape, dtype)
        import cupy

        return cupy.empty(shape, dtype)  # RMM aligns to 256 bytes

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
        self._ordering = threading.Lock()
        self._pieces: dict[int, Chunk] = {}  # by number of the row range

    def stages(self) -> list[list[Task]]:
        """Return the tasks of each stage; a stage may begin when the one before it has ended."""
        layout, reader = self._reader.layout, self._reader
        fields: list[Any] = [[field] for field in layout.fields if field.width > 1]
        columns = [field for field in layout.fields if field.width == 1]
        size = max(TASK_COLUMNS, len(columns) // CHUNK_TASKS)
        size = size if reader.held_bytes is None else 1
        fields += [columns[i : i + size] for i in range(0, len(columns), size)]
        fields += [[column] for column in layout.ragged.values()]
        by_column = reader.reads_by_column(self._plan, self.chunk)
        gathering: list[Task] = [
            functools.partial(self._gather, group, by_column) for group in fields
        ]
        if by_column:
            return [[self._order, *gathering]]
        # Small row groups are read several by a task.
        ranges = list(enumerate(self.chunk.row_ranges))
        size = -(-len(ranges) // 16)
        reading = [
            functools.partial(self._read, ranges[i : i + size]) for i in range(0, len(ranges), size)
        ]
        return [[self._order, *reading], gathering]

    def _order(self) -> Any:
        """Return the order of the chunk's rows, where the columns are; None if not shuffled."""
        with self._ordering:
            return self._picks

    @functools.cached_property
    def _picks(self) -> Any:
        started = time.perf_counter()
        order = self._plan.order(self.chunk.index)
        if order is not None and self._reader.source.device == "gpu":
            import cupy

            order = cupy.asarray(order)
        self._reader.stopwatch.add(gather=time.perf_counter() - started)
        return order

    def _read(self, ranges: Sequence[tuple[int, RowRange]]) -> None:
        for number, row_range in ranges:
            names = self._reader.columns
            self._pieces[number] = self._reader.decoded((self.chunk, ""), row_range, names)
        self._reader.give_back()

    def _gather(self, group: Sequence[Any], by_column: bool) -> None:
        """Make the arrays of some fields, or of a column of lists, in all parts."""
        reader, ranges = self._reader, self.chunk.row_ranges
        fields = [field for field in group if isinstance(field, Field)]
        lists = [column for column in group if not isinstance(column, Field)]
        names = [column.name for field in fields for column in field.columns]
        names += [column.name for column in lists]
        chunks: Iterable[Chunk] = map(self._pieces.__getitem__, range(len(ranges)))
        if by_column:
            chunks = (reader.decoded((self.chunk, names[0]), part, names) for part in ranges)
        if len(group) > 1:
            chunks = list(chunks)  # each field needs them; for a single one, they come one by one
        started, read, picks = time.perf_counter(), reader.stopwatch.mine("read"), self._order()
        for field in fields:
            pieces = zip(ranges, chunks, strict=True)
            reader.scalars_of(field, pieces, self.chunk.num_rows, self.parts, picks)
        for column in lists:
            if by_column:
                reader.lists_of(column, zip(ranges, chunks, strict=True), self.parts, picks)
                continue
            with reader.room_for_lists(column.name, ranges, self._pieces):
                reader.lists_of(column, zip(ranges, chunks, strict=True), self.parts, picks)
        if reader.source.device == "gpu":
            import cupy

            cupy.cuda.get_current_stream().synchronize()  # consumers work on streams of their own
        if by_column:
            reader.release((self.chunk, names[0]))
        read = reader.stopwatch.mine("read") - read
        reader.stopwatch.add(gather=time.perf_counter() - started - read)

    def finish(self) -> None:
        """Drop what the tasks no longer need."""
        self._pieces.clear()
        self.__dict__.pop("_picks", None)
        self._reader.release((self.chunk, ""))
        self._reader.give_back()


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
                self._steps = reader.steps(*place)
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
