"""LoaderLife: what ends, copies and pickles a loader."""

from __future__ import annotations

import abc
import copy
from typing import Any, Self

from tutorlib.loader.pipeline import Stopwatch


class LoaderLife(abc.ABC):
    """A loader ends with its `with` block. It can be copied and pickled before its first batch."""

    _cursor: Any
    _running: list[Any]
    _stopwatch: Stopwatch

    @property
    def has_begun(self) -> bool:
        """Whether a batch was asked for."""
        return bool(self._running or self._stopwatch.sums())

    @abc.abstractmethod
    def close(self) -> None:
        """Stop all threads."""

    @abc.abstractmethod
    def _begin(self) -> None:
        """Set what passes change."""

    def __getstate__(self) -> dict[str, Any]:
        if self.has_begun:
            raise TypeError(
                "a loader that has begun holds threads and cannot be copied or pickled. Do it "
                "before the first batch; or make another loader with the same arguments and give "
                "it state_dict() of this one."
            )
        left_out = dict.fromkeys(("_stopwatch", "_pool", "_open", "_running"))
        return {**vars(self), **left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()
        self._cursor = copy.copy(state["_cursor"])

    def _twin(self) -> Self:
        """Return an object with the same attributes, whether this one has begun or not."""
        twin = object.__new__(type(self))
        twin.__dict__.update(vars(self))
        return twin

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
