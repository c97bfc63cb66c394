"""ParquetSource: a data set as one sequence of row groups, read as chunks of columns.

Opening reads footers only; they give row counts, types and statistics. Any thread may then read a
row group, a part of it, or some of its columns. `RowFilter` decides which rows a source has.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import copy
import dataclasses
import datetime
import functools
import hashlib
import itertools
import operator
import re
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tutorlib.checks import check_positive, shortened
from tutorlib.memory import LESS_MEMORY
from tutorlib.parquet.files import (
    INT96_UNIT,
    OPENING_THREADS,
    OpenFiles,
    ParquetError,
    ParquetRows,
    StoredRows,
    open_data,
)
from tutorlib.schema import (
    MOST_NAMED,
    column_type,
    element_type,
    is_number,
    is_time,
    listed,
    type_words,
)

if TYPE_CHECKING:  # a loader reads tables alone, and needs no chunks
    from tutorlib.columns import Chunk

Names = Sequence[str]  # of columns
INDEX_NAME = re.compile("__index_level_[0-9]+__")
STEP_ROWS = 65_536  # of which a filter is evaluated at a time


@dataclasses.dataclass(frozen=True)
class RowGroup:
    """Row group `index` of file number `file`; `num_rows` counts the rows that pass a filter."""

    file: int
    index: int
    num_rows: int


@dataclasses.dataclass(frozen=True)
class RowRange:
    """Rows [start, stop) of row group number `row_group` of a source."""

    row_group: int
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """Rows in the range."""
        return self.stop - self.start


class ParquetSource:
    """A data set as one sequence of row groups; opening reads footers only.

    Folders named `key=value`, as Hive and Spark write them, below a folder that is given add a
    column `key` that has this value in all rows below: integers if every text is one as Python
    writes it (`7`, not `07`), else strings. With `filters`, the source has only the rows that
    pass. Timestamps of Spark and Hive, stored as INT96, are read in microseconds, which hold all
    dates. Row groups that neither keys nor statistics exclude are counted on opening, by reading
    the columns of the condition.

    Reading a row group of 131,072 rows and 40 columns takes 15 ms on two threads with page
    checksums verified; `pyarrow.dataset` fragments and one call for each column are no faster.

    Args:
        data: file, folder, glob pattern or a list of these, also as URLs (see `find_files`); or
            rows in memory: a pyarrow Table, a RecordBatchReader, a pandas or polars DataFrame (see
            `table_of`), which stay where they are.
        filters: rows to keep, as a `pyarrow.compute.Expression` or a list of conditions such as
            `[("day", "<", 6), ("C1", "in", [1, 2])]` (see `RowFilter`); None keeps all.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds the paths; None takes it from URLs.

    Attributes:
        files: paths or URLs of the files, in order.
        paths: what was given, as a list; empty for rows in memory.
        filesystem: the filesystem that was given.
        row_groups: `RowGroup` of every row group over all files, in order, without empty ones.
        column_types: {name: (NumPy name of one value or "string", whether a row holds a list)};
            "(8,)float32" for vectors, which are fixed-size lists.
        arrow_schema: `pyarrow.Schema` of the columns, keys included, dictionaries decoded.

    Raises:
        FileNotFoundError: if there is no file.
        TypeError: for anything that is neither paths nor rows; it says what to do.
        ParquetError: if a file is not Parquet, is truncated, or has other keys than the first.
        ValueError: if a filter cannot be parsed or does not fit the columns.

    Example:
        >>> source = ParquetSource(pa.table({"x": range(5)}))
        >>> len(source), source.num_rows, source.read(0, ["x"], 2, 4)["x"].tolist()
        (1, 5, [2, 3])
        >>> some = ParquetSource(pa.table({"x": range(5)}), filters=[("x", ">", 2)])
        >>> some.num_rows, some.read(0)["x"].tolist()
        (2, [3, 4])
    """

    def __init__(
        self,
        data: Any,
        filters: Any = None,
        *,
        filesystem: Any = None,
    ) -> None:
        self.filesystem = filesystem
        self._idle = OpenFiles()
        self.paths, self._stored = open_data(data, filesystem, self._idle)
        self._keys = _typed_keys(self._stored)
        shared, self._left_out = _shared_schema(self._stored)
        keys = [pa.field(name, value.type) for name, value in self._keys[0].items()]
        self.arrow_schema = pa.schema([*shared, *keys])
        self.column_types = {field.name: column_type(field.type) for field in self.arrow_schema}
        self.row_groups = [
            RowGroup(file, index, rows)
            for file, stored in enumerate(self._stored)
            for index, rows in enumerate(stored.row_counts)
            if rows
        ]
        self._string_column: Callable[[Any], Any] | None = None
        self._encoded = False  # whether it takes dictionaries
        self._filter: RowFilter | None = None
        # Functions that choose rows by number, each with {(file, index): (first number, rows)}.
        self._choices: list[tuple[Any, dict[tuple[int, int], tuple[int, int]]]] = []
        if filters is not None:
            self._filter = RowFilter.of(filters, self.arrow_schema)
            self._keep_passing()

    def __len__(self) -> int:
        return len(self.row_groups)

    def __repr__(self) -> str:
        return (
            f"ParquetSource({len(self.files)} files, {len(self)} row groups, {self.num_rows:,} "
            f"rows, {len(self.column_types)} columns)"
        )

    @property
    def files(self) -> list[str]:
        """Paths or URLs of the files, in order."""
        return [stored.path for stored in self._stored]

    @property
    def index_names(self) -> set[str]:
        """Names of the columns in which pandas stores an index without a name."""
        return {name for name in self.column_types if INDEX_NAME.fullmatch(name)}

    @property
    def is_local(self) -> bool:
        """Whether all rows are on this machine."""
        return all(stored.is_local for stored in self._stored)

    @property
    def num_rows(self) -> int:
        """Number of rows of all row groups."""
        return sum(group.num_rows for group in self.row_groups)

    # ---- other sources of the same files ----

    def choose(self, numbers: Any) -> ParquetSource:
        """Return a source of the rows that a function chooses by their numbers; none is read.

        Args:
            numbers: `numbers(first, rows)` returns which of the rows first, ..., first + rows - 1
                are chosen, as a range or int64 [m], counted from 0, rising. Its `identity` is text
                that two such functions share only if they choose the same rows.
        """
        firsts = itertools.accumulate((g.num_rows for g in self.row_groups), initial=0)
        rows = {(g.file, g.index): (n, g.num_rows) for n, g in zip(firsts, self.row_groups)}  # noqa: B905
        counts = [len(numbers(*place)) for place in rows.values()]
        groups = zip(self.row_groups, counts, strict=True)
        return self._changed(
            row_groups=[dataclasses.replace(g, num_rows=count) for g, count in groups if count],
            _choices=[*self._choices, (numbers, rows)],
        )

    def __add__(self, other: ParquetSource) -> ParquetSource:
        """Return a source of the rows of two parts of one split, in their original order.

        Raises:
            ValueError: if they are not parts of one source, or have a row in common.
        """
        if not isinstance(other, ParquetSource):
            return NotImplemented
        before = [choices for choices, _ in self._choices[:-1]]
        if (
            self._stored is not other._stored
            or self._filter is not other._filter
            or not (self._choices and other._choices)
            or before != [choices for choices, _ in other._choices[:-1]]
        ):
            raise ValueError(
                f"{self} and {other} are not parts of one split, so they have no common order. "
                "Open a list of their files, or join parts of one call of split_rows"
            )
        rows = self._choices[-1][1]
        groups = [RowGroup(*place, count) for place, (_, count) in rows.items()]
        whole = self._changed(row_groups=groups, _choices=self._choices[:-1])
        joined = whole.choose(_Joined((self._choices[-1][0], other._choices[-1][0])))
        if joined.num_rows != self.num_rows + other.num_rows:
            raise ValueError(f"{self} and {other} have rows in common: give each part once")
        return joined

    def __radd__(self, other: Any) -> ParquetSource:
        """Begin a `sum` of parts."""
        return self if other == 0 else NotImplemented

    def head(self, rows: int) -> ParquetSource:
        """Return a source of the first rows, or of all if there are fewer.

        Example:
            >>> ParquetSource(pa.table({"x": range(5)})).head(2).read(0)["x"].tolist()
            [0, 1]
        """
        check_positive(rows=rows)
        return self.choose(_FirstRows(rows))

    def stored(self, position: int) -> tuple[StoredRows, int]:
        """Return the file, or rows in memory, that hold a row group, and its number there."""
        group = self.row_groups[position]
        return self._stored[group.file], group.index

    def is_whole(self, position: int) -> bool:
        """Return whether all stored rows of a row group belong to the source."""
        group = self.row_groups[position]
        return group.num_rows == self._stored[group.file].row_counts[group.index]

    def has_first_rows(self, position: int) -> bool:
        """Return whether the rows of a row group are all that are stored, or the first of these."""
        group = self.row_groups[position]
        condition, chosen = self._wanted(group, 0, group.num_rows)
        return condition is None and isinstance(chosen, range) and chosen.start == 0

    def with_strings_as(self, column: Callable[[Any], Any]) -> ParquetSource:
        """Return a source that reads strings without decoding dictionaries.

        Reading 26 columns of 8 hex digits takes 0.4 of the time of plain strings, counting them a
        tenth. Strings within lists, and those of rows in memory, are read as plain strings.

        Args:
            column: returns an Arrow array of strings, dictionary-encoded where the file has them
                so, as a column of a chunk: `tutorlib.ops.encoded.encoded_column`.
        """
        return self._changed(_string_column=column, _encoded=bool(self.paths))

    def _changed(self, **attributes: Any) -> ParquetSource:
        other = copy.copy(self)
        vars(other).update(attributes)
        return other

    # ---- what is known without reading rows ----

    def location(self, position: int) -> str:
        """Return what error messages call the row group number `position`."""
        group = self.row_groups[position]
        return self._stored[group.file].location(group.index)

    @contextlib.contextmanager
    def errors_at(self, row_range: RowRange, rows: str = "") -> Iterator[None]:
        """Have errors name the row group of a row range, after words that say which rows of it."""
        try:
            yield
        except ParquetError:
            raise
        except Exception as error:
            where = f"in {rows}{self.location(row_range.row_group)}"
            if isinstance(error, ValueError):
                raise ParquetError(f"{error} ({where})") from error
            if isinstance(error, MemoryError):
                raise MemoryError(f"{error} ({where}). {LESS_MEMORY}") from error
            error.add_note(where)
            raise

    def why_missing(self, names: Names) -> str:
        """Return why columns cannot be used, with a remedy, as a part of an error, or ""."""
        known = [f"{name!r} {self._left_out[name]}" for name in names if name in self._left_out]
        return f" ({shortened(known, MOST_NAMED)})" if known else ""

    def row_bytes(self, position: int, names: Names) -> float:
        """Return the mean bytes of a decoded row of the named columns of a row group.

        Numbers count with their width, which is exact. Strings and lists are estimated from the
        sizes and statistics in the footer, with 8 bytes of offsets a row.
        """
        group, total = self.row_groups[position], 0.0
        stored, keys = self._stored[group.file], self._keys[group.file]
        for name in names:
            kind, is_list = self.column_types[name]
            dtype, length = element_type(kind)
            fixed = is_number(dtype) or is_time(dtype)
            width = np.dtype(dtype).itemsize if fixed else 0
            if fixed and not is_list:
                total += width * (length or 1)
            elif name in keys:
                total += len(str(keys[name])) + 8
            else:
                values = stored.value_bytes(group.index, name, width)
                total += values / stored.row_counts[group.index] + 8
        return total

    def stream_bytes(self, position: int, names: Names) -> float:
        """Return about how many bytes Arrow holds while `steps` reads columns of a row group."""
        group = self.row_groups[position]
        own = [name for name in names if name not in self._keys[group.file]]
        return self._stored[group.file].stream_bytes(group.index, own)

    @property
    def footer_bytes(self) -> int:
        """About how many bytes the footers take, which stay in memory."""
        return sum(stored.footer_bytes for stored in self._stored)

    def fingerprint(self) -> dict[str, Any]:
        """Return metadata, as JSON values, that is equal for the same data set.

        A later process compares the entries and can say which one differs. Modification times do
        not count, and paths only where they differ from file to file: a data set may be moved.

        Example:
            >>> metadata = ParquetSource(pa.table({"x": range(5)})).fingerprint()
            >>> metadata["files"], metadata["rows"], metadata["filters"]
            (1, 5, None)
        """
        groups = [(group.file, group.index, group.num_rows) for group in self.row_groups]
        chosen = [] if self._filter is None else [self._filter.identity]
        chosen += [numbers.identity for numbers, _ in self._choices]
        return {
            "files": len(self.files),
            "row_groups": len(self),
            "rows": self.num_rows,
            "column_types": _hash(sorted(self.column_types.items())),
            "row_counts": _hash(groups),
            "file_names": _hash([self._names, [sorted(s.keys.items()) for s in self._stored]]),
            "footers": _hash([stored.digest for stored in self._stored]),
            "filters": "; ".join(chosen) or None,
        }

    @property
    def _names(self) -> list[str]:
        """The paths of the files without the folders that all have in common."""
        folders = [path.rpartition("/")[0] + "/" for path in self.files]
        ends = zip(min(folders), max(folders), strict=False)
        common = "".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], ends))
        return [path[common.rfind("/") + 1 :] for path in self.files]

    # ---- reading ----

    def read(
        self, position: int, columns: Names | None = None, start: int = 0, stop: int | None = None
    ) -> Chunk:
        """Return rows [start, stop) of a row group.

        Args:
            position: number of the row group over all files, 0 to len(self) - 1.
            columns: names; None for all.
            start: first row.
            stop: end of the rows; None for all that follow.

        Raises:
            ParquetError: if a column does not exist, cannot be decoded, or has a type that a chunk
                cannot hold, or if the file has changed. It names file, row group and column.
        """
        names = list(self.column_types) if columns is None else columns
        return self._chunk(position, self.table(position, names, start, stop))

    def table(
        self, position: int, names: Names, start: int = 0, stop: int | None = None
    ) -> pa.Table:
        """Return rows [start, stop) of a row group with columns of any Arrow type, on the CPU.

        Columns have the types of `arrow_schema`. Arguments and errors are those of `read`.
        """
        names, start, stop = self._checked(position, names, start, stop)
        if start == stop:
            return pa.schema([self.arrow_schema.field(name) for name in names]).empty_table()
        whole = stop - start == self.row_groups[position].num_rows
        return pa.concat_tables(
            self._chosen_rows(position, names, start, stop, None if whole else STEP_ROWS)
        )

    def tables(
        self, position: int, names: Names, step_rows: int, start: int = 0, stop: int | None = None
    ) -> Generator[pa.Table]:
        """Yield rows [start, stop) of a row group in tables of at most `step_rows` rows, in order.

        About a step is decoded at a time, also where few rows pass a filter. Closing the generator
        closes the file.

        Args:
            position: number of the row group over all files, 0 to len(self) - 1.
            names: columns.
            step_rows: rows of a table, at least 1.
            start: first row.
            stop: end of the rows; None for all that follow.
        """
        check_positive(step_rows=step_rows)
        names, start, stop = self._checked(position, names, start, stop)
        yield from self._chosen_rows(position, names, start, stop, step_rows)

    def chunks(self, columns: Names | None = None) -> Iterator[Chunk]:
        """Yield the row groups in order, in memory of one.

        Args:
            columns: names; None for all.
        """
        return (self.read(position, columns) for position in range(len(self)))

    def _checked(
        self, position: int, names: Names, start: int, stop: int | None
    ) -> tuple[list[str], int, int]:
        """Return names that exist, and the first row and the end of the rows."""
        missing = [name for name in names if name not in self.column_types]
        if missing:
            path, why = self.files[self.row_groups[position].file], self.why_missing(missing)
            raise ParquetError(
                f"{path}: no columns {listed(missing)}{why}; it has {listed(self.column_types)}"
            )
        return list(names), start, self.row_groups[position].num_rows if stop is None else stop

    def _chosen_rows(
        self, position: int, names: list[str], start: int, stop: int, step_rows: int | None
    ) -> Generator[pa.Table]:
        """Yield rows [start, stop) of a row group, of `step_rows` stored rows at a time."""
        group = self.row_groups[position]
        condition, wanted = self._wanted(group, start, stop)
        read = [*names, *(n for n in (condition.names if condition else ()) if n not in names)]
        at = 0  # rows so far that pass the filter
        if start == stop:
            return
        with contextlib.closing(self._stored_rows(group, read, step_rows)) as tables:
            for table in tables:
                if condition is not None:
                    table = table.filter(pa.array(condition.passes(table)))
                low = bisect.bisect_left(wanted, at)
                high = bisect.bisect_left(wanted, at + table.num_rows)
                if low < high:
                    first, count = wanted[low] - at, wanted[high - 1] + 1 - wanted[low]
                    piece = table.select(names).slice(first, count)
                    if high - low < count:
                        chosen = np.zeros(count, bool)
                        chosen[wanted[low:high] - wanted[low]] = True
                        piece = piece.filter(pa.array(chosen))
                    yield piece
                at += table.num_rows
                if at > wanted[-1]:
                    return

    def _stored_rows(
        self, group: RowGroup, names: list[str], step_rows: int | None
    ) -> Generator[pa.Table]:
        """Yield all stored rows of a row group, `step_rows` at a time, in the source's types."""
        stored, keys = self._stored[group.file], self._keys[group.file]
        own = [name for name in names if name not in keys]
        tables = stored.tables(group.index, own, step_rows, encoded=self._encoded)
        with contextlib.closing(tables):
            for table in tables:
                yield self._conformed(group, table, names, table.num_rows)

    def _conformed(self, group: RowGroup, table: pa.Table, names: Names, rows: int) -> pa.Table:
        """Return columns of one file in the types of the source, with keys."""
        keys, columns = self._keys[group.file], {}
        for name in names:
            kind = self.arrow_schema.field(name).type
            column = pa.repeat(keys[name], rows) if name in keys else table[name]
            if self._encoded and column_type(column.type) == column_type(kind):
                kind = column.type
            if column.type != kind:
                try:
                    if pa.types.is_dictionary(column.type):  # of views, which Arrow cannot decode
                        column = column.cast(pa.dictionary(column.type.index_type, kind))
                    column = column.cast(kind)
                except pa.ArrowException as error:
                    place = self._stored[group.file].location(group.index)
                    raise ParquetError(f"{place}, column {name!r}: {error}") from error
            columns[name] = column
        return pa.table(columns)

    def _chunk(self, position: int, table: pa.Table) -> Chunk:
        from tutorlib.columns import Chunk, column_from_arrow

        columns: dict[str, Any] = {}
        for name in table.column_names:
            convert: Callable[[Any], Any] = column_from_arrow
            if self._string_column is not None and self.column_types[name] == ("string", False):
                convert = self._string_column
            try:
                columns[name] = convert(table[name])
            except (TypeError, ValueError) as error:
                place = self.location(position)
                raise ParquetError(f"{place}, column {name!r}: {error}") from error
        return Chunk(columns)

    def close(self) -> None:
        """Close the files that stay open for the next read, which then opens them again."""
        self._idle.close()

    # ---- which rows ----

    def _keep_passing(self) -> None:
        """Keep the row groups and rows that pass the filter."""
        files = range(len(self._stored))
        with ThreadPoolExecutor(OPENING_THREADS, thread_name_prefix="tutorlib-filter") as pool:
            counts = list(pool.map(self._count_passing, files))
        passing = [(group, counts[group.file].get(group.index, 0)) for group in self.row_groups]
        self.row_groups = [dataclasses.replace(g, num_rows=rows) for g, rows in passing if rows]

    def _count_passing(self, file: int) -> dict[int, int]:
        """Return {index: rows that pass} of the row groups of a file where a row may pass.

        `pyarrow.dataset` reads only where keys and statistics do not decide. Statistics ignore NaN,
        and parquet-mr wrote wrong ones for decimals, so a condition on such columns is decided by
        reading them.
        """
        import pyarrow.dataset as ds

        stored, condition, schema = self._stored[file], self._filter, self.arrow_schema
        assert condition is not None
        if isinstance(stored, ParquetRows):
            keys = self._keys[file].items()
            known = [pc.field(k) == v if v.is_valid else pc.field(k).is_null() for k, v in keys]
            known_keys = functools.reduce(operator.and_, known, pc.scalar(True))
            verified = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
            reading = ds.ParquetReadOptions(coerce_int96_timestamp_unit=INT96_UNIT)
            parquet = ds.ParquetFileFormat(reading, default_fragment_scan_options=verified)
            place = stored.file.inner, stored.file.filesystem
            whole = parquet.make_fragment(*place, partition_expression=known_keys)
            possible = ds.FileSystemDataset([whole], schema, parquet, place[1])
            if not list(possible.get_fragments(condition.expression)):
                return {}  # by its keys, without a look into the file
            if not any(map(_has_weak_statistics, condition.kinds)):
                counts, index = dict[int, int](), 0
                with (
                    stored.errors_at(index, condition.names),
                    contextlib.suppress(pa.ArrowNotImplementedError),  # then the rows decide
                ):
                    for part in whole.split_by_row_group(condition.expression, schema):
                        index = part.row_groups[0].id
                        options = {"filter": condition.expression, "use_threads": False}
                        rows = part.scanner(schema=schema, **options).count_rows()
                        # Where keys decide, Arrow counts the rows of the whole file.
                        counts[index] = min(rows, stored.row_counts[index])
                    stored.refuse_changed(index)
                    return counts
        counted = enumerate(stored.row_counts)
        groups = [RowGroup(file, index, rows) for index, rows in counted if rows]
        return {group.index: int(self._passing(group).sum()) for group in groups}

    def _passing(self, group: RowGroup) -> np.ndarray:
        """Return which stored rows of a row group pass, bool [rows]; reads the filter's columns."""
        condition = self._filter
        assert condition is not None
        with contextlib.closing(self._stored_rows(group, condition.names, STEP_ROWS)) as tables:
            return np.concatenate([condition.passes(table) for table in tables])

    def _wanted(self, group: RowGroup, start: int, stop: int) -> tuple[RowFilter | None, Any]:
        """Return (filter, numbers of rows [start, stop) among those that pass it, rising).

        The filter is None for a row group of which all rows pass.
        """
        place = group.file, group.index
        passing = self._choices[0][1][place][1] if self._choices else group.num_rows
        stored_rows = self._stored[group.file].row_counts[group.index]
        wanted: Any = range(passing)
        for choose, rows_of in self._choices:
            chosen = choose(*rows_of[place])
            both = isinstance(wanted, range) and isinstance(chosen, range)
            wanted = wanted[chosen.start : chosen.stop] if both else np.asarray(wanted)[chosen]
        return None if passing == stored_rows else self._filter, wanted[start:stop]


@dataclasses.dataclass(frozen=True)
class _FirstRows:
    """Chooses the first rows of a source."""

    count: int

    @property
    def identity(self) -> str:
        """What tells this choice from others."""
        return f"the first {self.count} rows"

    def __call__(self, first: int, rows: int) -> range:
        """Return the chosen ones of `rows` rows from number `first` on."""
        return range(max(0, min(rows, self.count - first)))


@dataclasses.dataclass(frozen=True)
class _Joined:
    """Chooses the rows that one of two functions chooses."""

    both: tuple[Any, Any]

    @property
    def identity(self) -> str:
        """What tells this choice from others."""
        return " + ".join(sorted(" + ".join(n.identity for n in self.both).split(" + ")))

    def __call__(self, first: int, rows: int) -> Any:
        """Return the chosen ones of `rows` rows from number `first` on."""
        chosen = (numbers(first, rows) for numbers in self.both)
        one, other = sorted(chosen, key=lambda numbers: numbers[0] if len(numbers) else rows)
        if not len(other):
            return one
        if isinstance(one, range) and isinstance(other, range) and one.stop == other.start:
            return range(one.start, other.stop)
        return np.union1d(one, other)


def _hash(metadata: Any) -> str:
    return hashlib.sha256(repr(metadata).encode()).hexdigest()[:16]


# ---- columns of several files --------------------------------------------------------------------


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type without dictionaries and views, which few functions of Arrow take."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(_plain(kind.value_type))
    views = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}
    return views.get(str(kind), kind)


def _typed_keys(stored: Sequence[StoredRows]) -> list[dict[str, pa.Scalar]]:
    """Return {name: value} of the keys in each file's path.

    Raises:
        ParquetError: if the files differ in their keys, or a key is also a column in the files.
    """
    names = list(stored[0].keys)
    for rows in stored:
        twice = [name for name in names if name in rows.schema.names]
        if twice or rows.keys.keys() != stored[0].keys.keys():
            keyed = rows if rows.keys else stored[0]
            folder = keyed.path.partition(f"/{next(iter(keyed.keys))}=")[0]
            if twice:
                words = f"{twice} are keys in its path and also columns in the file"
            else:
                words = f"its path has the keys {list(rows.keys)}, that of {stored[0].path} {names}"
            raise ParquetError(
                f"{rows.path}: {words}. Name the files by a pattern, which has no keys: "
                f"'{folder}/**/*.parquet'. Or rename the folders."
            )
    number = re.compile("0|-?[1-9][0-9]{0,17}")  # so that 01 does not become 1
    values = {}
    for name in names:
        texts = [rows.keys[name] for rows in stored]
        numbers = all(number.fullmatch(text) for text in texts if text is not None)
        values[name] = pa.array(texts, pa.string()).cast(pa.int64() if numbers else pa.string())
    return [{name: values[name][k] for name in names} for k in range(len(stored))]


def _shared_schema(stored: Sequence[StoredRows]) -> tuple[pa.Schema, dict[str, str]]:
    """Return (the columns that all files share, {name: why another column cannot be used}).

    Integers of several widths become the widest, as do floating-point numbers, and times the
    finest unit. A column that is null in a file takes the type of the others. A warning names
    columns which cannot be used.
    """
    first = stored[0]
    left_out: dict[str, str] = {}
    kinds = {field.name: field.type for field in first.schema}
    mixed: dict[str, str] = {}  # {name: what to say of integers in one file and not in another}
    for rows in {id(rows.schema): rows for rows in reversed(stored)}.values():
        names, have = rows.schema.names, {field.name: field.type for field in rows.schema}
        for name in (name for name, count in collections.Counter(names).items() if count > 1):
            left_out.setdefault(name, f"is in {rows.path} more than once")
        for name in sorted(kinds.keys() ^ have.keys()):
            here, there = (first.path, rows.path) if name in kinds else (rows.path, first.path)
            remedy = "write it to all files, as null where it is not known"
            left_out.setdefault(name, f"is in {here}, but not in {there}: {remedy}")
        for name in kinds.keys() & have.keys():
            common = _common(kinds[name], have[name])
            if common is None:
                here, there = (type_words(column_type(k)) for k in (have[name], kinds[name]))
                if here == there:  # of other zones
                    here, there = str(have[name]), str(kinds[name])
                words = f"is {here} in {rows.path}, but {there} in {first.path}"
                left_out.setdefault(name, f"{words}; write both with one type")
            elif pa.types.is_floating(common) and any(
                pa.types.is_integer(kind) for kind in (have[name], kinds[name])
            ):
                words = f"is {have[name]} in {rows.path}, but {kinds[name]} in {first.path}"
                mixed.setdefault(name, f"column {name!r} {words}: it is read as {common}")
            kinds[name] = common or kinds[name]
    schema = pa.schema([(n, _plain(kind)) for n, kind in kinds.items() if n not in left_out])
    doubts = [f"column {name!r} {reason}: it cannot be used" for name, reason in left_out.items()]
    doubts += mixed.values()
    if doubts:
        more = f", and {len(doubts) - MOST_NAMED} more" if len(doubts) > MOST_NAMED else ""
        warnings.warn("; ".join(doubts[:MOST_NAMED]) + more, stacklevel=3)
    return schema, left_out


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type that holds the values of both; None if they contradict each other."""
    if column_type(one) == column_type(other) and not pa.types.is_timestamp(one):
        return one
    parts = [pa.schema([("c", _plain(kind))]) for kind in (one, other)]
    try:
        return pa.unify_schemas(parts, promote_options="permissive").field("c").type
    except pa.ArrowException:
        return None


# ---- filters -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class RowFilter:
    """A condition on the columns of a row, which lets those rows pass that Arrow lets pass.

    A null passes no comparison but `not in`; a NaN passes `!=` and `not in`. Both sides are
    converted to a type that Arrow chooses.

    Args:
        expression: the condition.
        names: the columns that it uses.
        kinds: their types.
    """

    expression: pc.Expression
    names: list[str]
    kinds: list[pa.DataType]

    @classmethod
    def of(cls, filters: Any, schema: pa.Schema) -> RowFilter:
        """Return the filter of what a user gives.

        Args:
            filters: `pyarrow.compute.Expression`, or what `pyarrow.parquet.filters_to_expression`
                takes: a list of (column, operator, value), all of which must hold, or a list of
                such lists, one of which must. Operators: == != < <= > >= in, not in. Values
                have the type of the column; dates and times have a zone if the column has one
                (in an expression, a date is midnight UTC). No row passes `== None` or `== nan`:
                expressions have `is_null()` and `is_nan()`.
            schema: the columns.

        Raises:
            ValueError: if the condition cannot be parsed, names an unknown column, or compares a
                column with a value of another type.

        Example:
            >>> schema = pa.schema([("day", pa.int64())])
            >>> str(RowFilter.of([("day", "<", 6), ("day", "!=", 2)], schema).expression)
            '((day < 6) and (day != 2))'
            >>> RowFilter.of([("hour", "<", 6)], schema)
            Traceback (most recent call last):
            ValueError: filters (hour < 6): No match for FieldRef.Name(hour). There are ['day']
        """
        condition = filters
        if not isinstance(filters, pc.Expression):
            try:
                _refuse_ambiguous(filters, schema)
                condition = pq.filters_to_expression(filters)
            except (TypeError, ValueError, LookupError, OverflowError) as error:
                raise ValueError(
                    "filters must be a pyarrow.compute.Expression or a list of (column, operator, "
                    "value) with the operators == != < <= > >= in, not in, got "
                    f"{filters!r} ({error})"
                ) from error
        try:
            schema.empty_table().filter(condition)
            condition.__reduce__()  # which columns by number do not have
            # Each that is used, and those whose name is part of another or of a text.
            names = [name for name in schema.names if name in str(condition)] or schema.names[:1]
            row_filter = cls(condition, names, [schema.field(name).type for name in names])
            row_filter.passes(pa.table({n: pa.nulls(1, schema.field(n).type) for n in names}))
        except pa.ArrowException as error:
            said = str(error).splitlines()[0].partition(" in ")[0]
            if "Serialization" in said:
                said = "a column has a name here, not a number: pyarrow.compute.field('name')"
            raise ValueError(f"filters {condition}: {said}. There are {schema.names}") from error
        return row_filter

    @functools.cached_property
    def identity(self) -> str:
        """Text that two filters share only if they are equal to the last digit."""
        _, (serialized,) = self.expression.__reduce__()
        return f"{self.expression} {hashlib.sha256(serialized).hexdigest()[:16]}"

    def passes(self, table: pa.Table) -> np.ndarray:
        """Return which rows of a table with the columns `names` pass, bool [rows]."""
        import pyarrow.dataset as ds

        columns = zip(self.names, self.kinds, strict=True)  # strings may be dictionaries
        plain = ds.dataset(pa.table({name: table[name].cast(kind) for name, kind in columns}))
        scanner = plain.scanner(columns={"p": self.expression}, use_threads=False)
        return pc.fill_null(scanner.to_table()["p"], False).to_numpy()


def _has_weak_statistics(kind: pa.DataType) -> bool:
    """Return whether a value of the type holds floating-point numbers or decimals."""
    inner = [kind.field(k).type for k in range(kind.num_fields)]
    is_weak = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return is_weak or any(map(_has_weak_statistics, inner))


def _refuse_ambiguous(filters: Any, schema: pa.Schema) -> None:
    """Raise TypeError for what Arrow takes otherwise than it is meant.

    Of a text it takes the letters, of a set any order, and a date as midnight UTC.
    """
    if not isinstance(filters, list | tuple):
        return
    for part in filters:
        if isinstance(part, list | tuple):
            _refuse_ambiguous(part, schema)
    if len(filters) != 3 or not isinstance(filters[0], str):
        return
    name, operator, value = filters
    if operator in ("in", "not in") and isinstance(value, str | bytes | set | frozenset):
        raise TypeError(f"{operator!r} takes a list, such as [1, 2]")
    values = value if isinstance(value, list | tuple) else [value]
    zone = getattr(schema.field(name).type, "tz", None) if name in schema.names else None
    if zone and any(type(one) is datetime.date for one in values):
        raise TypeError(f"times of column {name!r} have a zone: give datetime.datetime with tzinfo")
