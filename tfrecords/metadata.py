"""What a folder of one of the three forms holds: `tfrecords.json` and the files it describes."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tutorlib.schema import Schema

METADATA_FILE = "tfrecords.json"
RECORDS_ENDING = ".tfrecord"
CELLS_FILE = "cells.bin"
CELL_BYTES = 4

Folder = str | os.PathLike[str]
Files = Folder | Sequence[Folder]


def read_metadata(folder: Folder) -> dict[str, Any]:
    """Return the metadata that a writer left in a folder.

    Args:
        folder: folder that one of the writers wrote.

    Returns:
        {"form": one of the three, "rows": int, "files": int, "nbytes": int,
        "columns": {name: [dtype of a value, whether a row holds a list]}}, and
        "batch_size" for "prebatched".

    Raises:
        FileNotFoundError: if the folder does not exist or no writer of this package wrote it.
        ValueError: if the file was changed.

    Example:
        >>> import tempfile
        >>> from tfrecords import write_raw
        >>> from tutorlib import Chunk
        >>> folder = tempfile.mkdtemp() + "/raw"
        >>> _ = write_raw(Chunk({"x": np.arange(5)}), folder)
        >>> read_metadata(folder)["rows"], read_metadata(folder)["columns"]
        (5, {'x': ['int64', False]})
    """
    path = Path(folder) / METADATA_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist: {folder} was not written by write_examples, "
            "write_prebatched or write_raw"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        metadata, intact = content["metadata"], digest(content["metadata"]) == content["sha256"]
    except (ValueError, TypeError, KeyError, RecursionError):
        intact = False
    if not intact:
        raise ValueError(f"{path} was changed. Write the folder again with overwrite=True.")
    return metadata


def digest(metadata: Any) -> str:
    """Return the SHA-256 of metadata in hex."""
    return hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()


def metadata_of(folder: Folder, form: str, schema: Schema) -> dict[str, Any]:
    """Return the metadata of a folder; refuse another form and missing columns."""
    metadata = read_metadata(folder)
    if metadata["form"] != form:
        raise ValueError(
            f"{folder} holds the form {metadata['form']!r}, not {form!r}. Write it with "
            f"write_{form}, or take a reader of the form that it has."
        )
    missing = [name for name in schema.names if name not in metadata["columns"]]
    if missing:
        raise ValueError(
            f"{folder} lacks columns {missing}; it has {list(metadata['columns'])}. Write it with "
            "these columns, or leave them out of the schema."
        )
    return metadata


def record_files(files: Files, form: str, schema: Schema) -> list[str]:
    """Return the paths of TFRecord files; a folder must have the form and columns."""
    if isinstance(files, str | os.PathLike):
        if os.path.isdir(files):
            metadata_of(files, form, schema)
            return sorted(str(path) for path in Path(files).glob(f"*{RECORDS_ENDING}"))
        files = [files]
    found = [path for pattern in files for path in sorted(glob.glob(os.fspath(pattern)))]
    if not found:
        raise FileNotFoundError(f"no TFRecord file at {[os.fspath(pattern) for pattern in files]}")
    return found


def cells_file(folder: Folder, metadata: Mapping[str, Any]) -> str:
    """Return the path of a folder's cells; refuse a file of another length than was written."""
    path = Path(folder) / CELLS_FILE
    rows, width = metadata["rows"], len(metadata["columns"])
    nbytes, expected = path.stat().st_size, rows * width * CELL_BYTES
    if nbytes != expected:
        raise ValueError(
            f"{path} has {nbytes} bytes, but {rows} rows of {width} cells are {expected}: it was "
            "changed or cut off. Write it again with overwrite=True."
        )
    return str(path)


def stored_dtype(dtype: Any) -> np.dtype:
    """Return the dtype of a column in a prebatched record: int32, int64 or float32."""
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return np.dtype("<f4")
    return np.dtype("<i4" if dtype.itemsize < 4 or dtype == np.int32 else "<i8")


def cell_dtype(dtype: Any) -> np.dtype:
    """Return the dtype of a column in raw cells: int32 or float32."""
    return np.dtype("<f4" if np.dtype(dtype).kind == "f" else "<i4")
