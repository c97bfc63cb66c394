"""RetryingS3: pyarrow's S3 filesystem, which tries each request five times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyarrow import fs

TRIES = 5  # of a request


class RetryingS3(fs.S3FileSystem):
    """S3 with five tries of each request, with random waits of up to 1, 2, 4 and 8 seconds between.

    pyarrow gives a pickled copy its default of three tries; a copy of this one has five, too.

    Args:
        settings: keyword arguments of `pyarrow.fs.S3FileSystem`.

    Attributes:
        tries: of a request.
    """

    tries = TRIES

    def __init__(self, settings: Mapping[str, Any]) -> None:
        retry = fs.AwsStandardS3RetryStrategy(max_attempts=TRIES)
        super().__init__(**settings, retry_strategy=retry)

    def __reduce__(self) -> Any:
        _, arguments = super().__reduce__()
        return RetryingS3, arguments

    @classmethod
    def of_url(cls, url: str) -> RetryingS3:
        """Return the filesystem of a URL such as `s3://bucket?endpoint_override=host:port`."""
        _, (settings,) = fs.FileSystem.from_uri(url)[0].__reduce__()
        return cls(settings)
