"""What is in a folder that this package wrote: a JSON file of facts, and the files themselves.

Does not belong here: writing (`writing.py`), reading rows (`readers.py`, `raw_readers.py`).
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tutorlib.schema import Schema

METADATA_FILE = "tfrecords.json"
ENDING = ".tfrecord"
CELLS_FILE = "cells.bin"
CELL_BYTES = 4
EXAMPLES, PREBATCHED, RAW, RAW_BATCHES = "examples", "prebatched", "raw", "raw_batches"


def read_metadata(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a folder of this package holds: form, rows, files, nbytes, columns, batch_size.

    Args:
        folder: that one of the writers wrote.

    Returns:
        {"form", "rows", "files", "nbytes", "columns": {name: [type of a value, whether lists]}},
        and "batch_size" where the form has one.

    Raises:
        FileNotFoundError: if the folder is not there or was not written by this package.

    Example:
        >>> import tempfile
        >>> from tutorlib import Chunk, write_raw
        >>> folder = tempfile.mkdtemp() + "/raw"
        >>> _ = write_raw(Chunk({"x": np.arange(5)}), folder)
        >>> read_metadata(folder)["rows"], read_metadata(folder)["columns"]
        (5, {'x': ['int64', False]})
    """
    path = Path(folder) / METADATA_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: {folder} was not written by write_examples, write_prebatched, "
            "write_raw or write_raw_batches"
        )
    return json.loads(path.read_text(encoding="utf-8"))


def metadata_of(folder: str | os.PathLike[str], form: str, schema: Schema) -> dict[str, Any]:
    """Return the facts of a folder that must have this form and the columns of the schema.

    Raises:
        FileNotFoundError: as `read_metadata` does.
        ValueError: if it has another form, or lacks columns.
    """
    metadata = read_metadata(folder)
    if metadata["form"] != form:
        raise ValueError(f"{folder} holds the form {metadata['form']!r}, not {form!r}")
    missing = [name for name in schema.names if name not in metadata["columns"]]
    if missing:
        raise ValueError(f"{folder} lacks columns {missing}; it has {list(metadata['columns'])}")
    return metadata


def record_files(files: Any, form: str, schema: Schema) -> list[str]:
    """Return the TFRecord files that `files` means, checked against the schema if a folder.

    Args:
        files: folder, TFRecord file, glob pattern, or list of files and patterns.
        form: that the folder must have.
        schema: columns that it must have.

    Raises:
        FileNotFoundError: if no file is there.
        ValueError: as `metadata_of` does.
    """
    if isinstance(files, (str, os.PathLike)) and os.path.isdir(files):
        metadata_of(files, form, schema)
        return sorted(str(path) for path in Path(files).glob(f"*{ENDING}"))
    patterns = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    found = [path for item in patterns for path in sorted(glob.glob(os.fspath(item)))]
    if not found:
        raise FileNotFoundError(f"no TFRecord file at {files!r}")
    return found


def cells_file(folder: str | os.PathLike[str], metadata: Mapping[str, Any]) -> str:
    """Return the path of the raw cells, which must be as long as the facts say.

    Raises:
        ValueError: if the file has another length.
    """
    path = Path(folder) / CELLS_FILE
    wanted = metadata["rows"] * len(metadata["columns"]) * CELL_BYTES
    nbytes = path.stat().st_size
    if nbytes != wanted:
        raise ValueError(
            f"{path} has {nbytes} bytes, but {metadata['rows']} rows of "
            f"{len(metadata['columns'])} cells are {wanted}: it was changed or "
            "cut off. Write it again with overwrite=True."
        )
    return str(path)


def stored_dtype(dtype: Any) -> np.dtype:
    """Return the dtype of a column in a prebatched record: int32, int64 or float32.

    Example:
        >>> stored_dtype("int8"), stored_dtype("uint32"), stored_dtype("float64")
        (dtype('int32'), dtype('int64'), dtype('float32'))
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return np.dtype("<f4")
    return np.dtype("<i4" if dtype.itemsize < 4 or dtype == np.int32 else "<i8")


def cell_dtype(dtype: Any) -> np.dtype:
    """Return the dtype of a column in raw cells: int32 or float32.

    Example:
        >>> cell_dtype("int64"), cell_dtype("float64")
        (dtype('int32'), dtype('float32'))
    """
    return np.dtype("<f4" if np.dtype(dtype).kind == "f" else "<i4")
