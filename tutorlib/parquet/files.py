"""What a source reads from: Parquet files and tables in memory, as row groups of known sizes.

`find_files` finds files and `open_files` reads their footers, on threads. `ParquetRows` and
`TableRows` have the same methods. Every fault of a file is found here, and its error names file,
row group and column. Changed bytes are found if pages have checksums, as `ParquetSink` writes them.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import fnmatch
import functools
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tutorlib.columns import Chunk
from tutorlib.filesystems import (
    before_pattern,
    etag_of,
    find_filesystem,
    nearest_folder,
    shown,
    store_errors,
    store_failure,
)
from tutorlib.schema import type_row

PARQUET_ENDINGS = (".parquet", ".parq", ".pq")
NULL_KEY = "__HIVE_DEFAULT_PARTITION__"
OTHER_FILES = (
    "CSV files become Parquet by: python -m data_prep csv FILES --to FOLDER; an Arrow file is read "
    "as a table by pyarrow.feather.read_table"
)
OPENING_THREADS = 8
REMOTE_THREADS = 32  # which wait for answers most of the time
TABLE_ROWS = 131_072  # of a row group of rows in memory
INT96_UNIT = "us"  # of Spark's and Hive's timestamps: nanoseconds end in 2262, dates do not
IDLE_FILES = 8  # that stay open for the next read
COLUMN_CHUNK_BYTES = 900  # of a footer in memory, for each column of a row group
PAGE_BYTES = 2**20  # of values in a page at most, as writers of Parquet files have it
STREAM_BUFFER = 262_144  # bytes that a stream reads ahead for each column


class ParquetError(ValueError):
    """A file that cannot be used: the message names file, row group and column."""


# ---- finding files -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class DataFile:
    """A file, and what its filesystem said of it when it was found.

    Args:
        path: path or URL, for messages.
        filesystem: filesystem of the file.
        inner: path within the filesystem.
        version: bytes, and time of the last change in ns if that is known.
        keys: {name: text} of the folders `name=text` above it; None for Hive's name of a null.
        inode: (device, number, time of its last change in ns) of a file on this machine.
    """

    path: str
    filesystem: fs.FileSystem
    inner: str
    version: tuple[int, int | None]
    keys: Mapping[str, str | None]
    inode: tuple[int, int, int] | None = None

    @property
    def is_local(self) -> bool:
        """Whether the file is on this machine."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def change(self) -> str:
        """Return what was done to the file since it was found: "changed", "been removed" or ""."""
        if self.inode is None:
            info = self.filesystem.get_file_info(self.inner)
            if info.type == fs.FileType.NotFound:
                return "been removed"
            return "" if (info.size, info.mtime_ns) == self.version else "changed"
        try:
            known = os.stat(self.inner)
        except FileNotFoundError:
            return "been removed"
        # Network filesystems may number a file again; one that was put in its place is newer too.
        same = known.st_ino == self.inode[1] or known.st_ctime_ns == self.inode[2]
        version = known.st_size, known.st_mtime_ns
        return "" if same and version == self.version else "changed"


def find_files(paths: Any, filesystem: Any = None) -> list[DataFile]:
    """Return the Parquet files that `paths` means, in a stable order.

    Args:
        paths: a file, a folder (searched recursively), a glob pattern, or a list of these. A list
            keeps its order; a folder or a pattern is sorted by name, without names that begin with
            "." or "_". Folders named `key=value` below a folder that is given are keys. Links are
            followed. Each may be a URL: `s3://bucket/folder`, `memory://x/*.parquet`,
            `file:///data`.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds `paths`; None takes it from URLs.

    Raises:
        FileNotFoundError: if a path has no file, or a link leads nowhere.
        ValueError: if a file is given twice, by whatever paths or links, or a link leads back to a
            folder above it.
        PermissionError: if a folder may not be searched.
        ImportError: if a URL needs fsspec or one of its drivers that is not installed.
        OSError: if an object store cannot be reached, or refuses the credentials.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "day=3").mkdir()
        >>> (folder / "day=3" / "a.parquet").touch()
        >>> [file.keys for file in find_files(folder)]
        [{'day': '3'}]
    """
    files: list[DataFile] = []
    items = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    for item in items:
        text = os.fspath(item)
        _refuse_other_than_utf8(text)
        where, inner, prefix = find_filesystem(text, filesystem)
        with store_errors(shown(text)):
            found = _find(where, inner, prefix)
        if not found:
            is_local = isinstance(where, fs.LocalFileSystem)
            exists = f"{nearest_folder(inner)} is a folder. " if is_local else ""
            raise FileNotFoundError(
                f"no Parquet file at {shown(text)!r} (tried as a file, as a folder of "
                f"{'/'.join(PARQUET_ENDINGS)} files, and as a glob pattern). "
                f"{exists}{OTHER_FILES}"
            )
        files += found
    if not files:
        raise FileNotFoundError("the list of Parquet files is empty")
    _refuse_twice(files)
    return files


def _find(where: fs.FileSystem, text: str, prefix: str) -> list[DataFile]:
    """Return the files of one path in a filesystem."""
    is_local = isinstance(where, fs.LocalFileSystem)

    def data_file(inner: str, info: Any, keys: Mapping[str, str | None]) -> DataFile:
        _refuse_other_than_utf8(inner)
        if not is_local:
            return DataFile(prefix + inner, where, inner, (info.size, info.mtime_ns), keys)
        inode = info.st_dev, info.st_ino, info.st_ctime_ns
        version = info.st_size, info.st_mtime_ns
        return DataFile(prefix + inner, where, inner, version, keys, inode)

    info = where.get_file_info(text)
    if info.type == fs.FileType.File:
        return [data_file(info.path, os.stat(text) if is_local else info, {})]
    is_folder = info.type == fs.FileType.Directory
    root = (text.rstrip("/") or text[:1]) if is_folder else before_pattern(text, where)
    if root == text and not is_folder:
        return []
    pattern = "" if is_folder else text[len(root) :].strip("/")
    below: dict[str, Any] = {}
    if is_local and os.path.isdir(root or "."):
        is_deep = is_folder or "**" in pattern
        below = dict(_walk(root or ".", None if is_deep else pattern.count("/")))
    elif not is_local:
        selector = fs.FileSelector(root or ".", recursive=True, allow_not_found=True)
        infos = [i for i in where.get_file_info(selector) if i.type == fs.FileType.File]
        start = len(root or "./")
        below = {i.path[start:].strip("/"): i for i in infos}
    names = sorted(n for n in below if not any(p[0] in "._" for p in n.split("/")))
    if is_folder:
        # A link to nothing whose name has no ending was one to a folder.
        broken = {n for n in names if below[n] is None and not os.path.splitext(n)[1]}
        names = [n for n in names if n.lower().endswith(PARQUET_ENDINGS) or n in broken]
    else:
        names = [name for name in names if _fits(name, pattern)]
    folder = root if root.endswith("/") or not root else root + "/"
    files = []
    for name in names:
        if below[name] is None:
            raise FileNotFoundError(
                f"{folder}{name} is a link to {os.readlink(folder + name)}, which cannot be read. "
                "Restore what it points to, or remove the link."
            )
        keys = _keys(name.rpartition("/")[0]) if is_folder else {}
        files.append(data_file(folder + name, below[name], keys))
    return files


def _refuse_other_than_utf8(path: str) -> None:
    if not path.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in path):
        raise ParquetError(f"{path!a}: the name is not UTF-8, so Arrow cannot read it. Rename it.")


def _walk(
    folder: str, depth: int | None, name: str = "", above: Sequence[tuple[Any, str]] = ()
) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield (name, stat) of the files below a folder, through links; None for a link to nothing.

    Args:
        folder: where to search.
        depth: how many folders deep; None for all.
        name: what precedes the names.
        above: ((device, inode), path) of the folders that this one is in.

    Raises:
        ValueError: if a link leads back to a folder above it.
        PermissionError: if a folder may not be searched.
    """
    known = os.stat(folder)
    identity = known.st_dev, known.st_ino
    if back := dict(above).get(identity):
        raise ValueError(
            f"{folder} leads back to {back}, by a link: its files would be read over "
            "and over. Remove the link, or give the files as a list or by a pattern."
        )
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name[0] in "._":
                continue
            try:
                is_folder, known = entry.is_dir(), entry.stat()
            except OSError:
                if entry.is_symlink():
                    yield name + entry.name, None
                continue
            if stat.S_ISREG(known.st_mode):
                yield name + entry.name, known
            elif is_folder and depth != 0:
                inside = f"{name}{entry.name}/", (*above, (identity, folder))
                yield from _walk(entry.path, depth and depth - 1, *inside)


def _fits(name: str, pattern: str) -> bool:
    """Whether a path matches a pattern, in which "**" stands for any number of folders."""
    if "**/" in pattern:
        return fnmatch.fnmatchcase(name, pattern.replace("**/", "*"))
    return fnmatch.fnmatchcase(name, pattern) and name.count("/") == pattern.count("/")


@functools.lru_cache(maxsize=1024)
def _keys(folders: str) -> dict[str, str | None]:
    """Return the keys in names of folders, in which Hive escapes characters as in a URL."""
    pairs = [folder.partition("=") for folder in folders.split("/")]
    texts = {unquote(name): unquote(text) for name, mark, text in pairs if name and mark}
    return {name: None if text == NULL_KEY else text for name, text in texts.items()}


def _refuse_twice(files: Sequence[DataFile]) -> None:
    """Raise ValueError if two paths are one file."""
    first: dict[Any, str] = {}
    for file in files:
        identity: Any = file.path
        if file.inode is not None:  # some network filesystems do not number files
            identity = file.inode[:2] if file.inode[1] else os.path.realpath(file.inner)
        if identity in first:
            raise ValueError(
                f"the file {file.path} is given twice (also as {first[identity]}): its rows would "
                "be read twice. Give each file once, and no further link to it: name the files in "
                "a list or by a pattern, or remove one of the two."
            )
        first[identity] = file.path


# ---- one file or table ---------------------------------------------------------------------------


class OpenFiles:
    """The files that were read last, which stay open for whichever thread reads them next.

    Opening a file of 3,000 columns takes 2 ms, and it takes 2 MB while it is open. A reader has the
    file for itself, so there is no more than one for each thread and file. What was read is
    compared with the file's state afterwards, as with a file that was opened just now.
    """

    def __init__(self) -> None:
        # No lock: a fork could leave it held. Each change of a deque is one step for all threads,
        # and what it drops is closed.
        self._idle: collections.deque[tuple[object, pq.ParquetFile]] = collections.deque(
            maxlen=IDLE_FILES
        )

    @contextlib.contextmanager
    def lent(self, key: object, opened: Callable[[], pq.ParquetFile]) -> Iterator[pq.ParquetFile]:
        """Lend an idle file to the block, or one that `opened` returns; dropped after an error.

        Args:
            key: what two files have in common that can replace each other.
            opened: opens such a file.
        """
        file = None
        for entry in tuple(self._idle):
            if entry[0] == key and file is None:
                with contextlib.suppress(ValueError):  # another thread was faster
                    self._idle.remove(entry)
                    file = entry[1]
        file = file or opened()
        yield file
        self._idle.append((key, file))

    def close(self) -> None:
        """Close the idle files; a later read opens its own."""
        self._idle.clear()

    def __reduce__(self) -> tuple[type[OpenFiles], tuple[()]]:
        return OpenFiles, ()


class ParquetRows:
    """A Parquet file, whose row groups are read as they are stored.

    Args:
        file: the file.
        opened: it, open for its footer and its schema.
        etag: its entity tag in an object store, else None.
        idle: where the file stays open between two reads.

    Attributes:
        footer: its `pyarrow.parquet.FileMetaData`.
        schema: `pyarrow.Schema` of the columns.
        row_counts: stored rows of each row group.
    """

    def __init__(
        self,
        file: DataFile,
        opened: pq.ParquetFile,
        etag: bytes | None,
        idle: OpenFiles,
    ) -> None:
        self.file, self._etag, self._idle = file, etag, idle
        self.footer = footer = opened.metadata
        self.schema = opened.schema_arrow.remove_metadata()
        self.path, self.keys, self.is_local = file.path, file.keys, file.is_local
        self.row_counts = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]

    def location(self, index: int) -> str:
        """Return what error messages call a row group."""
        return f"row group {index} of {self.path}"

    def tables(
        self, index: int, names: Sequence[str], step_rows: int | None, *, encoded: bool = False
    ) -> Generator[pa.Table]:
        """Yield columns of a row group in order, about `step_rows` rows at a time, or at once.

        With `encoded`, strings stay in dictionaries where the file has them so.
        """
        kept = self._in_dictionaries(index, names) if encoded else ()
        with self.errors_at(index, names):
            if step_rows is None:
                # An object store is asked for the entity tag as a file is opened, each time.
                idle = self._idle if self.is_local else OpenFiles()
                with idle.lent((self.path, kept), lambda: self._open(index, kept)) as file:
                    table = file.read_row_group(index, columns=list(names), use_threads=False)
                count = table.num_rows
                self.refuse_changed(index)
                if count == self.row_counts[index]:
                    yield table
            else:
                count = 0
                with self._open(index, kept, buffer_size=STREAM_BUFFER) as file:
                    for batch in file.iter_batches(
                        step_rows, row_groups=[index], columns=list(names), use_threads=False
                    ):
                        # A store has given all pages with the first rows.
                        if self.is_local or not count:
                            self.refuse_changed(index)
                        count += batch.num_rows
                        yield pa.Table.from_batches([batch])
                        del batch
            if count != self.row_counts[index]:
                raise EOFError(f"{count} rows, the footer says {self.row_counts[index]}")

    def _in_dictionaries(self, index: int, names: Sequence[str]) -> tuple[str, ...]:
        """Return the paths of leaves that can be read as dictionaries: not those of differences."""
        leaves = [leaf for name in names for leaf in self._leaves(index, name)]
        return tuple(n.path_in_schema for n in leaves if not any("DELTA" in e for e in n.encodings))

    def _open(self, index: int, kept: Sequence[str], **options: Any) -> pq.ParquetFile:
        """Open the file again, and refuse it if it is not the one that was found."""
        source: Any = self.file.inner
        if not self.is_local:
            source = self.file.filesystem.open_input_file(self.file.inner)
        self.refuse_changed(index, source)
        # Not memory-mapped: that is no faster, and a signal would kill the process if the file is
        # truncated meanwhile, where reading raises an error.
        return pq.ParquetFile(
            source,
            filesystem=self.file.filesystem if self.is_local else None,
            metadata=self.footer,
            read_dictionary=kept,
            pre_buffer=not self.is_local,
            page_checksum_verification=True,
            coerce_int96_timestamp_unit=INT96_UNIT,
            **options,
        )

    def refuse_changed(self, index: int, opened: Any = None) -> None:
        """Raise ParquetError if the file has changed since it was found.

        Args:
            index: number of the row group that is read.
            opened: the file, opened just now, for its entity tag; None opens it if it has one.
        """
        if self._etag is None:
            change = self.file.change()
        else:
            try:
                opened = opened or self.file.filesystem.open_input_file(self.file.inner)
                change = "changed" if etag_of(opened) != self._etag else ""
            except FileNotFoundError:
                change = "been removed"
        if change:
            raise ParquetError(
                f"{self.location(index)}: the file has {change} since it was opened. Open the "
                "source again."
            )

    @contextlib.contextmanager
    def errors_at(self, index: int, names: Sequence[str] = ()) -> Iterator[None]:
        """Raise errors of reading as ParquetError that names the row group and the column."""
        try:
            yield
        except (pa.ArrowException, OSError, EOFError) as error:
            place = self.location(index)
            if failure := store_failure(error):
                raise ParquetError(f"{place}: {failure}") from error
            self.refuse_changed(index)
            at_fault = [n for n in names if len(names) == 1 or not self._can_be_read(index, n)]
            column = f", column {at_fault[0]!r}" if at_fault else ""
            raise ParquetError(
                f"{place}{column}: cannot be read ({type(error).__name__}: {error}). Write the "
                "file again, or remove it."
            ) from error

    def _can_be_read(self, index: int, name: str) -> bool:
        try:
            return len(list(self.tables(index, [name], None))) == 1
        except ParquetError:
            return False

    def _leaves(self, index: int, name: str) -> list[Any]:
        """Return `ColumnChunkMetaData` of a column: one of a number or list, more of a struct."""
        row_group = self.footer.row_group(index)
        return [row_group.column(k) for k in self._leaf_numbers.get(name, ())]

    @functools.cached_property
    def _leaf_numbers(self) -> dict[str, range]:
        # Paths of leaves do not tell the column: `a.b.list.element` may be of `a` or of `a.b`.
        counts = [_leaf_count(field.type) for field in self.schema]
        ends = itertools.accumulate(counts)
        return {n: range(e - c, e) for n, c, e in zip(self.schema.names, counts, ends, strict=True)}

    def null_count(self, index: int, name: str) -> int | None:
        """Return the nulls of a column, empty lists included; None if the footer does not tell."""
        known = [leaf.statistics for leaf in self._leaves(index, name)]
        if not known or any(s is None or not s.has_null_count for s in known):
            return None
        return sum(s.null_count for s in known)

    def value_bytes(self, index: int, name: str, width: int) -> float:
        """Return about how many bytes the values of lists or strings have when decoded.

        Footers do not tell how long strings are that a dictionary holds once: the mean length of
        the smallest and the largest string counts if that is more.

        Args:
            index: number of the row group.
            name: column.
            width: bytes of one value, 0 for strings.
        """
        total = 0.0
        for leaf in self._leaves(index, name):
            stored, known = leaf.total_uncompressed_size, leaf.statistics
            if not width and known is not None and known.has_min_max:
                ends = [e.encode() if isinstance(e, str) else e for e in (known.min, known.max)]
                if all(isinstance(end, bytes) for end in ends):
                    stored = max(stored, leaf.num_values * sum(map(len, ends)) / 2)
            total += leaf.num_values * width or stored
        return total

    def stored_bytes(self, index: int, names: Sequence[str]) -> int:
        """Return the bytes of columns of a row group before they are compressed."""
        return sum(leaf.total_uncompressed_size for n in names for leaf in self._leaves(index, n))

    @property
    def footer_bytes(self) -> int:
        """About how many bytes the footer takes as Arrow holds it."""
        return self.footer.num_row_groups * self.footer.num_columns * COLUMN_CHUNK_BYTES

    def stream_bytes(self, index: int, names: Sequence[str]) -> float:
        """Return about how many bytes Arrow holds while columns are read step by step.

        For each column that is what was read ahead, a page as it is stored and as it is decoded,
        and its dictionary in both forms.
        """
        total = 0.0
        for name in names:
            for leaf in self._leaves(index, name):
                size, dictionary = leaf.total_uncompressed_size, 0
                if leaf.has_dictionary_page:
                    stored = leaf.data_page_offset - leaf.dictionary_page_offset
                    dictionary = stored * size / max(1, leaf.total_compressed_size)
                page = min(size - dictionary, PAGE_BYTES)
                total += STREAM_BUFFER + 2 * (page + dictionary)
        return total

    @functools.cached_property
    def digest(self) -> str:
        """Hash of the footer as it was read: sizes, places and statistics of all column chunks."""
        written = pa.BufferOutputStream()
        self.footer.write_metadata_file(written)
        return hashlib.sha256(written.getvalue()).hexdigest()[:16]


class TableRows:
    """Rows of a pyarrow Table as a file of row groups; nothing is copied.

    Args:
        table: the rows.
        left_out: {name: why Arrow cannot convert this column} of others.
    """

    is_local, path = True, "the rows in memory"

    def __init__(self, table: pa.Table, left_out: Mapping[str, str] | None = None) -> None:
        self.left_out = left_out or {}
        self.keys: dict[str, str | None] = {}
        names = table.schema.names
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"{self.path}: column names must be unique, got twice: {twice}")
        for place, column in enumerate(table.columns):
            if not all(map(_is_regular, column.chunks)):
                table = table.set_column(place, names[place], _without_dictionary(column))
        self.table, self.schema = table, table.schema
        starts = range(0, table.num_rows, TABLE_ROWS)
        self.row_counts = [min(TABLE_ROWS, table.num_rows - start) for start in starts]

    def location(self, index: int) -> str:
        """Return what error messages call a row group."""
        return f"row group {index} of {self.path}"

    def tables(
        self, index: int, names: Sequence[str], step_rows: int | None, *, encoded: bool = False
    ) -> Generator[pa.Table]:
        """Yield columns of a row group in order, `step_rows` rows at a time, or at once."""
        whole = self.table.select(names).slice(index * TABLE_ROWS, self.row_counts[index])
        for start in range(0, whole.num_rows, step_rows or TABLE_ROWS):
            yield whole.slice(start, step_rows or TABLE_ROWS)

    def null_count(self, index: int, name: str) -> int | None:
        """Return None: whoever asks reads the rows."""

    def value_bytes(self, index: int, name: str, width: int) -> float:
        """Return the bytes of the values of a column of lists or strings."""
        return next(self.tables(index, [name], None)).nbytes

    footer_bytes = 0

    def stored_bytes(self, index: int, names: Sequence[str]) -> int:
        """Return 0: rows in memory stay where they are."""
        return 0

    def stream_bytes(self, index: int, names: Sequence[str]) -> float:
        """Return 0: rows in memory stay where they are."""
        return 0.0

    @functools.cached_property
    def digest(self) -> str:
        """Hash of all values; a table of Arrow does not change."""
        digest = hashlib.sha256()
        for index in range(len(self.row_counts)):
            for table in self.tables(index, self.schema.names, None):
                digest.update(table.combine_chunks().to_batches()[0].serialize())
        return digest.hexdigest()[:16]


def _is_regular(array: pa.Array) -> bool:
    """Return whether a dictionary has each value once, and no null, as those of Parquet files."""
    if (
        not pa.types.is_dictionary(array.type)
        or type_row(str(array.type.value_type)).kind == "other"
    ):
        return True
    values = array.dictionary
    return not values.null_count and len(_without_views(values).unique()) == len(values)


def _without_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    parts = [_without_views(part.dictionary).take(part.indices) for part in column.chunks]
    return pa.chunked_array(parts)


def _without_views(values: pa.Array) -> pa.Array:
    """Return strings of a kind that all functions of Arrow take."""
    return values.cast(pa.large_string()) if str(values.type) == "string_view" else values


def _leaf_count(kind: pa.DataType) -> int:
    """Return the number of column chunks in which a Parquet file stores a column of this type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _leaf_count(kind.storage_type)
    return sum(_leaf_count(kind.field(k).type) for k in range(kind.num_fields)) or 1


StoredRows = ParquetRows | TableRows


# ---- everything that a source takes --------------------------------------------------------------


def open_data(
    data: Any, filesystem: Any, idle: OpenFiles
) -> tuple[list[Any], Sequence[StoredRows]]:
    """Return (the paths that were given, files or tables with the rows) of what a reader has.

    Args:
        data: paths as `find_files` takes them, or rows in memory as `table_of` takes them.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds the paths; None takes it from URLs.
        idle: where files stay open between two reads.

    Raises:
        TypeError: for anything else; it says what to do instead.
        FileNotFoundError: if a path has no file.
        ParquetError: if a file is truncated, damaged or not Parquet.
        ValueError: if columns share a name, or if a pandas index has one.
    """
    paths = [data] if isinstance(data, str | os.PathLike) else data
    if isinstance(paths, list | tuple):
        if all(isinstance(path, str | os.PathLike) for path in paths):
            return [*paths], open_files(find_files(paths, filesystem), idle)
    return [], [TableRows(*rows_of(data))]


def open_files(files: Sequence[DataFile], idle: OpenFiles) -> list[ParquetRows]:
    """Return the files with their footers, which are read on threads."""
    threads = OPENING_THREADS if all(file.is_local for file in files) else REMOTE_THREADS
    some = max(1, len(files) // (8 * threads))  # for each call: a future takes as long as a footer
    parts = [files[first : first + some] for first in range(0, len(files), some)]
    with ThreadPoolExecutor(threads, thread_name_prefix="tutorlib-open") as pool:
        opened = pool.map(lambda part: [_opened(file, idle) for file in part], parts)
        stored = [*itertools.chain.from_iterable(opened)]
    schemas: dict[bytes, pa.Schema] = {}  # files that are alike share one
    for rows in stored:
        rows.schema = schemas.setdefault(rows.schema.serialize().to_pybytes(), rows.schema)
    return stored


def _opened(file: DataFile, idle: OpenFiles) -> ParquetRows:
    try:
        with file.filesystem.open_input_file(file.inner) as opened:
            parquet = pq.ParquetFile(opened, coerce_int96_timestamp_unit=INT96_UNIT)
            etag = None if file.is_local else etag_of(opened)
            return ParquetRows(file, parquet, etag, idle)
    except PermissionError as error:
        raise ParquetError(f"{file.path}: may not be read ({error})") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if failure := store_failure(error):
            raise ParquetError(f"{file.path}: {failure}") from error
        raise ParquetError(
            f"{file.path}: not a whole Parquet file ({error}). Write "
            f"it again, or remove it. {OTHER_FILES}"
        ) from error


def table_of(data: Any, names: Sequence[str] | None = None) -> pa.Table:
    """Return rows in memory as a pyarrow Table, without a copy where Arrow needs none.

    Args:
        data: rows as `rows_of` takes them.
        names: columns that are used; None for all.

    Raises:
        ValueError: as `rows_of`; also for a used column that Arrow cannot convert.
    """
    table, left_out = rows_of(data)
    for name in left_out if names is None else names:
        if name in left_out:
            raise ValueError(f"column {name!r} {left_out[name]}, or leave it out.")
    return table


def rows_of(data: Any) -> tuple[pa.Table, dict[str, str]]:
    """Return (rows in memory as a pyarrow Table, {name: why Arrow cannot convert this column}).

    Args:
        data: a pyarrow Table, RecordBatch or RecordBatchReader; a DataFrame of pandas, whose index
            must not have a name, or of polars; any object with `__arrow_c_stream__`; or a `Chunk`.

    Raises:
        TypeError: for anything else; it says what to do instead.
        ValueError: for a DataFrame whose index has a name, or without a column that Arrow converts.
    """
    if isinstance(data, Chunk):
        return data.to_arrow(), {}
    if isinstance(data, pa.RecordBatch):
        return pa.table(data), {}
    if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"):
        if named := [name for name in data.index.names if name is not None]:
            raise ValueError(
                f"the DataFrame's index {named} is not a column. df.reset_index() makes it one, "
                "df.reset_index(drop=True) leaves it out."
            )
        return _rows_of_pandas(data)
    if hasattr(data, "__arrow_c_stream__"):
        with contextlib.suppress(pa.ArrowException):  # a stream of values, not of rows
            return pa.RecordBatchReader.from_stream(data).read_all(), {}
    kind = f"{type(data).__module__}.{type(data).__qualname__}".removeprefix("builtins.")
    raise TypeError(
        "the data must be a path of Parquet files (file, folder, glob pattern, URL, or a "
        "list of these), a ParquetSource, a pyarrow Table, a pandas or polars DataFrame, or a part "
        f"of split_rows, got a {kind}. Values need the names of their columns: "
        "pyarrow.table({'x': values})."
    )


def _rows_of_pandas(frame: Any) -> tuple[pa.Table, dict[str, str]]:
    """Return the columns of a DataFrame that Arrow converts, and why it does not convert others."""

    def converted(part: Any) -> pa.Table:
        return pa.Table.from_pandas(part, preserve_index=False).replace_schema_metadata(None)

    refusals = (pa.ArrowException, TypeError, ValueError, OverflowError)
    with contextlib.suppress(*refusals):
        return converted(frame), {}
    tables, left_out, reason = [], dict[str, str](), ""
    for place, name in enumerate(frame.columns):
        try:
            tables.append(converted(frame.iloc[:, [place]]))
        except refusals as error:
            said = str(error.args[0] if error.args else error)
            reason = f"cannot become a column of Arrow ({said}): give it one type"
            left_out[str(name)] = reason
    if not tables:
        raise ValueError(f"column {next(iter(left_out))!r} {reason}.")
    fields = [table.schema.field(0) for table in tables]
    columns = [table.column(0) for table in tables]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields)), left_out
