"""ParquetSource: a data set as one sequence of row groups, read as chunks of columns.

Opening reads footers only; they give row counts, types and statistics. Any thread may then read a
row group, a part of it, or some of its columns. `RowFilter` decides which rows a source has.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime
import functools
import hashlib
import itertools
import os
import re
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tutorlib.checks import check_positive
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
from tutorlib.schema import column_type, element_type, is_number, is_time, listed

if TYPE_CHECKING:  # a loader reads tables alone, and needs no chunks
    from tutorlib.columns import Chunk

Names = Sequence[str]  # of columns
INDEX_NAME = re.compile("__index_level_[0-9]+__")
STEP_ROWS = 65_536  # of which a filter is evaluated at a time


@dataclasses.dataclass(frozen=True)
class RowGroup:
    """Row group `index` of file number `file`.

    Args:
        file: number of the file.
        index: number of the row group in the file.
        num_rows: rows that the source has of it.
        chosen: which of the stored rows these are, as packed bits; None for all.
    """

    file: int
    index: int
    num_rows: int
    chosen: bytes | None = dataclasses.field(default=None, repr=False)


class RowRange(NamedTuple):
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
    pass. Timestamps of Spark and Hive, stored as INT96, are read in microseconds, to the year
    294,246; one beyond is an error. Where neither keys nor statistics decide, the columns of the
    condition are read on opening; the rows that pass are kept as one bit each.

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
        files: paths of the files within their filesystem, in order.
        paths: what was given, as a list; empty for rows in memory.
        filesystem: the filesystem that was given.
        row_groups: `RowGroup` of every row group over all files, in order, without empty ones.
        column_types: {name: (NumPy name of one value or "string", whether a row holds a list)};
            "(8,)float32" for vectors, which are fixed-size lists.
        arrow_schema: `pyarrow.Schema` of the columns, keys included, dictionaries decoded.

    Raises:
        FileNotFoundError: if there is no file.
        TypeError: for anything that is neither paths nor rows; it says what to do.
        ParquetError: if a file is not Parquet, is truncated, or contradicts another one.
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
        self.paths, self._stored = open_data(data, filesystem)
        self._files = OpenFiles()
        self._keys = _typed_keys(self._stored)
        keys = [pa.field(name, value.type) for name, value in self._keys[0].items()]
        self.arrow_schema = pa.schema([*_shared_schema(self._stored), *keys])
        self.column_types = {field.name: column_type(field.type) for field in self.arrow_schema}
        self.row_groups: list[RowGroup] = []
        for file, stored in enumerate(self._stored):
            for index, rows in enumerate(stored.row_counts):
                if rows:
                    self.row_groups.append(RowGroup(file, index, rows))
        self._string_column: Callable[[Any], Any] | None = None
        self._encoded = False  # whether it takes dictionaries
        self._filters: str | None = None  # what fingerprints say of them
        self._fingerprint: dict[str, Any] | None = None  # once it is asked for
        if filters is not None:
            condition = RowFilter.of(filters, self.arrow_schema)
            self._filters = condition.identity
            with ThreadPoolExecutor(OPENING_THREADS, thread_name_prefix="tutorlib-filter") as pool:
                passing = pool.map(
                    functools.partial(self._passing, condition), range(len(self.files))
                )
                self.row_groups = list(itertools.chain.from_iterable(passing))

    def __len__(self) -> int:
        return len(self.row_groups)

    def __repr__(self) -> str:
        return (
            f"ParquetSource({len(self.files)} files, {len(self)} row groups, {self.num_rows:,} "
            f"rows, {len(self.column_types)} columns)"
        )

    @property
    def files(self) -> list[str]:
        """Paths of the files within their filesystem, in order."""
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

    def choose(self, numbers: Callable[[int, int], Any]) -> ParquetSource:
        """Return a source of the rows that a function chooses by their numbers; none is read.

        The choice takes one bit of memory for each row.

        Args:
            numbers: `numbers(first, rows)` returns which of the rows first, ..., first + rows - 1
                are chosen, as a range or int64 [m], counted from 0, rising.
        """
        groups = []
        first = 0
        for group in self.row_groups:
            rows = np.asarray(numbers(first, group.num_rows), np.int64)
            first += group.num_rows
            mask = self._mask(group)
            positions = np.flatnonzero(mask)
            mask[:] = False
            mask[positions[rows]] = True
            groups += _chosen(group, mask)
        return self._changed(row_groups=groups)

    def __add__(self, other: ParquetSource) -> ParquetSource:
        """Return a source of the rows of two parts of one split, in their original order.

        Raises:
            ValueError: if they are not parts of one source, or have a row in common.
        """
        if not isinstance(other, ParquetSource):
            return NotImplemented
        if self._stored is not other._stored:
            raise ValueError(
                f"{self} and {other} are not parts of one split, so they have no common order. "
                "Open a list of their files, or join parts of one call of split_rows"
            )
        masks: dict[tuple[int, int], np.ndarray] = {}
        for group in [*self.row_groups, *other.row_groups]:
            mask = self._mask(group)
            before = masks.setdefault((group.file, group.index), np.zeros(len(mask), bool))
            if (before & mask).any():
                raise ValueError(f"{self} and {other} have rows in common: give each part once")
            before |= mask
        groups = []
        for place in sorted(masks):
            groups += _chosen(RowGroup(*place, 0), masks[place])
        return self._changed(row_groups=groups)

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
        return self.choose(lambda first, count: range(max(0, min(count, rows - first))))

    def stored(self, position: int) -> tuple[StoredRows, int]:
        """Return the file, or rows in memory, that hold a row group, and its number there."""
        group = self.row_groups[position]
        return self._stored[group.file], group.index

    def has_first_rows(self, position: int) -> bool:
        """Return whether the rows of a row group are all that are stored, or the first of these."""
        group = self.row_groups[position]
        return bool(self._mask(group)[: group.num_rows].all())

    def _mask(self, group: RowGroup) -> np.ndarray:
        """Return which stored rows of a row group belong to the source, bool [stored rows]."""
        rows = self._stored[group.file].row_counts[group.index]
        if group.chosen is None:
            return np.ones(rows, bool)
        return np.unpackbits(np.frombuffer(group.chosen, np.uint8), count=rows).view(bool)

    def with_strings_as(self, column: Callable[[Any], Any]) -> ParquetSource:
        """Return a source that reads strings without decoding dictionaries.

        Reading 26 columns of 8 hex digits takes 0.4 of the time of plain strings, counting them a
        tenth. Strings within lists, and those of rows in memory, are read as plain strings.

        Args:
            column: returns an Arrow array of strings, dictionary-encoded where the file has them
                so, as a column of a chunk: `tutorlib.columns.encoded_column`.
        """
        return self._changed(_string_column=column, _encoded=bool(self.paths))

    def _changed(self, **attributes: Any) -> ParquetSource:
        other = copy.copy(self)
        vars(other).update(attributes, _fingerprint=None)
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

    def row_bytes(self, position: int, names: Names) -> float:
        """Return the mean bytes of a decoded row of the named columns of a row group.

        Numbers count with their width, which is exact. Strings and lists are estimated from the
        sizes and statistics in the footer, with 8 bytes of offsets a row.
        """
        group = self.row_groups[position]
        total = 0.0
        stored = self._stored[group.file]
        keys = self._keys[group.file]
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
        """Return about how many bytes Arrow holds while `tables` reads a row group in steps."""
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
        not count, and of paths only names and keys: a data set may be moved. Made once, since a
        loader's state asks for it after any batch, and chosen rows take a bit each.

        Example:
            >>> metadata = ParquetSource(pa.table({"x": range(5)})).fingerprint()
            >>> metadata["files"], metadata["rows"], metadata["filters"]
            (1, 5, None)
        """
        if self._fingerprint is not None:
            return dict(self._fingerprint)
        places = []
        for stored in self._stored:
            places.append((os.path.basename(stored.path), sorted(stored.keys.items())))
        chosen = hashlib.sha256()
        for group in self.row_groups:
            chosen.update(repr((group.file, group.index, group.num_rows)).encode())
            chosen.update(group.chosen or b"")
        self._fingerprint = {
            "files": len(self.files),
            "row_groups": len(self),
            "rows": self.num_rows,
            "column_types": _hash(sorted(self.column_types.items())),
            "file_names": _hash(places),
            "footers": _hash([stored.digest for stored in self._stored]),
            "filters": self._filters,
            "chosen_rows": chosen.hexdigest()[:16],
        }
        return dict(self._fingerprint)

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
        stop = self.row_groups[position].num_rows if stop is None else stop
        whole = stop - start == self.row_groups[position].num_rows
        tables = list(self._tables(position, names, None if whole else STEP_ROWS, start, stop))
        if not tables:
            return pa.schema(map(self.arrow_schema.field, names)).empty_table()
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    def tables(
        self, position: int, names: Names, step_rows: int, start: int = 0, stop: int | None = None
    ) -> Generator[pa.Table]:
        """Yield rows [start, stop) of a row group in tables of at most `step_rows` rows, in order.

        About a step is decoded at a time, also where few rows are chosen. Closing the generator
        closes the file.

        Args:
            position: number of the row group over all files, 0 to len(self) - 1.
            names: columns.
            step_rows: rows of a table, at least 1.
            start: first row.
            stop: end of the rows; None for all that follow.
        """
        check_positive(step_rows=step_rows)
        stop = self.row_groups[position].num_rows if stop is None else stop
        yield from self._tables(position, names, step_rows, start, stop)

    def chunks(self, columns: Names | None = None) -> Iterator[Chunk]:
        """Yield the row groups in order, in memory of one.

        Args:
            columns: names; None for all.
        """
        return (self.read(position, columns) for position in range(len(self)))

    def _tables(
        self, position: int, names: Names, step_rows: int | None, start: int, stop: int
    ) -> Generator[pa.Table]:
        """Yield rows [start, stop) of a row group, `step_rows` stored ones at a time."""
        group = self.row_groups[position]
        stored = self._stored[group.file]
        keys = self._keys[group.file]
        if missing := [name for name in names if name not in self.column_types]:
            raise ParquetError(
                f"{stored.path}: no columns {listed(missing)}; it has {listed(self.column_types)}"
            )
        if start == stop:
            return
        first = start
        last = stop
        mask = None  # of the stored rows
        if group.chosen is not None:
            mask = self._mask(group)
            positions = np.flatnonzero(mask)
            first = int(positions[start])
            last = int(positions[stop - 1]) + 1
        in_file = {*stored.schema.names} - {*keys}
        own = [name for name in names if name in in_file]
        at = 0
        tables = stored.tables(group.index, own, step_rows, self._files, encoded=self._encoded)
        with contextlib.closing(tables):
            for table in tables:
                low = max(first - at, 0)
                high = min(last - at, table.num_rows)
                if low < high:
                    piece = self._conformed(group, table.slice(low, high - low), names, high - low)
                    if mask is not None:
                        piece = piece.filter(pa.array(mask[at + low : at + high]))
                    yield piece
                at += table.num_rows
                if at >= last:
                    return

    def _conformed(self, group: RowGroup, table: pa.Table, names: Names, rows: int) -> pa.Table:
        """Return columns of one file in the types of the source, with keys."""
        keys = self._keys[group.file]
        in_file = {*table.column_names}
        columns = {}
        for name in names:
            kind = self.arrow_schema.field(name).type
            if name in keys:
                column = pa.repeat(keys[name], rows)
            elif name in in_file:
                column = table[name]
            else:  # this file lacks it
                column = pa.nulls(rows, kind)
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
        self._files.close()

    # ---- filters ----

    def _passing(self, condition: RowFilter, file: int) -> list[RowGroup]:
        """Return the row groups of a file with the rows that pass.

        `pyarrow.dataset` says, by keys and statistics, which row groups may have such rows, and of
        which all rows pass. Statistics ignore NaN, and parquet-mr wrote wrong ones for decimals, so
        a condition on such columns is decided by reading them.
        """
        stored = self._stored[file]
        counts = dict(enumerate(stored.row_counts))
        whole: set[int] = set()
        if isinstance(stored, ParquetRows):
            counts, whole = self._by_statistics(condition, stored, self._keys[file])
        groups = []
        for index, rows in counts.items():
            group = RowGroup(file, index, rows)
            if index in whole:
                groups.append(group)
            elif rows:
                part = self._changed(row_groups=[group])
                steps = part.tables(0, condition.names, STEP_ROWS)
                groups += _chosen(group, np.concatenate([condition.passes(step) for step in steps]))
        return groups

    def _by_statistics(
        self, condition: RowFilter, stored: ParquetRows, keys: Mapping[str, pa.Scalar]
    ) -> tuple[dict[int, int], set[int]]:
        """Return ({row group where rows may pass: its rows}, those of which all rows pass)."""
        import pyarrow.dataset as ds

        schema = self.arrow_schema
        counts = {index: rows for index, rows in enumerate(stored.row_counts) if rows}
        known = pc.scalar(True)
        for name, value in keys.items():
            field = pc.field(name)
            known &= field == value if value.is_valid else field.is_null()
        parquet = ds.ParquetFileFormat(
            ds.ParquetReadOptions(coerce_int96_timestamp_unit=INT96_UNIT),
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(
                page_checksum_verification=True
            ),
        )
        place = stored.path, stored.file.filesystem
        fragment = parquet.make_fragment(*place, partition_expression=known)
        possible = ds.FileSystemDataset([fragment], schema, parquet, place[1])
        if not list(possible.get_fragments(condition.expression)):
            return {}, set()  # by its keys, without a look into the file
        may_be_far = any(map(stored.has_int96, condition.names))
        if may_be_far or any(map(_has_weak_statistics, condition.kinds)):
            return counts, set()
        whole = set()
        index = 0
        options = {"schema": schema, "filter": condition.expression, "use_threads": False}
        may_pass = {}
        with stored.errors_at(index, condition.names):
            try:
                for part in fragment.split_by_row_group(condition.expression, schema):
                    index = part.row_groups[0].id
                    if index not in counts:
                        continue
                    may_pass[index] = counts[index]
                    # Where keys decide, Arrow counts the rows of the whole file.
                    if part.scanner(**options).count_rows() >= counts[index]:
                        whole.add(index)
            except pa.ArrowNotImplementedError:  # the rows decide
                return counts, set()
            stored.refuse_changed(index)
        return may_pass, whole


def _chosen(group: RowGroup, mask: np.ndarray) -> list[RowGroup]:
    """Return a row group with the rows of a mask over its stored rows; none if there are none."""
    rows = int(mask.sum())
    chosen = None if rows == len(mask) else np.packbits(mask).tobytes()
    return [RowGroup(group.file, group.index, rows, chosen)] if rows else []


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
    """Return {name: value} of the keys in each file's path, of all names; null where it has none.

    Raises:
        ParquetError: if a key is also a column in a file.
    """
    names = dict.fromkeys(itertools.chain.from_iterable(rows.keys for rows in stored))
    values: list[dict[str, pa.Scalar]] = [{} for _ in stored]
    for name in names:
        for rows in stored:
            if name in rows.schema.names:
                raise ParquetError(
                    f"{rows.path}: {name!r} is a column in the file and a key in the path of a "
                    "file. Name the files by a pattern, which has no keys: 'folder/**/*.parquet'. "
                    "Or rename the folders."
                )
        column = pa.array([rows.keys.get(name) for rows in stored], pa.string())
        with contextlib.suppress(pa.ArrowInvalid):
            numbers = column.cast(pa.int64())
            if numbers.cast(pa.string()).equals(column):  # so that 07 does not become 7
                column = numbers
        for keys, value in zip(values, column, strict=True):
            keys[name] = value
    return values


def _shared_schema(stored: Sequence[StoredRows]) -> pa.Schema:
    """Return the columns of all files; a column that a file lacks is null there.

    Integers of several widths become the widest, as do floating-point numbers, and times the
    finest unit. Integers in one file and floating-point numbers in another are a warning.

    Raises:
        ParquetError: if a file has a column twice, or two files contradict each other.
    """
    kinds: dict[str, pa.DataType] = {}
    places: dict[str, dict[str, str]] = {}  # {column: {type: a file where it has this type}}
    distinct: dict[int, StoredRows] = {}
    for rows in stored:
        distinct.setdefault(id(rows.schema), rows)
    for rows in distinct.values():
        names = rows.schema.names
        if len({*names}) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ParquetError(f"{rows.path}: column names must be unique, got twice: {twice}")
        for field in rows.schema:
            name = field.name
            kind = _plain(field.type)
            places.setdefault(name, {}).setdefault(str(kind), rows.path)
            before = kinds.setdefault(name, kind)
            common = _common(before, kind)
            if common is None:
                first = next(iter(places[name].values()))
                raise ParquetError(
                    f"column {name!r} is {kind} in {rows.path}, but {before} in {first}: write "
                    "both with one type"
                )
            kinds[name] = common
    for name, paths in places.items():
        if pa.types.is_floating(kinds[name]) and any("int" in kind for kind in paths):
            words = ", ".join(f"{kind} in {path}" for kind, path in paths.items())
            warnings.warn(
                f"column {name!r} is {words}: it is read as {kinds[name]}. A column of ids is cast "
                "to int64 in the data",
                stacklevel=3,
            )
    return pa.schema(list(kinds.items()))


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type that holds the values of both; None if they contradict each other."""
    if column_type(one) == column_type(other) and not pa.types.is_timestamp(one):
        return one
    parts = pa.schema([("c", one)]), pa.schema([("c", other)])
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
            used = pa.schema(map(schema.field, names))
            row_filter = cls(condition, names, used.types)
            row_filter.passes(pa.Table.from_pylist([{}], used))
        except pa.ArrowException as error:
            said = str(error).splitlines()[0].partition(" in ")[0]
            if "Serialization" in said:
                said = "a column has a name here, not a number: pyarrow.compute.field('name')"
            elif "no kernel" in said:
                said += (
                    "; give a value of the column's type, or cast the column in an expression, as "
                    "in pyarrow.compute.field('name').cast('float32') > 1"
                )
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

        schema = pa.schema(list(zip(self.names, self.kinds, strict=True)))
        plain = table.select(self.names).cast(schema)  # strings may be dictionaries
        scanner = ds.dataset(plain).scanner(columns={"p": self.expression}, use_threads=False)
        return pc.fill_null(scanner.to_table()["p"], False).to_numpy()


def _has_weak_statistics(kind: pa.DataType) -> bool:
    """Return whether a value of the type holds floating-point numbers or decimals."""
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return True
    return any(_has_weak_statistics(kind.field(k).type) for k in range(kind.num_fields))


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
