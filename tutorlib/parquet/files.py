"""What a source reads from: Parquet files and tables in memory, as row groups of known sizes.

`find_files` finds files and `open_files` reads their footers, on threads. `ParquetRows` and
`TableRows` have the same methods. Every fault of a file is found here, and its error names file,
row group and column. Changed bytes are found if pages and footer have checksums, as `ParquetSink`
writes them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import glob
import hashlib
import itertools
import os
import re
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tutorlib.filesystems import find_filesystem, shown

PARQUET_ENDINGS = (".parquet", ".parq", ".pq")
TABLE_FORMATS = {  # {folder of a table's log: (ending of its files, what to do)}
    "_delta_log": (
        ".json",
        "a Delta Lake table, whose live files deltalake.DeltaTable(path).file_uris() lists",
    ),
    ".hoodie": (
        "hoodie.properties",
        "a Hudi table, whose live rows hudi.HudiTable(path).read_snapshot() reads",
    ),
    "metadata": (
        ".metadata.json",
        "an Iceberg table, whose live files table.scan().plan_files() of pyiceberg lists",
    ),
}
NULL_KEY = "__HIVE_DEFAULT_PARTITION__"
OTHER_FILES = (
    "CSV files become Parquet by DuckDB: COPY (FROM 'data.csv') TO 'data.parquet'; an Arrow file "
    "is read as a table by pyarrow.feather.read_table"
)
OPENING_THREADS = 8
REMOTE_THREADS = 32  # which wait for answers most of the time
TABLE_ROWS = 131_072  # of a row group of rows in memory
INT96_UNIT = "us"  # of Spark's and Hive's timestamps: nanoseconds end in 2262, dates do not
OPEN_FILES = 8  # of this machine that stay open for the next read
COLUMN_CHUNK_BYTES = 900  # of a footer in memory, for each column of a row group
PAGE_BYTES = 2**20  # of values in a page at most, as writers of Parquet files have it
STREAM_BUFFER = 262_144  # bytes that a stream reads ahead for each column
FOOTER_CRC = b"tutorlib.footer_crc32"
NO_CRC = b"00000000"
FOOTER_BYTES = 65_536  # at the end of a file, that are read at first
ROWS_PER_BYTE = 65_536  # of a file, of equal values; more is a number that nobody has checked


class ParquetError(ValueError):
    """A file that cannot be used: the message names file, row group and column."""


# ---- finding files -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class DataFile:
    """A file, and what its filesystem said of it when it was found.

    Args:
        path: path within the filesystem.
        filesystem: filesystem of the file.
        version: bytes, and time of the last change in ns if that is known.
        keys: {name: text} of the folders `name=text` above it; None for Hive's name of a null.
    """

    path: str
    filesystem: fs.FileSystem
    version: tuple[int, int | None]
    keys: Mapping[str, str | None]

    @property
    def is_local(self) -> bool:
        """Whether the file is on this machine."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def change(self) -> str:
        """Return what was done to the file since it was found: "changed", "been removed" or ""."""
        info = self.filesystem.get_file_info(self.path)
        if info.type == fs.FileType.NotFound:
            return "been removed"
        return "" if (info.size, info.mtime_ns) == self.version else "changed"


def find_files(paths: Any, filesystem: Any = None) -> list[DataFile]:
    """Return the Parquet files that `paths` means, in a stable order.

    Args:
        paths: a file, a folder (searched recursively), a glob pattern, or a list of these. A list
            keeps its order; a folder or a pattern is sorted by name, numbers in names by their
            value (part.2 before part.10), without names that begin with "." or "_". Folders named
            `key=value` below a folder that is given are keys. Links are followed. Each may be a
            URL: `s3://bucket/folder`, `memory://x/*.parquet`, `file:///data`.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds `paths`; None takes it from URLs.

    Raises:
        FileNotFoundError: if a path has no file, or a link leads nowhere.
        ValueError: if a file is given twice, by whatever paths or links, or a folder is a table of
            Delta Lake, Hudi or Iceberg.
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
    if not items:
        raise FileNotFoundError("the list of Parquet files is empty")
    for item in items:
        found = _find(os.fspath(item), filesystem)
        if not found:
            raise FileNotFoundError(
                f"no Parquet file at {shown(os.fspath(item))!r} (tried as a file, as a folder of "
                f"{'/'.join(PARQUET_ENDINGS)} files, and as a glob pattern). {OTHER_FILES}"
            )
        files += found
    first: dict[str, str] = {}  # {file: the path that named it}
    for file in files:
        real = os.path.realpath(file.path) if file.is_local else file.path
        if other := first.get(real):
            raise ValueError(
                f"the file {file.path} is given twice (also as {other}): its rows would be read "
                "twice. Give each file once, and no further link to it: name the files in a list "
                "or by a pattern, or remove one of the two."
            )
        first[real] = file.path
    return files


def _find(text: str, filesystem: Any) -> list[DataFile]:
    """Return the files of one path, sorted."""
    where, path = find_filesystem(text, filesystem)
    info = where.get_file_info(path)
    is_folder = info.type == fs.FileType.Directory
    if info.type == fs.FileType.File:
        return [DataFile(path, where, (info.size, info.mtime_ns), {})]
    folder = (path.rstrip("/") or path[:1]) if is_folder else _before_pattern(path, where)
    if folder == path and not is_folder:
        return []
    pattern = "" if is_folder else path[len(folder) :].strip("/")
    root = f"{folder}/" if folder.strip("/") else folder
    for log, (ending, remedy) in TABLE_FORMATS.items():
        for info in where.get_file_info(fs.FileSelector(root + log, allow_not_found=True)):
            if info.path.endswith(ending):
                raise ValueError(
                    f"{folder} holds {info.path}: {remedy}. Its folder also has files whose rows "
                    "were deleted or replaced."
                )
    below = _files_below(where, root, pattern)
    files = []
    for name in sorted(below, key=_natural):
        info = below[name]
        ending = os.path.splitext(name)[1].lower()
        is_link = info.type == fs.FileType.NotFound and os.path.islink(root + name)
        if any(part[0] in "._" for part in name.split("/")):
            continue
        if is_folder and ending not in PARQUET_ENDINGS and (ending or not is_link):
            continue
        if is_link:
            raise FileNotFoundError(
                f"{root}{name} is a link to {os.readlink(root + name)}, which cannot be read. "
                "Restore what it points to, or remove the link, also one that leads back to a "
                "folder above it."
            )
        if info.type == fs.FileType.File:
            keys = _keys(name.rpartition("/")[0]) if is_folder else {}
            files.append(DataFile(root + name, where, (info.size, info.mtime_ns), keys))
    return files


def _before_pattern(path: str, where: fs.FileSystem) -> str:
    """Return the folder before the first pattern in a path; the path if it has no pattern.

    A folder that exists is no pattern, such as "data [v2]".
    """
    head = ""
    for part in re.findall("[^/]*/?", path):
        if re.search(r"[*?\[]", part):
            info = where.get_file_info(head + part.rstrip("/"))
            if info.type != fs.FileType.Directory:
                return head.rstrip("/") or head[:1]
        head += part
    return path


def _files_below(where: fs.FileSystem, root: str, pattern: str) -> dict[str, fs.FileInfo]:
    """Return {name: what it is} below a folder, of names that match a pattern if there is one."""
    if not isinstance(where, fs.LocalFileSystem):
        selector = fs.FileSelector(root.rstrip("/") or ".", recursive=True, allow_not_found=True)
        below = {}
        for info in where.get_file_info(selector):
            name = info.path.strip("/")[len(root.strip("/")) :].strip("/")
            # "**" stands for any number of folders, "*" for letters of one name.
            same_depth = "**/" in pattern or name.count("/") == pattern.count("/")
            fits = same_depth and fnmatch.fnmatchcase(name, pattern.replace("**/", "*"))
            if fits or not pattern:
                below[name] = info
        return below

    def refuse(error: OSError) -> None:  # a folder that may not be searched
        raise error

    if pattern:
        names = glob.glob(pattern, root_dir=root or ".", recursive=True)
    else:
        names = []
        for folder, folders, files in os.walk(root, onerror=refuse, followlinks=True):
            names += [os.path.join(folder, name)[len(root) :] for name in files]
            folders[:] = [name for name in folders if name[0] not in "._"]
    infos = where.get_file_info([root + name for name in names])
    return dict(zip(names, infos, strict=True))


def _natural(name: str) -> list[Any]:
    """Return a key that sorts names by the numbers in them: part.2 before part.10."""
    parts = re.split(r"(\d+)", name)
    return [int(part) if part.isdecimal() else part for part in parts] + [name]


@functools.lru_cache(maxsize=1024)
def _keys(folders: str) -> dict[str, str | None]:
    """Return the keys in names of folders, in which Hive escapes characters as in a URL."""
    keys = {}
    for folder in folders.split("/"):
        name, mark, text = folder.partition("=")
        if name and mark:
            keys[unquote(name)] = None if text == NULL_KEY else unquote(text)
    return keys


# ---- one file or table ---------------------------------------------------------------------------


class ParquetRows:
    """A Parquet file, whose row groups are read as they are stored.

    Args:
        file: the file.
        opened: its footer, with its schema.
        digest: hash of the footer as it was read: sizes, places and statistics of all columns.

    Attributes:
        footer: its `pyarrow.parquet.FileMetaData`.
        schema: `pyarrow.Schema` of the columns.
        row_counts: stored rows of each row group.
    """

    def __init__(self, file: DataFile, opened: pq.ParquetFile, digest: str) -> None:
        self.file = file
        self.digest = digest
        self.footer = footer = opened.metadata
        self.schema = opened.schema_arrow.remove_metadata()
        self.path = file.path
        self.keys = file.keys
        self.is_local = file.is_local
        self.row_counts = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]

    def location(self, index: int) -> str:
        """Return what error messages call a row group."""
        return f"row group {index} of {self.path}"

    def tables(
        self,
        index: int,
        names: Sequence[str],
        step_rows: int | None,
        files: OpenFiles,
        *,
        encoded: bool = False,
    ) -> Generator[pa.Table]:
        """Yield columns of a row group in order.

        Args:
            index: number of the row group.
            names: columns.
            step_rows: about how many rows a table has; None for all at once.
            files: the files that stay open.
            encoded: whether strings stay in dictionaries where the file has them so.
        """
        kept = self._in_dictionaries(index, names) if encoded else ()
        for name in names:
            self._leaves(index, name)  # refuses a damaged footer
        with self.errors_at(index, names):
            self._refuse_far_times(index, list(filter(self.has_int96, names)))
            if step_rows is None:
                file = files.opened(self, kept) if self.is_local else self.open(kept)
                table = file.read_row_group(index, columns=list(names), use_threads=False)
                count = table.num_rows
                self.refuse_changed(index)
                if count == self.row_counts[index]:
                    yield table
            else:
                count = 0
                with self.open(kept, buffer_size=STREAM_BUFFER) as file:
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
        paths = []
        for leaf in itertools.chain.from_iterable(self._leaves(index, name) for name in names):
            if not any("DELTA" in encoding for encoding in leaf.encodings):
                paths.append(leaf.path_in_schema)
        return tuple(paths)

    def open(self, kept: Sequence[str] = (), **options: Any) -> pq.ParquetFile:
        """Open the file again; whoever reads then calls `refuse_changed`."""
        # Not memory-mapped: that is no faster, and a signal would kill the process if the file is
        # truncated meanwhile, where reading raises an error.
        options = {"coerce_int96_timestamp_unit": INT96_UNIT, **options}
        return pq.ParquetFile(
            self.path,
            filesystem=self.file.filesystem,
            metadata=self.footer,
            read_dictionary=kept,
            pre_buffer=not self.is_local,
            page_checksum_verification=True,
            **options,
        )

    def refuse_changed(self, index: int) -> None:
        """Raise ParquetError, with the row group that is read, if the file has changed."""
        if change := self.file.change():
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
            with contextlib.suppress(OSError):  # of a store: the first error says more
                self.refuse_changed(index)
            at_fault = [n for n in names if len(names) == 1 or not self._can_be_read(index, n)]
            column = f", column {at_fault[0]!r}" if at_fault else ""
            raise ParquetError(
                f"{self.location(index)}{column}: cannot be read ({type(error).__name__}: {error})."
                " If the file is damaged, write it again."
            ) from error

    def _can_be_read(self, index: int, name: str) -> bool:
        try:
            return len(list(self.tables(index, [name], None, OpenFiles()))) == 1
        except ParquetError:
            return False

    def has_int96(self, name: str) -> bool:
        """Return whether a column has timestamps of Spark and Hive."""
        leaves = map(self.footer.schema.column, self._leaf_numbers.get(name, ()))
        return any(leaf.physical_type == "INT96" for leaf in leaves)

    def _refuse_far_times(self, index: int, names: Sequence[str]) -> None:
        """Raise ParquetError for times of columns of INT96 that microseconds do not hold.

        Arrow would give another date without a word. Seconds hold them all.
        """
        if not names:
            return
        with self.open(coerce_int96_timestamp_unit="s") as file:
            seconds = file.read_row_group(index, columns=list(names), use_threads=False)
        for name in names:
            try:
                seconds[name].cast(self.schema.field(name).type)
            except pa.ArrowInvalid as error:
                raise ParquetError(
                    f"{self.location(index)}, column {name!r}: {error}. Times of INT96 are read in "
                    "microseconds, to the year 294,246. Write such a time as a null."
                ) from error

    def _leaves(self, index: int, name: str) -> list[pq.ColumnChunkMetaData]:
        """Return the column chunks of a column: one of a number or list, more of a struct."""
        row_group = self.footer.row_group(index)
        leaves = []
        for number in self._leaf_numbers.get(name, ()):
            leaf = row_group.column(number)
            kind = self.footer.schema.column(number)
            is_flat = kind.max_repetition_level == 0
            if leaf.physical_type != kind.physical_type or (
                is_flat and leaf.num_values != row_group.num_rows
            ):
                raise ParquetError(
                    f"{self.location(index)}, column {name!r}: its footer contradicts itself. "
                    "Write the file again, or remove it."
                )
            leaves.append(leaf)
        return leaves

    @functools.cached_property
    def _leaf_numbers(self) -> dict[str, range]:
        # Paths of leaves do not tell the column: `a.b.list.element` may be of `a` or of `a.b`.
        numbers = {}
        end = 0
        for field in self.schema:
            start, end = end, end + _leaf_count(field.type)
            numbers[field.name] = range(start, end)
        return numbers

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
            stored = leaf.total_uncompressed_size
            known = leaf.statistics
            if not width and known is not None and known.has_min_max:
                if isinstance(known.min_raw, bytes) and isinstance(known.max_raw, bytes):
                    mean = (len(known.min_raw) + len(known.max_raw)) / 2
                    stored = max(stored, leaf.num_values * mean)
            total += leaf.num_values * width or stored
        return total

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
                size = leaf.total_uncompressed_size
                dictionary = 0
                if leaf.has_dictionary_page:
                    stored = leaf.data_page_offset - leaf.dictionary_page_offset
                    dictionary = stored * size / max(1, leaf.total_compressed_size)
                page = min(size - dictionary, PAGE_BYTES)
                total += STREAM_BUFFER + 2 * (page + dictionary)
        return total


class OpenFiles:
    """The files of this machine that a source read last: they stay open, for any of its threads.

    Opening a file of 3,000 columns takes 2 ms. What was read is compared with the file's state
    afterwards, as with a file that was opened just now.
    """

    def __init__(self) -> None:
        self.opened = functools.lru_cache(maxsize=OPEN_FILES)(ParquetRows.open)

    def __reduce__(self) -> tuple[type[OpenFiles], tuple[()]]:
        return OpenFiles, ()

    def close(self) -> None:
        """Close them; a later read opens its own."""
        self.opened.cache_clear()


class TableRows:
    """Rows of a pyarrow Table as a file of row groups; nothing is copied.

    Args:
        table: the rows.
    """

    is_local = True
    path = "the rows in memory"
    footer_bytes = 0

    def __init__(self, table: pa.Table) -> None:
        self.keys: dict[str, str | None] = {}
        self.table = table
        self.schema = table.schema
        starts = range(0, table.num_rows, TABLE_ROWS)
        self.row_counts = [min(TABLE_ROWS, table.num_rows - start) for start in starts]

    def location(self, index: int) -> str:
        """Return what error messages call a row group."""
        return f"row group {index} of {self.path}"

    def tables(
        self,
        index: int,
        names: Sequence[str],
        step_rows: int | None,
        files: OpenFiles | None = None,
        *,
        encoded: bool = False,
    ) -> Generator[pa.Table]:
        """Yield columns of a row group in order, `step_rows` rows at a time, or at once."""
        whole = self.table.select(names).slice(index * TABLE_ROWS, self.row_counts[index])
        for start in range(0, whole.num_rows, step_rows or TABLE_ROWS):
            yield whole.slice(start, step_rows or TABLE_ROWS)

    def value_bytes(self, index: int, name: str, width: int) -> float:
        """Return the bytes of the values of a column of lists or strings."""
        return next(self.tables(index, [name], None)).nbytes

    def stream_bytes(self, index: int, names: Sequence[str]) -> float:
        """Return 0: rows in memory stay where they are."""
        return 0.0

    @functools.cached_property
    def digest(self) -> str:
        """Hash of all values; a table of Arrow does not change."""
        digest = hashlib.sha256()
        for index in range(len(self.row_counts)):
            for table in self.tables(index, self.schema.names, None):
                # A copy: of a slice, bits behind its last row would be those of other rows.
                copied = pa.concat_tables([table, table.slice(0, 0)]).combine_chunks()
                for batch in copied.to_batches():
                    digest.update(batch.serialize())
        return digest.hexdigest()[:16]


def _leaf_count(kind: pa.DataType) -> int:
    """Return the number of column chunks in which a Parquet file stores a column of this type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _leaf_count(kind.storage_type)
    return sum(_leaf_count(kind.field(k).type) for k in range(kind.num_fields)) or 1


StoredRows = ParquetRows | TableRows


# ---- everything that a source takes --------------------------------------------------------------


def open_data(data: Any, filesystem: Any) -> tuple[list[Any], Sequence[StoredRows]]:
    """Return (the paths that were given, files or tables with the rows) of what a reader has.

    Args:
        data: paths as `find_files` takes them, or rows in memory as `table_of` takes them.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds the paths; None takes it from URLs.

    Raises:
        TypeError: for anything else; it says what to do instead.
        FileNotFoundError: if a path has no file.
        ParquetError: if a file is truncated, damaged or not Parquet.
        ValueError: if a pandas index has a name.
    """
    paths = [data] if isinstance(data, str | os.PathLike) else data
    if isinstance(paths, list | tuple):
        if all(isinstance(path, str | os.PathLike) for path in paths):
            return [*paths], open_files(find_files(paths, filesystem))
    return [], [TableRows(table_of(data))]


def open_files(files: Sequence[DataFile]) -> list[ParquetRows]:
    """Return the files with their footers, which are read on threads."""
    threads = OPENING_THREADS if all(file.is_local for file in files) else REMOTE_THREADS
    some = max(1, len(files) // (8 * threads))  # for each call: a future takes as long as a footer
    parts = [files[first : first + some] for first in range(0, len(files), some)]
    with ThreadPoolExecutor(threads, thread_name_prefix="tutorlib-open") as pool:
        opened = pool.map(lambda part: list(map(_opened, part)), parts)
        stored = list(itertools.chain.from_iterable(opened))
    schemas: dict[bytes, pa.Schema] = {}  # files that are alike share one
    for rows in stored:
        rows.schema = schemas.setdefault(rows.schema.serialize().to_pybytes(), rows.schema)
    return stored


def _opened(file: DataFile) -> ParquetRows:
    footer = b""
    try:
        with file.filesystem.open_input_file(file.path) as opened:
            footer = footer_of(opened)
        crc = footer_crc(footer)
        if crc and crc[1] != crc[2]:
            raise ParquetError(
                f"{file.path}: bytes of its footer have changed: it has another checksum. "
                "Write the file again."
            )
        parquet = pq.ParquetFile(pa.BufferReader(footer), coerce_int96_timestamp_unit=INT96_UNIT)
        if parquet.metadata.serialized_size + 8 != len(footer):
            # Arrow ends the process if it is asked for statistics of an encrypted column.
            raise ParquetError(
                f"{file.path}: its footer has another length than it says, as with encrypted "
                "columns. Keys cannot be given: write the file again, without encryption."
            )
        _refuse_wrong_counts(file, parquet.metadata)
        return ParquetRows(file, parquet, hashlib.sha256(footer).hexdigest()[:16])
    except PermissionError as error:
        raise ParquetError(f"{file.path}: may not be read ({error})") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        what = "not a whole Parquet file"
        if footer.endswith(b"PARE"):
            what = "its footer is encrypted, and keys cannot be given"
        elif footer.endswith(b"PAR1"):
            what = "Arrow cannot read its footer"
        raise ParquetError(
            f"{file.path}: {what} ({error}). Write it again, without encryption, or remove it. "
            f"{OTHER_FILES}"
        ) from error


def footer_of(opened: Any) -> bytes:
    """Return the end of an open file from its footer on; all of a file that is no Parquet file."""
    size = opened.size()
    start = max(0, size - FOOTER_BYTES)
    end = opened.read_at(size - start, start)
    length = int.from_bytes(end[-8:-4], "little") + 8
    if len(end) < length <= size:
        return opened.read_at(length, size - length)
    return end[-length:]


def footer_crc(footer: bytes) -> tuple[int, bytes, bytes] | None:
    """Return (place of the checksum in a footer, the checksum, what it should be).

    `ParquetSink` writes it among the metadata: a CRC-32 of the footer with zeros in that place.
    None for a footer without one. Pages have their own.
    """
    key = footer.rfind(FOOTER_CRC)
    if key < 0:
        return None
    place = key + len(FOOTER_CRC) + 2  # behind the type and the length of the value
    zeroed = footer[:place] + NO_CRC + footer[place + len(NO_CRC) :]
    return place, footer[place : place + len(NO_CRC)], b"%08x" % zlib.crc32(zeroed)


def _refuse_wrong_counts(file: DataFile, footer: pq.FileMetaData) -> None:
    """Raise ParquetError for a footer whose numbers contradict each other, as after a flipped bit.

    Arrow would leave rows out, reserve memory for rows that do not exist, or end the process.
    """
    rows = 0
    for index in range(footer.num_row_groups):
        row_group = footer.row_group(index)
        rows += row_group.num_rows
        if row_group.num_columns != footer.num_columns:
            raise ParquetError(
                f"row group {index} of {file.path}: {row_group.num_columns} columns, but the "
                f"schema has {footer.num_columns}: the footer is damaged. Write the file again."
            )
    if rows != footer.num_rows or rows > file.version[0] * ROWS_PER_BYTE:
        raise ParquetError(
            f"{file.path}: its footer tells of {footer.num_rows:,} rows, {rows:,} in row groups, "
            f"in a file of {file.version[0]:,} bytes: the footer is damaged. Write the file again."
        )


def table_of(data: Any) -> pa.Table:
    """Return rows in memory as a pyarrow Table, without a copy where Arrow needs none.

    Args:
        data: a pyarrow Table, RecordBatch or RecordBatchReader; a DataFrame of pandas, whose index
            must not have a name, or of polars; a `Chunk`; anything with `__arrow_c_stream__`.

    Raises:
        TypeError: for anything else, or a sparse column; it says what to do instead.
        ValueError: for a DataFrame whose index has a name.
        pyarrow.ArrowException: for a column of a DataFrame that Arrow cannot convert.
        OverflowError: for integers of a DataFrame beyond 64 bits.
    """
    if isinstance(data, pa.RecordBatch):
        return pa.table(data)
    if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"):
        if named := [name for name in data.index.names if name is not None]:
            raise ValueError(
                f"the DataFrame's index {named} is not a column. df.reset_index() makes it one, "
                "df.reset_index(drop=True) leaves it out."
            )
        for name, kind in data.dtypes.items():
            if type(kind).__name__ == "SparseDtype":
                raise TypeError(
                    f"column {name!r} of the DataFrame is sparse: "
                    f"df.astype({{{name!r}: {str(kind.subtype)!r}}}) makes it dense."
                )
        return pa.Table.from_pandas(data, preserve_index=False).replace_schema_metadata(None)
    if hasattr(data, "__arrow_c_stream__"):
        with contextlib.suppress(pa.ArrowException):  # a stream of values, not of rows
            return pa.RecordBatchReader.from_stream(data).read_all()
    kind = f"{type(data).__module__}.{type(data).__qualname__}".removeprefix("builtins.")
    raise TypeError(
        "the data must be a path of Parquet files (file, folder, glob pattern, URL, or a "
        "list of these), a ParquetSource, a pyarrow Table, a pandas or polars DataFrame, or a part "
        f"of split_rows, got a {kind}. Values need the names of their columns: "
        "pyarrow.table({'x': values})."
    )
