"""One pass over the data: what is learned from each part, merged in pairs, on threads.

States may be merged in any order, and are: a thread that has a state merges it with another of as
many parts, if there is one. Does not belong here: what a state is (`ops`), which ops learn in a
pass (`workflow.py`), other machines (`cluster.py`).
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tutorlib.memory import working_in
from tutorlib.ops import LearningOp
from tutorlib.parquet import RowRange, with_encoded_strings
from tutorlib.storage import map_on_threads
from tutorlib.workflow.inputs import locate_errors, read_range, row_ranges_in
from tutorlib.workflow.spill import Runs, spillable_nbytes

States = list[dict[str, Any]]  # one for each op that learns
FAN_IN = 8


@dataclasses.dataclass
class FitPass:
    """What a pass over the data has to do; can be sent to another process.

    Args:
        workflow: whose `partial` gives the states of a chunk.
        pending: (group, place of the op in it) of the ops that learn.
        source: of the interface of a `ParquetSource`.
    """

    workflow: Any
    pending: list[tuple[Any, int]]
    source: Any

    def __post_init__(self) -> None:
        self.source = with_encoded_strings(self.source)

    @property
    def ops(self) -> list[LearningOp]:
        """The ops that learn."""
        return [group.ops[place] for group, place in self.pending]

    def row_ranges(self) -> list[RowRange]:
        """Return what the data consists of."""
        return row_ranges_in(self.source)

    def learn_from(self, row_range: RowRange) -> States:
        """Return the states of the rows of a part."""
        workflow, names = self.workflow, self.workflow.names_to_learn(self.pending)
        with working_in(self.source):
            chunk = read_range(self.source, row_range, names)
            with locate_errors(self.source, row_range):
                return workflow.partial(self.pending, chunk)

    def merge(self, several: Sequence[States]) -> States:
        """Return the states of the rows of all."""
        by_op = zip(self.ops, *several, strict=True)
        return [op.merge(*states) for op, *states in by_op]

    def merge_all(self, states: Iterable[States]) -> States:
        """Return all states merged, with a few of them in memory at a time."""
        merger = Merger(self)
        for state in states:
            merger.add(state)
        return merger.result()


class Merger:
    """Merges states as they come, from any thread.

    `FAN_IN` states of equally many parts are merged at once, so that n states of size s cost
    O(n s log n), not n^2 s. Merging two at a time would take a third longer.

    Args:
        work: says how to merge.
        runs: takes the states that are above its limit; None to keep all in memory.
    """

    def __init__(self, work: FitPass, runs: Runs | None = None) -> None:
        self._work, self._runs = work, runs
        self._lock = threading.Lock()
        self._levels: dict[int, list[States]] = {}

    def add(self, states: States) -> None:
        """Take the states of a part."""
        level = 0
        while several := self._keep_or_pop(level, states):
            states = self._work.merge(several)
            level += 1
        if self._runs is not None:
            self._spill(self._runs)

    def _keep_or_pop(self, level: int, states: States) -> list[States]:
        """Keep the states, or return them with others of their level if there are enough."""
        with self._lock:
            kept = self._levels.setdefault(level, [])
            kept.append(states)
            return self._levels.pop(level) if len(kept) == FAN_IN else []

    def held(self) -> list[States]:
        """Return the states in memory."""
        return [states for level in sorted(self._levels) for states in self._levels[level]]

    def _spill(self, runs: Runs) -> None:
        with self._lock:
            held = self.held()
            if sum(spillable_nbytes(self._work.ops, states) for states in held) <= runs.limit_bytes:
                return
            self._levels = {}
        self.add(runs.write(self._work.merge(held)))

    def result(self) -> States:
        """Return the states of all parts."""
        states = self._work.merge(self.held())
        return states if self._runs is None else self._runs.merge(states)


def learn_on_threads(
    work: FitPass, threads: int, memory_budget: int | None, done: Callable[[int], None]
) -> None:
    """Let the ops of a pass learn, each thread working on a part at a time.

    Args:
        work: the pass.
        threads: each holds a part.
        memory_budget: bytes of states, beyond which those that can be are kept in files; or None.
        done: called with the rows of each part.
    """
    if memory_budget is None:
        _learn(work, Merger(work), threads, done)
        return
    with Runs(work.ops, memory_budget) as runs:
        _learn(work, Merger(work, runs), threads, done)


def _learn(work: FitPass, merger: Merger, threads: int, done: Callable[[int], None]) -> None:
    def learn(row_range: RowRange) -> None:
        merger.add(work.learn_from(row_range))
        done(row_range.num_rows)

    map_on_threads(learn, work.row_ranges(), threads)
    for op, state in zip(work.ops, merger.result(), strict=True):
        op.finalize(state)
