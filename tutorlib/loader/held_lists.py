"""HeldLists: lists within a row group may be longer than its mean, by which a budget plans."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any


class HeldLists:
    """Counts the bytes of the lists in the groups of a pass, and refuses more than was planned.

    Args:
        most_bytes: of all groups together; None for any number.
        advice: returns the end of the error: what to do.

    Example:
        >>> class Group:
        ...     pass
        >>> held, group = HeldLists(100, lambda: "Write smaller row groups"), Group()
        >>> held.add(group, 60)
        >>> held.add(group, 60)
        Traceback (most recent call last):
        ValueError: the lists of these rows are far longer than their row group's mean: 120 bytes \
of lists would be held, but the memory_budget leaves 100 for them. Write smaller row groups
    """

    def __init__(
        self, most_bytes: int | None = None, advice: Callable[[], str] = lambda: ""
    ) -> None:
        self._most, self._advice = most_bytes, advice
        self._lock = threading.Lock()
        self._groups = weakref.WeakKeyDictionary[Any, int]()  # a group that is converted is gone

    def add(self, group: Any, nbytes: int) -> None:
        """Count the bytes of lists that a group is given.

        Raises:
            ValueError: if the groups then hold more than `most_bytes`.
        """
        if self._most is None:
            return
        with self._lock:
            self._groups[group] = self._groups.get(group, 0) + nbytes
            held = sum(self._groups.values())
        if held > self._most:
            raise ValueError(
                "the lists of these rows are far longer than their row group's mean: "
                f"{held:,} bytes of lists would be held, but the memory_budget leaves "
                f"{self._most:,} for them. {self._advice()}"
            )
