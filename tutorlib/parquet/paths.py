"""Finds the files of a data set: folders, patterns, URLs, and the keys in names of folders.

Local files are found with the standard library, all others through `pyarrow.fs`, with one
listing of a folder.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import glob
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import unquote

from pyarrow import fs

from tutorlib.storage import find_filesystem, refuse_unfinished, store_errors
from tutorlib.storage.filesystems import before_pattern, shown

PARQUET_ENDINGS = (".parquet", ".parq", ".pq")
ARROW_ENDINGS = (".arrow", ".feather", ".ipc")
CSV_ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
NULL_KEY = "__HIVE_DEFAULT_PARTITION__"


@dataclasses.dataclass(frozen=True)
class DataFile:
    """A file, and what its filesystem said of it when it was found.

    Args:
        path: path or URL, for messages.
        filesystem: filesystem of the file.
        inner: path within the filesystem.
        keys: {name: text} of the folders `name=text` above it; None for Hive's name of a null.
        size: bytes.
        version: changes when the file is written again: time of the last change in ns (of an object
            store in s), or what else the filesystem offers; None if it offers nothing.
        held_by: object that keeps a temporary file from being removed; None for other files.
    """

    path: str
    filesystem: fs.FileSystem
    inner: str
    keys: dict[str, str | None]
    size: int | None
    version: int | str | None
    held_by: Any = None

    @property
    def is_local(self) -> bool:
        """Whether the file is on this machine."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def change(self) -> str:
        """Return in words how the file has changed since it was found; "" if it has not.

        Raises:
            OSError: if the filesystem cannot say.
        """
        try:
            size, version = _stamp(self.filesystem, self.inner)
        except FileNotFoundError:
            return "it was removed"
        if size != self.size:
            return f"it had {self.size} bytes and now has {size}"
        return "it was written again" if version != self.version else ""


def find_files(paths: Any, filesystem: Any = None) -> list[DataFile]:
    """Return the Parquet files that `paths` means, in a stable order.

    Of a folder without Parquet files, the files of Arrow's IPC format are returned (`.arrow`,
    `.feather`, `.ipc`).

    Args:
        paths: a file, a folder (searched recursively), a glob pattern, or a list of these. A list
            keeps its order; a folder or a pattern is sorted by name, without names that begin with
            "." or "_". Each may be a URL: `s3://bucket/folder`, `memory://x/*.parquet`,
            `file:///data`.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds `paths`; None takes it from URLs.

    Raises:
        FileNotFoundError: if a path has no file; it says what was searched.
        ValueError: if a file is given twice, by whatever paths or links.
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
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    files: list[DataFile] = []
    keys_of = functools.cache(_keys)
    for item in paths:
        text = os.fspath(item)
        where, inner, prefix = find_filesystem(text, filesystem)
        is_local = isinstance(where, fs.LocalFileSystem)
        find = _find_local if is_local else functools.partial(_find_remote, prefix)
        name = shown(text)
        with store_errors(name, where):
            found = [
                DataFile(prefix + p, where, p, keys_of(tuple(folders)), *_stamp(where, p, info))
                for p, folders, info in [*find(where, inner, PARQUET_ENDINGS)]
                or find(where, inner, ARROW_ENDINGS)
            ]
            csv = not found and any(True for _ in find(where, inner, CSV_ENDINGS))
        if not found:
            raise FileNotFoundError(
                f"no Parquet file at {name!r} (tried as a file, as a folder of "
                f"{'/'.join(PARQUET_ENDINGS + ARROW_ENDINGS)} files, and as a glob pattern)"
                f"{'. ' + csv_remedy(name + '/*.csv') if csv else ''}"
            )
        files += found
    if not files:
        raise FileNotFoundError("the list of Parquet files is empty")
    _refuse_twice(files)
    return files


def _refuse_twice(files: Sequence[DataFile]) -> None:
    first: dict[str, str] = {}
    real_folder = functools.cache(os.path.realpath)  # which looks at each folder above
    for file in files:
        identity = file.path
        if file.is_local and os.path.islink(file.inner):
            identity = os.path.realpath(file.inner)
        elif file.is_local:
            folder, name = os.path.split(file.inner)
            identity = os.path.join(real_folder(folder), name)
        if identity in first:
            raise ValueError(
                f"the file {file.path} is given twice (also as {first[identity]}): its rows would "
                "be read twice. Give each file once."
            )
        first[identity] = file.path


def _stamp(
    filesystem: fs.FileSystem, path: str, info: fs.FileInfo | None = None
) -> tuple[int | None, int | str | None]:
    """Return (bytes, version) of a file; raise FileNotFoundError if it does not exist.

    Args:
        filesystem: filesystem of the file.
        path: path within it.
        info: what a listing said of the file; None to ask.
    """
    if isinstance(filesystem, fs.LocalFileSystem):
        metadata = os.stat(path)
        return metadata.st_size, metadata.st_mtime_ns
    info = info or filesystem.get_file_info(path)
    if info.type == fs.FileType.NotFound:
        raise FileNotFoundError(path)
    handler = getattr(filesystem, "handler", None)
    if isinstance(handler, fs.FSSpecHandler):  # its caches recognize a version by `ukey`
        return info.size, handler.fs.ukey(path)
    # A listing of S3 may have milliseconds, the header of one object has seconds.
    return info.size, None if info.mtime_ns is None else info.mtime_ns // 10**9


Found = Iterator[tuple[str, Sequence[str], Any]]  # path, folders that may be keys, FileInfo or None


def csv_remedy(path: str) -> str:
    """Return what a message recommends for a CSV file."""
    return f"CSV files become Parquet by: python -m data_prep csv {path} --to FOLDER"


def _find_local(_: fs.FileSystem, text: str, endings: tuple[str, ...]) -> Found:
    try:
        mode = os.stat(text).st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = 0
    if stat.S_ISDIR(mode):
        yield from sorted(_walk(text, endings))
        return
    if mode:
        yield text, PurePath(text).parts[:-1], None
        return
    root = len(PurePath(before_pattern(text)).parts)
    parts_of = functools.cache(lambda folder: PurePath(folder).parts)
    for path in sorted(glob.glob(text, recursive=True)):
        folder, name = os.path.split(path)
        folders = parts_of(folder)
        if not any(map(_hidden, (*folders[root:], name))) and os.path.isfile(path):
            yield path, folders, None


def _walk(folder: str, endings: tuple[str, ...]) -> Found:
    """Yield the data files below a folder; a folder that may not be searched is an error."""

    def fail(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not _hidden(name)]
        below = PurePath(parent).relative_to(folder).parts
        head = str(PurePath(parent, "x"))[:-1]
        for name in names:
            if name.endswith(endings) and not _hidden(name):
                yield head + name, below, None


def _find_remote(
    prefix: str, filesystem: fs.FileSystem, text: str, endings: tuple[str, ...]
) -> Found:
    info = filesystem.get_file_info(text)
    if info.type == fs.FileType.File:
        yield text, text.split("/")[:-1], info
        return
    pattern = None if info.type == fs.FileType.Directory else text.split("/")
    root = before_pattern(text) if pattern else text.rstrip("/")
    if pattern and root == text:
        return
    selector = fs.FileSelector(root, recursive=True, allow_not_found=True)
    infos = {i.path: i for i in filesystem.get_file_info(selector) if i.type == fs.FileType.File}
    refuse_unfinished(prefix + text, infos)
    for path in sorted(infos):
        below = path.removeprefix(root).strip("/").split("/")
        if any(map(_hidden, below)):
            continue
        if pattern and _fits(path.split("/"), pattern):
            yield path, path.split("/")[:-1], infos[path]
        elif not pattern and path.endswith(endings):
            yield path, below[:-1], infos[path]


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path matches a pattern, both split at "/"; "**" matches any number of folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**" and _fits(parts, pattern[1:]):
        return True
    if not parts or not (pattern[0] == "**" or fnmatch.fnmatchcase(parts[0], pattern[0])):
        return False
    return _fits(parts[1:], pattern if pattern[0] == "**" else pattern[1:])


def _hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def _keys(folders: Sequence[str]) -> dict[str, str | None]:
    """Return the keys in names of folders, in which Hive escapes characters as in a URL."""
    pairs = [folder.partition("=") for folder in folders]
    texts = {unquote(name): unquote(text) for name, mark, text in pairs if name and mark}
    return {name: None if text == NULL_KEY else text for name, text in texts.items()}
