"""Outputs in an object store: made in TMPDIR, then copied. Inputs from there, as a copy."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyarrow import fs

from tutorlib.storage.atomic import temporary_folder
from tutorlib.storage.filesystems import find_filesystem
from tutorlib.storage.owned import local_path, remove
from tutorlib.storage.remote_path import RemotePath, refuse_unfinished
from tutorlib.storage.resumable import resumable_folder

PREFIX = "tutorlib_remote_"


def output_path(path: Any, filesystem: Any = None) -> Path | RemotePath:
    """Return where an output goes: a `Path` on this machine, or a `RemotePath`.

    Args:
        path: path or URL such as `s3://bucket/train`.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds it; None takes it from a URL.

    Example:
        >>> output_path("data/train").name
        'train'
    """
    where, inner, prefix = find_filesystem(os.fspath(path), filesystem)
    if isinstance(where, fs.LocalFileSystem):
        return local_path(inner)
    inner = inner.rstrip("/")
    return RemotePath(where, inner, prefix + inner)


def read_text(folder: Any, name: str, filesystem: Any = None) -> str | None:
    """Return the text of a file in a folder, also of a URL; None if there is none.

    A store whose objects may be read but not listed refuses names that do not exist.
    """
    file = output_path(folder, filesystem) / name
    try:
        if not file.is_file():
            return None
    except PermissionError:
        return None
    return file.read_text(encoding="utf-8") if isinstance(file, Path) else file.read_text()


@contextlib.contextmanager
def remote_output(target: RemotePath, *, is_file: bool = False) -> Iterator[Path]:
    """Give a path in TMPDIR, which is copied to `target` when the block ends without an error."""
    with temporary_folder(PREFIX) as folder:
        if is_file:
            yield folder / target.name
            target.replace_by_file(folder / target.name)
        else:
            yield folder
            target.replace_by(folder)


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
            target.replace_by(building)
    except Exception as error:
        error.add_note(f"What is in {local} is meant for {target}.")
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
            if "/" not in name and not name.startswith("."):
                (source / name).copy_to(folder / name)
        try:
            yield folder
        except Exception as error:
            error.add_note(f"{folder} was a copy of {source}.")
            raise
