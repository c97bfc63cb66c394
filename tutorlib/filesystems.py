"""Filesystems of paths and URLs, and what a reader refuses there.

pyarrow reads `s3://`, `gs://` and `abfs://` itself, on threads that hold no interpreter lock; other
URLs go through fsspec.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterator
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


@functools.lru_cache(maxsize=32)
def _opened_store(url: str, variables: tuple[tuple[str, str], ...]) -> tuple[fs.FileSystem, str]:
    """Return (filesystem, name of the bucket), with the open connections of an earlier call."""
    return fs.FileSystem.from_uri(url)


def as_arrow_filesystem(filesystem: Any) -> fs.FileSystem:
    """Return a filesystem of pyarrow or fsspec as one of pyarrow.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(filesystem, fs.FileSystem):
        return filesystem
    kinds = [kind.__module__ for kind in type(filesystem).__mro__]
    if "fsspec.spec" not in kinds:
        got = f"{type(filesystem).__module__}.{type(filesystem).__qualname__}"
        raise TypeError(f"filesystem must be of pyarrow.fs or an fsspec filesystem, got a {got}")
    is_local = "fsspec.implementations.local" in kinds
    return fs.LocalFileSystem() if is_local else fs.PyFileSystem(fs.FSSpecHandler(filesystem))


def find_filesystem(text: str, filesystem: Any = None) -> tuple[fs.FileSystem, str, str]:
    """Return (filesystem, path within it, the URL's text before that path) of a path or URL.

    Args:
        text: path or URL; of S3, `?endpoint_override=host:port&scheme=http&region=...` may follow.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds the path; None takes it from a URL.

    Raises:
        ImportError: if a URL needs fsspec or one of its drivers that is not installed.
        OSError: if an object store cannot be reached, or refuses the credentials.
    """
    scheme, mark, rest = text.partition("://")
    if filesystem is not None:
        where = as_arrow_filesystem(filesystem)
        prefix = f"{scheme}://" if mark and scheme in ARROW_SCHEMES else ""
        inner = text.removeprefix(prefix)
        handler = getattr(where, "handler", None)
        if isinstance(handler, fs.FSSpecHandler):  # as it is in listings
            inner = handler.fs._strip_protocol(inner)
        if isinstance(where, fs.LocalFileSystem):
            inner = os.path.expanduser(inner)
        return where, inner, prefix
    if not mark and URL.match(text) and not os.path.exists(text):
        raise ValueError(f"{shown(text)} is a URL that lost a slash in a Path. Give it as text.")
    if not mark or scheme == "file":
        return fs.LocalFileSystem(), unquote(rest) if mark else os.path.expanduser(text), ""
    if scheme in ARROW_SCHEMES:
        path, _, options = rest.partition("?")
        bucket, _, key = path.partition("/")
        variables = tuple((n, v) for n, v in sorted(os.environ.items()) if n.startswith("AWS_"))
        with store_errors(shown(f"{scheme}://{path}")):
            where, base = _opened_store(f"{scheme}://{bucket}?{options}".rstrip("?"), variables)
        return where, f"{base.rstrip('/')}/{key}" if key else base, f"{scheme}://"
    try:
        import fsspec

        found, inner = fsspec.core.url_to_fs(text)
    except (ImportError, ValueError) as error:
        raise ImportError(
            f"{shown(text)}: reading {scheme}:// needs fsspec and its driver for it ({error}). "
            "Install them, or pass filesystem="
        ) from error
    url = found.unstrip_protocol(inner)
    return as_arrow_filesystem(found), inner, url[: url.rfind(inner)]


def before_pattern(path: str, where: fs.FileSystem) -> str:
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


def store_failure(error: BaseException) -> str:
    """Return what a request to an object store failed of, with a remedy; "" for other errors."""
    if "AWS Error" not in str(error):
        return ""
    return (
        f"the object store failed ({error}). Check endpoint and network, the bucket, and the "
        "credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws, the machine's role, or "
        "filesystem=pyarrow.fs.S3FileSystem(...)"
    )


@contextlib.contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Raise errors of an object store as OSError that says what to do."""
    try:
        yield
    except OSError as error:
        if not (failure := store_failure(error)):
            raise
        raise OSError(f"{what}: {failure}") from error


def read_text(folder: Any, name: str, filesystem: Any = None) -> str | None:
    """Return the text of a file in a folder, also of a URL; None if there is none.

    A store whose objects may be read but not listed refuses names that do not exist.
    """
    where, inner, prefix = find_filesystem(os.fspath(folder), filesystem)
    path = f"{inner.rstrip('/')}/{name}"
    try:
        with store_errors(shown(prefix + path)):
            if where.get_file_info(path).type != fs.FileType.File:
                return None
            with where.open_input_stream(path) as opened:
                return opened.read().decode()
    except OSError as error:
        if "ACCESS_DENIED" not in str(error):
            raise
        return None
