"""JoinGroupby: statistics of the rows that share a key, as columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tutorlib.chunk import Array, Chunk, array_namespace
from tutorlib.memory import DeviceCache
from tutorlib.ops.group_op import GroupOp
from tutorlib.ops.groups import GroupSums

STATISTICS = ("count", "sum", "mean", "std", "min", "max")


class JoinGroupby(GroupOp):
    """Gives each row statistics of the rows, learned from, that have the same key.

    The columns of the group are the keys, each by itself, or all together with `combo`. What comes
    out is `{key}_count` (rows), and of each continuous column `{key}_{column}_{statistic}`, of its
    values that are there; std is the population's, as in Normalize. The continuous columns are read
    from the data as they are, only while learning. Sums are exact and rounded once, so that
    neither chunks nor the order of merging change a bit.

    A row whose key is new, or null in any part, gets the statistics of no rows: count and sum 0,
    the others NaN; so does a key whose values are all missing, but for its count. In a list column
    each value is a key and counts as a row, and lists of statistics come out; lists cannot be
    combined.

    Args:
        continuous: columns of numbers that the data has, one value a row.
        statistics: some of count, sum, mean, std, min, max.
        combo: whether the columns together are one key.
        name: of a combined key; None joins the columns' names by "_X_".
        dtype: of what comes out.

    Raises:
        TypeError: if a key is a floating-point number, or keys come as texts where integers were
            learned, or a continuous column holds texts or lists.

    Example:
        >>> group = ["user"] >> JoinGroupby(["price"], ["count", "mean"])
        >>> chunk = Chunk({"user": np.array([7, 5, 7]), "price": np.array([1.0, 5.0, 2.0])})
        >>> group.ops[0].finalize(group.partial(chunk, 0))
        >>> out = group.transform(Chunk({"user": np.array([7, 6])}))
        >>> out["user_count"].tolist(), out["user_price_mean"].tolist()
        ([2.0, 0.0], [1.5, nan])
    """

    def __init__(
        self,
        continuous: Sequence[str] = (),
        statistics: Sequence[str] = ("count",),
        combo: bool = False,
        name: str | None = None,
        dtype: str = "float32",
    ) -> None:
        self.continuous, self.statistics = list(continuous), list(statistics)
        wrong = [s for s in self.statistics if s not in STATISTICS]
        if wrong or not self.statistics:
            raise ValueError(f"JoinGroupby: statistics are some of {STATISTICS}, got {statistics}")
        if not self.continuous and self.statistics != ["count"]:
            raise ValueError(f"JoinGroupby: {self.statistics} need continuous columns, got none")
        super().__init__(combo, name, dtype)

    @property
    def extra_fit_columns(self) -> Sequence[str]:
        """The continuous columns."""
        return self.continuous

    def made(self) -> list[str]:
        """Return "count" and "{column}_{statistic}"."""
        wanted = [s for s in self.statistics if s != "count"]
        counted = ["count"] if "count" in self.statistics else []
        return counted + [f"{name}_{s}" for name in self.continuous for s in wanted]

    def partial(self, chunk: Chunk) -> dict[str, Any]:
        """Return {key: sums of the continuous columns}."""
        return self._sums(
            chunk,
            self.continuous,
            square="std" in self.statistics,
            extremes=bool({"min", "max"} & set(self.statistics)),
        )

    def _finalize_key(self, key: str, blocks: Iterable[GroupSums]) -> None:
        table = Chunk.concat([self._statistics_of(block) for block in blocks])
        self.restore({}, {**self._tables, key: table})

    def _statistics_of(self, sums: GroupSums) -> Chunk:
        groups = sums.take(sums.known_in_order())
        numbers = {}
        for made in self.made():
            column, _, statistic = made.rpartition("_")
            numbers[made] = _statistic(groups, column, statistic).astype(self.dtype)
        return self._table(groups, numbers)

    def restore(self, learned: dict[str, Any], tables: Mapping[str, Chunk]) -> None:
        """Take the tables back."""
        super().restore(learned, tables)
        self._by_key = {
            (key, made): DeviceCache(self._with_new_key(key, made, table[made]))
            for key, table in tables.items()
            for made in self.made()
        }

    def _with_new_key(self, key: str, made: str, numbers: Array) -> Array:
        """Return the numbers of a table behind that of a new key: looked up by place from 1."""
        return np.append(numbers.dtype.type(self.number_of_new_key(key, made)), numbers)

    def number_of_new_key(self, key: str, made: str) -> float:
        """Return 0 for a count or sum, else NaN."""
        return 0.0 if made.rpartition("_")[2] in ("count", "sum") else math.nan

    def _numbers_at(
        self, key: str, places: Array, chunk: Chunk, offsets: Array | None
    ) -> dict[str, Array]:
        xp = array_namespace(places)
        return {made: self._by_key[key, made].on(xp)[places] for made in self.made()}


def _statistic(groups: GroupSums, name: str, statistic: str) -> np.ndarray:
    """Return float64 [groups], each rounded once from the exact value."""
    if statistic == "count":
        return groups.arrays["rows",].astype(np.float64)
    counts = groups.arrays["count", name]
    if statistic in ("min", "max"):
        return np.where(counts > 0, groups.arrays[statistic, name], np.nan)
    total, e = groups.totals("sum", name)
    if statistic == "sum":
        return np.array([t / (1 << e) for t in total], dtype=np.float64)
    if statistic == "mean":
        pairs = zip(total, counts.tolist(), strict=True)
        return np.array([t / (n << e) if n else math.nan for t, n in pairs], dtype=np.float64)
    square, f = groups.totals("square", name)
    rows = zip(total, square, counts.tolist(), strict=True)
    return np.array([_std(t, e, q, f, n) for t, q, n in rows], dtype=np.float64)


def _std(total: int, e: int, square: int, f: int, count: int) -> float:
    """Return the standard deviation of values that sum to total * 2**-e, squares to square * 2**-f.

    count * squares - total * total is exact, so that nothing cancels.
    """
    if not count:
        return math.nan
    shift = max(2 * e, f)
    spread = (count * square << shift - f) - (total * total << shift - 2 * e)
    return math.sqrt(max(0, spread) / (count * count << shift))
