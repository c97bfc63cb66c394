"""FitPass: one pass over the data. Row ranges become states, states are merged, ops are finalized.

States may be merged in any order. `fit.py` runs a pass on threads, `dask_cluster.py` on a cluster.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tutorlib.chunk import Chunk
from tutorlib.memory import working_in
from tutorlib.ops import ColumnGroup, LearningOp
from tutorlib.parquet import RowRange, with_encoded_strings
from tutorlib.workflow.inputs import RowSource, locate_errors, read_range, row_ranges_in
from tutorlib.workflow.nulls import with_nulls_in
from tutorlib.workflow.spill import Runs, spillable_nbytes

if TYPE_CHECKING:
    from tutorlib.workflow.workflow import Workflow

States = list[dict[str, Any]]  # one for each op that is fitted: {key: state}
FAN_IN = 8  # states merged at a time


def next_pass(graph: Workflow, source: RowSource) -> FitPass | None:
    """Return the pass that fits the first unfitted op of each group; None if all are fitted."""
    unfitted = graph.unfitted()
    return FitPass(unfitted, source) if unfitted else None


@dataclasses.dataclass
class FitPass:
    """The ops to fit in one pass over the data, and the data. Can be pickled."""

    unfitted: list[
        tuple[ColumnGroup, int]
    ]  # index of each op in its group; those before are fitted
    source: RowSource

    def __post_init__(self) -> None:
        self.source = with_encoded_strings(self.source)
        self.null_columns = NullColumns()
        self.ops: list[LearningOp] = [self.null_columns]
        for group, index in self.unfitted:
            op = group.ops[index]
            if not isinstance(op, LearningOp):
                raise TypeError(f"{op!r} has to be fitted, but is not a LearningOp")
            self.ops.append(op)

    @property
    def columns(self) -> list[str]:
        """Columns of the data that the pass reads."""
        return list(dict.fromkeys(n for group, _ in self.unfitted for n in group.fit_names))

    def row_ranges(self) -> list[RowRange]:
        """Return all row ranges of the data."""
        return row_ranges_in(self.source)

    def learn_from(self, row_range: RowRange) -> States:
        """Return the states of the rows in a row range."""
        with working_in(self.source):
            chunk = read_range(self.source, row_range, self.columns)
            with locate_errors(self.source, row_range):
                states = [group.partial(chunk, index) for group, index in self.unfitted]
        return [self.ops[0].partial(chunk), *states]

    def learn_from_all(self, row_ranges: Iterable[RowRange]) -> States:
        """Return the states of the rows in all row ranges, merged."""
        return self.merge_all(map(self.learn_from, row_ranges))

    def merge(self, several: Sequence[States]) -> States:
        """Return the states of the rows of all."""
        by_op = zip(self.ops, *several, strict=True)
        return [op.merge(*states) for op, *states in by_op]

    def merge_all(self, several: Iterable[States]) -> States:
        """Return all states merged, holding a few of them in memory at a time."""
        merger = Merger(self)
        for states in several:
            merger.add(states)
        return merger.result()


class NullColumns(LearningOp):
    """What every pass learns: which columns hold nulls.

    Attributes:
        nulls: their names.
    """

    def __init__(self) -> None:
        self.nulls: list[str] = []

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the rows as they are."""
        return chunk

    def partial(self, chunk: Chunk) -> dict[str, Any]:
        """Return the columns with nulls."""
        return {"nulls": frozenset(with_nulls_in(chunk))}

    def merge_states(self, states: Sequence[Any]) -> Any:
        """Return the union of columns."""
        return states[0].union(*states[1:])

    def finalize(self, state: dict[str, Any]) -> None:
        """Set the columns with nulls."""
        self.nulls = sorted(state["nulls"])

    def learned(self) -> dict[str, Any]:
        """Return the columns with nulls."""
        return {"nulls": self.nulls}

    def restore(self, learned: dict[str, Any], tables: Any) -> None:
        """Set the columns with nulls."""
        self.nulls = learned["nulls"]


class Merger:
    """Merges states as they arrive, from any thread; those beyond the limit of `runs` go there.

    `FAN_IN` states of equally many row ranges are merged together: n states of size s cost
    O(n s log n), where adding each to the sum of all would cost O(n**2 s).
    """

    def __init__(self, work: FitPass, runs: Runs | None = None) -> None:
        self._work, self._runs = work, runs
        self._lock = threading.Lock()
        self._levels: dict[int, list[States]] = {}

    def add(self, states: States) -> None:
        """Add the states of a row range."""
        level = 0
        while several := self._keep_or_pop(level, states):
            states = self._work.merge(several)
            level += 1
        if self._runs is not None:
            self._spill(self._runs)

    def _keep_or_pop(self, level: int, states: States) -> list[States]:
        """Keep the states, or return all of their level if these complete a fan-in."""
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
        """Return the states of all row ranges, merged."""
        states = self._work.merge(self.held())
        return states if self._runs is None else self._runs.merge(states)
