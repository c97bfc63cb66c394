"""One pass over the data: what is learned from each part, merged in pairs, on threads.

States may be merged in any order, and are: a thread that has a state merges it with another of as
many parts, if there is one. Does not belong here: what a state is (`ops`), which ops learn in a
pass (`workflow.py`), other machines (`cluster.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

from tutorlib.ops import LearningOp
from tutorlib.parts import Part, errors_at, parts_of, read, read_before
from tutorlib.spilling import Runs, spillable_nbytes

States = list[dict[str, Any]]  # one for each op that learns


@dataclasses.dataclass
class Pass:
    """What a pass over the data has to do; can be sent to another process.

    Args:
        workflow: whose `partial` gives the states of a chunk.
        pending: (group, place of the op in it) of the ops that learn.
        source: of the interface of a `ParquetSource`.
    """

    workflow: Any
    pending: list[tuple[Any, int]]
    source: Any

    @property
    def ops(self) -> list[LearningOp]:
        """The ops that learn."""
        return [group.ops[place] for group, place in self.pending]

    def parts(self) -> list[Part]:
        """Return what the data consists of."""
        return parts_of(self.source)

    def learn_from(self, part: Part) -> States:
        """Return the states of the rows of a part."""
        workflow, names = self.workflow, self.workflow.names_to_learn(self.pending)
        chunk = read(self.source, part, names)
        before = read_before(self.source, part, names, workflow.rows_before)
        with errors_at(self.source, part):
            return workflow.partial(self.pending, chunk, before)

    def merge(self, a: States, b: States) -> States:
        """Return the states of the rows of both."""
        return [op.merge(x, y) for op, x, y in zip(self.ops, a, b, strict=True)]

    def merge_all(self, states: Iterable[States]) -> States:
        """Return all states merged."""
        return functools.reduce(self.merge, states)


class Merger:
    """Merges states as they come, from any thread.

    States of equally many parts are merged with each other, so that n states of size s cost
    O(n s log n), not n^2 s.

    Args:
        work: says how to merge.
        runs: takes the states that are above the budget; None to keep all in memory.
        memory_budget: bytes of states; half of it is for merging.
    """

    def __init__(self, work: Pass, runs: Runs | None = None, memory_budget: int = 0) -> None:
        self._work, self._runs, self._limit = work, runs, memory_budget // 2
        self._lock = threading.Lock()
        self._levels: dict[int, States] = {}

    def add(self, states: States) -> None:
        """Take the states of a part."""
        level = 0
        while (other := self._pop_or_keep(level, states)) is not None:
            states = self._work.merge(other, states)
            level += 1
        if self._runs is not None:
            self._spill(self._runs)

    def _pop_or_keep(self, level: int, states: States) -> States | None:
        with self._lock:
            other = self._levels.pop(level, None)
            if other is None:
                self._levels[level] = states
            return other

    def _spill(self, runs: Runs) -> None:
        with self._lock:
            held = sum(spillable_nbytes(self._work.ops, s) for s in self._levels.values())
            if held <= self._limit:
                return
            taken, self._levels = self._levels, {}
        rest = runs.write(self._work.merge_all(taken[level] for level in sorted(taken)))
        self.add(rest)

    def result(self) -> States:
        """Return the states of all parts."""
        states = self._work.merge_all(self._levels[level] for level in sorted(self._levels))
        return states if self._runs is None else self._runs.merge(states)


def learn_on_threads(
    work: Pass, threads: int, memory_budget: int | None, done: Callable[[int], None]
) -> None:
    """Let the ops of a pass learn, each thread working on a part at a time.

    Args:
        work: the pass.
        threads: each holds a part.
        memory_budget: bytes of states, beyond which those that can be are kept in files; or None.
        done: called with the rows of each part.
    """
    if memory_budget is None:
        states = _states_of(work, Merger(work), threads, done)
    else:
        with Runs(work.ops) as runs:
            states = _states_of(work, Merger(work, runs, memory_budget), threads, done)
    for op, state in zip(work.ops, states, strict=True):
        op.finalize(state)


def _states_of(
    work: Pass, merger: Merger, threads: int, done: Callable[[int], None]
) -> States:  # fmt: skip
    parts = iter(work.parts())
    lock, stop = threading.Lock(), threading.Event()

    def learn() -> None:
        while not stop.is_set():
            with lock:
                part = next(parts, None)
            if part is None:
                return
            merger.add(work.learn_from(part))
            done(part.num_rows)

    run_together([learn] * threads, stop)
    return merger.result()


def run_together(tasks: Sequence[Callable[[], None]], stop: threading.Event) -> None:
    """Run each task on a thread of its own; after an error of one, raised here, all stop.

    Args:
        tasks: that look at `stop` from time to time.
        stop: is set at the end, however it comes.
    """
    with ThreadPoolExecutor(len(tasks), thread_name_prefix="workflow") as pool:
        try:
            futures = [pool.submit(task) for task in tasks]
            finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
    for future in [*finished, *futures]:
        future.result()
