"""HashBucket, HashedCross: integers and strings become ids by their hash; nothing is learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tutorlib.checks import check_integer
from tutorlib.columns import Array, Chunk
from tutorlib.hashing import hash_values, to_buckets
from tutorlib.ops.base import ColumnOp, Op
from tutorlib.ops.shared.columns import as_ids, per_column
from tutorlib.ops.shared.keys import combination_name, combined_hashes
from tutorlib.schema import Column


class HashBucket(ColumnOp):
    """Maps integers or strings to `num_buckets` ids by their hash.

    Several values may share a bucket: of v values in b buckets, one is alone in its bucket with
    probability about exp(-v / b).

    Returns (from transform): int32 ids in [0, num_buckets); lists keep their lengths. A null gets
    bucket 0, which values have too.

    Args:
        num_buckets: buckets of each column, 1 to 2**31 - 1; or {name: buckets}.

    Raises:
        ValueError: if `num_buckets` is out of range or has no entry for a column.
        TypeError: for floating-point columns.

    Example:
        >>> import numpy as np
        >>> group = ["C1"] >> HashBucket(1000)
        >>> group.transform(Chunk({"C1": np.array([0, 1, 2, 0])}))["C1"].tolist()
        [883, 566, 591, 883]

    Source: `hash_integers`, `hash_strings` and `to_buckets` of `tutorlib.hashing`.
    """

    def __init__(self, num_buckets: int | Mapping[str, int]) -> None:
        for buckets in num_buckets.values() if isinstance(num_buckets, Mapping) else [num_buckets]:
            check_integer("HashBucket: num_buckets", buckets, at_least=1, bits=31)
        self.num_buckets = num_buckets

    def transform_column(self, name: str, column: Any) -> Array:
        """Return the bucket of each value."""
        values, valid = self._keys(name, column)
        ids = to_buckets(hash_values(values), self.cardinality(name))
        if valid is not None:
            ids[~valid] = 0
        return ids

    def cardinality(self, name: str) -> int:
        """Return the number of buckets of a column: ids are in [0, cardinality)."""
        return int(per_column(self.num_buckets, name))

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the same names; ValueError for columns without buckets."""
        return self._require_settings("num_buckets", names)

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return categorical columns with `num_buckets` as cardinality."""
        return as_ids(columns, self.cardinality)


class HashedCross(Op):
    """Makes one column of several: the bucket of the combination of their values.

    Returns (from transform): one column, int32 ids in [0, num_buckets). A null in a combination is
    a value like others. The order of the columns matters.

    Args:
        num_buckets: 1 to 2**31 - 1.
        name: of the new column; None joins the names by "_X_".

    Raises:
        ValueError: if `num_buckets` is out of range.
        TypeError: for floating-point columns and for lists.

    Example:
        >>> import numpy as np
        >>> group = ["a", "b"] >> HashedCross(100)
        >>> chunk = group.transform(Chunk({"a": np.array([1, 2]), "b": np.array([2, 1])}))
        >>> chunk["a_X_b"].tolist()
        [84, 9]
    """

    def __init__(self, num_buckets: int, name: str | None = None) -> None:
        self.num_buckets = check_integer("HashedCross: num_buckets", num_buckets, 1, bits=31)
        self.name = name

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the crossed column."""
        for name, column in chunk.items():
            self._check_no_lists(name, column)
            self._keys(name, column)
        hashes = combined_hashes(list(chunk.values()))
        crossed = combination_name(self.name, chunk.names)
        return Chunk({crossed: to_buckets(hashes, self.num_buckets)})

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the name of the crossed column."""
        return [combination_name(self.name, names)]

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return the crossed column, categorical."""
        (name,) = self.output_names([column.name for column in columns])
        return as_ids([Column(name, "categorical")], lambda _: self.num_buckets)
