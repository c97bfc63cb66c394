"""split_rows: training and validation rows of one source, in order of the rows or at random.

Each part is a `RowSource`, so that `Workflow.fit` learns from the training rows only and
`Workflow.transform_to_parquet` writes each part. To split by the values of a column, give two
sources with filters: `ParquetSource(paths, filters=[("day", "<", 6)])` and its counterpart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tutorlib.checks import check_integer
from tutorlib.columns import Chunk
from tutorlib.hashing import hash_integers
from tutorlib.parquet import ParquetSource, RowGroup, RowRange
from tutorlib.workflow.fit import ColumnType, RowSource, as_source, input_paths, read_range

HASHES = 2**64  # number of different hashes


def split_rows(
    data: Any, shares: Mapping[str, float], seed: int | None = None
) -> dict[str, ParquetSource | SourceRows]:
    """Return {name: its rows of `data`}: each row is in exactly one part, in the original order.

    Args:
        data: what `Workflow.fit` takes.
        shares: {name: share of the rows}, each above 0, together 1.
        seed: None cuts the rows in order, exact to a row: the first name gets the first rows, which
            is a split by time where rows are in time order. An integer in [0, 2**63) draws each row
            by a hash of the seed and the row's number. Then a part has about
            `sqrt(share * num_rows)` rows more or less than its share, and a row is in the same part
            on every machine.

    Returns:
        A source for each name, which `Workflow` and `KerasSequenceLoader` take: a `ParquetSource`
        of files and tables, `SourceRows` of other sources. Nothing is copied.

    Raises:
        ValueError: if the shares do not add up to 1, a share is not above 0, or a part has no row.
        TypeError: if the shares have no names.

    Random parts also shuffle a data set that does not fit into memory, however it is sorted:

        parts = split_rows(source, {f"part_{n}": 1 / 8 for n in range(8)}, seed=0)
        workflow.transform_to_parquet(parts, "shuffled", shuffle_seed=0)

    Choose so many parts that one has at most `rows_per_file` rows: it is then shuffled as a whole.
    Each part reads all row groups. 4 million rows sorted by label in one row group, in 4 parts:
    a batch of 4,096 rows is worth 3,800 random rows (`shuffle_quality`), 20 without the parts, and
    writing takes 2.5 s instead of 1.0 s.

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
    if seed is not None:
        seed = check_integer("seed", seed, at_least=0, bits=63)
    if abs(sum(shares.values()) - 1) > 1e-9 or not all(share > 0 for share in shares.values()):
        raise ValueError(f"shares must be above 0 and add up to 1, got {dict(shares)}")
    ends = np.cumsum(list(shares.values()))[:-1].tolist()
    if seed is None:
        bounds = [0, *(round(end * source.num_rows) for end in ends), source.num_rows]
    else:
        bounds = [0, *(int(end * HASHES) for end in ends), HASHES]
    bounds_of = zip(shares, bounds[:-1], bounds[1:], strict=True)
    parts = {name: _part(source, RowShare(low, high, seed)) for name, low, high in bounds_of}
    for name, part in parts.items():
        if part.num_rows == 0:
            raise ValueError(
                f"the share {shares[name]} of {name!r} gives it none of the {source.num_rows} rows"
            )
    return parts


def _part(source: RowSource, share: RowShare) -> ParquetSource | SourceRows:
    if isinstance(source, ParquetSource):
        return source.choose(share)
    return SourceRows(source, share)


@dataclasses.dataclass(frozen=True)
class RowShare:
    """Rows of which the number, or its hash if there is a seed, is in [low, high)."""

    low: int
    high: int
    seed: int | None

    @property
    def identity(self) -> str:
        """Text that two shares have in common only if they are equal."""
        return f"split {self.low} {self.high} {self.seed}"

    def __call__(self, first: int, rows: int) -> range | np.ndarray:
        """Return which of the rows first, ..., first + rows - 1 belong to it, as numbers from 0."""
        if self.seed is None:
            return range(max(0, self.low - first), max(0, min(rows, self.high - first)))
        start = int(hash_integers(np.array([self.seed]))[0])
        numbers = np.arange(first, first + rows, dtype=np.uint64) + np.uint64(start)
        hashes = hash_integers(numbers)
        chosen = hashes >= np.uint64(self.low)
        if self.high < HASHES:
            chosen &= hashes < np.uint64(self.high)
        return np.flatnonzero(chosen)


class SourceRows:
    """Some rows of a source that is not a `ParquetSource`, as a `RowSource`; by `split_rows`.

    Args:
        source: all rows.
        share: which rows.
    """

    def __init__(self, source: RowSource, share: RowShare) -> None:
        self.source, self._share = source, share
        self.paths = input_paths(source)
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
    def column_types(self) -> Mapping[str, ColumnType]:
        """As in `RowSource`."""
        return self.source.column_types

    @property
    def files(self) -> Sequence[str]:
        """As in `RowSource`."""
        return self.source.files

    def _rows_in(self, position: int) -> range | np.ndarray:
        return self._share(self._first_rows[position], self.source.row_groups[position].num_rows)

    def read(
        self, position: int, columns: Sequence[str] | None = None, start: int = 0,
        stop: int | None = None,
    ) -> Chunk:  # fmt: skip
        """Return rows [start, stop) of the chosen rows of a row group; None means all."""
        position = self._positions[position]
        names = list(self.column_types) if columns is None else columns
        rows = self._rows_in(position)[start:stop]
        first, last = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        chunk = read_range(self.source, RowRange(position, first, last), names)
        return chunk if isinstance(rows, range) else chunk.take(rows - first)

    def location(self, position: int) -> str:
        """Return what the source calls a row group in error messages."""
        return self.source.location(self._positions[position])

    def fingerprint(self) -> dict[str, Any] | None:
        """Return the fingerprint of the source and which rows are chosen; None if it has none."""
        metadata = self.source.fingerprint()
        if metadata is None:
            return None
        return {**metadata, "splits": [*metadata.get("splits", []), self._share.identity]}
