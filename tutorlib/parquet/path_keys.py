"""Columns whose values stand in the names of folders, `key=value`, as Hive and Spark write them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from tutorlib.parquet.paths import DataFile
from tutorlib.parquet.types import ParquetError


def typed_keys(files: Sequence[DataFile], stored: Sequence[str]) -> list[dict[str, pa.Scalar]]:
    """Return {name: value} of the keys in each file's path.

    A key is int64 if all its values are integers of up to 18 digits, otherwise string.

    Args:
        files: at least one.
        stored: names of the columns in the files.

    Raises:
        ParquetError: if the files differ in their keys, or a key is also a column in the files.
    """
    names = list(files[0].keys)
    for file in files:
        if set(file.keys) != set(names):
            raise ParquetError(
                f"{file.path}: its path has the keys {list(file.keys)}, but that of "
                f"{files[0].path} has {names}"
            )
    twice = sorted(set(names) & set(stored))
    if twice:
        raise ParquetError(
            f"{files[0].path}: {twice} are keys in the path and also columns in the file. Give a "
            "folder below those keys, or write the files without these columns."
        )
    values = {name: _typed([file.keys[name] for file in files]) for name in names}
    return [{name: values[name][number] for name in names} for number in range(len(files))]


def _typed(texts: Sequence[str | None]) -> pa.Array:
    if all(re.fullmatch("-?[0-9]{1,18}", text) for text in texts if text is not None):
        return pa.array([None if text is None else int(text) for text in texts], pa.int64())
    return pa.array(texts, pa.string())
