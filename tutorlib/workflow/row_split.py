"""Which rows train and which validate: parts of a source that are sources themselves.

What `split_rows` gives can be handed to `Workflow.fit` and `Workflow.transform_to_parquet` in place
of the whole, so that nothing is learned from rows that validate. A split by the values of a column
needs nothing of this: `ParquetSource(paths, filters=[("day", "<", 6)])` and its counterpart.
Does not belong here: reading (`parquet.py`), what is done to rows (`workflow.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tutorlib.chunk import Chunk
from tutorlib.hashing import hash_integers
from tutorlib.parquet import RowGroup, RowRange
from tutorlib.workflow.inputs import as_source, read

_LARGEST = 2**64


def split_rows(
    data: Any, shares: Mapping[str, float], seed: int | None = None
) -> dict[str, SourceRows]:
    """Return {name: rows of `data`}; each row is in exactly one, and keeps its place in the order.

    Args:
        data: as for `Workflow.fit`.
        shares: {name: share of the rows}, which add up to 1.
        seed: None gives the first rows to the first name, and so on: a split by time where rows
            stand in time order, exact to a row. A number draws by a hash of the seed and the
            number of the row: the shares are met up to chance (for n rows about
            `sqrt(share * n)` rows off), and a row falls to the same name on every machine.

    Returns:
        Sources, of which parts are read as of the whole.

    Raises:
        ValueError: if the shares do not add up to 1, or one is not above 0, or gets no row.
        TypeError: if the shares have no names.

    Example:
        >>> rows = Chunk({"x": np.arange(10)})
        >>> split = split_rows(rows, {"train": 0.8, "valid": 0.2})
        >>> split["valid"].read(0, ["x"])["x"].tolist()
        [8, 9]
        >>> split = split_rows(rows, {"train": 0.8, "valid": 0.2}, seed=1)
        >>> split["valid"].read(0, ["x"])["x"].tolist()
        [4]
    """
    source = as_source(data)
    if not isinstance(shares, Mapping):
        raise TypeError(f"shares takes {{name: share}}, got {shares!r}")
    if not (seed is None or (isinstance(seed, int) and 0 <= seed < 2**63)):
        raise ValueError(f"seed must be an integer from 0 to 2**63 - 1, or None, got {seed!r}")
    if abs(sum(shares.values()) - 1) > 1e-9 or not all(share > 0 for share in shares.values()):
        raise ValueError(f"shares must be above 0 and add up to 1, got {dict(shares)}")
    ends = np.cumsum(list(shares.values()))
    if seed is None:
        bounds = [0, *(round(end * source.num_rows) for end in ends[:-1].tolist()), source.num_rows]
    else:
        bounds = [0, *(int(end * _LARGEST) for end in ends[:-1].tolist()), _LARGEST]
    row_ranges = {
        name: SourceRows(source, low, high, seed)
        for name, low, high in zip(shares, bounds, bounds[1:], strict=False)
    }
    for name, row_range in row_ranges.items():
        if row_range.num_rows == 0:
            raise ValueError(
                f"the share {shares[name]} of {source.num_rows} rows gives none to {name!r}"
            )
    return row_ranges


class SourceRows:
    """Some rows of a source, for a Workflow to learn from or to write; made by `split_rows`.

    Args:
        source: all rows.
        low: first row, or with a seed the lowest hash.
        high: row behind the last, or with a seed what all hashes are below.
        seed: of the hash.

    Attributes:
        row_groups, num_rows: those of the source, with the rows that are left of them.
    """

    def __init__(self, source: Any, low: int, high: int, seed: int | None) -> None:
        self.source, self.low, self.high, self.seed = source, low, high, seed
        counts = [group.num_rows for group in source.row_groups]
        self._first_rows = np.cumsum([0, *counts])[:-1].tolist()
        self._positions: list[int] = []
        self.row_groups: list[RowGroup] = []
        for position, group in enumerate(source.row_groups):
            if rows := len(self._rows_in(position)):
                self._positions.append(position)
                self.row_groups.append(RowGroup(group.file, group.index, rows))
        self.num_rows = sum(group.num_rows for group in self.row_groups)

    def __len__(self) -> int:
        return len(self.row_groups)

    def __repr__(self) -> str:
        return f"SourceRows({self.num_rows:,} of the {self.source.num_rows:,} rows of a source)"

    @property
    def column_types(self) -> dict[str, tuple[str, bool]]:
        """Those of the source."""
        return self.source.column_types

    def _rows_in(self, position: int) -> Any:
        """Return the rows of a row group that are left, rising: a range or an array."""
        first, rows = self._first_rows[position], self.source.row_groups[position].num_rows
        if self.seed is None:
            return range(max(0, self.low - first), max(0, min(rows, self.high - first)))
        start = int(hash_integers(np.array([self.seed]))[0])
        numbers = np.arange(first, first + rows, dtype=np.uint64) + np.uint64(start)
        hashes = hash_integers(numbers)
        passes = hashes >= np.uint64(self.low)
        if self.high < _LARGEST:
            passes &= hashes < np.uint64(self.high)
        return np.flatnonzero(passes)

    def read(
        self, position: int, columns: Sequence[str] | None = None, start: int = 0,
        stop: int | None = None,
    ) -> Chunk:  # fmt: skip
        """Return rows [start, stop) of those that are left of a row group."""
        position = self._positions[position]
        names = list(self.column_types) if columns is None else columns
        rows = self._rows_in(position)[start:stop]
        first, last = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        chunk = read(self.source, RowRange(position, first, last), names)
        return chunk if isinstance(rows, range) else chunk.take(np.asarray(rows) - first)

    def location(self, position: int) -> str:
        """Return words for where a row group stands, for an error message."""
        return self.source.location(self._positions[position])

    def fingerprint(self) -> dict[str, Any] | None:
        """Return the facts of the source, and which rows are taken; None if it has none."""
        metadata = self.source.fingerprint()
        if metadata is None:
            return None
        return {**metadata, "split": [self.low, self.high, self.seed]}

    def close(self) -> None:
        """Close what the source keeps open."""
        if hasattr(self.source, "close"):
            self.source.close()
