"""The filesystem of a path or URL: this machine's, pyarrow's, or one of fsspec behind pyarrow.

pyarrow reads `s3://`, `gs://` and `abfs://` itself, on threads that hold no interpreter lock.
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
REFUSED = re.compile("ACCESS_DENIED|ACCESS_KEY|SIGNATURE|TOKEN|CREDENTIALS|HTTP status 40[013]")
UNKNOWN = re.compile("HTTP status 404|NO_SUCH|RESOURCE_NOT_FOUND")
SECRETS = re.compile("(?<=://)[^/]*@")


def shown(url: str) -> str:
    """Return a URL without the secrets before its bucket or host, as messages show it.

    Example:
        >>> shown("s3://KEY:SECRET@bucket/train")
        's3://bucket/train'
    """
    return SECRETS.sub("", url)


def as_arrow_filesystem(filesystem: Any) -> fs.FileSystem:
    """Return a filesystem of pyarrow or fsspec as one of pyarrow.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(filesystem, fs.FileSystem):
        return filesystem
    try:
        import fsspec
        from fsspec.implementations.local import LocalFileSystem
    except ImportError:
        fsspec = None
    if fsspec is None or not isinstance(filesystem, fsspec.AbstractFileSystem):
        raise TypeError(
            "filesystem must be one of pyarrow.fs or fsspec, got "
            f"{type(filesystem).__module__}.{type(filesystem).__qualname__}"
        )
    if isinstance(filesystem, LocalFileSystem):
        return fs.LocalFileSystem()
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem))


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
    known = mark and "/" not in scheme
    if filesystem is not None:
        where = as_arrow_filesystem(filesystem)
        in_store = known and scheme in ARROW_SCHEMES
        inner, prefix = (rest, f"{scheme}://") if in_store else (text, "")
        handler = getattr(where, "handler", None)
        if isinstance(handler, fs.FSSpecHandler):  # as it is in listings
            inner = handler.fs._strip_protocol(inner)
        return where, inner, prefix
    if not known:
        return fs.LocalFileSystem(), text, ""
    if scheme == "file":
        return fs.LocalFileSystem(), unquote(rest), ""
    if scheme == "s3":
        path, _, options = rest.partition("?")
        bucket, mark, key = path.partition("/")
        variables = tuple((n, v) for n, v in sorted(os.environ.items()) if n.startswith("AWS_"))
        with store_errors(shown(f"s3://{path}")):
            s3 = _s3(f"s3://{bucket}?{options}".rstrip("?"), variables)
        return s3, bucket.rpartition("@")[2] + mark + key, "s3://"
    if scheme in ARROW_SCHEMES:
        path, _, options = rest.partition("?")
        head = before_pattern(path)
        where, inner = fs.FileSystem.from_uri(f"{scheme}://{head}?{options}".rstrip("?"))
        return where, inner + path[len(head) :], f"{scheme}://"
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


@functools.lru_cache(maxsize=32)
def _s3(url: str, variables: tuple[tuple[str, str], ...]) -> fs.FileSystem:
    """Return the filesystem of a bucket, with its open connections if it was asked for before."""
    from tutorlib.storage.s3 import RetryingS3

    return RetryingS3.of_url(url)


def before_pattern(path: str) -> str:
    """Return the folder before the first pattern in a path; the path if it has no pattern."""
    head = re.split(r"[*?\[]", path, maxsplit=1)[0]
    return path if head == path else head.rpartition("/")[0]


def etag_of(opened: Any) -> bytes | None:
    """Return the entity tag of an open `pyarrow.NativeFile`; None outside object stores."""
    return opened.metadata().get("ETag")


def store_failure(error: BaseException, filesystem: Any = None) -> str:
    """Return what a request to an object store failed of, with a remedy; "" for other errors.

    Args:
        error: what pyarrow raised.
        filesystem: on which; None if it is not known.
    """
    text = str(error)
    if "AWS Error" not in text:
        return ""
    if REFUSED.search(text):
        remedy = (
            "Check the credentials and what they may do: AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, ~/.aws, the machine's role, or "
            "filesystem=pyarrow.fs.S3FileSystem(...)"
        )
        return f"the object store refuses it ({text}). {remedy}"
    if UNKNOWN.search(text):
        return f"there is no such bucket or object ({text}). Check its name, and make the bucket"
    tries = f" after {filesystem.tries} tries" if hasattr(filesystem, "tries") else ""
    return f"the object store failed{tries} ({text}). Check endpoint and network, then run it again"


@contextlib.contextmanager
def store_errors(what: str, filesystem: Any = None) -> Iterator[None]:
    """Raise errors of an object store as OSError that says what to do."""
    try:
        yield
    except OSError as error:
        if not (failure := store_failure(error, filesystem)):
            raise
        kind = PermissionError if REFUSED.search(str(error)) else OSError
        raise kind(f"{what}: {failure}") from error
