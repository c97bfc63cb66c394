"""Filesystems of paths and URLs.

pyarrow reads `s3://`, `gs://` and `abfs://` itself, on threads that hold no interpreter lock; other
URLs go through fsspec.
"""

from __future__ import annotations

import functools
import os
import re
from typing import Any
from urllib.parse import unquote

from pyarrow import fs

ARROW_SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs")  # read by pyarrow, without fsspec
URL = re.compile(r"[a-z][a-z0-9]+:/")  # `Path` leaves one of the two slashes
SECRETS = re.compile(r"(?<=\w\w:/)(/?)[^/]*@")


def shown(url: str) -> str:
    """Return a URL without the secrets before its bucket or host, as messages show it.

    Example:
        >>> shown("s3://KEY:SECRET@bucket/train"), shown("s3:/KEY:SECRET@bucket")
        ('s3://bucket/train', 's3:/bucket')
    """
    return SECRETS.sub(r"\1", url)


def find_filesystem(path: str, filesystem: Any = None) -> tuple[fs.FileSystem, str]:
    """Return (filesystem, path within it) of a path or URL.

    Args:
        path: path or URL; of S3, `?endpoint_override=host:port&scheme=http&region=...` may follow.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds the path; None takes it from a URL.

    Raises:
        ImportError: if a URL needs fsspec or one of its drivers that is not installed.
        OSError: if an object store cannot be reached, or refuses the credentials.

    Example:
        >>> find_filesystem("file:///a%20b")[1]
        '/a b'
    """
    scheme, mark, rest = path.partition("://")
    if filesystem is not None:
        where = _arrow_filesystem(filesystem)
        if isinstance(where, fs.LocalFileSystem):
            return where, os.path.expanduser(path)
        is_fsspec = isinstance(getattr(where, "handler", None), fs.FSSpecHandler)
        return where, where.handler.fs._strip_protocol(path) if is_fsspec else rest or path
    if not mark and URL.match(path) and not os.path.exists(path):
        raise ValueError(f"{shown(path)} is a URL that lost a slash in a Path. Give it as text.")
    if not mark or scheme == "file":
        return fs.LocalFileSystem(), unquote(rest) if mark else os.path.expanduser(path)
    if scheme in ARROW_SCHEMES:
        key, _, options = rest.partition("?")
        bucket, _, key = key.partition("/")
        where, base = _store(f"{scheme}://{bucket}?{options}")
        return where, f"{base.rstrip('/')}/{key}" if key else base
    try:
        import fsspec

        found, inner = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise ImportError(
            f"{shown(path)}: reading {scheme}:// needs fsspec and its driver for it ({error}). "
            "Install them, or pass filesystem="
        ) from error
    return _arrow_filesystem(found), inner


@functools.lru_cache(maxsize=32)
def _store(url: str) -> tuple[fs.FileSystem, str]:
    """Return (filesystem, name of the bucket), with the open connections of an earlier call."""
    return fs.FileSystem.from_uri(url)


def _arrow_filesystem(filesystem: Any) -> fs.FileSystem:
    """Return a filesystem of pyarrow or fsspec as one of pyarrow; TypeError for anything else."""
    if isinstance(filesystem, fs.FileSystem):
        return filesystem
    kinds = [kind.__module__ for kind in type(filesystem).__mro__]
    if "fsspec.spec" not in kinds:
        raise TypeError(
            "filesystem must be of pyarrow.fs or an fsspec filesystem, got a "
            f"{type(filesystem).__module__}.{type(filesystem).__qualname__}"
        )
    if "fsspec.implementations.local" in kinds:
        return fs.LocalFileSystem()
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem))


def read_text(folder: Any, name: str, filesystem: Any = None) -> str | None:
    """Return the text of a file in a folder, also of a URL; None if there is none.

    A store whose objects may be read but not listed refuses names that do not exist.
    """
    where, inner = find_filesystem(os.fspath(folder), filesystem)
    path = f"{inner.rstrip('/')}/{name}"
    try:
        if where.get_file_info(path).type != fs.FileType.File:
            return None
        with where.open_input_stream(path) as opened:
            return opened.read().decode()
    except OSError as error:
        if "ACCESS_DENIED" not in str(error):
            raise
        return None
