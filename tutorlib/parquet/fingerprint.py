"""The metadata by which a later process recognizes a data set."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from tutorlib.parquet.files import ParquetFiles
from tutorlib.parquet.tables import IN_MEMORY
from tutorlib.parquet.types import RowGroup


def fingerprint_of(
    stored: ParquetFiles,
    row_groups: Sequence[RowGroup],
    column_types: Mapping[str, tuple[str, bool]],
    filters: str | None,
) -> dict[str, Any]:
    """Return metadata, as JSON values, that is equal for the same data set, also when moved.

    Footers tell files apart, and all values tell rows in memory apart, which change easily.
    """
    names = _names(stored)
    keys = [sorted(file.keys.items()) for file in stored.files]
    groups = [(group.file, group.index, group.num_rows) for group in row_groups]
    return {
        "files": len(stored.files),
        "row_groups": len(row_groups),
        "rows": sum(group.num_rows for group in row_groups),
        "column_types": _hash(sorted(column_types.items())),
        "row_counts": _hash(groups),
        "file_names": _hash([names, keys]),
        "file_sizes": _hash([file.size for file in stored.files]),
        "footers": stored.hash_of_footers,
        "filters": filters,
        **({"content": stored.hash_of_content} if IN_MEMORY in stored.paths else {}),
    }


def fingerprints_of_files(stored: ParquetFiles) -> dict[str, str]:
    """Return {name of a file: hash of its size and footer}, to tell which one differs."""
    parts = zip(_names(stored), stored.files, stored.footer_bytes(), strict=True)
    return {name: _hash([file.size, bytes(footer)]) for name, file, footer in parts}


def _names(stored: ParquetFiles) -> list[str]:
    """Return the paths of the files without the folders that all have in common."""
    parts = [PurePath(path).parts for path in stored.paths]
    levels = zip(*(folders[:-1] for folders in parts), strict=False)
    common = len(list(itertools.takewhile(lambda names: len(set(names)) == 1, levels)))
    return ["/".join(folders[common:]) for folders in parts]


def _hash(metadata: Any) -> str:
    return hashlib.sha256(repr(metadata).encode()).hexdigest()[:16]
