"""LoaderLife: what ends, copies and pickles a loader; which workers may read a copy."""

from __future__ import annotations

import abc
import copy
import sys
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


def refuse_other_workers(global_size: int | None) -> None:
    """Raise RuntimeError in one of several PyTorch workers, if each would give every row.

    Args:
        global_size: number of ranks of the loader; None if it has no ranks.
    """
    torch_data = sys.modules.get("torch.utils.data")
    worker = torch_data and torch_data.get_worker_info()
    if worker is not None and worker.num_workers > 1 and global_size is None:
        raise RuntimeError(
            f"{worker.num_workers} workers of a PyTorch DataLoader iterate over copies of this "
            "loader, and each would give every row. The loader has threads of its own: use "
            "num_workers=0, or make a loader in each worker with global_size=num_workers and "
            "global_rank=torch.utils.data.get_worker_info().id."
        )
