"""JoinGroupby: statistics of the rows that share a key, as columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tutorlib.columns import Chunk
from tutorlib.ops.group_op import GroupOp
from tutorlib.ops.shared.exact import ratios, sqrt_of_ratio
from tutorlib.ops.shared.group_sums import GroupSums

STATISTICS = ("count", "sum", "mean", "std", "min", "max")


class JoinGroupby(GroupOp):
    """Gives each row statistics of the rows, learned from, that have the same key.

    Each column of the group is a key by itself, or with `combo` all columns make one key. The
    continuous columns are read as the data has them, and only to learn. Sums are exact.

    Returns (from transform): columns of `dtype` in place of the keys: `{key}_count`, the number of
    rows, and `{key}_{column}_{statistic}` of the values that are not missing; std is the
    population's. A key that is new, or null in any part, gets count and sum 0 and NaN for the
    others; so does a key without values, except for its count. In a column of lists each value is a
    key and counts as a row; the statistics come out as lists.

    Args:
        continuous: columns of numbers, one value per row.
        statistics: some of "count", "sum", "mean", "std", "min", "max".
        combo: whether the columns make one key together.
        name: of a combined key; None joins the columns' names by "_X_".
        dtype: of the output, "float16", "float32" or "float64".

    Raises:
        ValueError: for an unknown statistic, or one other than count without continuous columns.
        TypeError: for keys as in Categorify, and for continuous columns of strings or lists.

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

    def output_suffixes(self) -> list[str]:
        """Return "count" and "{column}_{statistic}"."""
        wanted = [s for s in self.statistics if s != "count"]
        counted = ["count"] if "count" in self.statistics else []
        return counted + [f"{name}_{s}" for name in self.continuous for s in wanted]

    def numbers_of(self, key: str, suffix: str) -> np.ndarray:
        """Return a statistic: of a new key 0 for a count or sum, else NaN."""
        learned = self._tables[key][suffix]
        new = 0.0 if suffix.rpartition("_")[2] in ("count", "sum") else math.nan
        return np.append(np.array([new], learned.dtype), learned)

    def partial(self, chunk: Chunk) -> dict[str, Any]:
        """Return {key: sums of the continuous columns}."""
        return self._sums(
            chunk,
            self.continuous,
            square="std" in self.statistics,
            extremes=bool({"min", "max"} & set(self.statistics)),
        )

    def _learn_key(
        self, key: str, blocks: Iterable[GroupSums], learned: dict[str, dict[str, Any]]
    ) -> Chunk:
        return Chunk.concat([self._statistics_of(block) for block in blocks])

    def _statistics_of(self, sums: GroupSums) -> Chunk:
        groups = sums.take(sums.known_in_order())
        numbers = {}
        for suffix in self.output_suffixes():
            column, _, statistic = suffix.rpartition("_")
            numbers[suffix] = _statistic(groups, column, statistic).astype(self.dtype)
        return self._table(groups, numbers)


def _statistic(groups: GroupSums, name: str, statistic: str) -> np.ndarray:
    """Return float64 [groups], each rounded once from the exact value."""
    if statistic == "count":
        return groups.rows.astype(np.float64)
    counts = groups.arrays["count", name]
    if statistic in ("min", "max"):
        return np.where(counts > 0, groups.arrays[statistic, name], np.nan)
    total, e = groups.totals("sum", name)
    if statistic == "sum":
        return ratios(total, np.ones_like(counts), e)
    if statistic == "mean":
        return ratios(total, counts, e)
    square, f = groups.totals("square", name)
    rows = zip(total.tolist(), square.tolist(), counts.tolist(), strict=True)
    return np.array([_std(t, e, q, f, n) for t, q, n in rows], dtype=np.float64)


def _std(total: int, e: int, square: int, f: int, count: int) -> float:
    """Return the standard deviation for the sum total * 2**-e and sum of squares square * 2**-f.

    count * squares - total * total is exact, so nothing cancels.
    """
    if not count:
        return math.nan
    shift = max(2 * e, f)
    spread = (count * square << shift - f) - (total * total << shift - 2 * e)
    return sqrt_of_ratio(spread, count * count << shift)
