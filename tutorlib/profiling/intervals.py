"""Intervals: a set of times, as disjoint intervals, and its set operations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Intervals:
    """Disjoint intervals in ascending order.

    Args:
        starts: float64 [n], ms.
        stops: float64 [n], ms.

    Example:
        >>> busy = Intervals.union([(0, 2), (1, 3), (5, 6)])
        >>> busy
        Intervals(0-3, 5-6 ms)
        >>> float(busy.total_ms), busy.gaps(0, 8), busy.overlap(Intervals.union([(2, 6)]))
        (4.0, Intervals(3-5, 6-8 ms), Intervals(2-3, 5-6 ms))
    """

    starts: np.ndarray
    stops: np.ndarray

    @classmethod
    def union(cls, pairs: Iterable[tuple[float, float]] | np.ndarray) -> Intervals:
        """Return the union of (start, stop) pairs in any order, which may overlap."""
        spans = np.asarray(pairs if isinstance(pairs, np.ndarray) else list(pairs), dtype=float)
        if not spans.size:
            return cls(np.empty(0), np.empty(0))
        starts, stops = spans[np.argsort(spans[:, 0], kind="stable")].T
        reach = np.maximum.accumulate(stops)
        first = np.flatnonzero(np.r_[True, starts[1:] > reach[:-1]])
        return cls(starts[first], reach[np.r_[first[1:] - 1, len(starts) - 1]])

    @property
    def total_ms(self) -> float:
        """Sum of their lengths, ms."""
        return float((self.stops - self.starts).sum())

    def within(self, start: float, stop: float) -> Intervals:
        """Return the part between two times, ms."""
        starts, stops = self.starts.clip(start, stop), self.stops.clip(start, stop)
        return Intervals(starts[stops > starts], stops[stops > starts])

    def gaps(self, start: float, stop: float) -> Intervals:
        """Return what is missing between two times, ms."""
        inside = self.within(start, stop)
        starts, stops = np.r_[start, inside.stops], np.r_[inside.starts, stop]
        return Intervals(starts[stops > starts], stops[stops > starts])

    def overlap(self, other: Intervals) -> Intervals:
        """Return the intersection with other intervals."""
        if not len(self) or not len(other):
            return Intervals.union([])
        begin, end = min(self.starts[0], other.starts[0]), max(self.stops[-1], other.stops[-1])
        outside = [*self.gaps(begin, end), *other.gaps(begin, end)]
        return Intervals.union(outside).gaps(begin, end)

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return zip(self.starts.tolist(), self.stops.tolist(), strict=True)

    def __repr__(self) -> str:
        shown = ", ".join(f"{start:g}-{stop:g}" for start, stop in list(self)[:4])
        return f"Intervals({shown}{', ...' if len(self) > 4 else ''} ms)"
