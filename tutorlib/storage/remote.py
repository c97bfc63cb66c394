"""Outputs in an object store: made in TMPDIR, then copied object by object.

An object appears when it is complete. A folder is not one object: while it is copied it holds the
object `METADATA_FILE`, for which `refuse_unfinished` refuses it, and which goes last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyarrow import fs

from tutorlib.storage.atomic import temporary_folder
from tutorlib.storage.filesystems import find_filesystem, is_url, store_errors
from tutorlib.storage.owned import MARK, remove
from tutorlib.storage.resumable import METADATA_FILE, WRITING_FOLDER, resumable_folder

PREFIX = "tutorlib_remote_"
COPIES = 8  # at a time


@dataclasses.dataclass(frozen=True)
class RemotePath:
    """A file or folder of another filesystem.

    Args:
        filesystem: the filesystem.
        inner: path within it.
        url: what messages call it.
    """

    filesystem: fs.FileSystem
    inner: str
    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.inner.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """Ending of the name, such as ".parquet"."""
        return Path(self.name).suffix

    def sizes(self) -> dict[str, int]:
        """Return {name within the folder: bytes} of the objects in a folder, {} without any."""
        selector = fs.FileSelector(self.inner, recursive=True, allow_not_found=True)
        with store_errors(self.url, self.filesystem):
            infos = self.filesystem.get_file_info(selector)
        files = [info for info in infos if info.type == fs.FileType.File]
        return {info.path.removeprefix(self.inner).strip("/"): info.size for info in files}

    def is_file(self) -> bool:
        """Return whether it is one object."""
        with store_errors(self.url, self.filesystem):
            return self.filesystem.get_file_info(self.inner).type == fs.FileType.File

    def read_text(self) -> str:
        """Return the content of an object."""
        with store_errors(self.url, self.filesystem):
            with self.filesystem.open_input_stream(self.inner) as file:
                return file.read().decode()

    def put(self, file: Path, name: str = "") -> None:
        """Copy a file here, or to `name` within this folder."""
        to = f"{self.inner}/{name}".rstrip("/")
        with store_errors(f"{self.url}/{name}".rstrip("/"), self.filesystem):
            fs.copy_files(str(file), to, fs.LocalFileSystem(), self.filesystem)

    def put_folder(self, folder: Path) -> None:
        """Replace all that is here by a folder's files; until it is whole, readers refuse it."""
        inside = (path for path in folder.rglob("*") if path.is_file())
        names = {path.relative_to(folder).as_posix(): path for path in inside}
        names = {n: p for n, p in names.items() if not n.startswith(f"{WRITING_FOLDER}/")}
        old = self.sizes()
        marker = f"{self.inner}/{METADATA_FILE}"
        with store_errors(self.url, self.filesystem):
            with self.filesystem.open_output_stream(marker) as file:
                file.write(
                    b"This folder is being written, or was left by a run that was stopped.\n"
                )
        names.pop(METADATA_FILE, None)
        gone = [f"{self.inner}/{name}" for name in old if name not in {*names, METADATA_FILE}]
        with ThreadPoolExecutor(COPIES, "tutorlib-copy") as pool, store_errors(self.url):
            list(pool.map(self.filesystem.delete_file, gone))
            list(pool.map(self.put, names.values(), names))
        sizes = self.sizes()
        if lost := [n for n, path in names.items() if sizes.get(n) != path.stat().st_size]:
            raise OSError(f"{self.url}: {lost} did not arrive whole. Run the same call again.")
        with store_errors(self.url, self.filesystem):
            self.filesystem.delete_file(marker)


def output_path(path: Any, filesystem: Any = None) -> Path | RemotePath:
    """Return where an output goes: a `Path` on this machine, or a `RemotePath`.

    Args:
        path: path or URL such as `s3://bucket/train`.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds it; None takes it from a URL.
    """
    if isinstance(path, RemotePath):
        return path
    if filesystem is None and not is_url(path):
        return Path(str(path).removeprefix("file://"))
    where, inner, prefix = find_filesystem(os.fspath(path), filesystem)
    if isinstance(where, fs.LocalFileSystem):
        return Path(inner)
    inner = inner.rstrip("/")
    return RemotePath(where, inner, prefix + inner)


def refuse_unfinished(folder: str, names: Iterable[str]) -> None:
    """Raise ValueError if a folder's names tell that it is being written.

    Args:
        folder: what messages call it.
        names: names of the files in it, also with folders.
    """
    if any(name.rpartition("/")[2] == METADATA_FILE for name in names):
        raise ValueError(
            f"{folder} is being written, or a run that writes it was stopped: it holds "
            f"{METADATA_FILE}. Wait, run the call that writes it again, or delete the folder."
        )


def read_text(folder: Any, name: str, filesystem: Any = None) -> str | None:
    """Return the text of a file in a folder, also of a URL; None if there is none."""
    target = output_path(folder, filesystem)
    if isinstance(target, RemotePath):
        file = dataclasses.replace(target, inner=f"{target.inner}/{name}", url=f"{target}/{name}")
        return file.read_text() if file.is_file() else None
    return (target / name).read_text(encoding="utf-8") if (target / name).is_file() else None


@contextlib.contextmanager
def remote_output(target: RemotePath, *, is_file: bool) -> Iterator[Path]:
    """Give a path in TMPDIR, which is copied to `target` when the block ends without an error."""
    with temporary_folder(PREFIX) as folder:
        yield folder / target.name if is_file else folder
        if is_file:
            target.put(folder / target.name)
        else:
            target.put_folder(folder)


@contextlib.contextmanager
def resumable_remote(target: RemotePath, metadata: Mapping[str, Any] | None) -> Iterator[Path]:
    """Give a folder in TMPDIR, which is copied to `target` when the block ends without an error.

    After a kill or an error, the next call on this machine with equal metadata gives it back with
    its finished files, as `resumable_folder` does.
    """
    number = hashlib.sha256(target.url.encode()).hexdigest()[:16]
    local = Path(tempfile.gettempdir()) / f"tutorlib_for_{number}"
    try:
        with resumable_folder(local, metadata) as building:
            yield building
            target.put_folder(building)
    except Exception as error:
        error.add_note(f"{local} is what would have been copied to {target}.")
        raise
    remove(local)


@contextlib.contextmanager
def local_copy(path: Any, filesystem: Any = None) -> Iterator[Path]:
    """Give a folder with the files of a folder, without those of folders in it.

    Args:
        path: a folder of this machine, which is given as it is, or a URL, which is copied.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds it; None takes it from a URL.

    Raises:
        FileNotFoundError: if a URL has no files.
        ValueError: if it is being written.
    """
    source = output_path(path, filesystem)
    if isinstance(source, Path):
        yield source
        return
    names = source.sizes()
    refuse_unfinished(source.url, names)
    if not names:
        raise FileNotFoundError(f"there is nothing at {source}")
    with temporary_folder(PREFIX) as folder:
        for name in names:
            if "/" not in name and name != MARK:
                with store_errors(f"{source}/{name}", source.filesystem):
                    inner = f"{source.inner}/{name}"
                    fs.copy_files(
                        inner, str(folder / name), source.filesystem, fs.LocalFileSystem()
                    )
        try:
            yield folder
        except Exception as error:
            error.add_note(f"{folder} was a copy of {source}.")
            raise
