"""`split_rows`: sources of training and validation rows, by order, at random or by group."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tutorlib.checks import check_integer
from tutorlib.columns import valid_of, values_of
from tutorlib.hashing import hash_integers, hash_values
from tutorlib.parquet import ParquetSource
from tutorlib.workflow.fit import as_source

HASHES = 2**64  # number of different hashes


def split_rows(
    data: Any,
    shares: Mapping[str, float],
    seed: int | None = None,
    by: str | Sequence[str] | None = None,
) -> dict[str, ParquetSource]:
    """Return {name: its rows of `data`}: each row is in exactly one part, in the original order.

    Parts of one call can be added, which gives the rows of both. Of rows that are sorted by label,
    a part without a seed may have only one label.

    Args:
        data: a `ParquetSource`, or what it takes, such as paths, a DataFrame or a `Chunk`. To split
            by the values of a column, use two sources with filters instead:
            `ParquetSource(paths, filters=[("day", "<", 6)])` and its counterpart.
        shares: {name: share of the rows}, each above 0, together 1.
        seed: None cuts the rows in order, exact to a row: the first name gets the first rows, which
            is a split by time where rows are in time order. An integer in [0, 2**63) draws each row
            by a hash of the seed and the row's number. Then a part has about
            `sqrt(share * num_rows)` rows more or less than its share, and a row is in the same part
            on every machine.
        by: columns of integers or strings, for a split by group: rows with equal values,
            such as all rows of a user, are in one part, which a hash of seed (0 if it is None) and
            values draws. The columns are read once; an eighth of a byte is kept for each row and
            part. A part has about its share of the groups: of the rows too if no group is large.

    Returns:
        A source for each name, which `Workflow` and `KerasSequenceLoader` take.

    Raises:
        ValueError: if the shares do not add up to 1, a share is not above 0, or a part has no row.
        TypeError: if the shares have no names, or a column of `by` has another type.
        ParquetError: if there is no such column.

    Five-fold cross-validation::

        folds = split_rows(source, {f"fold_{n}": 1 / 5 for n in range(5)}, seed=0)
        for name, valid in folds.items():
            train = sum(fold for other, fold in folds.items() if other != name)

    By group, and by time::

        parts = split_rows(source, {"train": 0.8, "valid": 0.2}, by="user")
        train = ParquetSource(paths, filters=[("time", "<", datetime(2024, 6, 1))])
        valid = ParquetSource(paths, filters=[("time", ">=", datetime(2024, 6, 1))])

    Random parts also shuffle a data set that does not fit into memory, however it is sorted::

        parts = split_rows(source, {f"part_{n}": 1 / 8 for n in range(8)}, seed=0)
        workflow.transform_to_parquet(parts, "shuffled", shuffle_seed=0)

    Choose so many parts that one has at most `rows_per_file` rows: it is then shuffled as a whole.
    Each part reads all row groups. 4 million rows sorted by label in one row group, in 4 parts:
    a batch of 4,096 rows is worth 3,800 random rows, 20 without the parts, and
    writing takes 2.5 s instead of 1.0 s.

    Example:
        >>> from tutorlib.columns import Chunk
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
    if abs(sum(shares.values()) - 1) > 1e-9 or not all(share > 0 for share in shares.values()):
        raise ValueError(f"shares must be above 0 and add up to 1, got {dict(shares)}")
    if seed is not None:
        seed = check_integer("seed", seed, at_least=0, bits=63)
    names = [by] if isinstance(by, str) else list(by or ())
    if names:
        seed = seed or 0
        hashes = _hashes_of_groups(source, names, seed)
    size = source.num_rows if seed is None else HASHES
    parts = {}
    low = 0
    end = 0.0
    for place, (name, share) in enumerate(shares.items(), 1):
        end += share
        high = round(end * size) if seed is None else int(end * size)
        rows = RowShare(low, size if place == len(shares) else high, seed)
        if names:
            bits = {first: np.packbits(rows.of_hashes(some)) for first, some in hashes.items()}
            parts[name] = source.choose(GroupShare(rows, tuple(names), bits))
        else:
            parts[name] = source.choose(rows)
        if parts[name].num_rows == 0:
            raise ValueError(
                f"the share {share} of {name!r} gives it none of the {source.num_rows} rows"
            )
        low = high
    return parts


def _hashes_of_groups(
    source: ParquetSource, names: Sequence[str], seed: int
) -> dict[int, np.ndarray]:
    """Return {number of the first row of a row group: hash of seed and values of each row}."""
    hashes = {}
    first = 0
    for position, group in enumerate(source.row_groups):
        chunk = source.read(position, names)
        total = hash_integers(np.full(group.num_rows, seed))
        for name in names:
            kind, is_list = source.column_types[name]
            if is_list or kind.rstrip("0123456789") not in ("bool", "int", "uint", "string"):
                raise TypeError(
                    f"by takes columns of integers or strings, got {name!r} of "
                    f"{'lists of ' * is_list}{kind}. Add a column of one of these to the data"
                )
            values = hash_values(values_of(chunk[name]))
            valid = valid_of(chunk[name])
            if valid is not None:
                values[~valid] = np.uint64(0)
            total = hash_integers(total ^ values)
        hashes[first] = total
        first += group.num_rows
    return hashes


@dataclasses.dataclass(frozen=True)
class RowShare:
    """Rows of which the number, or its hash if there is a seed, is in [low, high)."""

    low: int
    high: int
    seed: int | None

    def __call__(self, first: int, rows: int) -> range | np.ndarray:
        """Return which of the rows first, ..., first + rows - 1 belong to it, as numbers from 0."""
        if self.seed is None:
            return range(max(0, self.low - first), max(0, min(rows, self.high - first)))
        start = hash_integers(np.array([self.seed]))
        numbers = np.arange(first, first + rows, dtype=np.uint64)
        return np.flatnonzero(self.of_hashes(hash_integers(numbers + start)))

    def of_hashes(self, hashes: np.ndarray) -> np.ndarray:
        """Return which hashes are in [low, high), bool [n]."""
        return (hashes >= np.uint64(self.low)) & (hashes <= np.uint64(self.high - 1))


@dataclasses.dataclass(frozen=True)
class GroupShare:
    """Rows whose hash of the values of some columns is in a share."""

    share: RowShare
    names: tuple[str, ...]
    bits: Mapping[int, np.ndarray] = dataclasses.field(repr=False)
    """{number of the first row of a row group: packed bits}"""

    def __call__(self, first: int, rows: int) -> np.ndarray:
        """Return which of the rows of a row group belong to it, as numbers from 0."""
        return np.flatnonzero(np.unpackbits(self.bits[first], count=rows))
